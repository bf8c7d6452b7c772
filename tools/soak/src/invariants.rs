//! Invariants of all records at all times.

use std::{collections::BTreeMap, time::Duration};

use kube::api::ListParams;
use serde_json::Value;

use crate::Soak;

/// Sequences only grow, and labels of other controllers are never recorded.
pub(crate) async fn check(soak: Soak) {
    let mut known: BTreeMap<String, (String, u64)> = BTreeMap::new();
    while !soak.is_over() {
        let params = ListParams::default().labels("perennial.dev/record=v1");
        let records = soak.cluster.records().list(&params).await.expect("listing records").items;
        for object in records {
            let (name, uid) = (object.metadata.name.unwrap_or_default(), object.metadata.uid.unwrap_or_default());
            let text = object.data.unwrap_or_default().remove("record.json").unwrap_or_default();
            let record: Value = serde_json::from_str(&text).expect("a record is JSON");
            let sequence = record["sequence"].as_u64().expect("a record has a sequence");
            if let Some((_, before)) = known.get(&name).filter(|(before, _)| *before == uid) {
                assert!(sequence >= *before, "the sequence of {name} went from {before} to {sequence}");
            }
            let foreign = record["labels"]
                .as_object()
                .and_then(|labels| labels.keys().find(|key| key.starts_with("feature.node.kubernetes.io/")).cloned());
            assert_eq!(foreign, None, "{name} holds a label that others write");
            known.insert(name, (uid, sequence));
        }
        soak.tally.add(|tally| &tally.checks);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}
