//! A limit on open connections. At the limit, a new connection closes the one that has been idle for longest.
//!
//! # Guarantees
//! Idle or slow connections never keep a new client out, and the memory and open files of connections are bounded. No
//! connection is closed below the limit.

use std::{
    collections::HashMap,
    future::Ready,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use axum_server::accept::Accept;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The connections of one port.
#[derive(Clone, Debug)]
pub struct ConnectionLimit {
    connections: Arc<Connections>,
}

#[derive(Debug)]
struct Connections {
    limit: usize,
    /// Logical clock that advances with every read of any connection.
    time: AtomicU64,
    open: Mutex<HashMap<u64, Connection>>,
}

#[derive(Debug)]
struct Connection {
    last_read: Arc<AtomicU64>,
    close: CancellationToken,
}

impl ConnectionLimit {
    pub fn new(limit: usize) -> Self {
        Self { connections: Arc::new(Connections { limit, time: AtomicU64::new(0), open: Mutex::default() }) }
    }
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed)
    }

    /// Admits a connection, and closes the longest idle one at the limit. Its id is its time of admission.
    fn admit(&self) -> (u64, Arc<AtomicU64>, CancellationToken) {
        let mut open = self.lock();
        if open.len() >= self.limit {
            let idlest = open
                .iter()
                .min_by_key(|(_, connection)| connection.last_read.load(Ordering::Relaxed))
                .map(|(id, _)| *id);
            if let Some(connection) = idlest.and_then(|id| open.remove(&id)) {
                connection.close.cancel();
            }
        }
        let id = self.tick();
        let (last_read, close) = (Arc::new(AtomicU64::new(id)), CancellationToken::new());
        open.insert(id, Connection { last_read: Arc::clone(&last_read), close: close.clone() });
        (id, last_read, close)
    }
}

impl<S> Accept<TcpStream, S> for ConnectionLimit {
    type Stream = LimitedStream;
    type Service = S;
    type Future = Ready<io::Result<(LimitedStream, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        // Without it a response may wait 40 ms for the acknowledgement of the frame before it.
        if let Err(error) = stream.set_nodelay(true) {
            return std::future::ready(Err(error));
        }
        let (id, last_read, close) = self.connections.admit();
        let close = Box::pin(close.cancelled_owned());
        std::future::ready(Ok((
            LimitedStream { stream, id, last_read, close, connections: Arc::clone(&self.connections) },
            service,
        )))
    }
}

/// A connection that counts towards the limit until it is dropped.
#[derive(Debug)]
pub struct LimitedStream {
    stream: TcpStream,
    id: u64,
    last_read: Arc<AtomicU64>,
    close: Pin<Box<WaitForCancellationFutureOwned>>,
    connections: Arc<Connections>,
}

impl LimitedStream {
    fn ensure_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.close.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "connection closed: limit reached"))
            }
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.ensure_open(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.last_read.store(self.connections.tick(), Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.ensure_open(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for LimitedStream {
    fn drop(&mut self) {
        self.connections.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns both ends of a connection.
    async fn connection(listener: &TcpListener, limit: &ConnectionLimit) -> (LimitedStream, TcpStream) {
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (ours, _) = listener.accept().await.unwrap();
        (limit.accept(ours, ()).await.unwrap().0, theirs)
    }

    #[tokio::test]
    async fn the_longest_idle_connection_is_closed_at_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = ConnectionLimit::new(2);
        let (mut first, mut talks) = connection(&listener, &limit).await;
        let (mut second, _silent) = connection(&listener, &limit).await;
        talks.write_all(b"x").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'x');

        let (mut third, mut comes) = connection(&listener, &limit).await;

        assert_eq!(second.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        talks.write_all(b"y").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'y');
        comes.write_all(b"z").await.unwrap();
        assert_eq!(third.read_u8().await.unwrap(), b'z');
    }

    #[tokio::test]
    async fn a_closed_connection_no_longer_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = ConnectionLimit::new(1);
        let (first, _theirs) = connection(&listener, &limit).await;
        drop(first);

        let (mut second, mut theirs) = connection(&listener, &limit).await;
        let (mut third, _more) = connection(&listener, &limit).await;

        theirs.write_all(b"x").await.unwrap();
        assert!(second.read_u8().await.is_err(), "it was closed for the third");
        drop(second);
        assert!(futures::poll!(std::pin::pin!(third.read_u8())).is_pending(), "and its end does not affect the third");
    }
}
