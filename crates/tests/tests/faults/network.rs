//! Network and API server faults between an operator and its API server.

use std::time::Duration;

use perennial_harness::{
    ApiRequest, Fault, FaultProxy, OperatorBuilder, Webhooks, eventually, eventually_within, labels,
};
use perennial_testkit::prng::Prng;
use rstest::rstest;

use crate::scenario::{self, Observed};

/// Fails one request in `one_in`, pseudo-randomly: often enough to affect each scenario, rarely
/// enough to let it finish. Not every n-th request, because an action of n requests would always
/// fail at the same one.
fn now_and_then(fault: Fault, one_in: usize) -> impl FnMut(&ApiRequest) -> Option<Fault> + Send {
    let mut prng = Prng::new(7);
    move |asked| {
        // A refused watch has its own backoff, which is not tested here.
        if asked.verb == "watch" {
            return None;
        }
        (prng.below(one_in) == 0).then_some(fault)
    }
}

fn count(proxy: &FaultProxy, name: &str) -> u64 {
    proxy.faults().get(name).copied().unwrap_or_default()
}

#[rstest]
#[case::delayed(Fault::Delayed(Duration::from_millis(300)), "delayed", 2, Webhooks::On)]
#[case::dropped(Fault::Dropped, "dropped", 6, Webhooks::Off)]
#[case::answer_lost(Fault::AnswerLost, "answer lost", 3, Webhooks::Off)]
#[case::answer_lost_webhooks_on(Fault::AnswerLost, "answer lost", 3, Webhooks::On)]
#[case::late(Fault::Late(Duration::from_millis(1500)), "late", 6, Webhooks::Off)]
#[case::late_webhooks_on(Fault::Late(Duration::from_millis(1500)), "late", 6, Webhooks::On)]
#[case::busy(Fault::Answered(429, Some(1)), "answered 429", 20, Webhooks::Off)]
#[case::error(Fault::Answered(500, None), "answered 500", 6, Webhooks::Off)]
#[case::unavailable(Fault::Answered(503, None), "answered 503", 6, Webhooks::On)]
#[tokio::test]
async fn requests_that_fail_now_and_then_change_nothing(
    #[case] fault: Fault,
    #[case] name: &str,
    #[case] one_in: usize,
    #[case] webhooks: Webhooks,
) {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    // A Lease as long as in production: one of three seconds would be lost all the time, and each
    // refused renewal would pause all other requests. Of a reconciliation with several requests, most
    // attempts fail: without a limit, the pauses between them would outlast the test.
    let long = |builder: OperatorBuilder| {
        let builder = builder.set("controller.leaderElection.leaseDuration", "15s");
        builder.set("controller.retry.maxBackoff", "2s")
    };
    let operator = cluster.start_with(webhooks, |builder| long(builder).through(&proxy)).await;
    proxy.inject(now_and_then(fault, one_in));
    // The others close the connection, and with it the watches.
    let observed = || match fault {
        Fault::Delayed(_) | Fault::Answered(..) => Observed::Always,
        _ => Observed::by_admission(webhooks, &operator),
    };

    scenario::play(&cluster, 3, observed).await;

    assert!(count(&proxy, name) >= 5, "{:?}", proxy.faults());
}

/// Each write is committed, but the first response is lost: the operator finds its own write as if
/// another client had made it.
#[tokio::test]
async fn a_lost_response_causes_no_second_write() {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let _operator = cluster.operator().through(&proxy).start().await;
    let mut lost = std::collections::HashSet::new();
    proxy.inject(move |asked| {
        let first =
            asked.is_write() && asked.resource != "leases" && lost.insert((asked.verb.clone(), asked.name.clone()));
        first.then_some(Fault::AnswerLost)
    });

    cluster.node("n1").label("team", "ml").create().await;
    let record = cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    cluster.label("n1", "team", "web").await;
    let changed = cluster.wait_for_record("n1", [("team", "web")]).await;

    assert_eq!(record["sequence"], 1, "one capture");
    assert!(changed["sequence"].as_u64() <= Some(3), "a capture more, and at most one claim: {changed}");
    assert!(count(&proxy, "answer lost") >= 3, "{:?}", proxy.faults());
}

/// A write that timed out and was repeated arrives a second time, after a user has changed the
/// label again.
#[tokio::test]
async fn a_late_write_undoes_nothing() {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let _operator = cluster.operator().through(&proxy).start().await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    let late = Duration::from_secs(4);
    let mut held = 2;
    proxy.inject(move |asked| {
        let ours = asked.is_write() && ["nodes", "configmaps"].contains(&asked.resource.as_str()) && held > 0;
        held -= i32::from(ours);
        ours.then_some(Fault::Late(late))
    });

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.unlabel("n1", "tier").await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    // The late writes have arrived and were refused: each was conditional on an outdated version.
    tokio::time::sleep(late).await;
    cluster.label("n1", "fence", "1").await;
    cluster.wait_for_record("n1", [("team", "ml"), ("fence", "1")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml"), ("fence", "1")]));
    assert!(count(&proxy, "late") >= 1, "{:?}", proxy.faults());
}

#[rstest]
#[case::off(Webhooks::Off)]
#[case::on(Webhooks::On)]
#[tokio::test]
async fn watches_that_are_cut_all_the_time_change_nothing(#[case] webhooks: Webhooks) {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let _operator = cluster.start_with(webhooks, |builder| builder.through(&proxy)).await;
    let cutting = async {
        loop {
            proxy.cut_watches();
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    // Admission does not depend on watches.
    let observed = if webhooks == Webhooks::On { Observed::Always } else { Observed::NotAlways };

    tokio::select! {
        () = cutting => {}
        () = scenario::play(&cluster, 3, || observed) => {}
    }

    assert!(count(&proxy, "watch cut") >= 5, "{:?}", proxy.faults());
}

#[rstest]
#[case::off(Webhooks::Off)]
#[case::on(Webhooks::On)]
#[tokio::test]
async fn connections_that_end_all_the_time_change_nothing(#[case] webhooks: Webhooks) {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let operator = cluster.start_with(webhooks, |builder| builder.through(&proxy)).await;
    let before = proxy.wire().carried();
    let cutting = async {
        loop {
            proxy.wire().cut();
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    };

    tokio::select! {
        () = cutting => {}
        () = scenario::play(&cluster, 3, || Observed::by_admission(webhooks, &operator)) => {}
    }

    assert!(proxy.wire().carried() > before + 5, "it had to connect again");
}

#[tokio::test]
async fn changes_during_a_silent_connection_are_handled_afterwards() {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let operator = cluster.operator().through(&proxy).start().await;
    for node in ["changed", "returned", "taken"] {
        cluster.node(node).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(node, [("team", "ml"), ("tier", "gold")]).await;
    }

    proxy.wire().freeze();
    cluster.label("changed", "team", "web").await;
    cluster.delete_node("returned").await;
    cluster.node("returned").create().await;
    cluster.delete_node("taken").await;
    cluster.node("taken").create().await;
    // Long enough for requests to time out and for the Lease to expire.
    eventually("the operator gives up its Lease", async || {
        let leads = operator.metrics().sum("leader_election_master_status", &[]);
        if leads < 0.5 { Ok(()) } else { Err(leads) }
    })
    .await;
    assert_eq!(operator.get("/livez").0, 200);
    cluster.label("taken", "team", "data").await;
    proxy.wire().thaw();

    cluster.wait_for_labels("returned", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_labels("taken", [("team", "data"), ("tier", "gold")]).await;
    cluster.wait_for_record("changed", [("team", "web"), ("tier", "gold")]).await;
    cluster.wait_for_labels("changed", [("team", "web"), ("tier", "gold")]).await;
}

/// Watches stay half-open, as behind a firewall that lost its state. Only a timeout detects it.
#[tokio::test]
async fn an_operator_replaces_half_open_connections() {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let _operator = cluster.operator().through(&proxy).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    proxy.wire().forget();
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    // A watch without events is restarted after more than a minute.
    eventually_within(Duration::from_mins(3), "n1 has its label again", async || {
        let seen = cluster.labels("n1").await;
        if seen == labels([("team", "ml")]) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

#[tokio::test]
async fn retry_after_is_respected() {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let mut operator = cluster.operator().through(&proxy).start().await;
    cluster.create_many(50, perennial_harness::ten_labels).await;
    cluster.wait_for_records(50).await;
    cluster.delete_all_nodes().await;

    // Every request is refused, including Leases, while fifty nodes return.
    proxy.inject(|_| Some(Fault::Answered(429, Some(1))));
    cluster.create_many(50, |_| perennial_harness::Labels::new()).await;
    eventually("requests are refused", async || {
        let refused = count(&proxy, "answered 429");
        if refused >= 3 { Ok(()) } else { Err(refused) }
    })
    .await;
    assert!(operator.is_running());
    assert_eq!(operator.get("/livez").0, 200);
    // One `Retry-After` for all: not one attempt for each of fifty nodes.
    let refused = count(&proxy, "answered 429");
    assert!(refused < 50, "{refused} requests were refused: it did not wait");
    proxy.clear_faults();

    cluster.wait_for_complete_nodes(50).await;
}

/// Answers the first matching request with 429 and a minute.
fn throttle_once(of: impl Fn(&ApiRequest) -> bool + Send + 'static) -> impl FnMut(&ApiRequest) -> Option<Fault> + Send {
    let mut done = false;
    move |asked| {
        let now = !done && of(asked);
        done |= now;
        now.then_some(Fault::Answered(429, Some(60)))
    }
}

/// A 429 to a renewal or to a request of admission does not close the budget of the controllers.
#[rstest]
#[case::renewal(|asked: &ApiRequest| asked.resource == "leases" && asked.verb == "update")]
#[case::admission(|asked: &ApiRequest| asked.resource == "configmaps" && asked.name.as_deref().is_some_and(|name| name.contains("forged")))]
#[tokio::test]
async fn a_throttled_request_of_another_flow_delays_no_capture(#[case] of: fn(&ApiRequest) -> bool) {
    let cluster = crate::shipped().await;
    let proxy = cluster.fault_proxy().await;
    let long = |builder: OperatorBuilder| builder.set("controller.leaderElection.leaseDuration", "15s");
    let _operator = cluster.start_with(Webhooks::On, |builder| long(builder).through(&proxy)).await;
    proxy.inject(throttle_once(of));
    // Admission reads the record of a node that is created.
    cluster.node("forged").create().await;
    eventually(
        "a request is throttled",
        async || {
            if count(&proxy, "answered 429") > 0 { Ok(()) } else { Err("not yet") }
        },
    )
    .await;

    cluster.node("n1").label("team", "ml").create().await;

    // Long before the minute is over.
    eventually_within(Duration::from_secs(25), "the capture", async || {
        let record = cluster.config_map("n1").await;
        record.map(drop).ok_or("no record")
    })
    .await;
}
