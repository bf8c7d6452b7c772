//! A proxy between an operator and its API server that does what networks and servers do on bad days.
//!
//! It ends the operator's TLS with the API server's own certificate, looks at each request, and sends it on as the admin, who the
//! operator under test is anyway. In front of it is a [`Wire`], for what happens to connections rather than to requests.
//!
//! # Guarantees
//! What was sent on reaches the API server also when the operator is gone meanwhile, as in a real network. Nothing is retried.
//! Every fault is counted by its name, so that a test can show that it happened.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Frame, Incoming},
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

use crate::{Answer, Asked, OperatorBuilder, TestCluster, Wire, perennial};

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It takes so long until it is sent on.
    Delayed(Duration),
    /// The connection ends; the API server sees nothing of it.
    Dropped,
    /// The API server does it, and the connection ends without an answer.
    AnswerLost,
    /// Neither the API server nor the operator hears of it any more.
    Swallowed,
    /// Somebody on the way answers; for so many seconds the operator is asked to wait, if at all.
    Answered(u16, Option<u32>),
    /// The connection ends now, and the API server does it so much later: by then the operator may have done it again.
    Late(Duration),
    /// Another API server answers: see [`FaultProxy::with_older`].
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

/// On which side of a write an operator dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    /// The API server never sees it.
    Before,
    /// It is committed; the operator never learns of it.
    After,
}

type Weather = Box<dyn FnMut(&Asked) -> Option<Fault> + Send>;

/// The proxy. When it is dropped, its connections end.
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
    /// How often watches were cut.
    cuts: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    weather: Option<Weather>,
    faults: BTreeMap<String, u64>,
    trap: Option<Trap>,
}

struct Trap {
    /// How many writes of its kind are still to come, itself included.
    left: usize,
    of: Box<dyn Fn(&Asked) -> bool + Send>,
    dies: Dies,
    sprung: oneshot::Sender<Asked>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Front")
    }
}

impl TestCluster {
    /// In front of the first API server.
    pub async fn fault_proxy(&self) -> FaultProxy {
        FaultProxy::new(self, None).await
    }
}

impl OperatorBuilder {
    /// Its way to the API server is through this proxy.
    pub fn through(self, proxy: &FaultProxy) -> Self {
        let text = std::fs::read_to_string(self.kubeconfig()).expect("a kubeconfig");
        self.with_kubeconfig(&proxy.kubeconfig(&text))
    }
}

impl TestCluster {
    /// `perennial` as the admin, in Perennial's namespace, through this proxy.
    pub fn perennial_through(&self, proxy: &FaultProxy, words: &str) -> Answer {
        let text = std::fs::read_to_string(self.plane().kubeconfig_path()).expect("a kubeconfig");
        let file = self.plane().dir().join("through-the-proxy.kubeconfig");
        std::fs::write(&file, proxy.kubeconfig(&text)).expect("writing a kubeconfig");
        let file = file.display().to_string();
        perennial(words.split_whitespace().chain(["--kubeconfig", &file, "-n", self.namespace()]), &[])
    }
}

impl FaultProxy {
    /// The same as this kubeconfig, but for the way.
    fn kubeconfig(&self, text: &str) -> String {
        let server = text.lines().find(|line| line.trim_start().starts_with("server: ")).expect("a server");
        text.replace(server, &format!("    server: https://127.0.0.1:{}", self.wire.port()))
    }

    /// In front of the first API server, with another one for [`Fault::Older`].
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

    /// What is in front of it: to be frozen, cut, taken down.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// From now on this decides what happens to each request.
    pub fn weather(&self, weather: impl FnMut(&Asked) -> Option<Fault> + Send + 'static) {
        self.front.lock().weather = Some(Box::new(weather));
    }

    /// From now on nothing happens to requests.
    pub fn calm(&self) {
        self.front.lock().weather = None;
    }

    /// Ends all watches, in the middle of whatever they were saying.
    pub fn cut_watches(&self) {
        self.front.cuts.send_modify(|cuts| *cuts += 1);
        self.front.count("watch cut");
    }

    /// The faults so far, by name.
    pub fn faults(&self) -> BTreeMap<String, u64> {
        self.front.lock().faults.clone()
    }

    /// At the n-th write of a kind from now on (from 1) the operator gets no answer any more, and whoever waits for it is told
    /// which request it is: the moment to kill the operator. Leases and Events are no writes in this sense.
    pub fn trap(
        &self,
        at: usize,
        of: impl Fn(&Asked) -> bool + Send + 'static,
        dies: Dies,
    ) -> oneshot::Receiver<Asked> {
        let (sprung, told) = oneshot::channel();
        self.front.lock().trap = Some(Trap { left: at, of: Box::new(of), dies, sprung });
        told
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
            // An error is a connection that ended, by us or by the other side.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// The connection ends here.
#[derive(Debug)]
struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection ends here")
    }
}

impl std::error::Error for Ended {}

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
        let asked = Asked::by_request(&head.method, &head.uri);
        if let Some(trap) = self.step_on(&asked) {
            if trap.dies == Dies::After {
                let answer = self.send(&self.server, &head, body).await?;
                answer.into_body().collect().await.map_err(|_| Ended)?;
            }
            // Whoever set it may have gone.
            let _ = trap.sprung.send(asked);
            return std::future::pending().await;
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
                    let _ = self.send(&self.server, &head, body).await;
                });
                Err(Ended)
            }
        }
    }

    /// Counts a write of the kind that a trap waits for; the trap, if this is the one that it waits for.
    fn step_on(&self, asked: &Asked) -> Option<Trap> {
        if !asked.is_write() || ["leases", "events"].contains(&asked.resource.as_str()) {
            return None;
        }
        self.lock().trap.take_if(|trap| {
            trap.left -= usize::from((trap.of)(asked));
            trap.left == 0
        })
    }

    /// Sends it on, and its answer back as it comes.
    async fn send(&self, to: &Client, head: &http::request::Parts, body: Bytes) -> Result<Response<Body>, Ended> {
        let mut request = Request::builder().method(head.method.clone()).uri(head.uri.clone());
        for (name, value) in &head.headers {
            if ![header::HOST, header::CONTENT_LENGTH, header::CONNECTION, header::AUTHORIZATION].contains(name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(kube::client::Body::from(body.to_vec())).map_err(|_| Ended)?;
        let client = to.clone();
        // A task of its own: what is on its way arrives, also when nobody waits for it any more.
        let sent = tokio::spawn(async move { client.send(request).await }).await;
        let (mut parts, body) = sent.map_err(|_| Ended)?.map_err(|_| Ended)?.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.remove(header::TRANSFER_ENCODING);
        parts.headers.remove(header::CONNECTION);
        let born = *self.cuts.borrow();
        let watch = Asked::by_request(&head.method, &head.uri).verb == "watch";
        let cuts = watch.then(|| self.cuts.subscribe());
        Ok(Response::from_parts(parts, carried(body, cuts, born)))
    }
}

/// A body as it comes, until it is cut.
fn carried(body: kube::client::Body, cuts: Option<watch::Receiver<u64>>, born: u64) -> Body {
    let stream = futures::stream::unfold(Some((body, cuts)), move |state| async move {
        let (mut body, mut cuts) = state?;
        let cut = async {
            match &mut cuts {
                Some(cuts) => drop(cuts.wait_for(|now| *now > born).await),
                None => std::future::pending().await,
            }
        };
        let frame: Option<Result<Frame<Bytes>, io::Error>> = tokio::select! {
            frame = body.frame() => frame.map(|frame| frame.map_err(io::Error::other)),
            () = cut => Some(Err(io::Error::other(Ended))),
        };
        let next = frame.as_ref().is_some_and(Result::is_ok).then_some((body, cuts));
        frame.map(|frame| (frame, next))
    });
    StreamBody::new(stream).boxed_unsync()
}

/// As an API server, or something in front of it, refuses.
fn refusal(code: u16, wait: Option<u32>) -> Response<Body> {
    let reason = match code {
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "on purpose", "reason": reason, "code": code,
    });
    let mut response = Response::new(Full::from(status.to_string()).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).expect("a status code");
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    if let Some(seconds) = wait {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
