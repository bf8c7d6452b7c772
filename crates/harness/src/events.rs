//! Kubernetes Events about nodes.

use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};

use crate::{TestCluster, eventually};

impl TestCluster {
    /// Returns the Events about a node as `Reason: message`.
    pub async fn events(&self, node: &str) -> Vec<String> {
        let events: Api<Event> = Api::default_namespaced(self.client());
        let params = ListParams::default().fields(&format!("involvedObject.kind=Node,involvedObject.name={node}"));
        let list = events.list(&params).await.expect("listing events");
        let text =
            |event: Event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
        list.items.into_iter().map(text).collect()
    }

    /// Waits for an Event about a node with this reason and returns it.
    pub async fn wait_for_event(&self, node: &str, reason: &str) -> String {
        eventually(format!("an Event {reason} about node {node}"), async || {
            let events = self.events(node).await;
            let found = events.iter().find(|event| event.starts_with(&format!("{reason}: "))).cloned();
            found.ok_or_else(|| format!("{events:?}"))
        })
        .await
    }
}
