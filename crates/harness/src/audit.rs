//! What somebody asked of the API server, as the API server wrote it down.

use std::{
    collections::BTreeSet,
    env, fs,
    path::PathBuf,
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

use localplane::{Plane, Program};
use serde_json::Value;

use crate::{TestCluster, planes::Borrowed};

const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// The folder of an API server's audit log; gone when it is dropped.
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

    /// Lists are not streamed here, as on older API servers: what is watched is listed as well.
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

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub verb: String,
    pub group: String,
    /// With its subresource: `pods/eviction`.
    pub resource: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    /// What was answered; 0 while that is not known.
    pub code: u64,
    /// The server was asked to keep nothing of it.
    pub dry_run: bool,
}

impl Asked {
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

    /// What a request asks, by its own words.
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
    /// One whose API server writes down who asked what; with everything that makes pods run where `whole`.
    pub async fn audited(whole: bool) -> Self {
        let log = AuditLog::new();
        let builder = Plane::builder().args(Program::KubeApiserver, log.args());
        Self::on(Borrowed::own(if whole { builder.everything() } else { builder }, Some(log))).await
    }

    /// What this user asked so far.
    pub fn asked_by(&self, user: &str) -> Vec<Asked> {
        let log = self.audit_log().expect("an audited cluster");
        let text = fs::read_to_string(log.0.join("audit.log")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["user"]["username"] == user).filter_map(|line| Asked::of(&line)).collect()
    }
}

/// Verbs on resources, each once.
pub fn verbs(asked: &[Asked]) -> BTreeSet<(String, String, String)> {
    asked.iter().map(|asked| (asked.group.clone(), asked.resource.clone(), asked.verb.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_say_what_they_ask() {
        let asked = |method: http::Method, uri: &'static str| {
            let asked = Asked::by_request(&method, &http::Uri::from_static(uri));
            (
                asked.verb,
                asked.group,
                asked.resource,
                asked.namespace.unwrap_or_default(),
                asked.name.unwrap_or_default(),
            )
        };
        let words = |all: [&str; 5]| all.map(str::to_owned).into();

        assert_eq!(asked(http::Method::GET, "/api/v1/nodes?watch=true&x=1"), words(["watch", "", "nodes", "", ""]));
        assert_eq!(asked(http::Method::PATCH, "/api/v1/nodes/n1"), words(["patch", "", "nodes", "", "n1"]));
        assert_eq!(
            asked(http::Method::POST, "/api/v1/namespaces/a/pods/p/eviction"),
            words(["create", "", "pods/eviction", "a", "p"])
        );
        assert_eq!(
            asked(http::Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/l"),
            words(["update", "coordination.k8s.io", "leases", "a", "l"])
        );
        assert_eq!(asked(http::Method::GET, "/api/v1/namespaces/a"), words(["get", "", "namespaces", "", "a"]));
    }
}
