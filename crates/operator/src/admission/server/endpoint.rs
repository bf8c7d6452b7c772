//! The answer to one admission request: body, limits, deadline, handler and response.
//!
//! Fails open, as the server does: every result but a decision of the handler is *allowed,
//! unchanged*, or left to the failure policy.

use std::{convert::Infallible, time::Duration};

use ::http::{
    HeaderValue, StatusCode, Version,
    header::{self, CONTENT_LENGTH},
};
use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures::stream;
use http_body_util::BodyExt as _;
use perennial_core::admission_review::{self as review, AdmissionResponse, Review};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{Instrument as _, debug, field, info_span, warn};

use super::{
    super::{
        fair_share::{Client, FairShares, InProgress},
        limits::{CHUNK, Limits, UNRESERVED},
        memory::{ConnectionMemory, Memory, Reservation},
    },
    Handler, Report,
    outcome::{Observation, Outcome},
};
use crate::runtime::{
    connection_limit::{Active, ConnectionUse},
    traces,
};

/// One path of the server.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) path: &'static str,
    pub(super) handler: Handler,
    pub(super) limits: Limits,
    pub(super) shares: FairShares,
    pub(super) memory: Memory,
    /// Whether only clients with a certificate are answered.
    pub(super) verified_only: bool,
    pub(super) report: Report,
    pub(super) stop: CancellationToken,
}

pub(super) async fn answer(State(endpoint): State<Endpoint>, request: Request) -> Response {
    let start = Instant::now();
    let persistent = request.version() == Version::HTTP_11;
    let connection = request.extensions().get::<ConnectionUse>().cloned();
    let client = request.extensions().get::<Client>().cloned().unwrap_or_else(|| endpoint.shares.client(None));
    let (outcome, reply) = if endpoint.verified_only && !client.is_verified() {
        refuse_as(Outcome::Unverified, StatusCode::UNAUTHORIZED)
    } else if let Some(request_in_progress) = client.begin() {
        endpoint.answer(request, start, request_in_progress).await
    } else {
        refuse(StatusCode::SERVICE_UNAVAILABLE)
    };
    let mut response = reply.into_response();
    if let Some(connection) = connection.filter(|_| !matches!(outcome, Outcome::Refused | Outcome::Unverified)) {
        connection.record();
    }
    if persistent && endpoint.stop.is_cancelled() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let elapsed = start.elapsed();
    debug!(path = endpoint.path, outcome = outcome.name(), ?elapsed, "admission request answered");
    (endpoint.report)(&Observation { path: endpoint.path, outcome, elapsed });
    response
}

impl Endpoint {
    /// Reads a body, within the memory of its connection and of the server.
    async fn read_body(&self, request: Request, memory: &mut Reservation) -> Result<Vec<u8>, StatusCode> {
        let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: usize| length > self.limits.body) {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let mut frames = request.into_body();
        let mut body = Vec::new();
        while let Some(frame) = frames.frame().await {
            let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
            let length = body.len() + data.len();
            if length > self.limits.body {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            if length > body.capacity() {
                // Never more than twice the bytes that arrived.
                let mut capacity = (2 * length).min(announced.unwrap_or(self.limits.body).max(length));
                if !memory.try_grow_to(capacity) {
                    capacity = length;
                    memory.grow_to(capacity).await;
                }
                body.reserve_exact(capacity - body.len());
            }
            body.extend_from_slice(&data);
        }
        Ok(body)
    }

    async fn answer(&self, request: Request, start: Instant, in_progress: InProgress) -> (Outcome, Reply) {
        let deadline = start + self.limits.deadline;
        let connection = request.extensions().get::<ConnectionMemory>().cloned();
        let used = request.extensions().get::<ConnectionUse>().cloned();
        let mut memory = connection.unwrap_or_else(|| self.memory.connection()).reserve();
        // The API server sends a body at once. A client that does not must not hold memory until
        // the deadline, since reviews that wait for it have the same one.
        let read = self.read_body(request, &mut memory);
        let body = match tokio::time::timeout_at(start + self.limits.deadline / 2, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(status)) => return refuse(status),
            Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT),
        };
        // The connection of a complete review is closed last, until its response is sent.
        let active = used.as_ref().map(ConnectionUse::activate);
        let unread = used.map(|connection| Unread { connection, limit: self.limits.write });
        let mut held = Held { in_progress, memory: None, unread, _active: active };
        let Ok(Some(permit)) = tokio::time::timeout_at(deadline, held.in_progress.run()).await else {
            let uid = review::read_uid(&body);
            return uid.map_or_else(|| refuse(StatusCode::BAD_REQUEST), |uid| overloaded(&uid, held));
        };
        let request = match review::read(&body) {
            Review::Request(request) => *request,
            Review::Malformed { uid } => {
                let bytes = review::write(&uid, &AdmissionResponse::allowed());
                return (Outcome::Malformed, Reply::review(bytes, held));
            }
            Review::Unreadable => return refuse(StatusCode::BAD_REQUEST),
        };
        drop(body);
        let footprint = request.footprint();
        if footprint > UNRESERVED && !memory.try_grow_to(footprint) {
            return overloaded(&request.uid, held);
        }

        let uid = request.uid.clone();
        let decision = (self.handler)(request);
        // In its own task, so that it finishes after the deadline and its panic is contained.
        let span = info_span!(target: traces::TARGET, "admission", path = self.path, outcome = field::Empty);
        let decided = async move {
            let _permit = permit;
            (decision.await, memory)
        };
        let task = tokio::spawn(decided.instrument(span.clone()));
        let (outcome, response, memory) = match tokio::time::timeout_at(deadline, task).await {
            Ok(Ok((response, memory))) => (Outcome::of(&response), response, Some(memory)),
            Ok(Err(error)) => {
                warn!(path = self.path, %error, "webhook handler panicked, request allowed");
                (Outcome::Failed, AdmissionResponse::allowed(), None)
            }
            Err(_) => (Outcome::Late, AdmissionResponse::allowed(), None),
        };
        span.record("outcome", field::debug(outcome));
        let bytes = review::write(&uid, &response);
        if let Some(mut memory) = memory {
            memory.shrink_to(bytes.len());
            if tokio::time::timeout_at(deadline, memory.grow_to(bytes.len())).await.is_err() {
                return overloaded(&uid, held);
            }
            held.memory = Some(memory);
        }
        (outcome, Reply::review(bytes, held))
    }
}

/// The limits that a request counts towards until its response is sent, up to a part that is small.
struct Held {
    in_progress: InProgress,
    memory: Option<Reservation>,
    unread: Option<Unread>,
    _active: Option<Active>,
}

/// The connection of a response, which is closed if the client does not read the response in time.
/// An HTTP/2 client that grants no window would hold the response forever.
struct Unread {
    connection: ConnectionUse,
    limit: Duration,
}

impl Unread {
    /// Starts the time. It ends when the result is dropped.
    fn start(self) -> DropGuard {
        let read = CancellationToken::new();
        let guard = read.clone().drop_guard();
        tokio::spawn(async move {
            if tokio::time::timeout(self.limit, read.cancelled()).await.is_err() {
                self.connection.close();
            }
        });
        guard
    }
}

/// A response before it is sent.
struct Reply {
    status: StatusCode,
    body: Bytes,
    held: Option<Held>,
}

impl Reply {
    /// Returns the response to a review, which holds its memory until it is sent.
    fn review(body: Vec<u8>, held: Held) -> Self {
        Self { status: StatusCode::OK, body: body.into(), held: Some(held) }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let Self { status, body, held } = self;
        let Some(mut held) = held else { return status.into_response() };
        let unread = held.unread.take().map(Unread::start);
        let length = HeaderValue::from(body.len());
        let next = |(mut rest, held): (Bytes, _)| {
            let part = rest.split_to(rest.len().min(CHUNK));
            std::future::ready((!part.is_empty()).then(|| (Ok::<_, Infallible>(part), (rest, held))))
        };
        let body = Body::from_stream(stream::unfold((body, (held, unread)), next));
        let headers =
            [(header::CONTENT_TYPE, HeaderValue::from_static("application/json")), (header::CONTENT_LENGTH, length)];
        (status, headers, body).into_response()
    }
}

fn overloaded(uid: &str, held: Held) -> (Outcome, Reply) {
    let bytes = review::write(uid, &AdmissionResponse::allowed());
    (Outcome::Overloaded, Reply::review(bytes, held))
}

fn refuse(status: StatusCode) -> (Outcome, Reply) {
    refuse_as(Outcome::Refused, status)
}

fn refuse_as(outcome: Outcome, status: StatusCode) -> (Outcome, Reply) {
    (outcome, Reply { status, body: Bytes::new(), held: None })
}
