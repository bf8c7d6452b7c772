//! Proxy between an operator and its API server that injects faults.
//!
//! It terminates TLS with the API server's own certificate, inspects each request and forwards it
//! as the user of the operator under test: admin, unless the cluster has shipped roles. In front of
//! it is a [`Wire`], for faults of connections rather than requests.
//!
//! # Guarantees
//! A forwarded request reaches the API server even if the operator is killed first, as in a
//! real network. Nothing is retried. Every fault is counted by name, so that a test can assert that
//! it happened.

mod front;
mod response;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use self::front::{Front, Hold, Trap, serve};
use crate::{ApiRequest, BackgroundCommand, CommandOutput, OperatorBuilder, TestCluster, Wire, perennial};

/// A fault that is applied to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Forwards the request after a delay.
    Delayed(Duration),
    /// Closes the connection. The API server does not receive the request.
    Dropped,
    /// Forwards the request, then closes the connection without a response.
    AnswerLost,
    /// Neither forwards the request nor responds.
    Swallowed,
    /// Responds with this status, optionally with `Retry-After` in seconds. The API server does not
    /// receive the request.
    Answered(u16, Option<u32>),
    /// Closes the connection and forwards the request later. The operator may have repeated it by
    /// then.
    Late(Duration),
    /// Forwards the request to another API server: see [`FaultProxy::with_older`].
    Older,
}

impl Fault {
    fn name(self) -> String {
        match self {
            Self::Delayed(_) => "delayed".to_owned(),
            Self::Dropped => "dropped".to_owned(),
            Self::AnswerLost => "answer lost".to_owned(),
            Self::Swallowed => "swallowed".to_owned(),
            Self::Answered(code, _) => format!("answered {code}"),
            Self::Late(_) => "late".to_owned(),
            Self::Older => "older API server".to_owned(),
        }
    }
}

/// Side of a write on which an operator is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The API server never receives the request.
    Before,
    /// The request is committed, and the operator receives no response.
    After,
}

type FaultRule = Box<dyn FnMut(&ApiRequest) -> Option<Fault> + Send>;

/// The proxy. Its connections close when it is dropped.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct FaultProxy {
    wire: Wire,
    front: Arc<Front>,
    task: JoinHandle<()>,
}

/// A write that the proxy holds: see [`FaultProxy::hold`].
#[derive(Debug)]
pub struct HeldWrite {
    /// Delivers the request once the operator has sent it.
    pub reached: oneshot::Receiver<ApiRequest>,
    release: oneshot::Sender<()>,
    answered: oneshot::Receiver<u16>,
}

impl HeldWrite {
    /// Forwards the request. Returns the status of the response.
    pub async fn release(self) -> u16 {
        self.release.send(()).expect("a proxy");
        self.answered.await.expect("a response")
    }
}

impl TestCluster {
    /// Starts a proxy in front of the first API server.
    pub async fn fault_proxy(&self) -> FaultProxy {
        FaultProxy::new(self, None).await
    }
}

impl OperatorBuilder {
    /// Connects the operator through this proxy.
    pub fn through(self, proxy: &FaultProxy) -> Self {
        let text = std::fs::read_to_string(self.kubeconfig()).expect("a kubeconfig");
        self.with_kubeconfig(&proxy.kubeconfig(&text))
    }
}

impl TestCluster {
    /// Runs `perennial` as admin in Perennial's namespace through this proxy.
    pub fn perennial_through(&self, proxy: &FaultProxy, words: &str) -> CommandOutput {
        let file = self.kubeconfig_through(proxy).display().to_string();
        perennial(words.split_whitespace().chain(["--kubeconfig", &file, "-n", self.namespace()]), &[])
    }

    /// Runs `perennial` as admin in Perennial's namespace through this proxy in the background.
    pub fn perennial_in_background_through(&self, proxy: &FaultProxy, words: &str) -> BackgroundCommand {
        self.start_in_background(&self.kubeconfig_through(proxy), words)
    }

    /// Writes the admin's kubeconfig with the address of this proxy. Each proxy has its own file,
    /// which is written once: a command in the background may be reading it.
    fn kubeconfig_through(&self, proxy: &FaultProxy) -> PathBuf {
        let file = self.plane().dir().join(format!("through-port-{}.kubeconfig", proxy.wire.port()));
        if !file.exists() {
            let text = std::fs::read_to_string(self.plane().kubeconfig_path()).expect("a kubeconfig");
            std::fs::write(&file, proxy.kubeconfig(&text)).expect("writing a kubeconfig");
        }
        file
    }
}

impl FaultProxy {
    /// Returns the kubeconfig with the server address of this proxy.
    fn kubeconfig(&self, text: &str) -> String {
        let server = text.lines().find(|line| line.trim_start().starts_with("server: ")).expect("a server");
        text.replace(server, &format!("    server: https://127.0.0.1:{}", self.wire.port()))
    }

    /// Starts a proxy in front of the first API server; [`Fault::Older`] forwards to the one with
    /// this number.
    pub async fn with_older(cluster: &TestCluster, number: usize) -> Self {
        Self::new(cluster, Some(number)).await
    }

    async fn new(cluster: &TestCluster, older: Option<usize>) -> Self {
        let plane = cluster.plane();
        let server = connect(cluster, 0).await;
        let older = match older {
            Some(number) => Some(connect(cluster, number).await),
            None => None,
        };
        let pki = plane.dir().join("pki");
        let certificates: Vec<_> = CertificateDer::pem_file_iter(pki.join("apiserver.crt"))
            .and_then(Iterator::collect)
            .expect("the API server's certificate");
        let key = PrivateKeyDer::from_pem_file(pki.join("apiserver.key")).expect("the API server's key");
        let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("TLS versions")
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .expect("a certificate and its key");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let wire = Wire::to(listener.local_addr().expect("an address").port()).await;
        let front = Arc::new(Front { server, older, inner: Mutex::default(), cuts: watch::channel(0).0 });
        let task = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls)), Arc::clone(&front)));
        Self { wire, front, task }
    }

    /// Returns the connection in front of the proxy, which can be frozen, cut or taken down.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Sets the function that selects a fault for each request.
    pub fn inject(&self, weather: impl FnMut(&ApiRequest) -> Option<Fault> + Send + 'static) {
        self.front.lock().weather = Some(Box::new(weather));
    }

    /// Stops injecting faults.
    pub fn clear_faults(&self) {
        self.front.lock().weather = None;
    }

    /// Cuts all watches, possibly within an event.
    pub fn cut_watches(&self) {
        self.front.cuts.send_modify(|cuts| *cuts += 1);
        self.front.count("watch cut");
    }

    /// Returns the number of faults so far by name.
    pub fn faults(&self) -> BTreeMap<String, u64> {
        self.front.lock().faults.clone()
    }

    /// Returns the status codes of the responses to requests that were forwarded late.
    pub fn late_answers(&self) -> Vec<u16> {
        self.front.lock().late_answers.clone()
    }

    /// Makes the `Date` of all responses wrong by this much from now on.
    pub fn shift_dates(&self, by: jiff::SignedDuration) {
        self.front.lock().date_shift = Some(by);
    }

    /// Holds the next matching write until it is released. Leases and Events do not count as
    /// writes.
    pub fn hold(&self, of: impl Fn(&ApiRequest) -> bool + Send + 'static) -> HeldWrite {
        let (reached, on_reached) = oneshot::channel();
        let (release, released) = oneshot::channel();
        let (answered, on_answered) = oneshot::channel();
        self.front.lock().hold = Some(Hold { of: Box::new(of), reached, released, answered });
        HeldWrite { reached: on_reached, release, answered: on_answered }
    }

    /// Sets a trap at the n-th matching write from now on, counted from 1. The operator gets no
    /// response to that write, and the returned channel delivers the request: the moment to kill
    /// the operator. Leases and Events do not count as writes.
    pub fn trap(
        &self,
        at: usize,
        of: impl Fn(&ApiRequest) -> bool + Send + 'static,
        dies: CrashPoint,
    ) -> oneshot::Receiver<ApiRequest> {
        let (sprung, reported) = oneshot::channel();
        self.front.lock().trap = Some(Trap { left: at, of: Box::new(of), dies, sprung });
        reported
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(cluster: &TestCluster, number: usize) -> Client {
    let (user, groups): (&str, &[&str]) = match &cluster.operator_user {
        Some((user, _)) => (user, &[]),
        None => ("admin", &["system:masters"]),
    };
    let text = cluster.plane().kubeconfig_for_server(number, user, groups).expect("a kubeconfig");
    let kubeconfig = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a kubeconfig that is complete");
    config.default_retry = false;
    config.read_timeout = None;
    Client::try_from(config).expect("a client")
}
