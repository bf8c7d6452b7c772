//! The transport to the API server: a tower service for one client, with latency, and with faults
//! if the client is an operator.
//!
//! A request that was sent is processed even if its sender times out or crashes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body as Reply;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, header};
use kube::client::Body;
use perennial::runtime::client::READ_TIMEOUT;
use serde_json::Value;
use tokio::{sync::oneshot, time::Instant};
use tower::{BoxError, Service};

use super::{
    api::{ApiRequest, ApiResponse},
    authn::User,
    fault_plan::RequestFault,
    kinds::{CONFIG_MAPS, EVENTS, KEEP_POLICIES, LEASES, Target},
    response::{self, ApiError},
    watch,
    world::World,
};
use crate::tamper;

/// More requests than this in one history count as an endless loop.
const TOO_MANY: u64 = 60_000;

/// The transport of one client.
#[derive(Clone)]
pub struct Transport {
    world: World,
    who: User,
    alive: Arc<AtomicBool>,
}

impl Transport {
    pub fn new(world: World, who: User, alive: Arc<AtomicBool>) -> Self {
        Self { world, who, alive }
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Reply>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Reply>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let front = self.clone();
        Box::pin(async move {
            if !front.alive.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            let sent = front.world.elapsed();
            let asked = read(request, front.who, sent).await?;
            let (reply, answer) = oneshot::channel();
            tokio::spawn(async move { drop(reply.send(front.travel(asked).await)) });
            match tokio::time::timeout(READ_TIMEOUT, answer).await {
                Ok(answer) => answer.unwrap_or_else(|_| Err("the connection was lost".into())),
                Err(_) => Err("timed out".into()),
            }
        })
    }
}

impl Transport {
    async fn travel(&self, asked: Result<ApiRequest, ApiError>) -> Result<Response<Reply>, BoxError> {
        let mut asked = match asked {
            Ok(asked) => asked,
            Err(refusal) => return Ok(refused(&refusal)),
        };
        let (fault, there, back) = self.roll(&asked);
        tokio::time::sleep(there).await;
        self.stay_while_cut_off().await;
        match fault {
            RequestFault::Throttled => return Ok(self.answer(&asked, Err(response::too_many(1)))),
            RequestFault::Unavailable => return Ok(self.answer(&asked, Err(response::unavailable()))),
            RequestFault::Failed => {
                return Ok(self.answer(&asked, Err(response::internal("etcdserver: request timed out"))));
            }
            RequestFault::Unreachable => return Err("connection refused".into()),
            RequestFault::Slow(pause) => tokio::time::sleep(pause).await,
            RequestFault::Fine | RequestFault::AnswerLost | RequestFault::AnswerNever => {}
        }
        let mut answered = if asked.is_watch() {
            match watch::begin(&self.world, &asked) {
                Ok(events) => {
                    self.note(&asked, 200);
                    Response::new(Reply::from_stream(events))
                }
                Err(refusal) => self.answer(&asked, Err(refusal)),
            }
        } else {
            let answer = match tamper::request(&self.world, &mut asked) {
                Some(answer) => answer,
                None => self.world.process(&asked).await,
            };
            self.answer(&asked, tamper::response(&self.world, &asked, answer))
        };
        match fault {
            RequestFault::AnswerLost => return Err("connection reset by peer".into()),
            RequestFault::AnswerNever => return std::future::pending().await,
            _ => {}
        }
        let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&self.world.now());
        tokio::time::sleep(back).await;
        self.stay_while_cut_off().await;
        if let Some(date) = date.ok().and_then(|date| date.parse().ok()) {
            answered.headers_mut().insert(header::DATE, date);
        }
        Ok(answered)
    }

    fn roll(&self, asked: &ApiRequest) -> (RequestFault, Duration, Duration) {
        let mut state = self.world.lock();
        let (least, most) = state.latency;
        let (mut there, back) = (state.prng.millis(least, most), state.prng.millis(least, most));
        if asked.is_write() && std::ptr::eq(asked.target.kind, &CONFIG_MAPS) {
            there += state.record_writes_take;
        }
        let User::Operator(id) = self.who else { return (RequestFault::Fine, there, back) };
        let free = [&LEASES, &EVENTS, &KEEP_POLICIES].iter().any(|kind| std::ptr::eq(asked.target.kind, *kind));
        // Lists of watches are not rate limited.
        if !free && (asked.is_write() || asked.target.name.is_some()) {
            let at = asked.sent;
            state.journal.requests.entry(id).or_default().push(at);
        }
        let fault_rates = state.fault_rates.clone();
        let mut fault = fault_rates.fault(&mut state.prng);
        if asked.is_watch() && matches!(fault, RequestFault::AnswerLost | RequestFault::AnswerNever) {
            fault = RequestFault::Unreachable;
        }
        if fault != RequestFault::Fine {
            state.fault(fault.name(), self.who);
        }
        (fault, there, back)
    }

    async fn stay_while_cut_off(&self) {
        let User::Operator(id) = self.who else { return };
        let until = self.world.lock().cut_off.get(&id).copied();
        if let Some(until) = until.filter(|until| *until > Instant::now()) {
            tokio::time::sleep_until(until).await;
        }
    }

    fn answer(&self, asked: &ApiRequest, answer: Result<ApiResponse, ApiError>) -> Response<Reply> {
        match answer {
            Ok(answer) => {
                self.note(asked, answer.code);
                let shown = super::lists::shown(&answer.body, asked.partial && asked.target.name.is_some());
                respond(answer.code, &shown)
            }
            Err(refusal) => {
                self.note(asked, refusal.code);
                refused(&refusal)
            }
        }
    }

    fn note(&self, asked: &ApiRequest, code: u16) {
        let at = self.world.elapsed();
        let mut state = self.world.lock();
        state.journal.answers += 1;
        if state.journal.answers == TOO_MANY {
            state.violation("G9", format!("more than {TOO_MANY} requests in one history"));
        }
        let verbose = state.verbose;
        state.note(at, || {
            let Target { kind, name, sub, .. } = &asked.target;
            let watch = if asked.is_watch() { " watch" } else { "" };
            let name = name.as_deref().unwrap_or("*");
            let sub = sub.as_deref().map(|sub| format!("/{sub}")).unwrap_or_default();
            let line = format!("{} {}{watch} {}/{name}{sub} -> {code}", asked.who, asked.method, kind.plural);
            if verbose && asked.is_write() { format!("{line} {}", asked.body) } else { line }
        });
    }
}

async fn read(request: Request<Body>, who: User, sent: Duration) -> Result<Result<ApiRequest, ApiError>, BoxError> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect_bytes().await?;
    let Some(target) = Target::parse(parts.uri.path()) else { return Ok(Err(response::no_such_page())) };
    let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
    let header_of = |headers: &HeaderMap, name: header::HeaderName| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    Ok(Ok(ApiRequest {
        who,
        sent,
        method: parts.method.clone(),
        target,
        query: query(parts.uri.query().unwrap_or_default()),
        content_type: header_of(&parts.headers, header::CONTENT_TYPE),
        partial: header_of(&parts.headers, header::ACCEPT).contains("PartialObjectMetadata"),
        body,
    }))
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (decode(key), decode(value))).collect()
}

/// Decodes percent-encoding.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex: Vec<u8> = rest.by_ref().take(2).collect();
                let hex = String::from_utf8(hex).unwrap_or_default();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn refused(refusal: &ApiError) -> Response<Reply> {
    let mut response = respond(refusal.code, &refusal.body());
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn respond(code: u16, body: &Value) -> Response<Reply> {
    let mut response = Response::new(Reply::from(serde_json::to_vec(body).unwrap_or_default()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}
