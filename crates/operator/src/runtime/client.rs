//! The connection to the API server. Every request is counted, a 429 closes the budget for all of
//! them, and every answer adapts its rate.

use std::{
    error::Error as _,
    path::{Path, PathBuf},
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{
    Request, Response,
    header::{DATE, RETRY_AFTER},
};
use jiff::{Timestamp, fmt::rfc2822};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError},
};
use serde::Serialize;
use tokio::time::Instant;
use tower::{Layer, Service};
use tracing::{info, warn};

use super::{budget::Budget, clock::Clock, health::Health, metrics::Metrics, rate::RequestClass};

/// Time without a byte after which a connection counts as dead. Longer than any watch, which the
/// server ends after a minute.
pub const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// Responses that took longer are not used to set the clock.
const FRESH: Duration = Duration::from_secs(1);

/// The cluster and the credentials to use.
#[derive(Clone, Debug, Default)]
pub struct Target {
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
}

/// A client could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("could not read the kubeconfig {}: {why}", path.display())]
    Read { path: PathBuf, why: String },
    #[error("could not use the kubeconfig{}: {why}", context.as_ref().map(|c| format!(" with context {c}")).unwrap_or_default())]
    Use { context: Option<String>, why: String },
    #[error("found no cluster: {why}; give --kubeconfig, set KUBECONFIG, or run inside a cluster")]
    Infer { why: String },
    #[error("could not set up the connection to {url}{}", plugin.as_ref().map(|name| format!(" with the credential plugin {name}")).unwrap_or_default())]
    Build {
        url: String,
        /// Program of the kubeconfig that provides the credentials.
        plugin: Option<String>,
        source: Box<kube::Error>,
    },
}

/// Returns the reason without the debug prints of paths that kube has in its messages.
fn reason(error: &KubeconfigError) -> String {
    let unread = |source: &std::io::Error, path: &Path| format!("could not read {}: {source}", path.display());
    let of_data = |what: &str, error: &LoadDataError| match error {
        LoadDataError::ReadFile(source, path) => format!("{what}: {}", unread(source, path)),
        other => format!("{what}: {other}"),
    };
    match error {
        KubeconfigError::ReadConfig(source, path) => unread(source, path),
        KubeconfigError::LoadContext(name) => format!("it has no context {name}"),
        KubeconfigError::CurrentContextNotSet => "it has no current context; select one with --context".to_owned(),
        KubeconfigError::LoadCertificateAuthority(error) => of_data("certificate authority", error),
        KubeconfigError::LoadClientCertificate(error) => of_data("client certificate", error),
        KubeconfigError::LoadClientKey(error) => of_data("client key", error),
        other => other.to_string(),
    }
}

/// Returns the reason why a kubeconfig at a path that is named already could not be read.
fn reason_at_path(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(source, _) => source.to_string(),
        other => reason(other),
    }
}

/// Returns the reason why there is neither a kubeconfig nor a pod's account. The former is more
/// likely a mistake of a person.
fn reason_to_infer(error: &InferConfigError) -> String {
    let kubeconfig = error.source().and_then(|source| source.downcast_ref::<KubeconfigError>());
    kubeconfig.map_or_else(|| error.to_string(), reason)
}

/// Returns the address of the cluster and the credentials.
pub async fn config(target: &Target) -> Result<Config, ClientError> {
    let mut config = if target.kubeconfig.is_none() && target.context.is_none() {
        Config::infer().await.map_err(|error| ClientError::Infer { why: reason_to_infer(&error) })?
    } else {
        let options = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
        let failed = |error| ClientError::Use { context: target.context.clone(), why: reason(&error) };
        match &target.kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path);
                let file =
                    read.map_err(|error| ClientError::Read { path: path.clone(), why: reason_at_path(&error) })?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
            }
            None => Config::from_kubeconfig(&options).await.map_err(failed)?,
        }
    };
    // kube would retry a 429 for minutes. Backoff is done here, where it is visible and can be
    // interrupted.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(READ_TIMEOUT);
    Ok(config)
}

/// Names of the cluster and of the context in the kubeconfig. A pod has neither.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClusterNames {
    pub cluster: Option<String>,
    pub context: Option<String>,
}

impl ClusterNames {
    pub fn of(target: &Target) -> Self {
        let file = target.kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
        let Ok(file) = file else { return Self::default() };
        let context = target.context.clone().or(file.current_context);
        let named = file.contexts.into_iter().find(|named| Some(&named.name) == context.as_ref());
        Self { cluster: named.and_then(|named| named.context).map(|context| context.cluster), context }
    }
}

/// Receivers of the status, time and latency of every response.
#[derive(Clone, Debug)]
pub struct Listeners {
    pub metrics: Metrics,
    /// Closed while the server asks clients to back off. Its rate follows the responses.
    pub budget: Option<Budget>,
    /// Follows the server's time.
    pub clock: Option<Clock>,
    /// Receives which watches are accepted, and whether writes succeed.
    pub health: Option<Health>,
}

/// Returns a client that reports to these listeners.
pub fn connect(config: Config, listeners: Listeners) -> Result<Client, ClientError> {
    build(config, listeners, false)
}

/// Returns a client whose writes are all server-side dry runs, so that a code path which ignores
/// the dry run changes nothing either.
pub fn connect_for_dry_run(config: Config, listeners: Listeners) -> Result<Client, ClientError> {
    build(config, listeners, true)
}

fn build(config: Config, listeners: Listeners, dry_run: bool) -> Result<Client, ClientError> {
    let url = config.cluster_url.to_string();
    let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let plugin = config.auth_info.exec.as_ref().and_then(|exec| exec.command.clone());
    let builder = ClientBuilder::try_from(config);
    let builder = builder.map_err(|source| ClientError::Build { url, plugin, source: Box::new(source) })?;
    Ok(builder.with_layer(&Observe { listeners, host, dry_run }).build())
}

/// Returns a client over a service that answers like an API server.
pub fn over<S>(service: S, namespace: &str, listeners: Listeners) -> Client
where
    S: Service<Request<Body>, Response = Response<axum::body::Body>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<tower::BoxError> + Send,
{
    let observe = Observe { listeners, host: "simulated".to_owned(), dry_run: false };
    Client::new(observe.layer(service), namespace)
}

/// Counts requests and reads `Retry-After` and `Date` from responses.
#[derive(Clone, Debug)]
struct Observe {
    listeners: Listeners,
    host: String,
    dry_run: bool,
}

impl<S> Layer<S> for Observe {
    type Service = ObservedService<S>;

    fn layer(&self, inner: S) -> ObservedService<S> {
        ObservedService { inner, observe: self.clone() }
    }
}

#[derive(Debug)]
struct ObservedService<S> {
    inner: S,
    observe: Observe,
}

impl<S, B> Service<Request<Body>> for ObservedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send,
    B: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = request.method().clone();
        if self.observe.dry_run && method != http::Method::GET {
            info!(%method, path = request.uri().path(), "dry run: sent with dryRun=All");
            ask_for_dry_run(request.uri_mut());
        }
        // A 429 to an eviction comes from a disruption budget, not from an overloaded server.
        let eviction = request.uri().path().ends_with("/eviction");
        let (path, watch) = (request.uri().path().to_owned(), is_watch(request.uri()));
        let is_single = method != http::Method::GET || !has_parameters(request.uri());
        if let (Some(health), true) = (&self.observe.listeners.health, watch) {
            health.watch_asked(&path);
        }
        let asked = Instant::now();
        let answer = self.inner.call(request);
        let observe = self.observe.clone();
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(Response::status);
            let Listeners { metrics, budget, clock, health } = &observe.listeners;
            metrics.requested(status, &method, &observe.host);
            match health {
                Some(health) if watch && status.is_some_and(|status| status.is_success()) => health.watch_opened(&path),
                Some(health) if method != http::Method::GET => {
                    if let (Some(resource), Some(succeeded)) = (written(&path), is_success(status)) {
                        health.written(resource, succeeded);
                    }
                }
                _ => {}
            }
            if let (Some(clock), Ok(answer)) = (clock, &answer)
                && answer.status().is_success()
                && asked.elapsed() < FRESH
                && let Some(off) = date(answer).and_then(|date| clock.observe(date))
            {
                warn!(seconds = off.as_secs(), "clock differs from the API server's; using the server's time");
            }
            if let (Some(budget), Ok(answer), false) = (budget, &answer, eviction) {
                match answer.status() {
                    http::StatusCode::TOO_MANY_REQUESTS => {
                        budget.refused(asked);
                        budget.close_for(patience(answer).unwrap_or(Duration::from_secs(1)));
                    }
                    http::StatusCode::GATEWAY_TIMEOUT => budget.refused(asked),
                    // The time of a list depends on its length.
                    status if is_single && !status.is_server_error() => {
                        let is_write = method != http::Method::GET;
                        budget.answered(asked, RequestClass { is_write, resource: written(&path) });
                    }
                    _ => {}
                }
            }
            answer
        })
    }
}

fn is_watch(uri: &http::Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// Returns whether a GET lists or watches.
fn has_parameters(uri: &http::Uri) -> bool {
    uri.query().is_some_and(|query| !query.trim_matches('&').is_empty())
}

/// Returns the resource of a write that the work depends on.
fn written(path: &str) -> Option<&'static str> {
    const RESOURCES: [&str; 6] = ["nodes", "configmaps", "pods", "deployments", "replicasets", "statefulsets"];
    let mut parts = path.trim_start_matches('/').split('/');
    let skipped = if parts.next()? == "api" { 1 } else { 2 };
    let mut parts = parts.skip(skipped);
    let resource = match parts.next()? {
        "namespaces" => parts.nth(1)?,
        resource => resource,
    };
    RESOURCES.into_iter().find(|known| *known == resource)
}

/// Returns whether a write reached a server that works. A rejection depends on the object, and a
/// 429 on the load: neither is a fault of this process.
fn is_success(status: Option<http::StatusCode>) -> Option<bool> {
    match status {
        Some(status) if status.is_success() => Some(true),
        None | Some(http::StatusCode::UNAUTHORIZED) => Some(false),
        Some(status) => status.is_server_error().then_some(false),
    }
}

fn ask_for_dry_run(uri: &mut http::Uri) {
    let joint = if uri.query().is_some() { '&' } else { '?' };
    if let Ok(asked) = format!("{uri}{joint}dryRun=All").parse() {
        *uri = asked;
    }
}

/// Returns the server's time in a response.
fn date<B>(answer: &Response<B>) -> Option<Timestamp> {
    Some(rfc2822::parse(answer.headers().get(DATE)?.to_str().ok()?).ok()?.timestamp())
}

fn patience<B>(answer: &Response<B>) -> Option<Duration> {
    let seconds: u64 = answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_distinguished_by_resource() {
        for (path, resource) in [
            ("/api/v1/nodes/n1/status", Some("nodes")),
            ("/api/v1/namespaces/perennial/configmaps", Some("configmaps")),
            ("/apis/apps/v1/namespaces/pods/deployments/nodes", Some("deployments")),
            ("/apis/apps/v1/namespaces/default/replicasets/web", Some("replicasets")),
            ("/apis/events.k8s.io/v1/namespaces/nodes/events", None),
            ("/api/v1/namespaces", None),
        ] {
            assert_eq!(written(path), resource, "{path}");
        }
        let status = |code| Some(http::StatusCode::from_u16(code).unwrap());
        assert_eq!(
            [200, 409, 403, 429, 401, 503].map(|code| is_success(status(code))),
            [Some(true), None, None, None, Some(false), Some(false)]
        );
        assert_eq!(is_success(None), Some(false));
    }

    #[test]
    fn the_dry_run_parameter_is_added_to_existing_ones() {
        let asked = |text: &str| {
            let mut uri: http::Uri = text.parse().unwrap();
            ask_for_dry_run(&mut uri);
            uri.to_string()
        };

        assert_eq!(asked("/api/v1/nodes/n1"), "/api/v1/nodes/n1?dryRun=All");
        assert_eq!(asked("https://api:6443/api/v1/nodes?a=b"), "https://api:6443/api/v1/nodes?a=b&dryRun=All");
    }
}
