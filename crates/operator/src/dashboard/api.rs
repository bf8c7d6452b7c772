//! The read-only JSON API of the page.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;

use super::{Dashboard, list_window::ListQuery, node, policies, workload};
use crate::{inspect::states, runtime::error_chain::Chain};

/// Error of a request.
#[derive(Debug)]
pub(super) enum ApiError {
    NotFound(String),
    Upstream(anyhow::Error),
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::NotFound(why) => (StatusCode::NOT_FOUND, why),
            Self::Upstream(error) => (StatusCode::BAD_GATEWAY, Chain(error.as_ref()).to_string()),
        };
        (status, Json(json!({ "problem": why }))).into_response()
    }
}

pub(super) async fn overview(State(dashboard): State<Arc<Dashboard>>) -> Response {
    let text = dashboard.refresh().await;
    ([(header::CONTENT_TYPE, "application/json")], text.to_string()).into_response()
}

pub(super) async fn nodes(State(dashboard): State<Arc<Dashboard>>, Query(query): Query<ListQuery>) -> Response {
    let stale = dashboard.stale().await;
    Json(dashboard.nodes(&query, stale.as_ref())).into_response()
}

#[derive(Debug, Deserialize)]
pub(super) struct Named {
    name: String,
}

pub(super) async fn node(State(dashboard): State<Arc<Dashboard>>, Query(named): Query<Named>) -> Response {
    // Limits the load that reads for the dashboard put on the operator.
    let Ok(_permit) = dashboard.node_reads.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    match node::node(&dashboard, &named.name).await {
        Ok(value) => Json(value).into_response(),
        Err(error) => error.into_response(),
    }
}

/// Returns the KeepPolicies and the policy of the configuration, in order of precedence.
pub(super) async fn policies(State(dashboard): State<Arc<Dashboard>>) -> Response {
    let mut value = policies::policies(&dashboard);
    value["stale"] = json!(dashboard.stale().await);
    Json(value).into_response()
}

/// Returns names, labels and colours of all states.
pub(super) async fn states() -> Response {
    Json(states::catalog()).into_response()
}

pub(super) async fn workloads(State(dashboard): State<Arc<Dashboard>>, Query(query): Query<ListQuery>) -> Response {
    let stale = dashboard.stale().await;
    Json(dashboard.workloads(&query, stale.as_ref())).into_response()
}

#[derive(Debug, Deserialize)]
pub(super) struct WorkloadNamed {
    kind: String,
    namespace: String,
    name: String,
}

pub(super) async fn workload(
    State(dashboard): State<Arc<Dashboard>>,
    Query(WorkloadNamed { kind, namespace, name }): Query<WorkloadNamed>,
) -> Response {
    match workload::workload(&dashboard, &kind, &namespace, &name) {
        Ok(mut value) => {
            value["stale"] = json!(dashboard.stale().await);
            Json(value).into_response()
        }
        Err(error) => error.into_response(),
    }
}
