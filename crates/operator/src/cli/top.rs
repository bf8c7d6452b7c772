//! `perennial top`: churn, lag and shards, updated continuously.

use std::{collections::BTreeMap, fmt::Write as _, io::IsTerminal, process::ExitCode, time::Duration};

use clap::Args;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher, watcher::Event};
use perennial_core::{
    config::duration,
    keeper::{record::record_selector, status::KeepState},
};
use tokio::time::{Instant, MissedTickBehavior};

use super::{Global, block_on, output::print_text};
use crate::{
    inspect::{
        format::{node_counts, span},
        leases::LeaseSnapshot,
        progress::Progress,
        session::Session,
    },
    keeper::{
        activity::{Activity, ActivityCounts},
        cache::KeeperCache,
        node::Node,
        policies::Policies,
        record_keys::Signatures,
    },
    runtime::{clock::Clock, error_category::Category, health::Health, watch},
};

#[derive(Debug, Args)]
pub(super) struct Top {
    /// Interval between updates
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_interval)]
    interval: Duration,
    /// Print once after one interval, and exit
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text).filter(|interval| *interval >= Duration::from_millis(100));
    interval.ok_or_else(|| "expected a duration of at least 100ms, for example 2s".to_owned())
}

/// Number of intervals in the chart.
const DRAWN: usize = 40;

/// The cache of nodes and records, with their activity.
struct ClusterCache(KeeperCache);

impl ClusterCache {
    fn new(policies: Policies, signatures: Signatures) -> Self {
        let cache = KeeperCache::new(policies, signatures);
        cache.set_policies_known();
        cache.enable_activity(Activity::new(Clock::system(), DRAWN));
        Self(cache)
    }

    fn on_node(&mut self, event: Event<Node>) {
        self.0.on_node(event);
    }

    fn on_record(&mut self, event: Event<ConfigMap>) {
        self.0.on_record(event);
    }

    fn is_complete(&self) -> bool {
        self.0.is_synced()
    }

    /// Ends the interval and renders it.
    fn frame(
        &mut self,
        interval: Duration,
        since: Duration,
        leases: Option<&LeaseSnapshot>,
        stale: Option<&str>,
    ) -> String {
        let survey = self.0.survey();
        let counted = self.0.activity(|activity| {
            activity.churn.end_interval();
            let past: Vec<ActivityCounts> = activity.churn.past.iter().copied().collect();
            (past, activity.churn.total)
        });
        let Some((past, total)) = counted else { return String::new() };
        let last = past.last().copied().unwrap_or_default();
        let mut text = String::new();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let _ = writeln!(text, "perennial top, watching for {}", span(seconds));
        if let Some(stale) = stale {
            let _ = writeln!(text, "{stale}");
        }
        let _ = writeln!(text, "Nodes      {}", node_counts(&survey.nodes, |state| state.to_string()));
        let _ = writeln!(
            text,
            "Records    {}, {} without a node, {} tombstones, {} invalid",
            survey.records, survey.absent, survey.tombstones, survey.bad_records
        );
        let due = survey.nodes.of(KeepState::Pending) + survey.nodes.of(KeepState::Unsettled);
        let _ = writeln!(text, "Lag        {due} node(s) waiting");
        let _ = writeln!(text, "           created   deleted   changed   restored   records written");
        for (name, counts) in [("per second", last), ("total", total)] {
            let shown = |count: u64| {
                if name == "total" {
                    count.to_string()
                } else {
                    #[expect(clippy::cast_precision_loss, reason = "rounded to one digit")]
                    let rate = count as f64 / interval.as_secs_f64();
                    format!("{rate:.1}")
                }
            };
            let _ = writeln!(
                text,
                "{name:<10} {:>7}   {:>7}   {:>7}   {:>8}   {:>15}",
                shown(counts.created),
                shown(counts.deleted),
                shown(counts.changed),
                shown(counts.restored),
                shown(counts.written)
            );
        }
        let churn: Vec<u64> = past.iter().map(ActivityCounts::churn).collect();
        let _ = writeln!(text, "Churn      {}", spark(&churn));
        for group in leases.iter().flat_map(|found| &found.groups) {
            let alive = group.members.iter().filter(|member| member.alive).count();
            let _ = writeln!(text, "Replicas   {alive} of {} alive ({})", group.members.len(), group.name);
            for shard in &group.shards {
                let holder = if shard.held { shard.holder.as_str() } else { "no holder" };
                let _ = writeln!(text, "  shard {:<4} {holder}", shard.number());
            }
        }
        text
    }
}

/// Renders numbers as a row of bars.
fn spark(numbers: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    numbers.iter().map(|number| BARS[usize::try_from(number * 7 / most).unwrap_or(7).min(7)]).collect()
}

/// Deadline of an answer of the API server.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Freshness of the cache: whether the API server answers, and both watches work.
struct WatchFreshness {
    health: Health,
    /// The last failures of watches.
    failures: BTreeMap<&'static str, String>,
    /// The last time at which nothing failed.
    good: Timestamp,
}

impl WatchFreshness {
    /// `health` receives which watches the API server accepts.
    fn new(now: Timestamp, health: Health) -> Self {
        Self { health, failures: BTreeMap::new(), good: now }
    }

    /// Records an event of a watch. Returns it, or its failure if the first list is incomplete.
    fn note<T>(
        &mut self,
        what: &'static str,
        event: Result<T, watcher::Error>,
        complete: bool,
    ) -> anyhow::Result<Option<T>> {
        match event {
            Ok(event) => {
                self.health.read(what);
                Ok(Some(event))
            }
            Err(error) => {
                let why = format!("could not watch {what}: {}", watch::message(&error));
                anyhow::ensure!(complete, why);
                let category = watch::category(&error);
                // An expired watch is listed again.
                if !matches!(category, Category::NotFound | Category::Refused) {
                    self.health.unread(what, category);
                    self.failures.insert(what, why);
                }
                Ok(None)
            }
        }
    }

    /// Returns the line about stale data. `failure`: the API server does not answer now.
    fn line(&mut self, now: Timestamp, failure: Option<&str>) -> Option<String> {
        let unreadable = self.health.unreadable();
        let watches = || unreadable.iter().find_map(|what| self.failures.get(what)).map(String::as_str);
        match failure.or_else(watches) {
            None => {
                self.good = now;
                None
            }
            Some(why) => Some(format!("STALE since {}: {why}", self.good.strftime("%Y-%m-%d %H:%M:%SZ"))),
        }
    }
}

/// Reads the Leases. Also returns why the API server does not answer; a refusal is an answer.
async fn read_leases(session: &Session) -> (Option<LeaseSnapshot>, Option<String>) {
    let read = LeaseSnapshot::read(&session.client, session.settings.lease_namespace());
    match tokio::time::timeout(ANSWER_WITHIN, read).await {
        Ok(Ok(leases)) => (Some(leases), None),
        Ok(Err(error)) if error.category() == Category::Forbidden => (None, None),
        Ok(Err(error)) => (None, Some(error.to_string())),
        Err(_) => (None, Some(format!("no answer of the API server within {} s", ANSWER_WITHIN.as_secs()))),
    }
}

impl Top {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let health = Health::new();
            let session = global.open_session_observed(Some(health.clone())).await?;
            health.watches("nodes", session.cluster.nodes().resource_url());
            health.watches("records", session.cluster.records().resource_url());
            let mut cache = ClusterCache::new(session.policies.clone(), session.cluster.signatures().clone());
            let nodes = watcher(session.cluster.nodes().clone(), watcher::Config::default()).default_backoff();
            let config = watcher::Config::default().labels(&record_selector());
            let records = watcher(session.cluster.records().clone(), config).default_backoff();
            let (mut nodes, mut records) = (std::pin::pin!(nodes), std::pin::pin!(records));
            let begun = Instant::now();
            let mut progress = Some(Progress::new("reading nodes and records", false));
            let mut tick = tokio::time::interval_at(begun + self.interval, self.interval);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut freshness = WatchFreshness::new(Timestamp::now(), health);
            let mut complete = false;
            loop {
                // A watch that is listed again after a failure does not stop the display.
                complete |= cache.is_complete();
                tokio::select! {
                    Some(event) = nodes.next() => {
                        if let Some(event) = freshness.note("nodes", event, complete)? {
                            cache.on_node(event);
                        }
                    }
                    Some(event) = records.next() => {
                        if let Some(event) = freshness.note("records", event, complete)? {
                            cache.on_record(event);
                        }
                    }
                    _ = tick.tick(), if complete => {
                        drop(progress.take());
                        let (leases, failure) = read_leases(&session).await;
                        let stale = freshness.line(Timestamp::now(), failure.as_deref());
                        let frame = cache.frame(self.interval, begun.elapsed(), leases.as_ref(), stale.as_deref());
                        // Cursor home, then clear to the end: flickers less than clearing first.
                        let redraw = if std::io::stdout().is_terminal() && !self.once { "\x1b[H\x1b[J" } else { "" };
                        print_text(&format!("{redraw}{frame}"))?;
                        if self.once {
                            return Ok(ExitCode::SUCCESS);
                        }
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lost_api_server_is_shown_until_it_answers() {
        let time = |seconds| Timestamp::from_second(seconds).unwrap();
        let health = Health::new();
        health.watches("nodes", "/api/v1/nodes");
        let mut freshness = WatchFreshness::new(time(0), health.clone());
        freshness.note("nodes", Ok(()), true).unwrap();
        assert_eq!(freshness.line(time(1), None), None);
        for now in [2, 3] {
            let line = freshness.line(time(now), Some("connection refused"));
            assert_eq!(line.as_deref(), Some("STALE since 1970-01-01 00:00:01Z: connection refused"));
        }
        assert_eq!(freshness.line(time(4), None), None);

        // The server answers, but refuses a watch.
        let refused = || Err::<(), _>(watcher::Error::WatchStartFailed(forbidden()));
        for _ in 0..3 {
            assert!(freshness.note("nodes", refused(), true).unwrap().is_none());
        }
        let line = freshness.line(time(5), None).unwrap();
        assert!(line.starts_with("STALE since 1970-01-01 00:00:04Z: could not watch nodes: "), "{line}");
        freshness.note("nodes", Ok(()), true).unwrap();
        assert_eq!(freshness.line(time(6), None), None);
        freshness.note("nodes", refused(), false).unwrap_err();

        // A watch that is accepted again may have nothing to deliver.
        assert!(freshness.note("nodes", refused(), true).unwrap().is_none());
        assert!(freshness.line(time(7), None).is_some());
        health.watch_asked("/api/v1/nodes");
        health.watch_opened("/api/v1/nodes");
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(freshness.line(time(8), None), None);
    }

    fn forbidden() -> kube::Error {
        kube::Error::Api(Box::new(kube::core::Status::failure("not allowed", "Forbidden").with_code(403)))
    }

    #[test]
    fn numbers_are_rendered_as_bars() {
        assert_eq!(spark(&[0, 1, 4, 7]), "▁▂▅█");
        assert_eq!(spark(&[]), "");
    }
}
