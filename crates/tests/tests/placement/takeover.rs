//! Takeover of many workloads by another replica.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use perennial_harness::eventually;
use serde_json::{Value, json};

use super::{
    owners::{owner, owner_builder, webhook_only},
    roomy,
};

const WORKLOADS: u32 = 100;
/// The second owner takes over about half of the workloads.
const MAX_LISTS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_new_owner_does_not_list_the_pods_of_each_workload() {
    let cluster = roomy().await;
    let _doorman = webhook_only(&cluster, "30s").await;
    let first = owner(&cluster).await;
    let proxy = cluster.fault_proxy().await;
    let lists = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&lists);
    proxy.inject(move |asked| {
        if asked.verb == "list" && asked.resource == "pods" {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        None
    });
    let second = owner_builder(&cluster, "capture,restore,placement").through(&proxy).start().await;
    let items: Vec<Value> = (0..WORKLOADS)
        .map(|number| {
            let workload = cluster.deployment(&format!("web-{number}")).annotate("spot-percentage", "50");
            serde_json::from_str(&workload.text()).unwrap()
        })
        .collect();
    let all = json!({"apiVersion": "v1", "kind": "List", "items": items});
    cluster.try_kubectl_with("create", &all.to_string()).expect_success();
    eventually("every workload has its pod", async || {
        let bound = cluster.pods_with("perennial.dev/managed=true").await;
        let bound = bound.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).count();
        let bound = u32::try_from(bound).unwrap();
        if bound == WORKLOADS { Ok(()) } else { Err(bound) }
    })
    .await;

    lists.store(0, Ordering::Relaxed);
    first.crash();
    second.wait_for_metric("perennial_placement_replicas", &[], f64::from(WORKLOADS)).await;

    let lists = lists.load(Ordering::Relaxed);
    assert!(lists <= MAX_LISTS, "{lists} lists of pods");
}
