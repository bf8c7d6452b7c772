//! Requests to the API server, from its audit log.

use std::{
    collections::BTreeSet,
    env, fs,
    path::PathBuf,
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

use localplane::{Plane, Program};
use serde_json::Value;

use crate::{TestCluster, plane_pool::PlaneLoan};

const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// Folder of an API server's audit log. Removed on drop.
#[derive(Debug)]
pub(crate) struct AuditLog(PathBuf);

impl AuditLog {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("perennial-audit-{}-{number}", process::id()));
        fs::create_dir_all(&folder).expect("a folder for the audit log");
        fs::write(folder.join("policy.yaml"), POLICY).expect("writing the audit policy");
        Self(folder)
    }

    /// Turns WatchList off, as on older API servers, so that a watched resource is listed as well.
    fn args(&self) -> [String; 3] {
        let folder = self.0.display();
        [
            format!("--audit-policy-file={folder}/policy.yaml"),
            format!("--audit-log-path={folder}/audit.log"),
            "--feature-gates=WatchList=false".to_owned(),
        ]
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One request in the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    pub verb: String,
    pub group: String,
    /// Resource with its subresource, such as `pods/eviction`.
    pub resource: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    /// Status code of the response; 0 while it is unknown.
    pub code: u64,
    /// True if it was a server-side dry run.
    pub dry_run: bool,
}

impl ApiRequest {
    fn of(line: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let object = &line["objectRef"];
        let resource = text(&object["resource"])?;
        let resource = match object["subresource"].as_str() {
            Some(sub) => format!("{resource}/{sub}"),
            None => resource,
        };
        Some(Self {
            verb: text(&line["verb"])?,
            group: text(&object["apiGroup"]).unwrap_or_default(),
            resource,
            namespace: text(&object["namespace"]),
            name: text(&object["name"]),
            code: line["responseStatus"]["code"].as_u64().unwrap_or_default(),
            dry_run: line["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=All")),
        })
    }

    /// Parses verb, resource and name from an HTTP request.
    pub(crate) fn by_request(method: &http::Method, uri: &http::Uri) -> Self {
        let words: Vec<&str> = uri.path().split('/').filter(|word| !word.is_empty()).collect();
        let (group, rest) = match words.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            other => ("", other),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            other => (None, other),
        };
        let (resource, name) = match rest {
            [resource, name, sub] => (format!("{resource}/{sub}"), Some(*name)),
            [resource, name] => ((*resource).to_owned(), Some(*name)),
            other => (other.join("/"), None),
        };
        let query = uri.query().unwrap_or_default();
        let has = |pair: &str| query.split('&').any(|has| has == pair);
        let verb = match (method.as_str(), name) {
            ("GET", _) if has("watch=true") || has("watch=1") => "watch",
            ("GET", Some(_)) => "get",
            ("GET", None) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", Some(_)) => "delete",
            _ => "deletecollection",
        };
        Self {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            code: 0,
            dry_run: has("dryRun=All"),
        }
    }

    pub fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb.as_str())
    }
}

impl TestCluster {
    /// Starts a cluster whose API server writes an audit log; with scheduler, controller manager
    /// and kwok if `whole`.
    pub async fn with_audit_log(whole: bool) -> Self {
        let log = AuditLog::new();
        let builder = Plane::builder().args(Program::KubeApiserver, log.args());
        Self::on(PlaneLoan::own(if whole { builder.everything() } else { builder }, Some(log))).await
    }

    /// Returns the requests of a user so far.
    pub fn requests_by(&self, user: &str) -> Vec<ApiRequest> {
        let log = self.audit_log().expect("an audited cluster");
        let text = fs::read_to_string(log.0.join("audit.log")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["user"]["username"] == user).filter_map(|line| ApiRequest::of(&line)).collect()
    }
}

/// Returns each combination of verb, group and resource once.
pub fn verbs(request: &[ApiRequest]) -> BTreeSet<(String, String, String)> {
    request.iter().map(|request| (request.group.clone(), request.resource.clone(), request.verb.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_from_method_and_path() {
        let request = |method: http::Method, uri: &'static str| {
            let request = ApiRequest::by_request(&method, &http::Uri::from_static(uri));
            (
                request.verb,
                request.group,
                request.resource,
                request.namespace.unwrap_or_default(),
                request.name.unwrap_or_default(),
            )
        };
        let words = |all: [&str; 5]| all.map(str::to_owned).into();

        assert_eq!(request(http::Method::GET, "/api/v1/nodes?watch=true&x=1"), words(["watch", "", "nodes", "", ""]));
        assert_eq!(request(http::Method::PATCH, "/api/v1/nodes/n1"), words(["patch", "", "nodes", "", "n1"]));
        assert_eq!(
            request(http::Method::POST, "/api/v1/namespaces/a/pods/p/eviction"),
            words(["create", "", "pods/eviction", "a", "p"])
        );
        assert_eq!(
            request(http::Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/l"),
            words(["update", "coordination.k8s.io", "leases", "a", "l"])
        );
        assert_eq!(request(http::Method::GET, "/api/v1/namespaces/a"), words(["get", "", "namespaces", "", "a"]));
    }
}
