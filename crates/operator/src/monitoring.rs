//! Routes for monitoring: `/metrics`, `/livez`, `/readyz`, and `/healthz` as another name of
//! `/livez`.

use anyhow::Context as _;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use perennial_core::config::settings;
use tracing::info;

use crate::runtime::{
    environment::Environment,
    health::{Health, Verdict},
    http,
    metrics::{CONTENT_TYPE, Metrics},
    tasks::Task,
};

/// Binds the port and returns the task that serves the routes.
pub fn task(settings: &settings::Metrics, env: &Environment) -> anyhow::Result<Task> {
    let port = settings.port;
    let address = settings.address.as_ref().map(|address| address.parse()).transpose();
    let address = address.context("metrics.address is not an IP address")?;
    let bound = http::bind(address, port).with_context(|| {
        format!("could not listen on metrics.port {port}; choose another one, for example with --set metrics.port=0")
    })?;
    info!(address = %bound.address(), "serving /metrics, /livez and /readyz");
    Ok(bound.task("metrics server", router(env.metrics.clone(), env.health.clone()), &env.stop))
}

fn router(metrics: Metrics, health: Health) -> Router {
    Router::new()
        .route("/metrics", get(scrape).with_state(metrics))
        .route("/livez", get(async |State(health): State<Health>| health.liveness()))
        // The name that older tools probe.
        .route("/healthz", get(async |State(health): State<Health>| health.liveness()))
        .route("/readyz", get(async |State(health): State<Health>| health.readiness()))
        .with_state(health)
}

async fn scrape(State(metrics): State<Metrics>) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl IntoResponse for Verdict {
    fn into_response(self) -> Response {
        let status = if self.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, self.body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use tower::ServiceExt as _;

    use super::*;

    async fn answer(routes: &Router, method: &str, path: &str) -> (u16, String) {
        let request = ::http::Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = routes.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn probes_and_metrics_are_answered() {
        let health = Health::new();
        health.expect("nodes");
        let routes = router(Metrics::new(), health.clone());

        let (status, body) = answer(&routes, "GET", "/readyz").await;
        assert!(status == 503 && body.contains("[-] nodes: not yet"), "{body}");
        health.set("nodes", true);
        assert_eq!(answer(&routes, "GET", "/readyz").await.0, 200);
        for path in ["/livez", "/healthz"] {
            assert_eq!(answer(&routes, "GET", path).await.0, 200, "{path}");
        }
        let (_, metrics) = answer(&routes, "GET", "/metrics").await;
        assert!(metrics.contains("perennial_errors_total{"), "{metrics}");
        assert_eq!(answer(&routes, "GET", "/other").await.0, 404);
        assert_eq!(answer(&routes, "POST", "/metrics").await.0, 405);
    }
}
