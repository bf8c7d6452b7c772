//! Waits until components, default objects and nodes are ready.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Inner, Plane, PlaneError};
use crate::{api::Api, component::Component, pki::Credentials};

/// Timeout of every wait. Much longer than a start takes on an idle machine, because test machines
/// are busy.
pub(super) const TIMEOUT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(15);
/// Longer than [`POLL`], because each check lists all nodes.
const POLL_NODES: Duration = Duration::from_millis(300);

impl Plane {
    /// Waits until this component is healthy. Fails early if it exits.
    pub(super) fn wait_component(&self, component: Component) -> Result<(), PlaneError> {
        let health = if component.is_of_node() { None } else { Some(self.health(component)?) };
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let checked = match &health {
                Some((api, path)) => api.get(path).map(|_| ()).map_err(|error| with_source(&error)),
                None => self.check_of_node(component),
            };
            let Err(reason) = checked else { return Ok(()) };
            if let Some(status) = self.inner().ended(component) {
                let (log, tail) = (self.log_path(component), self.folder.log_tail(component));
                return Err(PlaneError::Exited { component, status, log, tail });
            }
            if Instant::now() > deadline {
                let (log, tail) = (self.log_path(component), self.folder.log_tail(component));
                return Err(PlaneError::NotReady { component, timeout: TIMEOUT, reason, log, tail });
            }
            thread::sleep(POLL);
        }
    }

    fn health(&self, component: Component) -> Result<(Api, &'static str), PlaneError> {
        let port = self.inner().port(component).ok_or(PlaneError::NoComponent(component))?;
        let url = format!("https://127.0.0.1:{port}");
        let api = match component {
            Component::Etcd => {
                let pki = &self.pki;
                let credentials =
                    Credentials { certificate: pki.read("etcd-client.crt")?, key: pki.read("etcd-client.key")? };
                return Ok((Api::new(url, &pki.read("etcd-ca.crt")?, &credentials)?, "/health"));
            }
            Component::Kwok => Api::plain(format!("http://127.0.0.1:{port}")),
            _ => self.folder.admin_api(&url)?,
        };
        Ok(match component {
            Component::ApiServer(_) => (api, "/readyz"),
            _ => (api, "/healthz"),
        })
    }

    /// Waits for the objects that clients expect in every cluster.
    pub(super) fn wait_default_objects(&self) -> Result<(), PlaneError> {
        let mut paths = vec![
            "/api/v1/namespaces/default",
            "/api/v1/namespaces/kube-system",
            "/api/v1/namespaces/default/services/kubernetes",
        ];
        if self.spec.controller_manager {
            paths.push("/api/v1/namespaces/default/serviceaccounts/default");
            paths.push("/api/v1/namespaces/default/configmaps/kube-root-ca.crt");
        }
        let api = self.folder.admin_api(&self.url(0))?;
        for path in paths {
            eventually(path, POLL, || api.get(path).map(|_| ()).map_err(|error| with_source(&error)))?;
        }
        Ok(())
    }

    /// Waits until `count` fake nodes are Ready and schedulable.
    pub(super) fn wait_nodes(&self, api: &Api, count: usize) -> Result<(), PlaneError> {
        // Only the controller manager removes the not-ready taint of new nodes.
        let taints_go = self.spec.controller_manager;
        eventually(&format!("{count} Ready nodes"), POLL_NODES, || {
            let list = api
                .get("/api/v1/nodes?labelSelector=type%3Dkwok&resourceVersion=0")
                .map_err(|error| with_source(&error))?;
            let nodes = list["items"].as_array().map_or(&[][..], Vec::as_slice);
            let ready = nodes.iter().filter(|node| is_schedulable(node, taints_go)).count();
            if ready >= count { Ok(()) } else { Err(format!("{ready} are ready")) }
        })
    }
}

impl Inner {
    fn ended(&mut self, component: Component) -> Option<std::process::ExitStatus> {
        self.running.get_mut(&component).and_then(crate::process::Process::ended)
    }
}

/// Reports whether a node is Ready and, where taints are removed, has lost its not-ready taint.
pub(super) fn is_schedulable(node: &Value, taints_go: bool) -> bool {
    is_ready(node) && !(taints_go && is_tainted(node))
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn is_tainted(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array().map_or(&[][..], Vec::as_slice);
    taints.iter().any(|taint| taint["key"] == "node.kubernetes.io/not-ready")
}

fn eventually(what: &str, poll: Duration, mut check: impl FnMut() -> Result<(), String>) -> Result<(), PlaneError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match check() {
            Ok(()) => return Ok(()),
            Err(reason) if Instant::now() > deadline => {
                return Err(PlaneError::TimedOut { what: what.to_owned(), timeout: TIMEOUT, reason });
            }
            Err(_) => thread::sleep(poll),
        }
    }
}

fn with_source(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
