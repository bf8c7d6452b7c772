//! The cluster in the screenshots: workers of several teams that are replaced, and two workloads.

use std::time::{Duration, Instant};

use perennial_harness::{Operator, TestCluster, Webhooks, eventually, perennial};
use serde_json::json;

const WORKERS: usize = 48;
const TEAMS: [&str; 4] = ["ml", "web", "data", "search"];

pub(crate) struct Scene {
    pub(crate) cluster: TestCluster,
    operator: Operator,
}

fn name(number: usize) -> String {
    format!("worker-{number:02}")
}

impl Scene {
    pub(crate) async fn set() -> Self {
        let cluster = TestCluster::full().await;
        let crds = perennial(["manifests", "crds"], &[]).expect_success();
        cluster.try_kubectl_with("apply", &crds).expect_success();
        cluster.kubectl("wait --for=condition=Established crd/keeppolicies.perennial.dev --timeout=30s");
        cluster.apply_policy(
            "gold",
            &json!({
                "nodeSelector": {"matchLabels": {"example.com/tier": "gold"}},
                "priority": 10,
                "annotations": ["example.com/*"],
                "cordon": true,
                "retention": "2160h",
            }),
        );
        let operator = cluster.operator().webhooks(Webhooks::On).set("placement.cooldown", "2s");
        let operator = operator.set("dashboard.enabled", "true").set("dashboard.port", "0").start().await;
        for number in 1..=WORKERS {
            let node = cluster.node(&name(number)).labels(written_by_the_kubelet(number)).labels(by_people(number));
            node.create().await;
        }
        cluster.capacity("spot", 1, 52).await;
        cluster.capacity("on-demand", 2, 110).await;
        cluster.wait_for_records(WORKERS).await;
        let checkout = cluster.deployment("checkout").annotate("spot-percentage", "70").annotate("min-on-demand", "3");
        checkout.annotate("fallback-after", "5s").replicas(37).create().await;
        let search = cluster.stateful_set("search").annotate("spot-percentage", "60").annotate("min-on-demand", "2");
        search.replicas(12).create().await;
        cluster.wait_for_split("search", 7, 5).await;
        cluster.wait_for_split("checkout", 25, 12).await;
        Self { cluster, operator }
    }

    pub(crate) async fn address(&self) -> String {
        self.operator.dashboard().await
    }

    /// Deletes a worker and creates it without user labels.
    pub(crate) async fn replace(&self, number: usize) {
        self.cluster.delete_node(&name(number)).await;
        self.cluster.node(&name(number)).labels(written_by_the_kubelet(number)).create().await;
    }

    /// Replaces workers, one at a time and a whole rack at once, and lets spot capacity run out.
    pub(crate) async fn live(&self, lasts: Duration) {
        let cluster = &self.cluster;
        let begun = Instant::now();
        let mut turn = 0;
        while begun.elapsed() < lasts {
            let many = if turn % 9 == 4 { 12 } else { 1 + turn % 3 };
            for number in 0..many {
                self.replace(1 + (turn * 7 + number * 5) % WORKERS).await;
            }
            if turn == 3 {
                cluster.label("worker-07", "disk", "nvme-2").await;
                cluster.unlabel("worker-07", "rack").await;
            }
            turn += 1;
            tokio::time::sleep(Duration::from_secs(6)).await;
        }
        cluster.scale("checkout", 97).await;
        cluster.corrupt_record("worker-31", json!({"record.json": "{\"version\":1,\"sequence\":4,"})).await;
        cluster.delete_node("worker-40").await;
        cluster.wait_for_workload_event("checkout", "SpotShortage").await;
        eventually("everyone of checkout runs", async || {
            let placed = cluster.pod_counts("checkout").await;
            if placed.waiting == 0 && placed.spot + placed.on_demand == 97 { Ok(()) } else { Err(placed.to_string()) }
        })
        .await;
        self.replace(12).await;
        self.replace(23).await;
        // The dashboard shows each change before the next one.
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
}

fn written_by_the_kubelet(number: usize) -> Vec<(String, String)> {
    let zone = ["eu-west-1a", "eu-west-1b", "eu-west-1c"][number % 3];
    [
        ("kubernetes.io/hostname", name(number)),
        ("kubernetes.io/arch", "amd64".into()),
        ("topology.kubernetes.io/zone", zone.into()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

fn by_people(number: usize) -> Vec<(String, String)> {
    let team = TEAMS[number % TEAMS.len()];
    let tier = if number.is_multiple_of(5) { "gold" } else { "silver" };
    [
        ("team", team.to_owned()),
        ("rack", format!("r{}", number / 6)),
        ("disk", "nvme".into()),
        ("example.com/tier", tier.into()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}
