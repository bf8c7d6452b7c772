//! Signed records: attacks by a writer of ConfigMaps without the signing key and without admission
//! policies.

use kube::api::{DeleteParams, ObjectMeta, PostParams};
use perennial_harness::{Operator, TestCluster, Webhooks, eventually, labels, record_name};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{allow, config_maps, install, operator};

const SECRET: &str = "perennial-record-keys";
const FIRST: &str = "0123456789abcdef0123456789abcdef-first";
const SECOND: &str = "0123456789abcdef0123456789abcdef-second";

fn keys(cluster: &TestCluster, keys: &[(&str, &str)]) {
    let data: serde_json::Map<String, Value> =
        keys.iter().map(|(name, key)| ((*name).to_owned(), json!(key))).collect();
    let metadata = json!({"name": SECRET, "namespace": cluster.namespace()});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
    cluster.try_kubectl(&format!("delete secret {SECRET} -n {} --ignore-not-found", cluster.namespace()));
    cluster.try_kubectl_with("create", &secret.to_string()).expect_success();
}

/// Operator with its own account that requires signed records.
async fn requiring(cluster: &TestCluster, webhooks: Webhooks) -> Operator {
    let builder = operator(cluster).without_leader_election().webhooks(webhooks).set("records.hmac", "require");
    install(cluster, "permissions --set records.hmac=require");
    let operator = builder.start().await;
    if webhooks == Webhooks::On {
        cluster.wait_for_admission(&operator).await;
    }
    operator
}

/// Returns the data of a record's ConfigMap.
async fn data(cluster: &TestCluster, node: &str) -> Value {
    json!(cluster.config_map(node).await.unwrap().data.unwrap_or_default())
}

#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Content changed, with a matching checksum.
    Tampered,
    /// The same without a signature.
    Forged,
    /// Record of another node with its signature.
    Swapped,
    /// Record of another node, changed to this node, with its signature.
    Renamed,
    /// Signature of another key of the same ConfigMap.
    Recovered,
    /// An earlier version of the record with its signature.
    Replayed,
}

impl Attack {
    async fn data(self, cluster: &TestCluster, before: &Value) -> Value {
        let (good, other) = (data(cluster, "n1").await, data(cluster, "other").await);
        let record = |text: &Value| -> perennial_core::keeper::record::Record {
            perennial_core::keeper::record::Record::decode(text.as_str().unwrap()).unwrap()
        };
        let mut evil = record(&good["record.json"]);
        evil.kept.insert(perennial_core::keeper::keys::Key::label("team"), "evil".to_owned());
        evil.sequence += 1;
        let evil = evil.encode().unwrap();
        let mut renamed = record(&other["record.json"]);
        "n1".clone_into(&mut renamed.node.name);
        let renamed = renamed.encode().unwrap();
        match self {
            Self::Tampered => json!({"record.json": evil, "record.json.hmac": good["record.json.hmac"]}),
            Self::Forged => json!({"record.json": evil, "record.json.hmac": null}),
            Self::Swapped => other,
            Self::Renamed => json!({"record.json": renamed, "record.json.hmac": other["record.json.hmac"]}),
            Self::Recovered => json!({
                "record.json": "rubbish", "recovered.json": good["record.json"],
                "recovered.json.hmac": good["record.json.hmac"],
            }),
            Self::Replayed => before.clone(),
        }
    }
}

#[rstest]
#[case::tampered(Attack::Tampered, Webhooks::On)]
#[case::forged(Attack::Forged, Webhooks::On)]
#[case::swapped(Attack::Swapped, Webhooks::Off)]
#[case::renamed(Attack::Renamed, Webhooks::Off)]
#[case::recovered(Attack::Recovered, Webhooks::Off)]
#[case::replayed(Attack::Replayed, Webhooks::On)]
#[case::replayed_by_watch(Attack::Replayed, Webhooks::Off)]
#[tokio::test]
async fn a_record_without_a_valid_signature_is_not_restored(#[case] attack: Attack, #[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    keys(&cluster, &[("k1", FIRST)]);
    let operator = requiring(&cluster, webhooks).await;
    cluster.node("n1").label("team", "old").create().await;
    cluster.wait_for_record("n1", [("team", "old")]).await;
    let before = data(&cluster, "n1").await;
    cluster.label("n1", "team", "ml").await;
    cluster.node("other").label("team", "web").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.wait_for_record("other", [("team", "web")]).await;
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;

    cluster.corrupt_record("n1", attack.data(&cluster, &before).await).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 1.0).await;
    let bytes = cluster.record_bytes("n1", "record.json").await;
    let node = cluster.node("n1").label("own", "1").create().await;

    assert_eq!(node.metadata.labels.unwrap_or_default(), labels([("own", "1")]));
    let message = cluster.wait_for_event("n1", "RecordInvalid").await;
    assert!(message.contains(&record_name("n1")), "{message}");
    // The state since then is kept beside the corrupted bytes, also for a replacement that observed
    // nothing of it.
    cluster.wait_for_record_under("recovered.json", "n1", [("own", "1")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("own", "1")]));
    assert_eq!(cluster.record_bytes("n1", "record.json").await, bytes);
    operator.crash();
    cluster.delete_node("n1").await;
    let _successor = requiring(&cluster, webhooks).await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("own", "1")]).await;
}

/// An earlier record of an existing node, replayed while the operator was down, in place or after
/// its deletion: the live node is authoritative.
#[rstest]
#[case::replaced(false)]
#[case::deleted_and_created_again(true)]
#[tokio::test]
async fn a_live_node_wins_over_a_replayed_record(#[case] created_again: bool) {
    let cluster = TestCluster::new().await;
    keys(&cluster, &[("k1", FIRST)]);
    let operator = requiring(&cluster, Webhooks::Off).await;
    cluster.node("n1").label("team", "old").create().await;
    cluster.wait_for_record("n1", [("team", "old")]).await;
    let before = data(&cluster, "n1").await;
    cluster.label("n1", "team", "ml").await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    operator.crash();

    if created_again {
        let mut copy = cluster.config_map("n1").await.unwrap();
        copy.metadata = ObjectMeta { name: copy.metadata.name, labels: copy.metadata.labels, ..ObjectMeta::default() };
        copy.data = serde_json::from_value(before).unwrap();
        cluster.records().delete(&record_name("n1"), &DeleteParams::default()).await.unwrap();
        cluster.records().create(&PostParams::default(), &copy).await.unwrap();
    } else {
        cluster.corrupt_record("n1", before).await;
    }
    let _operator = requiring(&cluster, Webhooks::Off).await;

    cluster.wait_for_record("n1", [("team", "ml")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml")]));
}

#[tokio::test]
async fn unsigned_records_get_signed_and_keys_rotate() {
    let cluster = TestCluster::new().await;
    // Existing records without signatures.
    let operator = operator(&cluster).start().await;
    for node in ["n1", "n2"] {
        cluster.node(node).label("team", node).create().await;
        cluster.wait_for_record(node, [("team", node)]).await;
    }
    cluster.delete_node("n2").await;
    assert!(operator.stop().await.is_some());
    let signed_by = async |key: &str| {
        eventually(format!("both records are signed by {key}"), async || {
            for node in ["n1", "n2"] {
                let data = data(&cluster, node).await;
                let signature = data["record.json.hmac"].as_str().unwrap_or_default();
                if !signature.starts_with(&format!("{key}:")) {
                    return Err(format!("{node}: {signature:?}"));
                }
            }
            Ok(())
        })
        .await;
    };

    // First, records get signed, and unsigned ones are trusted.
    keys(&cluster, &[("k1", FIRST)]);
    install(&cluster, "permissions --set records.hmac=sign");
    let operator =
        cluster.operator_in_cluster(crate::ACCOUNT).without_leader_election().set("records.hmac", "sign").start().await;
    signed_by("k1").await;
    operator.wait_for_metric("perennial_records_unsigned", &[], 0.0).await;
    assert!(operator.stop().await.is_some());
    // Then unsigned ones are not trusted any more.
    let operator = requiring(&cluster, Webhooks::Off).await;
    cluster.node("n2").create().await;
    cluster.wait_for_labels("n2", [("team", "n2")]).await;
    // A new key signs; when all records are signed with it, the old one can be removed.
    keys(&cluster, &[("k1", FIRST), ("k2", SECOND)]);
    signed_by("k2").await;
    keys(&cluster, &[("k2", SECOND)]);
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "n1")]).await;
    assert!(operator.stop().await.is_some());
    let operator = requiring(&cluster, Webhooks::Off).await;
    cluster.delete_node("n2").await;
    cluster.node("n2").create().await;
    cluster.wait_for_labels("n2", [("team", "n2")]).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 0.0).await;
}

/// Content beside a valid record is not signed just because it is there.
#[tokio::test]
async fn a_record_planted_beside_another_is_neither_trusted_nor_signed() {
    let cluster = TestCluster::new().await;
    keys(&cluster, &[("k1", FIRST)]);
    let operator = requiring(&cluster, Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;
    let text = cluster.record_bytes("n1", "record.json").await.unwrap();
    let mut evil = perennial_core::keeper::record::Record::decode(&text).unwrap();
    evil.kept.insert(perennial_core::keeper::keys::Key::label("team"), "evil".to_owned());
    evil.sequence = 1000;

    cluster.corrupt_record("n1", json!({"recovered.json": evil.encode().unwrap()})).await;
    // A new key signs every valid record.
    keys(&cluster, &[("k1", FIRST), ("k2", SECOND)]);
    eventually("the record is signed again", async || {
        let signature = data(&cluster, "n1").await["record.json.hmac"].to_string();
        if signature.contains("k2:") { Ok(()) } else { Err(signature) }
    })
    .await;

    assert_eq!(data(&cluster, "n1").await["recovered.json.hmac"], Value::Null);
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
}

/// A record is signed with a key that this replica has not read yet: it reads the keys before it
/// rejects the record, and signs with the new key from then on, including unchanged records.
#[tokio::test]
async fn an_unknown_signing_key_is_loaded_on_demand() {
    let cluster = TestCluster::new().await;
    keys(&cluster, &[("k1", FIRST)]);
    let operator = requiring(&cluster, Webhooks::Off).await;
    cluster.node("other").label("team", "web").create().await;
    cluster.wait_for_record("other", [("team", "web")]).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;

    keys(&cluster, &[("k1", FIRST), ("k2", SECOND)]);
    let config = cluster.plane().dir().join("require.yaml");
    std::fs::write(&config, "records: {hmac: require}\n").unwrap();
    cluster.perennial(&format!("rollback n1 --config {}", config.display())).expect_success();
    assert!(data(&cluster, "n1").await["record.json.hmac"].as_str().unwrap().starts_with("k2:"));
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 0.0).await;
    eventually("the other record is signed by the new key", async || {
        let signature = data(&cluster, "other").await["record.json.hmac"].to_string();
        if signature.contains("k2:") { Ok(()) } else { Err(signature) }
    })
    .await;
}

#[tokio::test]
async fn without_the_signing_keys_records_are_readable_and_not_writable() {
    let cluster = TestCluster::new().await;
    keys(&cluster, &[("k1", FIRST)]);
    let _operator = requiring(&cluster, Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let before = data(&cluster, "n1").await;
    let reader = cluster.read_only_user();
    allow(&cluster, &reader, &config_maps());
    let config = cluster.plane().dir().join("require.yaml");
    std::fs::write(&config, "records: {hmac: require}\n").unwrap();
    let config = config.display();

    let seen = cluster.perennial_as(&reader, &[], &format!("show n1 --config {config}"));
    assert!(seen.success && seen.stdout.contains("team=ml"), "{seen:?}");
    assert!(seen.stderr.contains("not checked"), "{seen:?}");
    let message = cluster.perennial_as(&reader, &[], &format!("forget n1 --yes --config {config}")).expect_failure();

    assert!(message.contains(SECRET), "{message}");
    assert_eq!(data(&cluster, "n1").await, before);
    // With read access to the keys, `check` reports the signatures.
    let checked = cluster.perennial(&format!("check --config {config}"));
    assert!(checked.stdout.contains("are signed by key k1"), "{checked:?}");
}

#[rstest]
#[case::missing(&[], "kubectl create secret generic perennial-record-keys")]
#[case::short(&[("k1", "too-short")], "has 9 bytes")]
#[tokio::test]
async fn without_usable_keys_it_does_not_begin(#[case] those: &[(&str, &str)], #[case] expected: &str) {
    let cluster = TestCluster::new().await;
    if !those.is_empty() {
        keys(&cluster, those);
    }

    let run = "run --set records.hmac=require --set webhook.enabled=false --set metrics.enabled=false";
    let message = cluster.perennial(run).expect_failure();

    assert!(message.contains(expected), "{message}");
    assert!(!message.contains("too-short"), "a key is in it: {message}");
}
