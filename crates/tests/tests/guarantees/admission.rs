//! Admission of requests from users, kubelets and scripts.

use std::{fs, path::Path, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use perennial::admission::issue;
use perennial_core::certs::Lifetimes;
use perennial_harness::{OperatorBuilder, TestCluster, Webhooks, eventually, labels};
use rstest::rstest;
use serde_json::json;

const MARK: &str = "perennial.dev/restored";
const GATE: &str = "perennial.dev/restoring";

#[tokio::test]
async fn a_create_with_kubectl_returns_the_restored_labels() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::On).await;
    let manifest = cluster.plane().dir().join("bare-node.yaml");
    std::fs::write(&manifest, "apiVersion: v1\nkind: Node\nmetadata:\n  name: worker-1\n").unwrap();
    assert_eq!(cluster.kubectl(&format!("create -f {}", manifest.display())), "node/worker-1 created\n");
    assert_eq!(cluster.kubectl("label node worker-1 team=ml example.com/rack=r7"), "node/worker-1 labeled\n");
    cluster.kubectl("delete node worker-1");
    let get_record = format!("get configmap node-worker-1 -n {} -o jsonpath={{.data}}", cluster.namespace());
    let record = cluster.kubectl(&get_record);
    assert!(record.contains(r#"\"team\":\"ml\""#) && record.contains(r#"\"example.com/rack\":\"r7\""#), "{record}");

    let shown = cluster.kubectl(&format!("create -f {} -o jsonpath={{.metadata.labels}}", manifest.display()));

    assert_eq!(shown, r#"{"example.com/rack":"r7","team":"ml"}"#, "in the answer to the create itself");
    let listed = cluster.kubectl("get node worker-1 --show-labels --no-headers");
    assert!(listed.contains("example.com/rack=r7,team=ml"), "{listed}");
}

#[tokio::test]
async fn keys_that_a_kubelet_may_not_set_are_added_by_the_controller() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    let kept = [
        ("team", "ml"),
        ("node-restriction.kubernetes.io/tenant", "blue"),
        ("node-role.kubernetes.io/worker", ""),
        ("example.k8s.io/unknown", "1"),
    ];
    let kubelet = cluster.as_kubelet("n1").await;
    cluster.node("n1").machine("cloud://1", "system-1", "machine-1").by(kubelet.clone()).create().await;
    for (key, value) in kept {
        cluster.label("n1", key, value).await;
    }
    cluster.delete_node("n1").await;

    let node = cluster.node("n1").machine("cloud://1", "system-1", "machine-1").by(kubelet).create().await;

    assert_eq!(node.metadata.labels.unwrap_or_default(), labels([("team", "ml")]), "what rides in a kubelet's create");
    cluster.wait_for_labels("n1", kept).await;
    eventually("the restore in the create is counted", async || {
        let count = operator.metrics().sum("perennial_restores_total", &[("via", "admission")]);
        if count >= 1.0 { Ok(()) } else { Err(count) }
    })
    .await;
    operator.wait_for_metric("perennial_restores_total", &[("via", "watch")], 1.0).await;
}

/// A restarting kubelet creates its node although it exists.
#[tokio::test]
async fn a_create_that_is_answered_already_exists_is_no_restore() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    let kubelet = cluster.as_kubelet("n1").await;
    for name in ["n1", "n2"] {
        cluster.node(name).label("team", "ml").create().await;
        cluster.wait_for_record(name, [("team", "ml")]).await;
    }
    let restored = |node: &str| {
        let log = operator.log();
        log.iter().filter(|line| line["message"] == "restored in the create" && line["node"] == node).count()
    };
    cluster.delete_node("n1").await;
    cluster.node("n1").by(kubelet.clone()).create().await;
    eventually("the restore is counted", async || if restored("n1") == 1 { Ok(()) } else { Err("not yet") }).await;

    for _ in 0..3 {
        let refused = cluster.node("n1").by(kubelet.clone()).try_create().await.unwrap_err();
        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 409), "{refused}");
    }
    // A status update of the node that was there all along, and a restore after it.
    cluster.label("n1", "rack", "r1").await;
    cluster.delete_node("n2").await;
    cluster.node("n2").create().await;
    eventually("a later restore is counted", async || if restored("n2") == 1 { Ok(()) } else { Err("not yet") }).await;

    assert_eq!(restored("n1"), 1);
}

#[tokio::test]
async fn a_server_side_dry_run_leaves_no_trace() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("team", "ml").create().await;
    let record = cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.node("new").create().await;

    // A capture is pending, but the delete is a dry run.
    cluster.patch_node("n1", json!({"metadata": {"annotations": {"perennial.dev/ignore": "true"}}})).await;
    cluster.label("n1", "team", "web").await;
    cluster.node("fence").label("fence", "1").create().await;
    cluster.wait_for_record("fence", [("fence", "1")]).await;
    cluster.nodes().delete("new", &DeleteParams::default().dry_run()).await.unwrap();
    cluster.nodes().delete("n1", &DeleteParams::default().dry_run()).await.unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    cluster.delete_node("fence").await;
    let tried = cluster.nodes().create(&dry, &cluster.node("fence").into_node()).await.unwrap();

    assert_eq!(tried.metadata.labels.unwrap_or_default(), labels([("fence", "1")]), "the response of the dry run");
    assert_eq!(cluster.nodes().get_opt("fence").await.unwrap().map(|_| ()), None);
    assert_eq!(cluster.record("n1").await, Some(record));
    assert_eq!(cluster.record("new").await, None);
}

#[tokio::test]
async fn a_dry_run_of_a_delete_captures_nothing() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(Webhooks::On, |builder| builder.set("controller.roles", "webhooks")).await;
    cluster.node("n1").label("team", "ml").create().await;

    cluster.nodes().delete("n1", &DeleteParams::default().dry_run()).await.unwrap();
    assert_eq!(cluster.record("n1").await, None);

    // The same delete without the dry run is captured.
    cluster.delete_node("n1").await;
    assert!(cluster.record("n1").await.is_some());
}

/// Refuses deletes of nodes with the label `locked`: a webhook without a server and with
/// `failurePolicy: Fail`. Webhooks are called in parallel, so Perennial has captured the node when
/// the delete is refused.
async fn refuse_deletes(cluster: &TestCluster, probe: &str) -> Api<ValidatingWebhookConfiguration> {
    let object: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": "refuses"},
        "webhooks": [{
            "name": "refuses.example.com",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/refuse"},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "objectSelector": {"matchExpressions": [{"key": "locked", "operator": "Exists"}]},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["nodes"]}],
        }],
    }))
    .unwrap();
    let api: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client());
    api.create(&PostParams::default(), &object).await.unwrap();
    eventually("deletes are refused", async || {
        match cluster.nodes().delete(probe, &DeleteParams::default().dry_run()).await {
            Err(_) => Ok(()),
            Ok(_) => Err("they are not"),
        }
    })
    .await;
    api
}

async fn allow_deletes(cluster: &TestCluster, refusing: Api<ValidatingWebhookConfiguration>, node: &str) {
    refusing.delete("refuses", &DeleteParams::default()).await.unwrap();
    eventually("the delete is allowed", async || match cluster.nodes().delete(node, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    })
    .await;
}

#[tokio::test]
async fn a_delete_that_is_refused_after_its_capture_changes_nothing() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("locked", "1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("locked", "1"), ("team", "ml"), ("tier", "gold")]).await;
    let refusing = refuse_deletes(&cluster, "n1").await;

    cluster.label("n1", "team", "web").await;
    let refused = cluster.nodes().delete("n1", &DeleteParams::default()).await.map(|_| ());
    assert!(refused.is_err(), "the delete was not refused");
    // The node was captured for a delete that did not happen: the live node stays authoritative.
    cluster.unlabel("n1", "tier").await;
    cluster.label("n1", "team", "data").await;
    cluster.wait_for_record("n1", [("locked", "1"), ("team", "data")]).await;
    allow_deletes(&cluster, refusing, "n1").await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("locked", "1"), ("team", "data")]).await;
}

#[tokio::test]
async fn an_unsettled_node_whose_delete_is_refused_is_restored_all_the_same() {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.start_with(Webhooks::On, |builder| builder.set("controller.roles", "webhooks")).await;
    cluster.node("n1").label("locked", "1").label("team", "ml").create().await;
    let refusing = refuse_deletes(&cluster, "n1").await;
    allow_deletes(&cluster, refusing, "n1").await;
    cluster.wait_for_record("n1", [("locked", "1"), ("team", "ml")]).await;

    // Created while it cannot be restored, with its own label; its delete is merged into the record
    // and then refused.
    operator.pause();
    cluster.node("n1").label("locked", "2").label("rack", "r7").create().await;
    operator.resume();
    let refusing = refuse_deletes(&cluster, "n1").await;
    let refused = cluster.nodes().delete("n1", &DeleteParams::default()).await.map(|_| ());
    assert!(refused.is_err(), "the delete was not refused");
    let folded = cluster.wait_for_record("n1", [("locked", "2"), ("rack", "r7"), ("team", "ml")]).await;
    assert_eq!(folded["folded"], json!(true));
    cluster.unlabel("n1", "rack").await;
    let _controller = cluster.operator().set("controller.roles", "capture,restore,placement").start().await;

    eventually("the node is restored", async || {
        let seen = cluster.labels("n1").await;
        if seen.get("team").is_some_and(|team| team == "ml") { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    allow_deletes(&cluster, refusing, "n1").await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn changes_of_a_terminating_node_are_captured(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.patch_node("n1", json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.delete_node("n1").await;
    cluster.label("n1", "team", "web").await;
    cluster.label("n1", "late", "1").await;
    cluster.patch_node("n1", json!({"metadata": {"finalizers": null}})).await;
    eventually("the node is gone", async || match cluster.nodes().get_opt("n1").await.unwrap() {
        None => Ok(()),
        Some(_) => Err("it is not"),
    })
    .await;
    cluster.wait_for_record("n1", [("team", "web"), ("late", "1")]).await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "web"), ("late", "1")]).await;
}

#[tokio::test]
async fn a_mark_in_a_saved_manifest_is_ignored() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    let saved = cluster.node("n1").create().await;
    let mark = saved.metadata.annotations.unwrap_or_default().remove(MARK).expect("a mark");
    cluster.label("n1", "tier", "gold").await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.delete_node("n1").await;

    // The restored labels are not on the new node: with the old mark they would look removed by a
    // user.
    let node = cluster.node("n1").annotation(MARK, &mark).create().await;

    assert_eq!(node.metadata.labels.unwrap_or_default(), labels([("team", "ml"), ("tier", "gold")]));
    // An unknown node does not keep a mark either.
    let fresh = cluster.node("fresh").annotation(MARK, &mark).create().await;
    assert!(!fresh.metadata.annotations.unwrap_or_default().contains_key(MARK));
}

#[tokio::test]
async fn unusual_objects_are_admitted_unchanged() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    let mut nameless = cluster.node("x").into_node();
    nameless.metadata.name = None;
    nameless.metadata.generate_name = Some("strange-".to_owned());

    let named = cluster.nodes().create(&PostParams::default(), &nameless).await.unwrap();
    assert!(named.metadata.name.unwrap_or_default().starts_with("strange-"));
    cluster.node("marked").annotation(MARK, "{not a mark").create().await;
    cluster.node("tainted").taint(GATE, "whatever", "NoExecute").label("team", "ml").create().await;
    cluster.corrupt_record("spoilt", json!({"record.json": "{"})).await;
    cluster.node("spoilt").label("own", "1").create().await;
    cluster.corrupt_record("newer", json!({"record.json": json!({"version": 99}).to_string()})).await;
    cluster.node("newer").label("own", "1").create().await;
    // Invalid objects are refused by the API server, not by Perennial.
    let bad = cluster.node("bad").label("no such key!", "1").try_create().await.unwrap_err();
    assert!(bad.to_string().contains("Invalid value"), "{bad}");

    for node in ["spoilt", "newer"] {
        assert_eq!(cluster.labels(node).await, labels([("own", "1")]));
    }
    assert!(operator.metrics().sum("controller_runtime_webhook_requests_total", &[("code", "503")]) < 0.5);
}

#[tokio::test]
async fn changes_right_before_a_delete_in_the_same_second_are_ordered() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::On).await;
    for number in 0..20 {
        let value = number.to_string();
        cluster.node("n1").create().await;
        cluster.label("n1", "first", &value).await;
        cluster.label("n1", "second", &value).await;
        cluster.delete_node("n1").await;
        let node = tokio::time::timeout(Duration::from_secs(30), cluster.node("n1").create()).await.unwrap();
        let seen = node.metadata.labels.unwrap_or_default();
        assert_eq!((seen.get("first"), seen.get("second")), (Some(&value), Some(&value)));
        cluster.unlabel("n1", "first").await;
        cluster.delete_node("n1").await;
    }
}

/// Writes a certificate with its own CA into `webhook.certDir`. Returns the CA certificate.
fn issue_into(folder: &Path) -> Vec<u8> {
    let lifetimes = Lifetimes::default();
    let made = issue::create(&["127.0.0.1".to_owned()], &lifetimes, jiff::Timestamp::now().as_second()).unwrap();
    fs::create_dir_all(folder).unwrap();
    for (name, text) in [
        ("tls.key", &made.serving.key),
        ("tls.crt", &made.serving.certificate),
        ("ca.crt", &made.authorities[0].certificate),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    made.authorities[0].certificate.clone().into_bytes()
}

/// A replaced CA stays in the bundle for a while: other replicas may still serve certificates that
/// it signed.
async fn wait_for_bundle(cluster: &TestCluster, authority: &[u8]) {
    let packed = |pem: &[u8]| String::from_utf8_lossy(pem).split_whitespace().collect::<String>();
    let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client());
    eventually("the webhook configuration carries the authority", async || {
        let found = api.get("perennial").await.map_err(|error| error.to_string())?;
        let bundle = found.webhooks.unwrap_or_default().remove(0).client_config.ca_bundle;
        if bundle.is_some_and(|bundle| packed(&bundle.0).contains(&packed(authority))) {
            Ok(())
        } else {
            Err("another one".to_owned())
        }
    })
    .await;
}

#[tokio::test]
async fn certificates_from_a_folder_are_served_and_reloaded() {
    let cluster = TestCluster::new().await;
    let folder = cluster.plane().dir().join("certificates-from-elsewhere");
    let first = issue_into(&folder);
    let set = |builder: OperatorBuilder| builder.set("webhook.certDir", folder.to_str().unwrap());
    let operator = cluster.start_with(Webhooks::On, set).await;
    wait_for_bundle(&cluster, &first).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.delete_node("n1").await;

    let second = issue_into(&folder);
    wait_for_bundle(&cluster, &second).await;
    cluster.wait_for_admission(&operator).await;

    eventually("the create is answered with the label", async || {
        let node = cluster.node("n1").create().await;
        cluster.delete_node("n1").await;
        if node.metadata.labels == Some(labels([("team", "ml")])) { Ok(()) } else { Err("without it".to_owned()) }
    })
    .await;
}

#[tokio::test]
async fn a_node_with_concurrent_deletes_is_captured_correctly() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::On).await;

    for round in ["one", "two", "three"] {
        cluster.node("n1").create().await;
        cluster.label("n1", "round", round).await;
        let (nodes, plain) = (cluster.nodes(), DeleteParams::default());
        let answers = join_all((0..8).map(|_| nodes.delete("n1", &plain))).await;

        assert!(answers.iter().any(Result::is_ok), "one of them deleted it");
        cluster.wait_for_record("n1", [("round", round)]).await;
    }
}
