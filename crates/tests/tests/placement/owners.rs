//! Owners that stop, pause or overlap, and replicas that share roles: the result is always exact.

use perennial_harness::{LoadBalancer, Operator, OperatorBuilder, TestCluster, eventually};
use rstest::rstest;

use super::{class, is_gated, quick, roomy, web};

/// Operator with the webhook role only: answers admission and releases pods without an owner.
pub(crate) async fn webhook_only(cluster: &TestCluster, gate_timeout: &str) -> Operator {
    let builder = quick(cluster).set("controller.roles", "webhooks").set("placement.gateTimeout", gate_timeout);
    builder.set("controller.leaderElection.leaseDuration", "5s").start().await
}

/// Operator that decides about workloads and serves no webhooks.
pub(crate) async fn owner(cluster: &TestCluster) -> Operator {
    owner_with(cluster, "capture,restore,placement").await
}

async fn owner_with(cluster: &TestCluster, roles: &str) -> Operator {
    owner_builder(cluster, roles).start().await
}

pub(crate) fn owner_builder(cluster: &TestCluster, roles: &str) -> OperatorBuilder {
    let builder = cluster.operator().set("controller.roles", roles);
    let builder = builder.set("placement.cooldown", "1s").set("placement.gateTimeout", "5s");
    builder.set("controller.leaderElection.leaseDuration", "5s")
}

async fn until_there_are(cluster: &TestCluster, count: usize) {
    eventually(format!("there are {count} pods"), async || {
        let seen = cluster.pods("web").await.len();
        if seen >= count { Ok(()) } else { Err(seen) }
    })
    .await;
}

#[rstest]
#[case("webhooks", "placement")]
#[case("capture,restore,webhooks", "placement")]
#[tokio::test(flavor = "multi_thread")]
async fn roles_may_be_in_processes_of_their_own(#[case] at_the_door: &str, #[case] deciding: &str) {
    let cluster = roomy().await;
    let owner = owner_with(&cluster, deciding).await;
    let _doorman = quick(&cluster).set("controller.roles", at_the_door).start().await;

    web(&cluster, 20).await;
    cluster.wait_for_split("web", 14, 6).await;
    cluster.scale("web", 60).await;
    cluster.wait_for_split("web", 42, 18).await;

    assert_eq!(cluster.evictions(&owner, "web"), 0, "pods were gated and placed, not moved");
    let pods = cluster.pods("web").await;
    let slots = pods.iter().filter(|pod| super::annotation(pod, "perennial.dev/slot").is_some()).count();
    assert_eq!(slots, 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_killed_in_the_middle_of_a_burst() {
    let cluster = roomy().await;
    let _doorman = webhook_only(&cluster, "5s").await;
    let first = owner(&cluster).await;
    let _second = owner(&cluster).await;
    web(&cluster, 10).await;
    cluster.wait_for_split("web", 7, 3).await;

    cluster.scale("web", 200).await;
    until_there_are(&cluster, 60).await;
    first.crash();

    cluster.wait_for_split("web", 140, 60).await;
}

/// Behind one address, like a Service: one of them is killed while pods are created.
#[tokio::test(flavor = "multi_thread")]
async fn two_webhook_replicas_one_of_which_is_killed() {
    let cluster = roomy().await;
    let balancer = LoadBalancer::of(2).await;
    let replica = async |number| {
        let builder = balancer.operator(&cluster, number).set("placement.cooldown", "1s");
        builder.set("placement.gateTimeout", "5s").start().await
    };
    let first = replica(0).await;
    let _second = replica(1).await;
    web(&cluster, 10).await;
    cluster.wait_for_split("web", 7, 3).await;

    cluster.scale("web", 100).await;
    until_there_are(&cluster, 40).await;
    first.crash();
    cluster.wait_for_split("web", 70, 30).await;

    cluster.scale("web", 130).await;
    cluster.wait_for_split("web", 91, 39).await;
}

/// Without leader election both consider themselves the owner.
#[tokio::test(flavor = "multi_thread")]
async fn two_owners_at_once_do_no_harm() {
    let cluster = roomy().await;
    let _first = quick(&cluster).without_leader_election().start().await;
    let second = cluster.operator().set("controller.roles", "placement").set("placement.cooldown", "1s");
    let _second = second.without_leader_election().start().await;
    web(&cluster, 10).await;

    for (replicas, spot, on_demand) in [(10, 7, 3), (80, 56, 24), (37, 25, 12), (50, 35, 15)] {
        cluster.scale("web", replicas).await;
        cluster.wait_for_split("web", spot, on_demand).await;
    }
    cluster.roll_out("web", "2").await;
    cluster.annotate_deployment("web", "spot-percentage", "60").await;
    cluster.wait_for_split("web", 30, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_resumes_after_a_pause_does_no_harm() {
    let cluster = roomy().await;
    let _doorman = webhook_only(&cluster, "5s").await;
    let mut first = owner(&cluster).await;
    web(&cluster, 10).await;
    cluster.wait_for_split("web", 7, 3).await;
    let _second = owner(&cluster).await;

    cluster.scale("web", 100).await;
    until_there_are(&cluster, 30).await;
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
    let _doorman = webhook_only(&cluster, "5s").await;
    cluster.deployment("web").annotate("spot-percentage", "70").replicas(10).create().await;

    cluster.wait_for_split("web", 0, 10).await;
    let pods = cluster.pods("web").await;
    assert!(!pods.iter().any(is_gated));
    assert!(pods.iter().all(|pod| class(pod).as_deref() == Some("on-demand")));

    // An owner that starts later corrects the split.
    let _owner = owner(&cluster).await;
    cluster.wait_for_split("web", 7, 3).await;
}
