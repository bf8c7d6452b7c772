//! Requests of admins, kubelets and controllers: to the same API server, without faults.

use std::{collections::BTreeMap, sync::Arc};

use http::Method;
use serde_json::Value;

use crate::server::{
    api::{ApiRequest, ApiResponse},
    authn::User,
    kinds::{Kind, Target},
    patch::changes_nothing,
    response::ApiError,
    world::World,
};

const MERGE_PATCH: &str = "application/merge-patch+json";

/// A client other than the operator.
#[derive(Clone)]
pub struct Actor {
    pub world: World,
    pub who: User,
}

impl Actor {
    pub fn new(world: &World, who: User) -> Self {
        Self { world: world.clone(), who }
    }

    pub async fn create(&self, kind: &'static Kind, namespace: &str, object: Value) -> Result<Arc<Value>, ApiError> {
        self.send(Method::POST, target(kind, namespace, None), "", object).await
    }

    pub async fn patch(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<Arc<Value>, ApiError> {
        self.send(Method::PATCH, target(kind, namespace, Some(name)), MERGE_PATCH, patch).await
    }

    pub async fn patch_status(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<Arc<Value>, ApiError> {
        let target = Target { sub: Some("status".to_owned()), ..target(kind, namespace, Some(name)) };
        self.send(Method::PATCH, target, MERGE_PATCH, patch).await
    }

    /// Deletes an object, or without a name all of the kind.
    pub async fn delete(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: Option<&str>,
        options: Value,
    ) -> Result<Arc<Value>, ApiError> {
        self.send(Method::DELETE, target(kind, namespace, name), "", options).await
    }

    pub fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.world.lock().store.get(kind, namespace, name).cloned()
    }

    async fn send(
        &self,
        method: Method,
        target: Target,
        content_type: &str,
        body: Value,
    ) -> Result<Arc<Value>, ApiError> {
        let way = self.world.lock().prng.millis(1, 8);
        tokio::time::sleep(way).await;
        let asked = ApiRequest {
            who: self.who,
            sent: self.world.elapsed(),
            method,
            target,
            query: BTreeMap::new(),
            content_type: content_type.to_owned(),
            partial: false,
            body,
        };
        // Controllers report the same status repeatedly: skip patches that change nothing.
        let Target { kind, namespace, name, .. } = &asked.target;
        let known = self.get(kind, namespace, name.as_deref().unwrap_or_default());
        let known = known.filter(|known| content_type == MERGE_PATCH && changes_nothing(known, &asked.body));
        let answer = match known {
            Some(body) => Ok(ApiResponse { code: 200, body }),
            None => self.world.process(&asked).await,
        };
        let code = answer.as_ref().map_or_else(|refusal| refusal.code, |answer| answer.code);
        self.world.note(|| {
            let name = name.as_deref().unwrap_or("*");
            format!("{} {} {}/{name} -> {code} {}", self.who, asked.method, kind.plural, asked.body)
        });
        answer.map(|answer| answer.body)
    }
}

fn target(kind: &'static Kind, namespace: &str, name: Option<&str>) -> Target {
    Target { kind, namespace: namespace.to_owned(), name: name.map(str::to_owned), sub: None }
}
