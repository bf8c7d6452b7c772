//! The operator dies at each of its writes in turn: just before the API server sees it, and just after it is committed, before
//! the answer is there. It is started again, and the end is the same as ever.

use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::atomic::{AtomicUsize, Ordering},
};

use perennial_tests::{Asked, Dies, FaultProxy, OperatorBuilder, TestCluster, Webhooks, free_port};
use rstest::rstest;

use crate::life;

/// Plays a story with an operator that dies at one of its writes. At which; none where it makes fewer.
async fn die(
    proxy: &FaultProxy,
    (at, dies): (usize, Dies),
    operator: impl Fn() -> OperatorBuilder,
    story: impl Future<Output = ()>,
) -> Option<Asked> {
    let told = proxy.trap(at, dies);
    let first = operator().through(proxy).launch();
    let crash = async move {
        let Ok(asked) = told.await else { return std::future::pending().await };
        first.crash();
        (asked, operator().through(proxy).start().await)
    };
    let (mut story, mut crash) = (std::pin::pin!(story), std::pin::pin!(crash));
    tokio::select! {
        biased;
        (asked, _second) = &mut crash => {
            story.await;
            Some(asked)
        }
        () = &mut story => None,
    }
}

/// What was swept: how many writes of each kind an operator died at.
#[derive(Default)]
struct Swept(BTreeMap<String, usize>);

impl Swept {
    fn add(&mut self, asked: &Asked, dies: Dies) {
        let side = if dies == Dies::Before { "before" } else { "after" };
        *self.0.entry(format!("{side} {} {}", asked.verb, asked.resource)).or_default() += 1;
    }

    /// Past the harness, which keeps what tests print to itself: silence is not to be mistaken for safety.
    fn print(&self, what: &str) {
        let points: usize = self.0.values().sum();
        let kinds: Vec<String> = self.0.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let _ = writeln!(std::io::stderr(), "crash sweep, {what}: {points} crash points ({})", kinds.join(", "));
    }

    fn count(&self, kind: &str) -> usize {
        self.0.get(kind).copied().unwrap_or_default()
    }
}

/// Always at the same address, as behind a Service.
fn at_port(builder: OperatorBuilder, port: u16) -> OperatorBuilder {
    let (number, url) = (port.to_string(), format!("https://127.0.0.1:{port}"));
    builder.set("webhook.enabled", "true").set("webhook.port", &number).set("webhook.url", &url)
}

#[rstest]
#[case::off(Webhooks::Off)]
#[case::on(Webhooks::On)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_write_of_the_keeper_changes_nothing(#[case] webhooks: Webhooks) {
    let sweep = async |dies: Dies| {
        let mut swept = Swept::default();
        for at in 1.. {
            println!("{dies:?} write {at}");
            let cluster = TestCluster::new().await;
            let proxy = cluster.fault_proxy().await;
            let port = free_port();
            let operator = || {
                let builder = cluster.operator().alone();
                if webhooks == Webhooks::On { at_port(builder, port) } else { builder }
            };
            let died = die(&proxy, (at, dies), operator, life::play(&cluster, 1)).await;
            let Some(asked) = died else { break };
            swept.add(&asked, dies);
        }
        swept
    };
    // Most of the time is spent waiting: both sides at once, each on a cluster of its own.
    let (mut swept, after) = tokio::join!(sweep(Dies::Before), sweep(Dies::After));
    swept.0.extend(after.0);

    swept.print(&format!("keeper, webhooks {webhooks:?}"));
    // Every kind of write that matters was among them, on both sides. Which write is the n-th differs a little from run to run.
    for side in ["before", "after"] {
        assert!(swept.count(&format!("{side} create configmaps")) >= 2, "{:?}", swept.0);
        assert!(swept.count(&format!("{side} update configmaps")) >= 2, "{:?}", swept.0);
        if webhooks == Webhooks::Off {
            assert!(swept.count(&format!("{side} patch nodes")) >= 3, "{:?}", swept.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_write_of_placement_changes_nothing() {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let cluster = TestCluster::whole().await;
    cluster.capacity("spot", 1, 100).await;
    cluster.capacity("on-demand", 1, 100).await;
    let port = free_port();
    let mut swept = Swept::default();
    for dies in [Dies::Before, Dies::After] {
        for at in 1.. {
            println!("{dies:?} write {at}");
            let proxy = cluster.fault_proxy().await;
            // The keeper would write at other times each time.
            let roles = |builder: OperatorBuilder| builder.set("controller.roles", "placement,webhooks");
            let operator = || roles(at_port(cluster.operator().alone(), port).set("placement.cooldown", "1s"));
            let name = format!("web-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
            let story = async {
                let web = cluster.deployment(&name).asks("spot-percentage", "60").asks("min-on-demand", "1");
                web.replicas(3).create().await;
                cluster.wait_for_split(&name, 1, 2).await;
                cluster.scale(&name, 5).await;
                cluster.wait_for_split(&name, 3, 2).await;
                cluster.scale(&name, 2).await;
                cluster.wait_for_split(&name, 1, 1).await;
            };
            let died = die(&proxy, (at, dies), operator, story).await;
            cluster.kubectl(&format!("delete deployment {name} --wait=false"));
            let Some(asked) = died else { break };
            swept.add(&asked, dies);
        }
    }

    swept.print("placement");
    for side in ["before", "after"] {
        assert!(swept.count(&format!("{side} patch pods")) >= 4, "{:?}", swept.0);
    }
}
