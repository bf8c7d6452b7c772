//! Carries connections between this machine and the namespaces of the nodes.
//!
//! - Pods and kubelets connect to the service address of the API server. A listener in the network
//!   of the nodes accepts these connections and carries them to the API server on loopback.
//! - The API server connects to kubelets, and to webhooks in pods, with HTTP CONNECT on a socket
//!   (its egress selector). The target is reached from the network of the nodes.
//!
//! A thread that enters a namespace stays there, and its threads with it. So connections are opened
//! by threads that live as long as the connection.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::{fd::AsFd, unix::net::UnixListener, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::address::{API_SERVICE, GATEWAY};

/// Interval at which listeners check whether they have to stop.
const STOP_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Maximum size of the head of a CONNECT request.
const MAX_HEAD: usize = 8 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The network namespace of a process. It exists at least as long as this value.
#[derive(Debug, Clone)]
pub(crate) struct NetworkNamespace(Arc<File>);

impl NetworkNamespace {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        Ok(Self(Arc::new(File::open(format!("/proc/{pid}/ns/net"))?)))
    }

    /// Moves the current thread into the namespace.
    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

/// The listeners of one plane. They stop on drop.
#[derive(Debug)]
pub(crate) struct Forward {
    stop: Arc<AtomicBool>,
    listeners: Vec<JoinHandle<()>>,
    socket: PathBuf,
}

impl Forward {
    /// Starts to carry connections between the network of the nodes and the API server on this
    /// port. `socket` is the socket for CONNECT requests.
    ///
    /// Connections are accepted at the service address, and at the address that the API server
    /// advertises with kube-proxy: the gateway, with its own port.
    pub(crate) fn start(network: &NetworkNamespace, api_port: u16, socket: &Path) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let _ = fs::remove_file(socket);
        let connects = UnixListener::bind(socket)?;
        connects.set_nonblocking(true)?;
        let addresses = [API_SERVICE, SocketAddrV4::new(GATEWAY, api_port)];
        let pods = addresses.map(|address| listen_in(network, address)).into_iter().collect::<io::Result<Vec<_>>>()?;
        let mut forward = Self { stop, listeners: Vec::new(), socket: socket.to_owned() };

        for pods in pods {
            let stop = Arc::clone(&forward.stop);
            forward.listeners.push(thread::spawn(move || {
                // The accepted connection belongs to the other namespace, this thread does not.
                accept_until(
                    &stop,
                    &pods,
                    || pods.accept(),
                    move |client| {
                        let server = TcpStream::connect(("127.0.0.1", api_port))?;
                        let (reader, writer) = (client.try_clone()?, server.try_clone()?);
                        carry(reader, writer, server, client);
                        Ok(())
                    },
                );
            }));
        }
        let (stop, network) = (Arc::clone(&forward.stop), network.clone());
        forward.listeners.push(thread::spawn(move || {
            accept_until(
                &stop,
                &connects,
                || connects.accept(),
                move |client| {
                    network.enter()?;
                    connect(client)
                },
            );
        }));
        Ok(forward)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for listener in self.listeners.drain(..) {
            let _ = listener.join();
        }
        let _ = fs::remove_file(&self.socket);
    }
}

/// Listens at an address, from a thread in the namespace.
fn listen_in(network: &NetworkNamespace, address: SocketAddrV4) -> io::Result<TcpListener> {
    let network = network.clone();
    let listening = thread::spawn(move || {
        network.enter()?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listening.join().unwrap_or_else(|_| Err(io::Error::other("the thread that listens panicked")))
}

/// Serves each connection in its own thread until `stop`.
fn accept_until<C: Send + 'static, A>(
    stop: &AtomicBool,
    listener: &impl AsFd,
    accept: impl Fn() -> io::Result<(C, A)>,
    serve: impl Fn(C) -> io::Result<()> + Clone + Send + 'static,
) {
    while !stop.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        if poll(&mut ready, Some(&STOP_CHECK)).is_ok_and(|count| count > 0)
            && let Ok((client, _)) = accept()
        {
            let serve = serve.clone();
            thread::spawn(move || {
                // The client sees the closed connection.
                let _ = serve(client);
            });
        }
    }
}

/// Serves one CONNECT request.
fn connect(mut client: UnixStream) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > MAX_HEAD || client.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.push(byte[0]);
    }
    let Some(target) = target(&String::from_utf8_lossy(&head)) else {
        return client.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    };
    let server = match TcpStream::connect_timeout(&target, CONNECT_TIMEOUT) {
        Ok(server) => server,
        Err(error) => {
            let message = format!("cannot connect to {target}: {error}");
            let length = message.len();
            let answer = format!("HTTP/1.1 502 Bad Gateway\r\nContent-Length: {length}\r\n\r\n{message}");
            return client.write_all(answer.as_bytes());
        }
    };
    client.write_all(b"HTTP/1.1 200 Connection Established\r\n\r\n")?;
    let (reader, writer) = (client.try_clone()?, server.try_clone()?);
    carry(reader, writer, server, client);
    Ok(())
}

/// Returns the address in the head of a CONNECT request.
fn target(head: &str) -> Option<SocketAddr> {
    let mut words = head.lines().next()?.split(' ');
    (words.next()? == "CONNECT").then_some(())?;
    words.next()?.parse().ok()
}

/// A connection that can be ended by one side.
trait Ends {
    fn end(&self);
}

impl Ends for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Ends for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Copies in both directions until one side ends.
fn carry<A, B>(mut client: A, mut to_server: B, mut server: B, mut to_client: A)
where
    A: Read + Write + Ends + Send + 'static,
    B: Read + Write + Ends + Send + 'static,
{
    let back = thread::spawn(move || {
        let _ = io::copy(&mut server, &mut to_client);
        to_client.end();
        server.end();
    });
    let _ = io::copy(&mut client, &mut to_server);
    to_server.end();
    client.end();
    let _ = back.join();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_connect_request_is_an_address() {
        let head = "CONNECT 10.210.0.10:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        assert_eq!(target(head), Some("10.210.0.10:10250".parse().unwrap()));
        for refused in ["GET / HTTP/1.1\r\n\r\n", "CONNECT example.org:443 HTTP/1.1\r\n\r\n", "CONNECT\r\n\r\n", ""] {
            assert_eq!(target(refused), None, "{refused:?}");
        }
    }
}
