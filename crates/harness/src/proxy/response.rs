//! Responses of the proxy: streamed, cut off, or its own.

use std::{fmt, io};

use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use tokio::sync::watch;

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Closes the connection.
#[derive(Debug)]
pub(super) struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection ends here")
    }
}

impl std::error::Error for Ended {}

/// Streams a body until it is cut.
pub(super) fn carried(body: kube::client::Body, cuts: Option<watch::Receiver<u64>>, born: u64) -> Body {
    let stream = futures::stream::unfold(Some((body, cuts)), move |state| async move {
        let (mut body, mut cuts) = state?;
        let cut = async {
            match &mut cuts {
                Some(cuts) => drop(cuts.wait_for(|now| *now > born).await),
                None => std::future::pending().await,
            }
        };
        let frame: Option<Result<Frame<Bytes>, io::Error>> = tokio::select! {
            frame = body.frame() => frame.map(|frame| frame.map_err(io::Error::other)),
            () = cut => Some(Err(io::Error::other(Ended))),
        };
        let next = frame.as_ref().is_some_and(Result::is_ok).then_some((body, cuts));
        frame.map(|frame| (frame, next))
    });
    StreamBody::new(stream).boxed_unsync()
}

/// Builds an error response like that of an API server or load balancer.
pub(super) fn refusal(code: u16, wait: Option<u32>) -> Response<Body> {
    let reason = match code {
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "on purpose", "reason": reason, "code": code,
    });
    let mut response = Response::new(Full::from(status.to_string()).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).expect("a status code");
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    if let Some(seconds) = wait {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
