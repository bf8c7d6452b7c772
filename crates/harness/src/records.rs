//! Records, read as ConfigMaps with JSON.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use perennial_core::keeper::{
    collect::ABSENT_SINCE,
    identity::Identified,
    record::{RECORD_KEY, RECORD_LABEL, RECORD_LABEL_VALUE, Record},
};
use serde_json::{Value, json};

use crate::{Labels, TestCluster, eventually, labels, nodes::text};

/// Returns the name of the ConfigMap that contains a node's record.
pub fn record_name(node: &str) -> String {
    Identified::named(node).record_name().0
}

impl TestCluster {
    /// API for ConfigMaps in Perennial's namespace.
    pub fn records(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client(), self.namespace())
    }

    /// Reads the ConfigMap of a node's record.
    pub async fn config_map(&self, node: &str) -> Option<ConfigMap> {
        self.records().get_opt(&record_name(node)).await.expect("reading a record")
    }

    /// Reads one key of a node's ConfigMap.
    pub async fn record_bytes(&self, node: &str, key: &str) -> Option<String> {
        self.config_map(node).await?.data?.remove(key)
    }

    /// Reads a node's record as JSON.
    pub async fn record(&self, node: &str) -> Option<Value> {
        serde_json::from_str(&self.record_bytes(node, RECORD_KEY).await?).ok()
    }

    /// Waits until the record of a node contains exactly these labels.
    pub async fn wait_for_record<K: Into<String>, V: Into<String>>(
        &self,
        node: &str,
        wanted: impl IntoIterator<Item = (K, V)>,
    ) -> Value {
        self.wait_for_record_under(RECORD_KEY, node, wanted).await
    }

    /// Like [`TestCluster::wait_for_record`] for another key of the ConfigMap.
    pub async fn wait_for_record_under<K: Into<String>, V: Into<String>>(
        &self,
        key: &str,
        node: &str,
        wanted: impl IntoIterator<Item = (K, V)>,
    ) -> Value {
        let wanted = labels(wanted);
        eventually(format!("the record of {node} holds {}", text(&wanted)), async || {
            let bytes = self.record_bytes(node, key).await.ok_or_else(|| format!("no {key}"))?;
            let record: Value = serde_json::from_str(&bytes).map_err(|error| error.to_string())?;
            let seen = labels_of(&record);
            if seen == wanted { Ok(record) } else { Err(text(&seen)) }
        })
        .await
    }

    /// Overwrites the data of a node's record, or creates a ConfigMap with it.
    pub async fn corrupt_record(&self, node: &str, data: Value) {
        let name = record_name(node);
        let patch = json!({"data": data});
        let api = self.records();
        if self.config_map(node).await.is_some() {
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("spoiling a record");
            return;
        }
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {RECORD_LABEL: RECORD_LABEL_VALUE}},
            "data": data,
        });
        let object = serde_json::from_value(object).expect("a ConfigMap");
        api.create(&PostParams::default(), &object).await.expect("creating a spoilt record");
    }

    /// Makes a record look as if its node were absent since a time in the past, and captured
    /// before.
    pub async fn set_absent_since(&self, node: &str, since: Timestamp) {
        let text = self.record_bytes(node, RECORD_KEY).await.expect("a record");
        let mut record = Record::decode(&text).expect("a valid record");
        record.captured_at = record.captured_at.min(since);
        let text = record.encode().expect("a small record");
        let annotations = json!({ABSENT_SINCE: since.to_string()});
        let patch = json!({"metadata": {"annotations": annotations}, "data": {RECORD_KEY: text}});
        let params = PatchParams::default();
        self.records().patch(&record_name(node), &params, &Patch::Merge(patch)).await.expect("ageing a record");
    }

    /// Returns the number of records.
    pub async fn record_count(&self) -> usize {
        let params = ListParams::default().labels(&format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}"));
        self.records().list_metadata(&params).await.expect("listing records").items.len()
    }
}

fn labels_of(record: &Value) -> Labels {
    serde_json::from_value(record["labels"].clone()).unwrap_or_default()
}
