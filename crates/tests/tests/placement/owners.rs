//! Owners come and go: nothing stays gated, and everything ends exact.

use perennial_tests::eventually;

use super::{doorman, doorman_with, owner, quick, roomy};

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_killed_in_the_middle_of_a_burst() {
    let cluster = roomy().await;
    let _doorman = doorman(&cluster).await;
    let first = owner(&cluster).await;
    let _second = owner(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").asks("min-on-demand", "3").replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;

    cluster.scale("web", 200).await;
    eventually("the burst is under way", async || {
        let seen = cluster.pods("web").await.len();
        if seen > 60 { Ok(()) } else { Err(seen) }
    })
    .await;
    first.crash();

    cluster.wait_for_split("web", 140, 60).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_paused_does_no_harm_when_it_goes_on() {
    let cluster = roomy().await;
    let _doorman = doorman(&cluster).await;
    let mut first = owner(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").asks("min-on-demand", "3").replicas(10).create().await;
    cluster.wait_for_split("web", 7, 3).await;
    let _second = owner(&cluster).await;

    cluster.scale("web", 100).await;
    first.pause();
    cluster.wait_for_split("web", 70, 30).await;
    cluster.scale("web", 60).await;
    first.resume();
    cluster.scale("web", 90).await;

    cluster.wait_for_split("web", 63, 27).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_owner_pods_are_on_demand_and_not_gated() {
    let cluster = roomy().await;
    let _doorman = doorman(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(10).create().await;

    cluster.wait_for_split("web", 0, 10).await;
    let gated = |pod: &k8s_openapi::api::core::v1::Pod| pod.spec.as_ref().unwrap().scheduling_gates.is_some();
    assert!(!cluster.pods("web").await.iter().any(gated));

    // Whoever comes later mends it.
    let _owner = owner(&cluster).await;
    cluster.wait_for_split("web", 7, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_pods_of_a_lost_owner_are_freed() {
    let cluster = roomy().await;
    let _doorman = doorman(&cluster).await;
    let owner = owner(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;

    owner.crash();
    // Its Lease is fresh for a moment longer: these are gated, and nobody comes.
    cluster.scale("web", 10).await;

    eventually("no pod stays gated", async || {
        let seen = cluster.placed("web").await;
        if seen.waiting == 0 && seen.spot + seen.on_demand == 10 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstalling_frees_what_is_gated() {
    let cluster = roomy().await;
    let doorman = doorman_with(&cluster, "10m").await;
    let owner = owner(&cluster).await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(2).create().await;
    cluster.wait_for_split("web", 1, 1).await;
    owner.crash();
    cluster.scale("web", 10).await;
    eventually("all pods are there", async || {
        let seen = cluster.pods("web").await.len();
        if seen == 10 { Ok(()) } else { Err(seen) }
    })
    .await;
    doorman.crash();

    cluster.perennial("uninstall --yes").expect_success();

    eventually("no pod stays gated", async || {
        let seen = cluster.placed("web").await;
        if seen.waiting == 0 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

/// A webhook that has gone without a word is in nobody's way.
#[tokio::test(flavor = "multi_thread")]
async fn pods_are_made_while_everyone_is_away_and_mended_later() {
    let cluster = roomy().await;
    let operator = quick(&cluster).start().await;
    cluster.deployment("web").asks("spot-percentage", "70").replicas(4).create().await;
    cluster.wait_for_split("web", 2, 2).await;

    operator.crash();
    cluster.scale("web", 10).await;
    eventually("all pods run somewhere", async || {
        let seen = cluster.placed("web").await;
        if seen.waiting == 0 && seen.spot + seen.on_demand == 10 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;

    let _operator = quick(&cluster).start().await;
    cluster.wait_for_split("web", 7, 3).await;
}
