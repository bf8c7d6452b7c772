//! One of two API servers is cut off from etcd: its watches stay open without events, while the
//! other one is current.

use localplane::Component::{ApiServer, Etcd};
use perennial_harness::{ApiRequest, Fault, FaultProxy, TestCluster, Webhooks, Wire, eventually, labels};

/// Sends watches to the stale API server and everything else to the current one.
fn watches_are_old(asked: &ApiRequest) -> Option<Fault> {
    ["watch", "list"].contains(&asked.verb.as_str()).then_some(Fault::Older)
}

/// Connects the second API server to etcd through a [`Wire`].
async fn on_a_cable(cluster: &TestCluster) -> Wire {
    let wire = Wire::to(cluster.plane().port(Etcd).expect("etcd has a port")).await;
    let args = [format!("--etcd-servers=https://127.0.0.1:{}", wire.port())];
    // It connects to etcd while it starts: this thread must be free to forward that.
    tokio::task::block_in_place(|| cluster.plane().restart_with(ApiServer(1), &args)).unwrap();
    wire
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_with_a_stale_cache_undoes_nothing() {
    let cluster = TestCluster::with_two_servers().await.with_shipped_roles().await;
    let wire = on_a_cable(&cluster).await;
    let proxy = FaultProxy::with_older(&cluster, 1).await;
    proxy.inject(watches_are_old);
    let _operator = cluster.operator().through(&proxy).start().await;
    for node in ["changed", "replaced", "returned"] {
        cluster.node(node).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(node, [("team", "ml"), ("tier", "gold")]).await;
    }

    // A capture of this state is pending when the cache becomes stale.
    proxy.inject(|asked| {
        let denied = asked.resource == "configmaps" && asked.is_write();
        if denied { Some(Fault::Answered(503, None)) } else { watches_are_old(asked) }
    });
    cluster.label("changed", "team", "stale").await;
    let denied = || proxy.faults().get("answered 503").copied().unwrap_or_default();
    eventually("the capture is denied", async || if denied() > 0 { Ok(()) } else { Err("not yet") }).await;

    wire.freeze();
    cluster.unlabel("changed", "tier").await;
    cluster.label("changed", "team", "web").await;
    cluster.delete_node("replaced").await;
    cluster.node("replaced").label("team", "data").create().await;
    cluster.delete_node("returned").await;
    cluster.node("returned").create().await;
    proxy.inject(watches_are_old);
    // It acts on its stale cache, and reads what it writes: the record has the current state.
    cluster.wait_for_record("changed", [("team", "web")]).await;
    let record = cluster.record("changed").await.unwrap();
    assert!(!record["history"].to_string().contains("stale"), "an old state was captured: {record}");
    assert_eq!(cluster.labels("changed").await, labels([("team", "web")]), "nothing comes of an old view");
    wire.thaw();

    cluster.wait_for_record("changed", [("team", "web")]).await;
    cluster.wait_for_labels("replaced", [("team", "data"), ("tier", "gold")]).await;
    cluster.wait_for_labels("returned", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_labels("changed", [("team", "web")]).await;
    assert!(proxy.faults().get("older API server").copied().unwrap_or_default() >= 2, "{:?}", proxy.faults());
}

/// The replica that serves admission has a stale cache and must not restore a removed label; the
/// other one is current.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_a_stale_cache_does_not_restore_removed_labels() {
    let cluster = TestCluster::with_two_servers().await.with_shipped_roles().await;
    let wire = on_a_cable(&cluster).await;
    let proxy = FaultProxy::with_older(&cluster, 1).await;
    proxy.inject(watches_are_old);
    let _fresh =
        cluster.operator().without_leader_election().set("controller.roles", "capture,restore,placement").start().await;
    let _old = cluster.start_with(Webhooks::On, |builder| builder.without_leader_election().through(&proxy)).await;
    let nodes: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    for node in &nodes {
        cluster.node(node).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(node, [("team", "ml"), ("tier", "gold")]).await;
    }

    wire.freeze();
    for node in &nodes {
        cluster.unlabel(node, "tier").await;
        cluster.wait_for_record(node, [("team", "ml")]).await;
        cluster.delete_node(node).await;
        cluster.node(node).create().await;
    }

    // At once or shortly after: the record has changed since, whatever the stale replica restored.
    for node in &nodes {
        cluster.wait_for_labels(node, [("team", "ml")]).await;
    }
    wire.thaw();
    for node in &nodes {
        cluster.label(node, "fence", "1").await;
        cluster.wait_for_record(node, [("team", "ml"), ("fence", "1")]).await;
        cluster.wait_for_labels(node, [("team", "ml"), ("fence", "1")]).await;
    }
}
