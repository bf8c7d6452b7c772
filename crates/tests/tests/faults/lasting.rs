//! One resource that can never be read: everything that depends on it is paused and reported, the
//! rest works.

use perennial_harness::{ApiRequest, Fault, Operator, TestCluster, Webhooks, eventually, is_full_run, labels};
use rstest::rstest;
use serde_json::json;

const PLACEMENT: [&str; 6] =
    ["namespaces", "deployments", "statefulsets", "replicasets", "pods", "poddisruptionbudgets"];

/// Answers every list and watch of these resources with this status.
fn unreadable(
    resources: &'static [&'static str],
    status: u16,
) -> impl FnMut(&ApiRequest) -> Option<Fault> + Send + 'static {
    move |asked| {
        let concerned = resources.contains(&asked.resource.as_str()) && matches!(asked.verb.as_str(), "list" | "watch");
        concerned.then_some(Fault::Answered(status, None))
    }
}

/// Returns whether an operator holds a shard.
fn leads(operator: &Operator) -> bool {
    operator.metrics().sum("leader_election_master_status", &[]) > 0.5
}

/// Waits until the first operator leads and the second one does not.
async fn led_by(leader: &Operator, other: &Operator) {
    eventually("the other one leads", async || {
        let seen = (leads(leader), leads(other));
        if seen == (true, false) { Ok(()) } else { Err(format!("{seen:?} {}", other.get("/readyz").1)) }
    })
    .await;
}

/// Waits until a line of the readiness probe contains this text.
async fn named(operator: &Operator, text: &str) {
    eventually(text, async || {
        let (_, body) = operator.get("/readyz");
        if body.contains(text) { Ok(()) } else { Err(body) }
    })
    .await;
}

/// Waits until exactly these resources are reported as unreadable by a process that is ready.
async fn degraded(operator: &Operator, expected: &[&str]) {
    eventually(format!("{expected:?} cannot be read"), async || {
        let (status, body) = operator.get("/readyz");
        let mut named: Vec<String> =
            body.lines().filter_map(|line| Some(line.strip_prefix("[!] ")?.split_once(':')?.0.to_owned())).collect();
        named.sort();
        let mut expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        expected.sort();
        let seen = operator.metrics();
        let counted =
            expected.iter().all(|name| seen.sum("perennial_resource_unreadable", &[("resource", name)]) > 0.5);
        if status == 200 && named == expected && counted { Ok(()) } else { Err(format!("{status} {body}")) }
    })
    .await;
}

#[rstest]
#[case::forbidden(403)]
#[case::server_error(500)]
#[tokio::test]
async fn unknown_policies_pause_captures_and_restores_and_nothing_else(
    #[case] status: u16,
    #[values(Webhooks::On, Webhooks::Off)] webhooks: Webhooks,
) {
    let cluster = TestCluster::with_policies().await.with_shipped_roles().await;
    cluster.apply_policy("team-only", &json!({"keep": ["team"]}));
    let proxy = cluster.fault_proxy().await;
    proxy.inject(unreadable(&["keeppolicies"], status));
    let operator = cluster.operator().webhooks(webhooks).through(&proxy).start().await;
    degraded(&operator, &["keeppolicies"]).await;

    // The configuration would keep both labels; the policy keeps one.
    let all = [("team", "ml"), ("secret", "x")];
    cluster.node("n1").labels(all).create().await;
    cluster.node("n2").labels(all).create().await;
    operator.wait_for_metric("perennial_nodes", &[], 2.0).await;
    cluster.delete_node("n2").await;
    operator.wait_for_metric("perennial_nodes", &[], 1.0).await;
    assert_eq!(cluster.record_count().await, 0, "captured by rules that are not in force");

    proxy.clear_faults();
    degraded(&operator, &[]).await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.wait_for_record("n2", [("team", "ml")]).await;
    cluster.node("n2").create().await;
    cluster.wait_for_labels("n2", [("team", "ml")]).await;
    assert_eq!(cluster.labels("n2").await, labels([("team", "ml")]));
    cluster.kubectl("delete keeppolicies --all");
}

/// Policies that were read before stay in force, and the failure is reported.
#[tokio::test]
async fn policies_that_become_unreadable_stay_in_force() {
    let cluster = TestCluster::with_policies().await.with_shipped_roles().await;
    cluster.apply_policy("team-only", &json!({"keep": ["team"]}));
    let proxy = cluster.fault_proxy().await;
    let operator = cluster.operator().through(&proxy).start().await;
    let all = [("team", "ml"), ("secret", "x")];
    cluster.node("n1").labels(all).create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    proxy.inject(unreadable(&["keeppolicies"], 500));
    proxy.cut_watches();
    degraded(&operator, &["keeppolicies"]).await;

    cluster.node("n2").labels(all).create().await;
    cluster.wait_for_record("n2", [("team", "ml")]).await;
    proxy.clear_faults();
    degraded(&operator, &[]).await;
    cluster.kubectl("delete keeppolicies --all");
}

/// Without the CRD there are no policies, also for an account that could not read them.
#[tokio::test]
async fn a_cluster_without_the_crd_needs_no_permission_for_policies() {
    let cluster = crate::shipped().await;
    cluster.try_kubectl("delete crd keeppolicies.perennial.dev --ignore-not-found").expect_success();
    let proxy = cluster.fault_proxy().await;
    proxy.inject(unreadable(&["keeppolicies"], 403));
    let _operator = cluster.operator().through(&proxy).start().await;

    cluster.node("n1").label("team", "ml").create().await;

    cluster.wait_for_record("n1", [("team", "ml")]).await;
}

#[rstest]
#[case::one_kind(&PLACEMENT[5..], 500)]
#[case::all_kinds(&PLACEMENT, 503)]
#[case::forbidden(&PLACEMENT[2..3], 403)]
#[tokio::test]
async fn unreadable_workloads_pause_placement_and_nothing_else(
    #[case] resources: &'static [&'static str],
    #[case] status: u16,
) {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    proxy.inject(unreadable(resources, status));
    let operator = cluster.operator().through(&proxy).start().await;
    degraded(&operator, resources).await;

    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;

    proxy.clear_faults();
    degraded(&operator, &[]).await;
}

/// Each kind alone, while the operator runs. One kind takes about 20 seconds; `FULL=1` runs all.
#[tokio::test]
async fn workloads_that_become_unreadable_pause_placement_and_nothing_else() {
    const FAULTS: [Fault; 3] = [Fault::Answered(500, None), Fault::Answered(403, None), Fault::Answered(404, None)];
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let operator = cluster.operator().through(&proxy).start().await;
    degraded(&operator, &[]).await;
    let kinds = if is_full_run() { PLACEMENT.len() } else { 1 };
    for (number, resource) in PLACEMENT.into_iter().enumerate().take(kinds) {
        let fault = FAULTS[number % FAULTS.len()];
        proxy.inject(move |asked| {
            (asked.resource == resource && matches!(asked.verb.as_str(), "list" | "watch")).then_some(fault)
        });
        proxy.cut_watches();
        degraded(&operator, &[resource]).await;

        let node = format!("n{number}");
        cluster.node(&node).label("team", "ml").create().await;
        cluster.wait_for_record(&node, [("team", "ml")]).await;
        cluster.delete_node(&node).await;
        cluster.node(&node).create().await;
        cluster.wait_for_labels(&node, [("team", "ml")]).await;

        proxy.clear_faults();
        degraded(&operator, &[]).await;
    }
}

#[tokio::test]
async fn a_replica_that_cannot_read_a_resource_hands_its_shards_over() {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let leads = |operator: &Operator| operator.metrics().sum("leader_election_master_status", &[]);
    let blind = cluster.operator().through(&proxy).start().await;
    eventually("the first one leads", async || if leads(&blind) > 0.5 { Ok(()) } else { Err("not yet") }).await;
    let other = cluster.operator().start().await;

    proxy.inject(unreadable(&["nodes"], 500));
    proxy.cut_watches();

    eventually(
        "the other one leads",
        async || {
            if leads(&other) > 0.5 && leads(&blind) < 0.5 { Ok(()) } else { Err("not yet") }
        },
    )
    .await;
    degraded(&blind, &["nodes"]).await;
    let checked = cluster.perennial("check");
    assert!(!checked.success && checked.stdout.contains("cannot read nodes"), "{}", checked.stdout);
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    proxy.clear_faults();
    degraded(&blind, &[]).await;
    eventually("the check passes", async || {
        let checked = cluster.perennial("check");
        if checked.stdout.contains("cannot read") { Err(checked.stdout) } else { Ok(()) }
    })
    .await;
}

/// A first list without a response is no failed request, and the replica can do nothing.
#[rstest]
#[case::never_answered(Fault::Swallowed)]
#[case::not_found(Fault::Answered(404, None))]
#[tokio::test]
async fn a_replica_that_never_listed_a_resource_hands_its_shards_over(#[case] fault: Fault) {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    proxy.inject(move |asked| {
        (asked.resource == "nodes" && matches!(asked.verb.as_str(), "list" | "watch")).then_some(fault)
    });
    let blind = cluster.operator().through(&proxy).start_unready().await;
    eventually("the blind one leads", async || if leads(&blind) { Ok(()) } else { Err("not yet") }).await;
    named(&blind, "[!] nodes: cannot be read").await;

    let other = cluster.operator().start().await;

    led_by(&other, &blind).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
}

#[tokio::test]
async fn a_replica_whose_writes_all_fail_hands_its_shards_over() {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let unable = cluster.operator().through(&proxy).start().await;
    eventually("the first one leads", async || if leads(&unable) { Ok(()) } else { Err("not yet") }).await;
    let fails = |asked: &ApiRequest| asked.resource == "configmaps" && asked.is_write();
    proxy.inject(move |asked| fails(asked).then_some(Fault::Answered(500, None)));
    cluster.node("n1").label("team", "ml").create().await;
    named(&unable, "[!] configmaps: cannot be written").await;

    let other = cluster.operator().start().await;

    led_by(&other, &unable).await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    unable.wait_for_metric("perennial_resource_unwritable", &[("resource", "configmaps")], 1.0).await;
    // Announced with the next renewal.
    eventually("the check fails", async || {
        let checked = cluster.perennial("check");
        let named = !checked.success && checked.stdout.contains("cannot write configmaps");
        if named { Ok(()) } else { Err(checked.stdout) }
    })
    .await;
}
