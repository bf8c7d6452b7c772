//! The first start on an existing cluster.

use std::collections::BTreeMap;

use perennial_harness::{TestCluster, Webhooks, eventually};

const USER: &str = "newcomer";
const NODES: usize = 120;

#[tokio::test]
async fn adopting_a_running_cluster_writes_records_and_nothing_else() {
    let cluster = TestCluster::with_audit_log(true).await;
    cluster.kubectl(&format!("create clusterrolebinding {USER} --clusterrole=cluster-admin --user={USER}"));
    for number in 0..NODES {
        let name = format!("n{number:03}");
        let node = cluster.node(&name).label("kubernetes.io/hostname", &name).taint("dedicated", "ml", "NoSchedule");
        // Every tenth node has no user labels.
        let node = if number % 10 == 0 { node } else { node.label("team", "ml").annotation("owner", "jane") };
        node.create().await;
    }
    cluster.deployment("web").replicas(3).create().await;
    eventually("its pods are there", async || {
        let pods = cluster.pods("web").await.len();
        if pods == 3 { Ok(()) } else { Err(pods) }
    })
    .await;

    let operator = cluster
        .operator_as(USER, &[])
        .webhooks(Webhooks::On)
        .set("controller.resyncPeriod", "5s")
        .set("controller.auditPeriod", "5s")
        .start()
        .await;
    let labelled = NODES - NODES / 10;
    eventually("there is a record for each node with labels of people", async || {
        let records = cluster.record_count().await;
        if records == labelled { Ok(()) } else { Err(records) }
    })
    .await;
    // Audits and resyncs have processed everything, and a change is captured as usual.
    eventually("it has looked at everything twice", async || {
        let lists =
            cluster.requests_by(USER).iter().filter(|asked| asked.verb == "list" && asked.resource == "nodes").count();
        if lists >= 4 { Ok(()) } else { Err(lists) }
    })
    .await;
    cluster.label("n000", "team", "web").await;
    cluster.wait_for_record("n000", [("team", "web")]).await;
    assert!(operator.stop().await.is_some_and(|status| status.success()));

    let mut writes = BTreeMap::<(String, String), usize>::new();
    for asked in cluster.requests_by(USER).into_iter().filter(|asked| asked.is_write() && asked.code < 300) {
        *writes.entry((asked.resource, asked.verb)).or_default() += 1;
    }
    let records = writes.remove(&("configmaps".to_owned(), "create".to_owned()));
    assert_eq!(records, Some(labelled + 1));
    // Objects that the operator needs itself: Leases, webhook configurations and their certificate.
    let own = ["leases", "secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    writes.retain(|(resource, _), _| !own.contains(&resource.as_str()));
    assert_eq!(writes, BTreeMap::new());
}
