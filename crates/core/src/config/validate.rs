//! Validation beyond types: ranges, and settings that must agree with each other.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::duration;
use super::names::is_dns_label;
use super::settings::{Gate, Keeper, Role, Settings};

/// Minimum of the resync and audit periods. More frequent ones would load the API server.
pub const PERIOD_FLOOR: Duration = Duration::from_secs(5);

/// Problems, for which the settings are refused, and warnings about changed values and values
/// without effect.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) problems: Vec<(&'static str, String)>,
    pub(super) warnings: Vec<(&'static str, String)>,
}

impl Findings {
    fn problem(&mut self, path: &'static str, message: impl Into<String>) {
        self.problems.push((path, message.into()));
    }

    fn warning(&mut self, path: &'static str, message: impl Into<String>) {
        self.warnings.push((path, message.into()));
    }

    fn within<T: PartialOrd + Display + Copy>(&mut self, path: &'static str, value: T, range: RangeInclusive<T>) {
        if !range.contains(&value) {
            self.problem(path, format!("must be from {} to {}, got {value}", range.start(), range.end()));
        }
    }

    fn whole_seconds(&mut self, path: &'static str, value: Duration, range: RangeInclusive<u64>) {
        if value.subsec_nanos() > 0 || !range.contains(&value.as_secs()) {
            let (low, high, got) = (range.start(), range.end(), duration::print(value));
            self.problem(path, format!("must be whole seconds from {low}s to {high}s, got {got}"));
        }
    }

    fn positive(&mut self, path: &'static str, value: Duration) {
        if value.is_zero() {
            self.problem(path, "must be longer than 0s");
        }
    }

    fn raise(&mut self, path: &'static str, period: &mut Duration) {
        if *period < PERIOD_FLOOR {
            let (given, floor) = (duration::print(*period), duration::print(PERIOD_FLOOR));
            self.warning(path, format!("{given} is below the minimum and was raised to {floor}"));
            *period = PERIOD_FLOOR;
        }
    }
}

/// Checks the settings, and raises periods that are below the minimum.
pub(super) fn validate(settings: &mut Settings) -> Findings {
    let mut findings = Findings::default();
    controller(settings, &mut findings);
    keeper(&settings.keeper, &mut findings);
    placement(settings, &mut findings);
    serving(settings, &mut findings);
    findings
}

fn controller(settings: &mut Settings, findings: &mut Findings) {
    let controller = &mut settings.controller;
    findings.raise("controller.resyncPeriod", &mut controller.resync_period);
    findings.raise("controller.auditPeriod", &mut controller.audit_period);
    findings.within("controller.workers", controller.workers, 1..=1024);
    findings.within("controller.qps", controller.qps, 1..=100_000);
    findings.within("controller.burst", controller.burst, 1..=200_000);
    findings.within("controller.shards", controller.shards, 1..=1024);
    if controller.roles.is_empty() {
        findings.problem("controller.roles", "must contain at least one role");
    }
    let election = &controller.leader_election;
    findings.whole_seconds("controller.leaderElection.leaseDuration", election.lease_duration, 2..=600);
    if let Some(namespace) = election.namespace.as_ref().filter(|namespace| !is_dns_label(namespace)) {
        findings.problem("controller.leaderElection.namespace", format!("expected a namespace, got {namespace:?}"));
    }
    let retry = &controller.retry;
    findings.positive("controller.retry.initialBackoff", retry.initial_backoff);
    if retry.max_backoff < retry.initial_backoff {
        findings.problem("controller.retry.maxBackoff", "must not be shorter than controller.retry.initialBackoff");
    }
    if !election.enabled && controller.shards > 1 {
        findings.problem("controller.shards", "more than one shard requires controller.leaderElection.enabled");
    }
}

fn keeper(keeper: &Keeper, findings: &mut Findings) {
    findings.positive("keeper.retention", keeper.retention);
    findings.positive("keeper.gateTimeout", keeper.gate_timeout);
    findings.within("keeper.history", keeper.history, 0..=50);
    findings.within("keeper.withheld", keeper.withheld, 1..=50);
    for kept in keeper.keep.as_slice() {
        for (path, dropped) in [("keeper.drop", &keeper.drop), ("keeper.dropAlso", &keeper.drop_also)] {
            if let Some(dropped) = dropped.as_slice().iter().find(|dropped| dropped.covers(kept)) {
                findings.warning("keeper.keep", format!("`{kept}` has no effect: {path} contains `{dropped}`"));
            }
        }
    }
}

fn placement(settings: &Settings, findings: &mut Findings) {
    let (placement, labels) = (&settings.placement, &settings.node_labels);
    findings.within("placement.movesPerMinute", placement.moves_per_minute, 1..=60_000);
    findings.positive("placement.gateTimeout", placement.gate_timeout);
    findings.positive("placement.holdTimeout", placement.hold_timeout);
    for problem in placement.annotation_rules().problems() {
        findings.problem("placement.defaults", problem.to_string());
    }
    if placement.enabled && placement.annotation_prefixes.is_empty() {
        findings.problem("placement.annotationPrefixes", "must contain at least one domain");
    }
    for (path, class) in [("nodeLabels.spot", &labels.spot), ("nodeLabels.onDemand", &labels.on_demand)] {
        if placement.enabled && class.is_empty() {
            findings.problem(path, "must contain at least one label");
        }
    }
    let mut explicit = labels.spot.iter().filter(|label| label.selector().is_some());
    if let Some(both) = explicit.find(|label| labels.on_demand.contains(label)) {
        let message = format!("{both} cannot be both a spot and an on-demand label");
        findings.problem("nodeLabels.onDemand", message);
    }
}

fn serving(settings: &Settings, findings: &mut Findings) {
    let (webhook, metrics, dashboard) = (&settings.webhook, &settings.metrics, &settings.dashboard);
    findings.whole_seconds("webhook.timeout", webhook.timeout, 1..=30);
    if let Some(url) = webhook.url.as_ref().filter(|url| !is_https(url)) {
        findings.problem("webhook.url", format!("expected https://host[:port][/path], got {url:?}"));
    }
    for (path, address) in [("webhook.address", &webhook.address), ("metrics.address", &metrics.address)] {
        if let Some(address) = address.as_ref().filter(|address| address.parse::<std::net::IpAddr>().is_err()) {
            findings.problem(path, format!("expected an IP address such as 127.0.0.1 or ::1, got {address:?}"));
        }
    }
    if webhook.enabled && metrics.enabled && webhook.port != 0 && webhook.port == metrics.port {
        findings.problem("metrics.port", format!("{} is already used by webhook.port", metrics.port));
    }
    let taken = [(webhook.enabled, webhook.port, "webhook.port"), (metrics.enabled, metrics.port, "metrics.port")];
    for (enabled, port, path) in taken {
        if dashboard.enabled && enabled && port != 0 && port == dashboard.port {
            findings.problem("dashboard.port", format!("{port} is already used by {path}"));
        }
    }
    let serves = webhook.enabled && settings.controller.roles.contains(&Role::Webhooks);
    if settings.keeper.gate != Gate::Never && !webhook.enabled {
        findings.warning("keeper.gate", "has no effect: a webhook adds the taint, and webhook.enabled is false");
    }
    for (path, setting) in [("webhook.certDir", &webhook.cert_dir), ("webhook.clientCA", &webhook.client_ca)] {
        if !serves && setting.is_some() {
            findings.warning(path, "has no effect: this process does not serve webhooks");
        }
    }
}

fn is_https(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://") else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    !host.is_empty() && !host.starts_with(':') && !url.contains(|c: char| c.is_whitespace() || "?#@".contains(c))
}
