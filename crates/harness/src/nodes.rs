//! Creates, changes, deletes and reads nodes, as admin or as a kubelet.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, NodeSystemInfo, Taint};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{TestCluster, eventually};

pub type Labels = BTreeMap<String, String>;

/// Builds labels from pairs.
pub fn labels<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Labels {
    pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

/// Builder of a node.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
#[must_use = "a node is created by `create`"]
pub struct NodeBuilder {
    api: Api<Node>,
    node: Node,
}

impl NodeBuilder {
    pub fn label(self, key: &str, value: &str) -> Self {
        self.labels([(key, value)])
    }

    pub fn labels<K: Into<String>, V: Into<String>>(mut self, pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        self.node.metadata.labels.get_or_insert_default().extend(labels(pairs));
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.node.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        let taint = Taint { key: key.into(), value: Some(value.into()), effect: effect.into(), ..Taint::default() };
        self.node.spec.get_or_insert_default().taints.get_or_insert_default().push(taint);
        self
    }

    pub fn cordoned(mut self) -> Self {
        self.node.spec.get_or_insert_default().unschedulable = Some(true);
        self
    }

    /// Sets the machine identity: providerID, systemUUID, machineID.
    pub fn machine(mut self, provider: &str, system: &str, machine: &str) -> Self {
        self.node.spec.get_or_insert_default().provider_id = Some(provider.to_owned());
        let info = NodeSystemInfo {
            system_uuid: system.to_owned(),
            machine_id: machine.to_owned(),
            ..NodeSystemInfo::default()
        };
        self.node.status = Some(NodeStatus { node_info: Some(info), ..NodeStatus::default() });
        self
    }

    /// Sets the client that sends the request. The default is the admin.
    pub fn by(mut self, client: Client) -> Self {
        self.api = Api::all(client);
        self
    }

    /// Returns the object without creating it.
    pub fn into_node(self) -> Node {
        self.node
    }

    pub async fn create(self) -> Node {
        let name = self.node.metadata.name.clone().unwrap_or_default();
        self.try_create().await.unwrap_or_else(|error| panic!("creating node {name}: {error}"))
    }

    /// Like [`NodeBuilder::create`], for creates that may be refused.
    pub async fn try_create(self) -> kube::Result<Node> {
        self.api.create(&PostParams::default(), &self.node).await
    }
}

impl TestCluster {
    /// Returns a builder of a node without labels, annotations or taints.
    pub fn node(&self, name: &str) -> NodeBuilder {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let node = Node { metadata, spec: Some(NodeSpec::default()), status: None };
        NodeBuilder { api: self.nodes(), node }
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client())
    }

    pub async fn label(&self, node: &str, key: &str, value: &str) {
        self.patch_node(node, json!({"metadata": {"labels": {key: value}}})).await;
    }

    pub async fn unlabel(&self, node: &str, key: &str) {
        self.patch_node(node, json!({"metadata": {"labels": {key: null}}})).await;
    }

    /// Sends a merge patch as admin.
    pub async fn patch_node(&self, node: &str, patch: Value) -> Node {
        let patched = self.nodes().patch(node, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.unwrap_or_else(|error| panic!("patching node {node}: {error}"))
    }

    pub async fn delete_node(&self, node: &str) {
        let deleted = self.nodes().delete(node, &DeleteParams::default()).await;
        drop(deleted.unwrap_or_else(|error| panic!("deleting node {node}: {error}")));
    }

    /// Reads the node.
    pub async fn get_node(&self, node: &str) -> Node {
        self.nodes().get(node).await.unwrap_or_else(|error| panic!("reading node {node}: {error}"))
    }

    pub async fn labels(&self, node: &str) -> Labels {
        self.get_node(node).await.metadata.labels.unwrap_or_default()
    }

    /// Waits until the node has exactly these labels.
    pub async fn wait_for_labels<K: Into<String>, V: Into<String>>(
        &self,
        node: &str,
        wanted: impl IntoIterator<Item = (K, V)>,
    ) {
        let wanted = labels(wanted);
        eventually(format!("node {} has {}", short(node), text(&wanted)), async || {
            let seen = self.labels(node).await;
            if seen == wanted { Ok(()) } else { Err(text(&seen)) }
        })
        .await;
    }
}

/// Formats labels for messages, at most one line.
pub(crate) fn text(labels: &Labels) -> String {
    let mut text: Vec<String> = labels.iter().take(12).map(|(key, value)| format!("{key}={value}")).collect();
    if labels.len() > text.len() {
        text.push(format!("… {} in all", labels.len()));
    }
    format!("[{}]", text.join(", "))
}

fn short(name: &str) -> &str {
    name.get(..60).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_label_sets_are_shortened_in_messages() {
        assert_eq!(text(&labels([("team", "ml"), ("rack", "r7")])), "[rack=r7, team=ml]");
        let many = text(&labels((0..20).map(|number| (format!("key-{number:02}"), "v"))));
        assert!(many.contains("key-11=v") && !many.contains("key-12=v") && many.ends_with("… 20 in all]"), "{many}");
    }
}
