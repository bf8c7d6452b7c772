//! Operator of the next version: it writes records in a newer format and reads both formats.
//!
//! The client translates: records have the next version on the wire and this version in memory.

use std::process::ExitCode;

use futures::{
    StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::{Client, client::Body};
use perennial::{cli, run::Dependencies};
use perennial_core::keeper::{
    hash::Digest,
    record::{RECORD_KEY, RECOVERED_KEY},
};
use serde_json::Value;
use tower::BoxError;

type Chunks = BoxStream<'static, Result<Bytes, BoxError>>;
type Reply = UnsyncBoxBody<Bytes, BoxError>;

const THIS: u64 = 1;
const NEXT: u64 = 2;

fn main() -> ExitCode {
    cli::main_in(Dependencies { wrap_client: translated, ..Dependencies::default() })
}

fn translated(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service =
        tower::service_fn(move |request| -> BoxFuture<'static, _> { Box::pin(send(client.clone(), request)) });
    Client::new(service, namespace)
}

async fn send(client: Client, request: Request<Body>) -> Result<Response<Reply>, BoxError> {
    let (parts, body) = request.into_parts();
    let is_watch = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
    let sent = translate(&body.collect_bytes().await?, THIS, NEXT);
    let answer = client.send(Request::from_parts(parts, Body::from(sent))).await?;
    let (parts, body) = answer.into_parts();
    let body = if is_watch {
        lines(body)
    } else {
        let read = translate(&body.collect_bytes().await?, NEXT, THIS);
        Full::from(read).map_err(|never| match never {}).boxed_unsync()
    };
    Ok(Response::from_parts(parts, body))
}

/// Translates the body of a watch line by line.
fn lines(body: Body) -> Reply {
    let chunks: Chunks = body.into_data_stream().map_err(BoxError::from).boxed();
    let lines = stream::try_unfold((chunks, Vec::new()), async |(mut chunks, mut line): (Chunks, Vec<u8>)| {
        loop {
            if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                let rest = line.split_off(end + 1);
                let mut read = translate(&line, NEXT, THIS);
                if read.last() != Some(&b'\n') {
                    read.push(b'\n');
                }
                return Ok(Some((Frame::data(Bytes::from(read)), (chunks, rest))));
            }
            match chunks.try_next().await? {
                Some(chunk) => line.extend_from_slice(&chunk),
                None => return Ok::<_, BoxError>(None),
            }
        }
    });
    StreamBody::new(lines).boxed_unsync()
}

/// Changes the version of every record in the JSON from `from` to `to`.
fn translate(json: &[u8], from: u64, to: u64) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(json) else { return json.to_vec() };
    let records = records(&mut value);
    if records.is_empty() {
        return json.to_vec();
    }
    for record in records {
        if let Some(text) = record.as_str().and_then(|text| reversion(text, from, to)) {
            *record = Value::String(text);
        }
    }
    serde_json::to_vec(&value).unwrap_or_default()
}

/// Returns the records in a ConfigMap, in a list of them, or in a watch event.
fn records(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Object(fields) => {
            let found = fields.iter_mut().map(|(key, value)| match key.as_str() {
                RECORD_KEY | RECOVERED_KEY => vec![value],
                "object" | "items" | "data" => records(value),
                _ => Vec::new(),
            });
            found.flatten().collect()
        }
        Value::Array(items) => items.iter_mut().flat_map(records).collect(),
        _ => Vec::new(),
    }
}

/// Returns the record with another version and its checksum. History entries have their own
/// checksums.
fn reversion(record: &str, from: u64, to: u64) -> Option<String> {
    let fields = record.strip_prefix(&format!("{{\"version\":{from},"))?;
    let (content, rest) = fields.split_once(",\"checksum\":\"")?;
    let (_, history) = rest.split_once("\",")?;
    let summed = format!("{{\"version\":{to},{content},\"checksum\":\"\",\"history\":[]}}");
    let checksum = Digest::of([summed]);
    Some(format!("{{\"version\":{to},{content},\"checksum\":\"{checksum}\",{history}"))
}
