//! Limits and deadlines of the admission server.
//!
//! Together they bound its memory: 256 connections with their buffers and their own parts, the
//! pool, and the running handlers take less than 100 MiB, regardless of what clients send.

use std::time::Duration;

/// Memory of a decoded request that needs no reservation: nodes and pods are smaller, as a rule.
/// The number of running handlers limits their sum.
pub(super) const UNRESERVED: usize = 64 * 1024;
/// Limit of the headers of a request: the API server sends less than 1 KiB.
pub(super) const HEADERS: u16 = 16 * 1024;
/// The same for HTTP/2, where a connection has many requests.
pub(super) const HTTP2_HEADERS: u16 = 2 * 1024;
/// Number of headers of a request.
pub(super) const HEADER_COUNT: usize = 48;
/// Requests in progress on an HTTP/2 connection. The API server opens another connection for more.
pub(super) const STREAMS: u32 = 8;
/// Bytes of a response that leave its reservation before the client has read them.
pub(super) const CHUNK: usize = 4 * 1024;
/// Bytes that a client may send ahead of the handler, on an HTTP/2 stream and on a connection. A
/// stream that waits for memory leaves room for others on its connection. A connection cannot have
/// less than 64 KiB, so that the windows of all its streams together are what limits it.
pub(super) const STREAM_WINDOW: u32 = 4 * 1024;
pub(super) const CONNECTION_WINDOW: u32 = 64 * 1024;

/// Limits and deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Deadline of a response, below the timeout of the webhook configuration.
    pub deadline: Duration,
    /// Number of handlers that run at a time, shared by all clients. Handlers that missed their
    /// deadline count.
    pub concurrency: usize,
    /// Number of requests in progress beyond which a connection may have only its share.
    pub requests: usize,
    /// Maximum size of a body. The API server accepts objects of up to 3 MiB, and a review of a
    /// create or a delete has one.
    pub body: usize,
    /// Memory of all requests together, apart from the part that each connection has for itself.
    pub bodies: usize,
    /// Maximum number of connections. Beyond it, see
    /// [`ConnectionLimit`](crate::runtime::connection_limit::ConnectionLimit).
    pub connections: usize,
    pub handshake: Duration,
    pub headers: Duration,
    /// Time in which a client must read some of a response.
    pub write: Duration,
    /// Idle timeout of a connection between requests: longer than the API server keeps its own (90
    /// s), which sends a review on a connection that is being closed only once and then fails open.
    pub idle: Duration,
    /// Time for connections to end on a graceful stop.
    pub grace: Duration,
    /// Time for which requests are still accepted after the stop: endpoints are withdrawn with a
    /// delay.
    pub linger: Duration,
}

impl Limits {
    /// Returns limits with a deadline of three quarters of the webhook's timeout.
    pub fn for_timeout(timeout: Duration) -> Self {
        Self { deadline: timeout * 3 / 4, ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            deadline: Duration::from_millis(1500),
            concurrency: 128,
            requests: 512,
            body: 3 * MIB + 64 * 1024,
            bodies: 12 * MIB,
            connections: 256,
            handshake: Duration::from_secs(3),
            headers: Duration::from_secs(5),
            write: Duration::from_secs(5),
            idle: Duration::from_mins(2),
            grace: Duration::from_secs(5),
            linger: Duration::ZERO,
        }
    }
}
