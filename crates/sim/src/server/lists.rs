//! Lists: complete or in pages, of whole objects or metadata.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    api::ApiRequest,
    response::{self, ApiError},
    store::text,
    world::State,
};

pub fn list(state: &mut State, asked: &ApiRequest) -> Result<Value, ApiError> {
    let limit: usize = asked.query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(0);
    let token = asked.query.get("continue").map(String::as_str).filter(|token| !token.is_empty());
    let (rv, after) = match token {
        Some(token) => resume(state, token)?,
        None => (exact(state, asked)?.unwrap_or(state.store.rv()), None),
    };
    let name = asked.query.get("fieldSelector").and_then(|selector| selector.strip_prefix("metadata.name="));
    let selector = asked.selector();
    let kind = asked.target.kind;
    let key = |object: &Value| format!("{}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"));
    let mut items: Vec<Arc<Value>> = state.store.at(kind, &asked.target.namespace, rv);
    items.retain(|object| name.is_none_or(|name| text(object, "/metadata/name") == name));
    items.retain(|object| selector.matches(object) && after.as_ref().is_none_or(|after| key(object) > *after));
    let left = if limit > 0 { items.len().saturating_sub(limit) } else { 0 };
    if left > 0 {
        items.truncate(limit);
    }
    let mut metadata = json!({"resourceVersion": rv.to_string()});
    if let (true, Some(last)) = (left > 0, items.last()) {
        state.seen.add("pages of lists");
        metadata["continue"] = json!(format!("{rv}:{}", key(last)));
        // The remaining count is set only without a selector.
        if asked.query.get("labelSelector").is_none_or(String::is_empty) {
            metadata["remainingItemCount"] = json!(left);
        }
    }
    let items: Vec<Value> = items.iter().map(|object| shown(object, asked.partial)).collect();
    if asked.partial {
        let kind = "PartialObjectMetadataList";
        return Ok(json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items}));
    }
    let (list, version) = (format!("{}List", kind.kind), kind.api_version());
    Ok(json!({"kind": list, "apiVersion": version, "metadata": metadata, "items": items}))
}

/// Returns the resourceVersion of a list that must be of exactly this version.
fn exact(state: &mut State, asked: &ApiRequest) -> Result<Option<u64>, ApiError> {
    if asked.query.get("resourceVersionMatch").is_none_or(|matched| matched != "Exact") {
        return Ok(None);
    }
    let rv = asked.query.get("resourceVersion").and_then(|rv| rv.parse().ok());
    let rv: u64 = rv.ok_or_else(|| response::bad_request("resourceVersionMatch needs a resourceVersion"))?;
    if rv < state.store.compacted {
        state.faults.add("list of a version that was compacted (410)");
        return Err(response::expired("The resourceVersion for the provided list is too old."));
    }
    if rv > state.store.rv() {
        return Err(response::timeout());
    }
    Ok(Some(rv))
}

/// Parses a continue token. Fails if its version is compacted.
fn resume(state: &mut State, token: &str) -> Result<(u64, Option<String>), ApiError> {
    let parsed = token.split_once(':').and_then(|(rv, after)| Some((rv.parse::<u64>().ok()?, after.to_owned())));
    let Some((rv, after)) = parsed else { return Err(response::bad_request("continue key is not valid")) };
    if rv < state.store.compacted {
        state.faults.add("continue token expired");
        return Err(response::expired(
            "The provided continue parameter is too old to display a consistent list result.",
        ));
    }
    Ok((rv, Some(after)))
}

/// Returns an object as it is sent: whole, or its metadata only.
pub fn shown(object: &Value, partial: bool) -> Value {
    if !partial {
        return object.clone();
    }
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
