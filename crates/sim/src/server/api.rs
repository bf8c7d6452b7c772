//! Processes requests that have arrived at the API server.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use serde_json::Value;

use super::{
    admission,
    authn::User,
    kinds::{CONFIG_MAPS, NODES, PDBS, PODS, Target},
    lists, patch,
    response::{self, ApiError},
    rules,
    select::{Selector, match_labels},
    store::{Admission, Condition, Deletion, Done, How, ObjectKey, Write, text, version},
    world::{NodeRead, World},
};

/// A parsed request.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    pub who: User,
    pub sent: Duration,
    pub method: Method,
    pub target: Target,
    pub query: BTreeMap<String, String>,
    pub content_type: String,
    /// Requests PartialObjectMetadata.
    pub partial: bool,
    pub body: Value,
}

impl ApiRequest {
    pub fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true" || watch == "1")
    }

    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    pub fn selector(&self) -> Selector {
        Selector::parse(self.query.get("labelSelector").map_or("", String::as_str))
    }

    fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }
}

/// A successful response.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    pub code: u16,
    pub body: Arc<Value>,
}

impl ApiResponse {
    fn ok(body: Arc<Value>) -> Self {
        Self { code: 200, body }
    }
}

impl World {
    /// Processes a request that is not a watch.
    pub async fn process(&self, asked: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let (exists, is_lost) = {
            let state = self.lock();
            (state.has(asked.target.kind), state.is_lost(asked.sent))
        };
        if !exists {
            return Err(response::no_such_page());
        }
        if asked.who.is_operator() && is_lost {
            return Err(response::unavailable());
        }
        if let Some(refusal) = self.refuse_record(asked) {
            return Err(refusal);
        }
        let sub = asked.target.sub.as_deref();
        match (asked.method.as_str(), &asked.target.name, sub) {
            ("GET", Some(name), None) => self.read(asked, name),
            ("GET", None, None) => lists::list(&mut self.lock(), asked).map(|body| ApiResponse::ok(Arc::new(body))),
            ("POST", None, None) => self.create(asked).await.map(|body| ApiResponse { code: 201, body }),
            ("POST", Some(_), Some("eviction")) => self.evict(asked),
            ("PUT", Some(name), None | Some("status")) => {
                let Target { kind, namespace, .. } = &asked.target;
                let exists = self.lock().store.get(kind, namespace, name).is_some();
                let code = if exists { 200 } else { 201 };
                self.update(asked).map(|body| ApiResponse { code, body })
            }
            ("PATCH", Some(_), None | Some("status")) => self.patch(asked).map(ApiResponse::ok),
            ("DELETE", Some(name), None) => self.delete(asked, name, &Deletion::parse(&asked.body)).await,
            ("DELETE", None, None) => self.delete_collection(asked).await,
            _ => Err(response::no_such_page()),
        }
    }

    /// Refuses the operator's writes of records while a policy denies them.
    fn refuse_record(&self, asked: &ApiRequest) -> Option<ApiError> {
        let writes = asked.who.is_operator() && asked.is_write() && std::ptr::eq(asked.target.kind, &CONFIG_MAPS);
        let mut state = self.lock();
        if !writes || !state.refuses_records() {
            return None;
        }
        state.fault("record write refused by a policy", asked.who);
        Some(response::forbidden(asked.target.kind, asked.name(), "denied by a ValidatingAdmissionPolicy"))
    }

    /// Refuses a pod with a nodeSelector that a policy denies.
    fn refuse_pod(&self, asked: &ApiRequest, pod: &Value) -> Result<(), ApiError> {
        let mut state = self.lock();
        if !state.refuses_pod(asked.target.kind, pod) {
            return Ok(());
        }
        state.faults.add("pod refused by a policy");
        Err(response::forbidden(
            asked.target.kind,
            text(pod, "/metadata/name"),
            "denied by a ValidatingAdmissionPolicy",
        ))
    }

    fn read(&self, asked: &ApiRequest, name: &str) -> Result<ApiResponse, ApiError> {
        let mut state = self.lock();
        let found = state.store.get(asked.target.kind, &asked.target.namespace, name).cloned();
        if std::ptr::eq(asked.target.kind, &NODES) && asked.who.is_operator() {
            let rv = found.as_ref().map_or(0, |node| version(node));
            let at = self.elapsed();
            state.journal.node_reads.push(NodeRead { who: asked.who, at, node: name.to_owned(), rv });
        }
        found.map(ApiResponse::ok).ok_or_else(|| response::not_found(asked.target.kind, name))
    }

    fn write_of(&self, asked: &ApiRequest, on: Condition, admission: Admission) -> Write {
        Write { by: asked.who, at: self.elapsed(), sent: asked.sent, now: self.now(), on, admission }
    }

    async fn create(&self, asked: &ApiRequest) -> Done {
        let Target { kind, namespace, .. } = &asked.target;
        let mut came = asked.body.clone();
        if std::ptr::eq(*kind, &NODES) {
            rules::taint_new_node(&mut came);
        }
        let came = Arc::new(came);
        let (object, answered) = admission::on_create(self, asked, (*came).clone()).await;
        if std::ptr::eq(*kind, &NODES) {
            rules::node_restriction(asked.who, &came)?;
            if let Err(refusal) = rules::node_restriction(asked.who, &object) {
                let what = format!("a kubelet's create was refused for what the webhook added: {}", refusal.message);
                self.lock().violation("G8", what);
                return Err(refusal);
            }
        }
        self.refuse_pod(asked, &object)?;
        let write = self.write_of(asked, Condition { rv: true, uid: true }, Admission::Create { came, answered });
        let done = self.lock().store.create(kind, namespace, object, write);
        self.tell(done.is_ok());
        done
    }

    fn update(&self, asked: &ApiRequest) -> Done {
        let change = |_: &Value| Ok(asked.body.clone());
        let Target { kind, namespace, sub, .. } = &asked.target;
        let write = self.write_of(asked, Condition::default(), Admission::None);
        let how = How { put: true, status: sub.is_some() };
        let key = ObjectKey { kind, namespace, name: asked.name() };
        let done = self.lock().store.update(key, how, write, change);
        self.tell(done.is_ok());
        done
    }

    fn patch(&self, asked: &ApiRequest) -> Done {
        // Preconditions come from the patch, not from the object.
        let has = |pointer: &str| !text(&asked.body, pointer).is_empty();
        let on = Condition { rv: has("/metadata/resourceVersion"), uid: has("/metadata/uid") };
        let Target { kind, namespace, sub, .. } = &asked.target;
        self.refuse_pod(asked, &asked.body)?;
        let write = self.write_of(asked, on, Admission::None);
        let change = |before: &Value| {
            let mut next = before.clone();
            match asked.content_type.as_str() {
                "application/merge-patch+json" => patch::merge(&mut next, &asked.body),
                "application/strategic-merge-patch+json" => patch::strategic(&mut next, &asked.body),
                "application/json-patch+json" => {
                    let operations = asked.body.as_array().map_or(&[][..], Vec::as_slice);
                    patch::json(&mut next, operations).map_err(|why| response::invalid(kind, asked.name(), &why))?;
                }
                other => return Err(response::bad_request(&format!("the patch type {other} is not known here"))),
            }
            Ok(next)
        };
        let key = ObjectKey { kind, namespace, name: asked.name() };
        let how = How { put: false, status: sub.is_some() };
        let done = self.lock().store.update(key, how, write, change);
        self.tell(done.is_ok());
        done
    }

    /// Admission reviews the very state that is deleted: if the object has changed since,
    /// admission is called again.
    async fn delete(&self, asked: &ApiRequest, name: &str, how: &Deletion) -> Result<ApiResponse, ApiError> {
        let Target { kind, namespace, .. } = &asked.target;
        loop {
            let found = self.lock().store.get(kind, namespace, name).cloned();
            let Some(object) = found else { return Err(response::not_found(kind, name)) };
            how.check(kind, name, &object)?;
            let looked = admission::on_delete(self, asked, &object).await;
            let mut state = self.lock();
            let now = state.store.get(kind, namespace, name).cloned();
            if now.as_ref().is_some_and(|now| version(now) != version(&object)) && asked.target.kind == &NODES {
                state.seen.add("delete admission called again for a newer state");
                continue;
            }
            let write = self.write_of(asked, how.condition(), Admission::Delete { looked });
            let done = state.store.delete(ObjectKey { kind, namespace, name }, how, write);
            drop(state);
            self.tell(done.is_ok());
            return done.map(|object| match *kind {
                kind if std::ptr::eq(kind, &PODS) => ApiResponse::ok(object),
                _ => ApiResponse::ok(Arc::new(response::success())),
            });
        }
    }

    async fn delete_collection(&self, asked: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let selector = asked.selector();
        let Target { kind, namespace, .. } = &asked.target;
        let names: Vec<String> = {
            let state = self.lock();
            let all = state.store.all(kind, namespace).filter(|object| selector.matches(object));
            all.map(|object| text(object, "/metadata/name").to_owned()).collect()
        };
        for name in names {
            match self.delete(asked, &name, &Deletion::default()).await {
                Err(refusal) if refusal.code != 404 => return Err(refusal),
                _ => {}
            }
        }
        Ok(ApiResponse::ok(Arc::new(response::success())))
    }

    fn evict(&self, asked: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let Target { kind, namespace, .. } = &asked.target;
        let name = asked.name();
        let how = Deletion::parse(&asked.body["deleteOptions"]);
        let write = self.write_of(asked, how.condition(), Admission::None);
        let mut state = self.lock();
        let Some(pod) = state.store.get(kind, namespace, name).cloned() else {
            return Err(response::not_found(kind, name));
        };
        how.check(kind, name, &pod)?;
        let labels = pod["metadata"]["labels"].clone();
        let budgets: Vec<Arc<Value>> = {
            let all = state.store.all(&PDBS, namespace);
            all.filter(|pdb| match_labels(&pdb["spec"]["selector"], &labels)).cloned().collect()
        };
        if budgets.len() > 1 {
            return Err(response::internal("This pod has more than one PodDisruptionBudget"));
        }
        if let Some(pdb) = budgets.first() {
            let allowed = pdb["status"]["disruptionsAllowed"].as_i64().unwrap_or_default();
            if allowed <= 0 {
                return Err(response::disruption_budget());
            }
            let name = text(pdb, "/metadata/name").to_owned();
            let write = Write { by: User::Controller, ..write.clone() };
            let key = ObjectKey { kind: &PDBS, namespace, name: &name };
            state.store.update(key, How { put: false, status: true }, write, |before| {
                let mut next = before.clone();
                next["status"]["disruptionsAllowed"] = (allowed - 1).into();
                Ok(next)
            })?;
        }
        let done = state.store.delete(ObjectKey { kind, namespace, name }, &how, write);
        state.seen.add("evictions");
        drop(state);
        self.tell(done.is_ok());
        done.map(|_| ApiResponse { code: 201, body: Arc::new(response::success()) })
    }

    fn tell(&self, done: bool) {
        if done {
            self.changed().notify_waiters();
        }
    }
}
