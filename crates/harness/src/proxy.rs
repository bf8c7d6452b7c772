//! Proxy between an operator and its API server that injects faults.
//!
//! It terminates TLS with the API server's own certificate, inspects each request and forwards it
//! as admin, which is the user of the operator under test. In front of it is a [`Wire`], for faults
//! of connections rather than requests.
//!
//! # Guarantees
//! A forwarded request reaches the API server even if the operator is killed meanwhile, as in a
//! real network. Nothing is retried. Every fault is counted by name, so that a test can assert that
//! it happened.

mod response;

use std::{
    collections::BTreeMap,
    fmt,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request, Response, header};
use http_body_util::BodyExt;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
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

use self::response::{Body, Ended, carried, refusal};
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

struct Front {
    server: Client,
    older: Option<Client>,
    inner: Mutex<Inner>,
    /// Number of times that watches were cut.
    cuts: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    weather: Option<FaultRule>,
    faults: BTreeMap<String, u64>,
    /// Status codes of the responses to [`Fault::Late`].
    late_answers: Vec<u16>,
    trap: Option<Trap>,
    hold: Option<Hold>,
    /// Time by which the `Date` of responses is wrong.
    date_shift: Option<jiff::SignedDuration>,
}

/// A write that is forwarded when it is released.
struct Hold {
    of: Box<dyn Fn(&ApiRequest) -> bool + Send>,
    reached: oneshot::Sender<ApiRequest>,
    released: oneshot::Receiver<()>,
    answered: oneshot::Sender<u16>,
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

struct Trap {
    /// Number of matching writes until the trap triggers, including that one.
    left: usize,
    of: Box<dyn Fn(&ApiRequest) -> bool + Send>,
    dies: CrashPoint,
    sprung: oneshot::Sender<ApiRequest>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Front")
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
        let text = std::fs::read_to_string(self.plane().kubeconfig_path()).expect("a kubeconfig");
        let file = self.plane().dir().join("through-the-proxy.kubeconfig");
        std::fs::write(&file, proxy.kubeconfig(&text)).expect("writing a kubeconfig");
        let file = file.display().to_string();
        perennial(words.split_whitespace().chain(["--kubeconfig", &file, "-n", self.namespace()]), &[])
    }
}

impl TestCluster {
    /// Runs `perennial` as admin in Perennial's namespace through this proxy in the background.
    pub fn perennial_in_background_through(&self, proxy: &FaultProxy, words: &str) -> BackgroundCommand {
        let text = std::fs::read_to_string(self.plane().kubeconfig_path()).expect("a kubeconfig");
        let file = self.plane().dir().join("background-through-the-proxy.kubeconfig");
        std::fs::write(&file, proxy.kubeconfig(&text)).expect("writing a kubeconfig");
        self.start_in_background(&file, words)
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
    let text = cluster.plane().kubeconfig_for_server(number, "admin", &["system:masters"]).expect("a kubeconfig");
    let kubeconfig = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a kubeconfig that is complete");
    config.default_retry = false;
    config.read_timeout = None;
    Client::try_from(config).expect("a client")
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, front: Arc<Front>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (tls, front) = (tls.clone(), Arc::clone(&front));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let answer = service_fn(|request| Arc::clone(&front).answer(request));
            // An error is a connection that either side closed.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

impl Front {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, fault: &str) {
        *self.lock().faults.entry(fault.to_owned()).or_default() += 1;
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Ended> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Ended)?.to_bytes();
        let asked = ApiRequest::by_request(&head.method, &head.uri);
        if let Some(trap) = self.step_on(&asked) {
            if trap.dies == CrashPoint::After {
                let answer = self.send(&self.server, &head, body).await?;
                answer.into_body().collect().await.map_err(|_| Ended)?;
            }
            // The receiver may be dropped.
            let _ = trap.sprung.send(asked);
            return std::future::pending().await;
        }

        if let Some(hold) = self.held(&asked) {
            let _ = hold.reached.send(asked);
            let _ = hold.released.await;
            let answer = self.send(&self.server, &head, body).await?;
            let _ = hold.answered.send(answer.status().as_u16());
            return Ok(answer);
        }

        let fault = self.lock().weather.as_mut().and_then(|weather| weather(&asked));
        if let Some(fault) = fault {
            self.count(&fault.name());
        }
        match fault {
            None => self.send(&self.server, &head, body).await,
            Some(Fault::Older) => self.send(self.older.as_ref().unwrap_or(&self.server), &head, body).await,
            Some(Fault::Delayed(pause)) => {
                tokio::time::sleep(pause).await;
                self.send(&self.server, &head, body).await
            }
            Some(Fault::Dropped) => Err(Ended),
            Some(Fault::AnswerLost) => {
                let answer = self.send(&self.server, &head, body).await?;
                let _ = answer.into_body().collect().await;
                Err(Ended)
            }
            Some(Fault::Swallowed) => std::future::pending().await,
            Some(Fault::Answered(code, wait)) => Ok(refusal(code, wait)),
            Some(Fault::Late(pause)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    if let Ok(answer) = self.send(&self.server, &head, body).await {
                        self.lock().late_answers.push(answer.status().as_u16());
                    }
                });
                Err(Ended)
            }
        }
    }

    /// Returns the hold of this write.
    fn held(&self, asked: &ApiRequest) -> Option<Hold> {
        if !asked.is_write() || ["leases", "events"].contains(&asked.resource.as_str()) {
            return None;
        }
        self.lock().hold.take_if(|hold| (hold.of)(asked))
    }

    /// Counts a matching write. Returns the trap if this write triggers it.
    fn step_on(&self, asked: &ApiRequest) -> Option<Trap> {
        if !asked.is_write() || ["leases", "events"].contains(&asked.resource.as_str()) {
            return None;
        }
        self.lock().trap.take_if(|trap| {
            trap.left -= usize::from((trap.of)(asked));
            trap.left == 0
        })
    }

    /// Forwards the request and streams the response back.
    async fn send(&self, to: &Client, head: &http::request::Parts, body: Bytes) -> Result<Response<Body>, Ended> {
        let mut request = Request::builder().method(head.method.clone()).uri(head.uri.clone());
        for (name, value) in &head.headers {
            if ![header::HOST, header::CONTENT_LENGTH, header::CONNECTION, header::AUTHORIZATION].contains(name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(kube::client::Body::from(body.to_vec())).map_err(|_| Ended)?;
        let client = to.clone();
        // In its own task: the request is sent even if the connection closes meanwhile.
        let sent = tokio::spawn(async move { client.send(request).await }).await;
        let (mut parts, body) = sent.map_err(|_| Ended)?.map_err(|_| Ended)?.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.remove(header::TRANSFER_ENCODING);
        parts.headers.remove(header::CONNECTION);
        if let Some(shift) = self.lock().date_shift {
            let wrong = (jiff::Timestamp::now() + shift).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            parts.headers.insert(header::DATE, wrong.parse().expect("a header"));
        }
        let born = *self.cuts.borrow();
        let watch = ApiRequest::by_request(&head.method, &head.uri).verb == "watch";
        let cuts = watch.then(|| self.cuts.subscribe());
        Ok(Response::from_parts(parts, carried(body, cuts, born)))
    }
}
