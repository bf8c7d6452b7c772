//! Exactly as many on spot as asked for, at every size.

use perennial_core::placement::slots::Split;
use rstest::rstest;
use serde_json::json;

use super::{quick, roomy};

#[rstest]
#[case(70, 3)]
#[case(90, 4)]
#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_exact_at_every_stop(#[case] percentage: u8, #[case] floor: u32) {
    let cluster = roomy().await;
    let operator = quick(&cluster).start().await;
    let split = Split::new(percentage, floor);
    let web = cluster.deployment("web").asks("spot-percentage", &percentage.to_string());
    web.asks("min-on-demand", &floor.to_string()).replicas(10).create().await;

    for replicas in [10, 100, 37, 3, 50] {
        cluster.scale("web", replicas).await;
        let (spot, on_demand) = (split.spot(replicas) as usize, split.on_demand(replicas) as usize);
        cluster.wait_for_split("web", spot, on_demand).await;
    }

    let evicted = operator.metrics().sum("perennial_placement_moves_total", &[("result", "evicted")]);
    assert!(evicted < 0.5, "nothing had to be moved, but {evicted} were");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_keeps_the_floor_and_ends_exact() {
    let cluster = roomy().await;
    let _operator = quick(&cluster).start().await;
    cluster.deployment("web").asks("spot-percentage", "70").asks("min-on-demand", "3").replicas(20).create().await;
    cluster.wait_for_split("web", 14, 6).await;

    cluster.roll_out("web", "2").await;
    let mut fewest = usize::MAX;
    for _ in 0..40 {
        fewest = fewest.min(cluster.placed("web").await.ready_on_demand);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    cluster.wait_for_split("web", 14, 6).await;

    assert!(fewest >= 3, "only {fewest} Ready on-demand replicas during the rollout");
    let old =
        cluster.pods("web").await.into_iter().filter(|pod| {
            pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get("version")).is_none()
        });
    assert_eq!(old.count(), 0, "all pods are new");
}

#[tokio::test(flavor = "multi_thread")]
async fn scaling_in_the_middle_of_a_rollout_ends_exact() {
    let cluster = roomy().await;
    let _operator = quick(&cluster).start().await;
    cluster.deployment("web").asks("spot-percentage", "70").asks("min-on-demand", "3").replicas(20).create().await;
    cluster.wait_for_split("web", 14, 6).await;

    cluster.roll_out("web", "2").await;
    cluster.scale("web", 40).await;
    cluster.roll_out("web", "3").await;
    cluster.scale("web", 30).await;

    cluster.wait_for_split("web", 21, 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_is_exact_by_ordinal_without_a_write() {
    let cluster = roomy().await;
    let operator = quick(&cluster).start().await;
    let split = Split::new(60, 2);
    let db = cluster.stateful_set("db").asks("spot-percentage", "60%").asks("min-on-demand", "2").replicas(12);
    db.with(|object| object["spec"]["ordinals"] = json!({"start": 5})).create().await;

    cluster.wait_for_split("db", split.spot(12) as usize, split.on_demand(12) as usize).await;

    for pod in cluster.pods("db").await {
        let name = pod.metadata.name.unwrap();
        let slot = name.rsplit_once('-').unwrap().1.parse::<u32>().unwrap() - 5;
        let selector = pod.spec.unwrap().node_selector.unwrap();
        assert_eq!(selector["karpenter.sh/capacity-type"], split.class(slot).as_str(), "{name}");
    }
    let writes = operator.metrics().sum("rest_client_requests_total", &[("method", "PATCH")]);
    assert!(writes < 0.5, "{writes} patches for a StatefulSet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_has_defaults_and_a_workload_may_opt_out() {
    let cluster = roomy().await;
    let _operator = quick(&cluster).start().await;
    cluster.kubectl("annotate namespace default perennial.dev/spot-percentage=50");
    cluster.deployment("web").replicas(10).create().await;
    cluster.deployment("own").asks("ignore", "true").replicas(4).create().await;

    cluster.wait_for_split("web", 5, 5).await;

    let own = cluster.pods("own").await;
    assert!(own.iter().all(|pod| pod.spec.as_ref().unwrap().node_selector.is_none()));
}
