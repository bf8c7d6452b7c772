//! The operator is killed at each of its writes in turn: before the API server receives it, and
//! after the commit before the response arrives. After a restart the final state is always the
//! same.

use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::atomic::{AtomicUsize, Ordering},
};

use perennial_harness::{ApiRequest, CrashPoint, FaultProxy, OperatorBuilder, TestCluster, Webhooks, free_port};
use rstest::rstest;

use crate::scenario::{self, Observed};

/// A kind of write, tested separately, because the order of writes of different kinds varies.
#[derive(Clone, Copy)]
enum Kind {
    /// Verb and resource.
    Is(&'static str),
    /// All other kinds.
    Rest(&'static [&'static str]),
}

impl Kind {
    fn has(self, asked: &ApiRequest) -> bool {
        let name = name(asked);
        match self {
            Self::Is(kind) => kind == name,
            Self::Rest(kinds) => !kinds.contains(&name.as_str()),
        }
    }

    /// Returns each of these kinds, and the rest.
    fn all(kinds: &'static [&'static str]) -> impl Iterator<Item = Self> {
        kinds.iter().copied().map(Self::Is).chain([Self::Rest(kinds)])
    }
}

fn name(asked: &ApiRequest) -> String {
    format!("{} {}", asked.verb, asked.resource)
}

/// Crash point: the n-th write of a kind, before or after it.
#[derive(Clone, Copy)]
struct Point {
    at: usize,
    kind: Kind,
    dies: CrashPoint,
}

/// Runs a scenario with an operator that is killed there. Returns the write, or `None` if there are
/// fewer writes.
async fn die(
    proxy: &FaultProxy,
    Point { at, kind, dies }: Point,
    operator: impl Fn() -> OperatorBuilder,
    story: impl Future<Output = ()>,
) -> Option<ApiRequest> {
    let triggered = proxy.trap(at, move |asked| kind.has(asked), dies);
    let mut first = Some(operator().through(proxy).launch());
    let mut died = None;
    let crash = async {
        let Ok(asked) = triggered.await else { return std::future::pending().await };
        if let Some(first) = first.take() {
            first.crash();
        }
        died = Some(asked);
        operator().through(proxy).start().await
    };
    let (mut story, mut crash) = (std::pin::pin!(story), Box::pin(crash));
    tokio::select! {
        biased;
        _second = &mut crash => story.await,
        // The second operator must have nothing left to do.
        () = &mut story => {}
    }
    drop(crash);
    died
}

/// Number of crashes by kind of write.
#[derive(Default)]
struct Swept(BTreeMap<String, usize>);

impl Swept {
    fn add(&mut self, asked: &ApiRequest, dies: CrashPoint) {
        let side = if dies == CrashPoint::Before { "before" } else { "after" };
        *self.0.entry(format!("{side} {}", name(asked))).or_default() += 1;
    }

    /// Bypasses output capturing: the numbers show that crashes did happen.
    fn print(&self, what: &str) {
        let points: usize = self.0.values().sum();
        let kinds: Vec<String> = self.0.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let _ = writeln!(std::io::stderr(), "crash sweep, {what}: {points} crash points ({})", kinds.join(", "));
    }

    fn count(&self, kind: &str) -> usize {
        self.0.get(kind).copied().unwrap_or_default()
    }
}

/// Fixed address, like that of a Service.
fn at_port(builder: OperatorBuilder, port: u16) -> OperatorBuilder {
    let (number, url) = (port.to_string(), format!("https://127.0.0.1:{port}"));
    builder.set("webhook.enabled", "true").set("webhook.port", &number).set("webhook.url", &url)
}

/// Crashes at each write of each kind in turn, on one side, until the scenario has no more of them.
async fn sweep(
    dies: CrashPoint,
    kinds: &'static [&'static str],
    once: impl AsyncFn(Point) -> Option<ApiRequest>,
) -> Swept {
    let mut swept = Swept::default();
    for kind in Kind::all(kinds) {
        for at in 1.. {
            let Some(asked) = once(Point { at, kind, dies }).await else { break };
            swept.add(&asked, dies);
        }
    }
    swept
}

#[rstest]
#[case::off(Webhooks::Off)]
#[case::on(Webhooks::On)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_write_of_the_keeper_changes_nothing(#[case] webhooks: Webhooks) {
    const KINDS: &[&str] = &["create configmaps", "update configmaps", "patch nodes"];
    let once = async |point: Point| {
        let cluster = crate::shipped().await;
        let proxy = cluster.fault_proxy().await;
        let port = free_port();
        let operator = || {
            let builder = cluster.operator().without_leader_election();
            if webhooks == Webhooks::On { at_port(builder, port) } else { builder }
        };
        die(&proxy, point, operator, scenario::play(&cluster, 1, || Observed::NotAlways)).await
    };
    // Most of the time is waiting: both sides run at once, each on its own cluster.
    let (mut swept, after) =
        tokio::join!(sweep(CrashPoint::Before, KINDS, &once), sweep(CrashPoint::After, KINDS, &once));
    swept.0.extend(after.0);

    swept.print(&format!("keeper, webhooks {webhooks:?}"));
    // The minimum that the scenario needs, on both sides.
    for side in ["before", "after"] {
        assert!(swept.count(&format!("{side} create configmaps")) >= 4, "{:?}", swept.0);
        assert!(swept.count(&format!("{side} update configmaps")) >= 4, "{:?}", swept.0);
        if webhooks == Webhooks::Off {
            assert!(swept.count(&format!("{side} patch nodes")) >= 3, "{:?}", swept.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_write_of_placement_changes_nothing() {
    const KINDS: &[&str] = &["patch pods"];
    let cluster = TestCluster::full().await.with_shipped_roles().await;
    cluster.capacity("spot", 1, 100).await;
    cluster.capacity("on-demand", 1, 100).await;
    let port = free_port();
    let number = AtomicUsize::new(0);
    let once = async |point: Point| {
        let proxy = cluster.fault_proxy().await;
        // The keeper would write at different times in each run.
        let roles = |builder: OperatorBuilder| builder.set("controller.roles", "placement,webhooks");
        let operator =
            || roles(at_port(cluster.operator().without_leader_election(), port).set("placement.cooldown", "1s"));
        let name = format!("web-{}", number.fetch_add(1, Ordering::Relaxed));
        let story = async {
            let web = cluster.deployment(&name).annotate("spot-percentage", "60").annotate("min-on-demand", "1");
            web.replicas(3).create().await;
            cluster.wait_for_split(&name, 1, 2).await;
            cluster.scale(&name, 5).await;
            cluster.wait_for_split(&name, 3, 2).await;
            cluster.scale(&name, 2).await;
            cluster.wait_for_split(&name, 1, 1).await;
        };
        let died = die(&proxy, point, operator, story).await;
        cluster.kubectl(&format!("delete deployment {name} --wait=false"));
        died
    };
    let mut swept = sweep(CrashPoint::Before, KINDS, &once).await;
    swept.0.extend(sweep(CrashPoint::After, KINDS, &once).await.0);

    swept.print("placement");
    for side in ["before", "after"] {
        assert!(swept.count(&format!("{side} patch pods")) >= 4, "{:?}", swept.0);
    }
}
