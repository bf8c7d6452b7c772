//! `perennial top`: churn, lag and shards, updated continuously.

use std::{fmt::Write as _, io::IsTerminal, process::ExitCode, time::Duration};

use clap::Args;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher, watcher::Event};
use perennial_core::{
    config::duration,
    keeper::record::{RECORD_LABEL, RECORD_LABEL_VALUE},
};
use tokio::time::{Instant, MissedTickBehavior};

use super::{Global, block_on, output::print_text};
use crate::{
    inspect::{format::span, leases::LeaseSnapshot, progress::Progress},
    keeper::{
        activity::{Board, Counts},
        cache::Cache,
        node::Node,
        policies::Policies,
        record_keys::Signatures,
    },
    runtime::clock::Clock,
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
struct ClusterCache(Cache);

impl ClusterCache {
    fn new(policies: Policies, signatures: Signatures) -> Self {
        let cache = Cache::new(policies, signatures);
        cache.set_policies_known();
        cache.enable_activity(Board::new(Clock::system(), DRAWN));
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
    fn frame(&mut self, interval: Duration, since: Duration, leases: Option<&LeaseSnapshot>) -> String {
        let survey = self.0.survey();
        let live = survey.current + survey.to_capture + survey.to_restore + survey.unidentified + survey.ignored;
        let counted = self.0.activity(|activity| {
            activity.churn.turn();
            let past: Vec<Counts> = activity.churn.past.iter().copied().collect();
            (past, activity.churn.total)
        });
        let Some((past, total)) = counted else { return String::new() };
        let last = past.last().copied().unwrap_or_default();
        let mut text = String::new();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let _ = writeln!(text, "perennial top, watching for {}", span(seconds));
        let _ = writeln!(
            text,
            "Nodes      {live} live, {} current, {} to capture, {} to restore, {} ignored, {} unidentified",
            survey.current, survey.to_capture, survey.to_restore, survey.ignored, survey.unidentified
        );
        let _ = writeln!(
            text,
            "Records    {}, {} without a node, {} tombstones, {} invalid",
            survey.records, survey.absent, survey.tombstones, survey.bad_records
        );
        let _ = writeln!(text, "Lag        {} node(s) waiting", survey.to_capture + survey.to_restore);
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
        let churn: Vec<u64> = past.iter().map(Counts::churn).collect();
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

impl Top {
    pub(super) fn execute(&self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let mut cache = ClusterCache::new(session.policies.clone(), session.cluster.signatures().clone());
            let nodes = watcher(session.cluster.nodes().clone(), watcher::Config::default()).default_backoff();
            let config = watcher::Config::default().labels(&format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}"));
            let records = watcher(session.cluster.records().clone(), config).default_backoff();
            let (mut nodes, mut records) = (std::pin::pin!(nodes), std::pin::pin!(records));
            let begun = Instant::now();
            let mut progress = Some(Progress::new("reading nodes and records", false));
            let mut tick = tokio::time::interval_at(begun + self.interval, self.interval);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    Some(event) = nodes.next() => match event {
                        Ok(event) => cache.on_node(event),
                        Err(error) if !cache.is_complete() => return Err(anyhow::anyhow!("could not watch nodes: {error}")),
                        Err(_) => {}
                    },
                    Some(event) = records.next() => match event {
                        Ok(event) => cache.on_record(event),
                        Err(error) if !cache.is_complete() => return Err(anyhow::anyhow!("could not watch records: {error}")),
                        Err(_) => {}
                    },
                    _ = tick.tick(), if cache.is_complete() => {
                        drop(progress.take());
                        let namespace = session.settings.namespace.as_str();
                        let leases = LeaseSnapshot::read(&session.client, namespace).await.ok();
                        let frame = cache.frame(self.interval, begun.elapsed(), leases.as_ref());
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

    #[test]
    fn numbers_are_rendered_as_bars() {
        assert_eq!(spark(&[0, 1, 4, 7]), "▁▂▅█");
        assert_eq!(spark(&[]), "");
    }
}
