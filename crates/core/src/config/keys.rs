//! The table of all keys. Reading the file, the variables and the flags, writing the settings back and the reference page
//! all go by it, so none of them can forget a key.

use serde_json::Value as Tree;

use super::problem::Report;
use super::settings::Settings;
use super::value::Value;

/// One key of the configuration.
pub(super) struct Key {
    /// `controller.leaderElection.leaseDuration`
    pub(super) path: &'static str,
    /// One sentence for the reference page.
    pub(super) meaning: &'static str,
    pub(super) from_tree: fn(&mut Settings, &Tree, &mut Report),
    pub(super) from_text: fn(&mut Settings, &str, &mut Report),
    pub(super) to_tree: fn(&Settings) -> Tree,
}

macro_rules! keys {
    ($($path:literal = $($field:ident).+ : $meaning:literal)+) => {
        pub(super) static KEYS: &[Key] = &[$(Key {
            path: $path,
            meaning: $meaning,
            from_tree: |settings, tree, report| {
                if let Some(value) = Value::from_tree(tree, report) { settings.$($field).+ = value; }
            },
            from_text: |settings, text, report| {
                if let Some(value) = Value::from_text(text, report) { settings.$($field).+ = value; }
            },
            to_tree: |settings| Value::to_tree(&settings.$($field).+),
        }),+];
    };
}

keys! {
    "namespace" = namespace: "Namespace of Perennial's own objects: records, Leases, certificates."

    "controller.resyncPeriod" = controller.resync_period: "How often everything known is compared again, in memory. At least 5s."
    "controller.auditPeriod" = controller.audit_period: "How often everything is read afresh from the API server. At least 5s."
    "controller.workers" = controller.workers: "How many objects are worked on at the same time."
    "controller.qps" = controller.qps: "Requests a second that all loops together may send."
    "controller.burst" = controller.burst: "Requests that may be sent at once after a pause: a mass return should be one burst. Ten times `controller.qps` unless set."
    "controller.shards" = controller.shards: "Parts that the nodes and workloads are divided into; each is held by one replica at a time."
    "controller.roles" = controller.roles: "What this process does: `capture`, `restore`, `placement`, `webhooks`."
    "controller.leaderElection.enabled" = controller.leader_election.enabled: "Hold a Lease for each shard. Without it only one replica may run."
    "controller.leaderElection.leaseDuration" = controller.leader_election.lease_duration: "How long a Lease lasts that is not renewed, in whole seconds."
    "controller.namespaceSelector" = controller.namespace_selector: "The namespaces whose workloads are placed: `matchLabels` and `matchExpressions`, or one line as `kubectl -l` takes it. Empty: all."
    "controller.dryRun" = controller.dry_run: "Decide and report, but write nothing."

    "keeper.keep" = keeper.keep: "Patterns of the label keys that are kept."
    "keeper.drop" = keeper.drop: "Patterns of the label keys that are not kept after all. Replaces the default list."
    "keeper.annotations" = keeper.annotations: "Patterns of the annotation keys that are kept."
    "keeper.taints" = keeper.taints: "Patterns of the taint keys that are kept. Startup taints never are."
    "keeper.cordon" = keeper.cordon: "Keep whether a node is cordoned."
    "keeper.merge" = keeper.merge: "Who wins when the returned node has another value: `keepExisting` (the node) or `overwrite` (the record)."
    "keeper.identity" = keeper.identity: "What makes a node the same node: `name`, `providerID`, `systemUUID`, `machineID`, `label:KEY` or `annotation:KEY`."
    "keeper.protected" = keeper.protected: "Patterns of the keys that go back only to the same machine."
    "keeper.retention" = keeper.retention: "How long the record of an absent node is kept."
    "keeper.history" = keeper.history: "How many earlier label sets a record remembers."
    "keeper.gate" = keeper.gate: "Hold pods back from a new node until its restore: `never`, `needed` (something is still to be restored) or `always`."
    "keeper.gateTimeout" = keeper.gate_timeout: "After this time the gate is removed, restored or not."

    "records.hmac" = records.hmac: "Sign records with the keys of the Secret `perennial-record-keys`: `none`, `sign` (those without a signature are trusted as well, and signed) or `require` (they are quarantined)."

    "placement.enabled" = placement.enabled: "Place the replicas of annotated workloads."
    "placement.annotationPrefixes" = placement.annotation_prefixes: "Domains whose annotations are understood, the first one first."
    "placement.cooldown" = placement.cooldown: "Time between two moves of one workload."
    "placement.gateTimeout" = placement.gate_timeout: "After this time a gated pod is freed as on-demand."
    "placement.holdTimeout" = placement.hold_timeout: "How long spot pods of a rollout wait for its on-demand pods to be Ready."
    "placement.spotTolerations" = placement.spot_tolerations: "Tolerations that spot pods get, as `key=value:Effect` or in Kubernetes' own shape."

    "nodeLabels.spot" = node_labels.spot: "Labels, as `key=value`, any of which makes a node spot."
    "nodeLabels.onDemand" = node_labels.on_demand: "Labels, as `key=value`, any of which makes a node on-demand."

    "webhook.enabled" = webhook.enabled: "Serve admission, and keep the webhook configurations right."
    "webhook.port" = webhook.port: "Port of the webhook server. 0: any free one."
    "webhook.certDir" = webhook.cert_dir: "Directory with `tls.crt` and `tls.key` (and `ca.crt`) from elsewhere. Empty: Perennial makes its own."
    "webhook.url" = webhook.url: "Address at which the API server reaches the webhooks, when Perennial runs outside of the cluster."
    "webhook.failurePolicy" = webhook.failure_policy: "What the API server does when no webhook answers: `Ignore` or `Fail`."
    "webhook.timeout" = webhook.timeout: "How long the API server waits for an answer: 1s to 30s, in whole seconds."

    "metrics.enabled" = metrics.enabled: "Serve `/metrics`, `/livez` and `/readyz`."
    "metrics.port" = metrics.port: "Their port. 0: any free one."

    "dashboard.enabled" = dashboard.enabled: "Serve the dashboard, read-only, on loopback only: `kubectl port-forward` leads to it."
    "dashboard.port" = dashboard.port: "Its port. 0: any free one."

    "logging.level" = logging.level: "`error`, `warn`, `info`, `debug` or `trace`."
    "logging.format" = logging.format: "`json` or `text`."
}

impl Key {
    pub(super) fn named(path: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.path == path)
    }

    /// `PERENNIAL_CONTROLLER_RESYNC_PERIOD` for `controller.resyncPeriod`.
    pub(super) fn variable(&self) -> String {
        let mut name = String::from("PERENNIAL_");
        for c in self.path.chars() {
            match c {
                '.' => name.push('_'),
                _ if c.is_ascii_uppercase() => name.extend(['_', c]),
                _ => name.push(c.to_ascii_uppercase()),
            }
        }
        name
    }
}

/// The names that may stand directly under a section (`""` for the top).
pub(super) fn children(section: &str) -> Vec<&'static str> {
    let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
    let mut names: Vec<&str> =
        KEYS.iter().filter_map(|key| key.path.strip_prefix(&prefix)?.split('.').next()).collect();
    names.dedup();
    names
}
