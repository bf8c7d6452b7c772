//! What the page asks for: JSON, read-only.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;

use super::{Dashboard, node, rows::Wanted, workload};
use crate::runtime::error_chain::Chain;

/// Why something cannot be shown.
#[derive(Debug)]
pub(super) enum Problem {
    NotThere(String),
    Unread(anyhow::Error),
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::NotThere(why) => (StatusCode::NOT_FOUND, why),
            Self::Unread(error) => (StatusCode::BAD_GATEWAY, Chain(error.as_ref()).to_string()),
        };
        (status, Json(json!({ "problem": why }))).into_response()
    }
}

pub(super) async fn overview(State(dashboard): State<Arc<Dashboard>>) -> Response {
    let text = dashboard.refresh().await;
    ([(header::CONTENT_TYPE, "application/json")], text.to_string()).into_response()
}

pub(super) async fn nodes(State(dashboard): State<Arc<Dashboard>>, Query(wanted): Query<Wanted>) -> Response {
    Json(dashboard.nodes(&wanted)).into_response()
}

#[derive(Debug, Deserialize)]
pub(super) struct Named {
    name: String,
}

pub(super) async fn node(State(dashboard): State<Arc<Dashboard>>, Query(named): Query<Named>) -> Response {
    // Whoever clicks through nodes does not slow down the operator: a few at a time.
    let Ok(_permit) = dashboard.looks.acquire().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    match node::node(&dashboard, &named.name).await {
        Ok(value) => Json(value).into_response(),
        Err(problem) => problem.into_response(),
    }
}

pub(super) async fn workloads(State(dashboard): State<Arc<Dashboard>>, Query(wanted): Query<Wanted>) -> Response {
    Json(dashboard.workloads(&wanted)).into_response()
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
        Ok(value) => Json(value).into_response(),
        Err(problem) => problem.into_response(),
    }
}
