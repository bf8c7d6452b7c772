//! A stream that fails if its client does not read for too long, so that an unread response does not
//! hold memory.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// A stream whose writes must make progress within a time.
#[derive(Debug)]
pub(super) struct WriteTimeout<S> {
    stream: S,
    within: Duration,
    /// Present while a write waits.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(super) fn new(stream: S, within: Duration) -> Self {
        Self { stream, within, timeout: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Poll::Ready(written) = Pin::new(&mut this.stream).poll_write(cx, bytes) {
            this.timeout = None;
            return Poll::Ready(written);
        }
        let within = this.within;
        let timeout = this.timeout.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + within)));
        ready!(timeout.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "connection closed: the client does not read")))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut stream = WriteTimeout::new(ours, Duration::from_secs(5));
        let start = Instant::now();
        stream.write_all(&[0; 64]).await.unwrap();
        tokio::time::sleep(Duration::from_mins(1)).await;
        theirs.read_exact(&mut [0; 64]).await.unwrap();
        stream.write_all(&[0; 64]).await.expect("only a write that waits is limited");

        let failed = stream.write_all(&[0; 1]).await.unwrap_err();

        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), Duration::from_secs(65));
    }
}
