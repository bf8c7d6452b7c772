//! ValidatingAdmissionPolicies: who may write records, and what the operator's account may change
//! on nodes.

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use perennial_harness::{TestCluster, Webhooks, eventually, record_name};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{ACCOUNT, allow, config_maps, install, operator};

const MALLORY: &str = "mallory";

/// A ConfigMap in Perennial's namespace.
fn config_map(name: &str, labels: &Value) -> ConfigMap {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "b"},
    });
    serde_json::from_value(object).unwrap()
}

fn dry() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// A cluster with the policies in force, and a user with all verbs on ConfigMaps.
async fn guarded() -> (TestCluster, Api<ConfigMap>) {
    let cluster = TestCluster::new().await;
    install(&cluster, "policies");
    allow(&cluster, MALLORY, &config_maps());
    let client = cluster.client_of(MALLORY, &[]).await;
    let mallorys: Api<ConfigMap> = Api::namespaced(client, cluster.namespace());
    eventually("the policy is in force", async || {
        match mallorys.create(&dry(), &config_map("node-probe", &json!({}))).await {
            Err(error) if error.to_string().contains("records.perennial.dev") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    (cluster, mallorys)
}

fn is_refused<T: std::fmt::Debug>(answer: kube::Result<T>) -> bool {
    match answer {
        Err(kube::Error::Api(status)) => status.code == 403 && status.message.contains("perennial.dev in namespace"),
        _ => false,
    }
}

#[tokio::test]
async fn a_writer_of_config_maps_writes_no_records() {
    let (cluster, mallorys) = guarded().await;
    let _operator = operator(&cluster).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let record = record_name("n1");
    let params = PostParams::default();

    // Attempts to create a record.
    let labelled = json!({"perennial.dev/record": "v1"});
    assert!(is_refused(mallorys.create(&params, &config_map("mine", &labelled)).await));
    assert!(is_refused(mallorys.create(&params, &config_map("node-n2", &json!({}))).await));
    assert!(is_refused(mallorys.create(&params, &config_map("id-systemuuid-1", &json!({}))).await));
    let patch = Patch::<Value>::Merge;
    let change = patch(json!({"data": {"record.json": "{}"}}));
    assert!(is_refused(mallorys.patch(&record, &PatchParams::default(), &change).await));
    let unlabel = patch(json!({"metadata": {"labels": {"perennial.dev/record": null}}}));
    assert!(is_refused(mallorys.patch(&record, &PatchParams::default(), &unlabel).await));
    let collect = patch(json!({"metadata": {"annotations": {"perennial.dev/absent-since": "2020-01-01T00:00:00Z"}}}));
    assert!(is_refused(mallorys.patch(&record, &PatchParams::default(), &collect).await));
    assert!(is_refused(mallorys.delete(&record, &DeleteParams::default()).await));
    let all = ListParams::default().labels("perennial.dev/record");
    assert!(is_refused(mallorys.delete_collection(&DeleteParams::default(), &all).await));
    // The configuration determines what is restored.
    assert!(is_refused(mallorys.create(&params, &config_map("perennial-config", &json!({}))).await));

    // Other ConfigMaps are not restricted.
    mallorys.create(&params, &config_map("mine", &json!({}))).await.unwrap();
    let label = patch(json!({"metadata": {"labels": labelled}}));
    assert!(is_refused(mallorys.patch("mine", &PatchParams::default(), &label).await));
    mallorys.delete("mine", &DeleteParams::default()).await.unwrap();
    // Perennial keeps working.
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
}

#[tokio::test]
async fn permitted_users_write_records() {
    let (cluster, _) = guarded().await;
    let _operator = operator(&cluster).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let reads = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
        {"apiGroups": ["perennial.dev"], "resources": ["keeppolicies"], "verbs": ["list"]},
    ]);
    for user in [MALLORY, "jane"] {
        allow(&cluster, user, &config_maps());
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": reads,
        });
        cluster.try_kubectl_with("apply", &role.to_string()).expect_success();
        cluster.try_kubectl(&format!("create clusterrolebinding {user} --clusterrole={user} --user={user}"));
    }

    let message = cluster.perennial_as(MALLORY, &[], "hold n1").expect_failure();
    assert!(message.contains("update records.perennial.dev"), "it does not say what is missing: {message}");
    install(&cluster, "policies --record-writer User:jane");
    let held = eventually("jane may", async || {
        let answer = cluster.perennial_as("jane", &[], "hold n1");
        if answer.success { Ok(answer.stdout) } else { Err(answer.stderr) }
    });
    assert!(held.await.contains("held"));
    cluster.perennial_as("jane", &[], "forget n1 --yes").expect_success();
    cluster.perennial_as(MALLORY, &[], "forget n1 --yes").expect_failure();
    // Cluster admins are exempt.
    cluster.perennial("hold n1 --release").expect_success();
}

/// A client with a stolen token of the operator, whose RBAC allows everything.
async fn thief(cluster: &TestCluster) -> Client {
    install(cluster, "permissions");
    let (namespace, name) = (cluster.namespace(), format!("everything-{}", cluster.namespace()));
    cluster.kubectl(&format!(
        "create clusterrolebinding {name} --clusterrole=cluster-admin --serviceaccount={namespace}:{ACCOUNT}"
    ));
    let client = cluster.client_of_account(ACCOUNT).await;
    // Each policy takes effect separately, and so does the role.
    let (nodes, node): (Api<Node>, _) = (Api::all(client.clone()), cluster.node("probe").into_node());
    eventually("the policy for nodes is in force", async || match nodes.create(&dry(), &node).await {
        Err(error) if error.to_string().contains("perennial-nodes") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    client
}

#[rstest]
#[case::provider_id(json!({"spec": {"providerID": "aws:///other"}}))]
#[case::addresses(json!({"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}))]
#[case::finalizers(json!({"metadata": {"finalizers": ["example.com/stay"]}}))]
#[case::owners(json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}}))]
#[case::hostname(json!({"metadata": {"labels": {"kubernetes.io/hostname": "other"}}}))]
#[case::no_hostname(json!({"metadata": {"labels": {"kubernetes.io/hostname": null}}}))]
#[case::our_labels(json!({"metadata": {"labels": {"perennial.dev/x": "1"}}}))]
#[case::machine_annotations(json!({"metadata": {"annotations": {"csi.volume.kubernetes.io/nodeid": "{}"}}}))]
#[case::our_other_annotations(json!({"metadata": {"annotations": {"perennial.dev/ignore": "true"}}}))]
#[case::startup_taints(json!({"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}}))]
#[tokio::test]
async fn the_operator_account_changes_only_permitted_node_fields(#[case] patch: Value) {
    let (cluster, _) = guarded().await;
    let thief: Api<Node> = Api::all(thief(&cluster).await);
    cluster.node("n1").label("kubernetes.io/hostname", "n1").create().await;
    // Kubernetes adds the not-ready taint to a new node; the operator may not remove it.
    cluster.patch_node("n1", json!({"spec": {"taints": null}})).await;
    let params = PatchParams::default();
    let harmless = json!({
        "metadata": {"labels": {"team": "ml"}, "annotations": {"example.com/owner": "a", "perennial.dev/restored": "{}"}},
        "spec": {"unschedulable": true, "taints": [
            {"key": "dedicated", "effect": "NoSchedule"}, {"key": "perennial.dev/restoring", "effect": "NoSchedule"},
        ]},
    });
    eventually("RBAC allows it", async || {
        let patched = thief.patch("n1", &params, &Patch::Merge(&harmless)).await;
        patched.map(drop).map_err(|error| error.to_string())
    })
    .await;

    // A policy takes effect after a while. A dry run is checked like any request and changes
    // nothing.
    let trial = PatchParams { dry_run: true, ..PatchParams::default() };
    let refused = eventually("it is refused", async || {
        let tried = thief.patch("n1", &trial, &Patch::Merge(&patch)).await;
        tried.map_or_else(|error| Ok(error.to_string()), |_| Err("it would be let through"))
    })
    .await;

    assert!(refused.contains("perennial-nodes"), "{refused}");
    // Cluster admins may do it.
    cluster.patch_node("n1", patch).await;
    // An object whose owner does not exist may be collected by now.
    let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    drop(cluster.nodes().patch("n1", &params, &bare).await);
}

#[tokio::test]
async fn the_operator_account_neither_creates_nor_deletes_nodes() {
    let (cluster, _) = guarded().await;
    let thief: Api<Node> = Api::all(thief(&cluster).await);
    cluster.node("n1").create().await;
    let params = PatchParams::default();
    eventually("RBAC allows it", async || {
        let patched = thief.patch("n1", &params, &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}))).await;
        patched.map(drop).map_err(|error| error.to_string())
    })
    .await;

    let mut refused = Vec::new();
    let node = cluster.node("n2").into_node();
    refused.push(thief.create(&PostParams::default(), &node).await.map(drop).unwrap_err());
    refused.push(thief.delete("n1", &DeleteParams::default()).await.map(drop).unwrap_err());
    let all = (DeleteParams::default(), ListParams::default());
    refused.push(thief.delete_collection(&all.0, &all.1).await.map(drop).unwrap_err());
    let status = Patch::Merge(json!({"status": {"capacity": {"example.com/gpu": "8"}}}));
    refused.push(thief.patch_status("n1", &params, &status).await.map(drop).unwrap_err());

    for error in refused {
        assert!(error.to_string().contains("perennial-nodes"), "{error}");
    }
}

#[tokio::test]
async fn the_policies_do_not_restrict_other_clients() {
    let (cluster, _) = guarded().await;
    let kubelet = cluster.as_kubelet("n1").await;

    cluster.node("n1").label("kubernetes.io/hostname", "n1").by(kubelet.clone()).create().await;
    let nodes: Api<Node> = Api::all(kubelet);
    let status = Patch::Merge(json!({"status": {"capacity": {"cpu": "8"}}}));
    nodes.patch_status("n1", &PatchParams::default(), &status).await.unwrap();
    cluster
        .patch_node("n1", json!({"metadata": {"finalizers": ["example.com/stay"]}, "spec": {"providerID": "p"}}))
        .await;
    cluster.patch_node("n1", json!({"metadata": {"finalizers": null}})).await;
    cluster.delete_node("n1").await;
    // The namespace controller may delete everything in the namespace, including records.
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
    let user = "system:serviceaccount:kube-system:namespace-controller";
    let controller: Api<ConfigMap> = Api::namespaced(cluster.client_of(user, &groups).await, cluster.namespace());
    let record = config_map("node-n1", &json!({"perennial.dev/record": "v1"}));
    cluster.records().create(&PostParams::default(), &record).await.unwrap();
    controller.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    assert_eq!(cluster.record_count().await, 0);
}

/// Every kept field, through a delete and a restore: nothing is refused.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn perennial_does_its_work_under_the_policies(#[case] webhooks: Webhooks) {
    let (cluster, _) = guarded().await;
    let operator = operator(&cluster).webhooks(webhooks);
    let operator = operator.set("keeper.annotations", "example.com/*").set("keeper.taints", "*");
    let operator = operator
        .set("keeper.cordon", "true")
        .set("keeper.gate", if webhooks == Webhooks::On { "always" } else { "never" });
    let operator = operator.start().await;
    if webhooks == Webhooks::On {
        cluster.wait_for_admission(&operator).await;
    }
    let kept =
        [("team", "ml"), ("node-role.kubernetes.io/worker", ""), ("node-restriction.kubernetes.io/tenant", "blue")];
    let node = || cluster.node("n1").machine("p1", "s1", "m1");
    node()
        .labels(kept)
        .annotation("example.com/owner", "jane")
        .taint("dedicated", "ml", "NoSchedule")
        .cordoned()
        .create()
        .await;
    cluster.wait_for_record("n1", kept).await;

    for _ in 0..3 {
        cluster.delete_node("n1").await;
        node().by(cluster.as_kubelet("n1").await).create().await;

        cluster.wait_for_labels("n1", kept).await;
        eventually("taints, cordon and annotations are back, and the gate is gone", async || {
            let node = cluster.get_node("n1").await;
            let spec = node.spec.unwrap_or_default();
            let taints = spec.taints.unwrap_or_default().into_iter().map(|taint| taint.key);
            // Kubernetes adds the not-ready taint to a new node.
            let taints: Vec<String> = taints.filter(|key| !key.starts_with("node.kubernetes.io/")).collect();
            let owner = node.metadata.annotations.unwrap_or_default().remove("example.com/owner");
            let back = taints == ["dedicated"] && spec.unschedulable == Some(true) && owner.as_deref() == Some("jane");
            if back { Ok(()) } else { Err(format!("{taints:?} {:?} {owner:?}", spec.unschedulable)) }
        })
        .await;
    }
    for category in ["refused", "forbidden"] {
        let failed = operator.metrics().sum("perennial_errors_total", &[("category", category)]);
        assert!(failed < 0.5, "{failed} requests were {category}");
    }
}
