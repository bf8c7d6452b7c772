//! Contenders: Perennial with or without webhooks, or one of its peers.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Api, api::ListParams, core::PartialObjectMeta};
use localplane::Process;
use perennial_harness::{Operator, TestCluster, Webhooks, cpu_of, eventually_within, peak_memory_of};

use crate::{
    fleet::{State, number, state},
    peers::{kopf, plain},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Perennial(Webhooks),
    /// Controller in the style of kube's examples: finalizer, ConfigMap at deletion, a PATCH to
    /// restore.
    Plain,
    /// Typical kopf operator.
    Kopf,
}

/// A running contender.
pub(crate) enum Running {
    Perennial(Box<Operator>),
    Peer(Process),
}

impl Contender {
    pub(crate) const PERENNIAL: [Self; 2] = [Self::Perennial(Webhooks::Off), Self::Perennial(Webhooks::On)];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Perennial(Webhooks::On) => "Perennial, webhooks on",
            Self::Perennial(Webhooks::Off) => "Perennial, webhooks off",
            Self::Plain => "plain controller",
            Self::Kopf => "kopf operator",
        }
    }

    /// Starts it. Returns `None` if it is not available on this machine.
    pub(crate) async fn start(self, cluster: &TestCluster) -> Option<Running> {
        let kubeconfig = cluster.plane().kubeconfig_path();
        let log = cluster.plane().dir().join("logs").join(format!("{}-peer.log", cluster.namespace()));
        match self {
            Self::Perennial(webhooks) => Some(Running::Perennial(Box::new(cluster.start(webhooks).await))),
            Self::Plain => Some(Running::Peer(plain::start(&kubeconfig, cluster.namespace(), &log))),
            Self::Kopf => kopf::start(&kubeconfig, cluster.namespace(), &log).map(Running::Peer),
        }
    }

    /// Waits until every change is stored, so that everything can be restored.
    pub(crate) async fn wait_until_kept(self, cluster: &TestCluster, count: usize) {
        let what = format!("{} has taken in {count} nodes", self.name());
        eventually_within(Duration::from_mins(15), what, async || {
            let kept = match self {
                Self::Perennial(_) | Self::Kopf => kept_records(cluster).await,
                // It stores nothing before the delete; its finalizer shows that it has processed
                // the node.
                Self::Plain => finalized(cluster).await,
            };
            if kept >= count { Ok(()) } else { Err(format!("{kept} so far")) }
        })
        .await;
    }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Perennial(operator) => operator.pid(),
            Self::Peer(process) => process.pid(),
        }
    }
}

/// Returns the number of stored label sets that match the final labels of their node. Each object
/// is named after its node and contains the labels in its data.
async fn kept_records(cluster: &TestCluster) -> usize {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), cluster.namespace());
    let mut kept = 0;
    let mut params = ListParams::default().limit(500);
    loop {
        let page = api.list(&params).await.expect("listing ConfigMaps");
        kept += page.items.iter().filter(|stored| is_kept(stored)).count();
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return kept,
        }
    }
}

fn is_kept(stored: &ConfigMap) -> bool {
    let number = number(stored.metadata.name.as_deref().unwrap_or_default());
    stored.data.iter().flatten().any(|(_, text)| {
        let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        let labels = value.get("labels").unwrap_or(&value);
        let labels = serde_json::from_value(labels.clone()).ok();
        state(labels.as_ref(), number) == State::Complete
    })
}

async fn finalized(cluster: &TestCluster) -> usize {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(cluster.client());
    let list = nodes.list(&ListParams::default()).await.expect("listing nodes").items;
    list.iter().filter(|node| node.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty())).count()
}

/// Resource usage of a process so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) peak_memory: u64,
}

impl Usage {
    pub(crate) fn of(pid: u32) -> Self {
        Self { cpu: cpu_of(pid), peak_memory: peak_memory_of(pid) }
    }

    #[expect(clippy::cast_precision_loss, reason = "bytes of memory")]
    pub(crate) fn peak_mebibytes(&self) -> f64 {
        self.peak_memory as f64 / 1_048_576.0
    }
}
