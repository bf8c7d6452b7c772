//! TCP forwarder between two local processes that simulates network faults. It does not inspect the
//! bytes.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// A port that forwards to another one.
#[derive(Debug)]
pub struct Wire {
    port: u16,
    state: watch::Sender<State>,
    carried: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Existing and new connections stay open and carry nothing: half-open, as after a switch
    /// failure.
    frozen: bool,
    /// Connections with a lower number never carry anything again.
    dead: u64,
    /// New connections are closed at once.
    down: bool,
    /// Number of times that all connections were cut.
    cuts: u64,
}

impl Wire {
    /// Forwards to this local port.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let (state, seen) = watch::channel(State::default());
        let carried = Arc::<AtomicU64>::default();
        let task = tokio::spawn(serve(listener, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), seen, carried.clone()));
        Self { port: own, state, carried, task }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of connections so far.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }

    /// Stops forwarding in both directions without closing connections.
    pub fn freeze(&self) {
        self.state.send_modify(|state| state.frozen = true);
    }

    /// Resumes forwarding. Held bytes arrive late.
    pub fn thaw(&self) {
        self.state.send_modify(|state| state.frozen = false);
    }

    /// Stops forwarding on all existing connections without closing them; new connections work.
    /// Simulates a NAT gateway that lost its state.
    pub fn forget(&self) {
        let number = self.carried();
        self.state.send_modify(|state| state.dead = number);
    }

    /// Closes every existing connection. New ones are accepted.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Closes every connection, and new ones at once, until [`Wire::up`].
    pub fn down(&self) {
        self.state.send_modify(|state| {
            state.down = true;
            state.cuts += 1;
        });
    }

    pub fn up(&self) {
        self.state.send_modify(|state| state.down = false);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.cut();
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, to: SocketAddr, state: watch::Receiver<State>, carried: Arc<AtomicU64>) {
    loop {
        let Ok((from, _)) = listener.accept().await else { return };
        let mut state = state.clone();
        let State { down, cuts, .. } = *state.borrow_and_update();
        if down {
            continue;
        }
        let number = carried.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let mut end = state.clone();
            tokio::select! {
                () = carry(from, to, number, state) => {}
                _ = end.wait_for(|state| state.cuts > cuts) => {}
            }
        });
    }
}

async fn carry(from: TcpStream, to: SocketAddr, number: u64, mut state: watch::Receiver<State>) {
    if state.wait_for(|state| !state.frozen && state.dead <= number).await.is_err() {
        return;
    }
    let Ok(to) = TcpStream::connect(to).await else { return };
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    let there = pump(from_read, to_write, number, state.clone());
    let back = pump(to_read, from_write, number, state);
    let _ = tokio::join!(there, back);
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    mut state: watch::Receiver<State>,
) -> Option<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or_default();
        state.wait_for(|state| !state.frozen && state.dead <= number).await.ok()?;
        if read == 0 {
            return to.shutdown().await.ok();
        }
        to.write_all(&buffer[..read]).await.ok()?;
    }
}
