//! The server side of the proxy: applies traps, holds and faults to each request, then forwards it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{Request, Response, header};
use http_body_util::BodyExt;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::Client;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};
use tokio_rustls::TlsAcceptor;

use super::{
    CrashPoint, Fault, FaultRule,
    response::{Body, Ended, carried, refusal},
};
use crate::ApiRequest;

/// The state that the proxy shares with its connections.
pub(super) struct Front {
    pub(super) server: Client,
    pub(super) older: Option<Client>,
    pub(super) inner: Mutex<Inner>,
    /// Number of times that watches were cut.
    pub(super) cuts: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) weather: Option<FaultRule>,
    pub(super) faults: BTreeMap<String, u64>,
    /// Status codes of the responses to [`Fault::Late`].
    pub(super) late_answers: Vec<u16>,
    pub(super) trap: Option<Trap>,
    pub(super) hold: Option<Hold>,
    /// Time by which the `Date` of responses is wrong.
    pub(super) date_shift: Option<jiff::SignedDuration>,
}

/// A write that is forwarded when it is released.
pub(super) struct Hold {
    pub(super) of: Box<dyn Fn(&ApiRequest) -> bool + Send>,
    pub(super) reached: oneshot::Sender<ApiRequest>,
    pub(super) released: oneshot::Receiver<()>,
    pub(super) answered: oneshot::Sender<u16>,
}

/// A write at which the operator dies.
pub(super) struct Trap {
    /// Number of matching writes until the trap triggers, including that one.
    pub(super) left: usize,
    pub(super) of: Box<dyn Fn(&ApiRequest) -> bool + Send>,
    pub(super) dies: CrashPoint,
    pub(super) sprung: oneshot::Sender<ApiRequest>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Front")
    }
}

/// Serves the connections of the operator.
pub(super) async fn serve(listener: TcpListener, tls: TlsAcceptor, front: Arc<Front>) {
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
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, fault: &str) {
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
        // In its own task: the request is sent even if the connection closes first.
        let sent = tokio::spawn(async move { client.send(request).await }).await;
        let (mut parts, body) = sent.map_err(|_| Ended)?.map_err(|_| Ended)?.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.remove(header::TRANSFER_ENCODING);
        parts.headers.remove(header::CONNECTION);
        let date_shift = self.lock().date_shift;
        if let Some(shift) = date_shift {
            let wrong = (jiff::Timestamp::now() + shift).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            parts.headers.insert(header::DATE, wrong.parse().expect("a header"));
        }
        let born = *self.cuts.borrow();
        let watch = ApiRequest::by_request(&head.method, &head.uri).verb == "watch";
        let cuts = watch.then(|| self.cuts.subscribe());
        Ok(Response::from_parts(parts, carried(body, cuts, born)))
    }
}
