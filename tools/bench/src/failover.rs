//! Failover: three replicas share eight shards, and one is killed under load.

use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::ListParams};
use perennial_harness::{Operator, TestCluster, eventually_within};
use serde_json::{Value, json};

use crate::{
    Size,
    fleet::{Fleet, each, wait_for_records},
    plot::{Line, lines},
    report::{Goal, Report},
};

const KEY: &str = "bench.example.com/turn";
const LEASE: Duration = Duration::from_secs(15);

pub(crate) async fn measure(size: Size, report: &mut Report) {
    let nodes = size.failover;
    report.part(&format!("Failover: 3 replicas, 8 shards, {nodes} nodes; one replica is killed under load"));
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    let replica = async || {
        let builder = cluster.operator().set("controller.shards", "8");
        builder.set("controller.leaderElection.leaseDuration", &format!("{}s", LEASE.as_secs())).start().await
    };
    let (victim, second, third) = (replica().await, replica().await, replica().await);
    let all = [&victim, &second, &third];
    eventually_within(Duration::from_mins(2), "every replica has its share", async || {
        let shares: Vec<f64> = all.iter().map(|replica| shards(replica)).collect();
        let settled = (shares.iter().sum::<f64>() - 8.0).abs() < 0.5 && shares.iter().all(|share| *share > 0.0);
        if settled { Ok(()) } else { Err(format!("{shares:?}")) }
    })
    .await;
    let share = shards(&victim);
    each(0..nodes, 32, |number| fleet.create_labelled(number)).count().await;
    wait_for_records(&cluster, nodes).await;

    // Changes continue while the replica dies; each must be captured.
    let half = nodes / 2;
    turn(&fleet, 0..half).await;
    victim.crash();
    let killed = Instant::now();
    turn(&fleet, half..nodes).await;
    let mut curve = vec![(0.0, 0.0)];
    eventually_within(Duration::from_mins(2), "every change is captured", async || {
        let captured = captured(&cluster).await;
        #[expect(clippy::cast_precision_loss, reason = "counts of nodes")]
        curve.push((killed.elapsed().as_secs_f64(), 100.0 * captured as f64 / nodes as f64));
        if captured >= nodes { Ok(()) } else { Err(captured) }
    })
    .await;
    let took = killed.elapsed();

    // All nodes are restored from the records of the two others.
    each(0..nodes, 32, |number| fleet.delete(number)).count().await;
    each(0..nodes, 32, |number| fleet.create_bare(number)).count().await;
    eventually_within(Duration::from_mins(2), "every node has its labels", async || {
        let lost = nodes - complete(&cluster).await;
        if lost == 0 { Ok(()) } else { Err(lost) }
    })
    .await;
    let lost = nodes - complete(&cluster).await;
    report.table(
        &["figure", "measured"],
        &[
            vec!["shards of the one that was killed".to_owned(), format!("{share:.0} of 8")],
            vec!["until every change on its nodes was captured".to_owned(), format!("{:.1} s", took.as_secs_f64())],
            vec!["lease duration".to_owned(), format!("{} s", LEASE.as_secs())],
            vec!["labels lost".to_owned(), lost.to_string()],
        ],
    );
    report.raw("failover", json!({"seconds": took.as_secs_f64(), "lost": lost, "nodes": nodes}));
    report.goal("labels lost by a failover", &lost.to_string(), Goal::none(lost));
    let limit = LEASE.as_secs_f64() + 2.0;
    let goal = Goal::at_most(took.as_secs_f64(), limit, "lease duration + 2 s = 17 s");
    report.goal(
        "until changes of a killed replica's nodes are captured",
        &format!("{:.1} s", took.as_secs_f64()),
        goal,
    );
    let title = "Changes captured after one of three replicas is killed";
    let line = Line { name: "captured".to_owned(), points: curve };
    report.plot("failover", title, lines(title, "seconds since it was killed", "%", &[line]));
    each(0..nodes, 64, |number| fleet.delete(number)).count().await;
}

fn shards(replica: &Operator) -> f64 {
    replica.metrics().sum("leader_election_master_status", &[])
}

async fn turn(fleet: &Fleet, numbers: std::ops::Range<usize>) {
    let patch = json!({"metadata": {"labels": {KEY: "changed"}}});
    each(numbers, 32, |number| fleet.patch(number, &patch)).count().await;
}

async fn captured(cluster: &TestCluster) -> usize {
    let records: Api<ConfigMap> = Api::namespaced(cluster.client(), cluster.namespace());
    let list = records.list(&ListParams::default()).await.expect("listing records").items;
    let has = |record: &ConfigMap| {
        let text = record.data.as_ref().and_then(|data| data.get("record.json"));
        let value: Value = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        value["labels"][KEY] == "changed"
    };
    list.iter().filter(|record| has(record)).count()
}

async fn complete(cluster: &TestCluster) -> usize {
    let nodes = cluster.nodes().list_metadata(&ListParams::default()).await.expect("listing nodes").items;
    nodes.iter().filter(|node| node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(KEY))).count()
}
