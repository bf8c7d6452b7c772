//! How many may be connected at once. Where all seats are taken, whoever has been silent for longest has to go.
//!
//! # Guarantees
//! However many connect and say nothing, or next to nothing, whoever comes with a request gets a seat, and what connections take
//! (memory, open files) has a limit. Nobody is sent away while there is a free seat.

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

/// The seats of one port.
#[derive(Clone, Debug)]
pub struct Seats {
    room: Arc<Room>,
}

#[derive(Debug)]
struct Room {
    limit: usize,
    /// Grows with everything that anybody says: who said something when.
    time: AtomicU64,
    taken: Mutex<HashMap<u64, Seat>>,
}

#[derive(Debug)]
struct Seat {
    heard: Arc<AtomicU64>,
    leave: CancellationToken,
}

impl Seats {
    pub fn new(limit: usize) -> Self {
        Self { room: Arc::new(Room { limit, time: AtomicU64::new(0), taken: Mutex::default() }) }
    }
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Seat>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed)
    }

    /// A seat; the number is the time at which it was taken.
    fn take(&self) -> (u64, Arc<AtomicU64>, CancellationToken) {
        let mut taken = self.lock();
        if taken.len() >= self.limit {
            let silent =
                taken.iter().min_by_key(|(_, seat)| seat.heard.load(Ordering::Relaxed)).map(|(number, _)| *number);
            if let Some(seat) = silent.and_then(|number| taken.remove(&number)) {
                seat.leave.cancel();
            }
        }
        let number = self.tick();
        let (heard, leave) = (Arc::new(AtomicU64::new(number)), CancellationToken::new());
        taken.insert(number, Seat { heard: Arc::clone(&heard), leave: leave.clone() });
        (number, heard, leave)
    }
}

impl<S> Accept<TcpStream, S> for Seats {
    type Stream = Seated;
    type Service = S;
    type Future = Ready<io::Result<(Seated, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        // Without it an answer may wait 40 ms for the acknowledgement of the frame before it.
        if let Err(error) = stream.set_nodelay(true) {
            return std::future::ready(Err(error));
        }
        let (number, heard, leave) = self.room.take();
        let leave = Box::pin(leave.cancelled_owned());
        std::future::ready(Ok((Seated { stream, number, heard, leave, room: Arc::clone(&self.room) }, service)))
    }
}

/// A connection that has a seat.
#[derive(Debug)]
pub struct Seated {
    stream: TcpStream,
    number: u64,
    heard: Arc<AtomicU64>,
    leave: Pin<Box<WaitForCancellationFutureOwned>>,
    room: Arc<Room>,
}

impl Seated {
    fn stay(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.leave.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "others needed the seat")),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Seated {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stay(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.heard.store(self.room.tick(), Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Seated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stay(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.room.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A connection: our end, and theirs.
    async fn connection(listener: &TcpListener, seats: &Seats) -> (Seated, TcpStream) {
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (ours, _) = listener.accept().await.unwrap();
        (seats.accept(ours, ()).await.unwrap().0, theirs)
    }

    #[tokio::test]
    async fn whoever_was_silent_for_longest_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let seats = Seats::new(2);
        let (mut first, mut talks) = connection(&listener, &seats).await;
        let (mut second, _silent) = connection(&listener, &seats).await;
        talks.write_all(b"x").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'x');

        let (mut third, mut comes) = connection(&listener, &seats).await;

        assert_eq!(second.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        talks.write_all(b"y").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'y');
        comes.write_all(b"z").await.unwrap();
        assert_eq!(third.read_u8().await.unwrap(), b'z');
    }

    #[tokio::test]
    async fn a_seat_is_free_again_when_its_connection_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let seats = Seats::new(1);
        let (first, _theirs) = connection(&listener, &seats).await;
        drop(first);

        let (mut second, mut theirs) = connection(&listener, &seats).await;
        let (mut third, _more) = connection(&listener, &seats).await;

        theirs.write_all(b"x").await.unwrap();
        assert!(second.read_u8().await.is_err(), "it made room");
        drop(second);
        assert!(futures::poll!(std::pin::pin!(third.read_u8())).is_pending(), "and is gone without harm to the other");
    }
}
