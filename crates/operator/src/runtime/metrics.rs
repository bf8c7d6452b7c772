//! Every metric of the program, in one place.
//!
//! What all controllers have is named as controller-runtime names it, so that existing dashboards work; what only we
//! have is `perennial_*`. The library puts `_total` behind counters and `_info` behind infos, so it is not written here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::error_category::Category;
use super::labels::{
    BuildLabels, Class, ClassLabels, ControllerLabels, ErrorLabels, LeaseLabels, MoveLabels, MoveResult, NodeLabels,
    NodeState, Outcome, QueueLabels, ReconcileLabels, RecordLabels, RecordState, RequestLabels, Via, ViaLabels,
    WebhookCodeLabels, WebhookLabels,
};
use super::process::Process;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Handles to all metrics; cloning copies pointers only.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,

    pub reconciles: Family<ReconcileLabels, Counter>,
    pub reconcile_errors: Family<ControllerLabels, Counter>,
    pub reconcile_time: Histograms<ControllerLabels>,
    pub queue_depth: Family<QueueLabels, Gauge>,
    pub queue_adds: Family<QueueLabels, Counter>,
    pub queue_retries: Family<QueueLabels, Counter>,
    pub queue_duration: Histograms<QueueLabels>,
    pub queue_work_duration: Histograms<QueueLabels>,
    pub requests: Family<RequestLabels, Counter>,
    pub leading: Family<LeaseLabels, Gauge>,
    pub webhook_requests: Family<WebhookCodeLabels, Counter>,
    pub webhook_latency: Histograms<WebhookLabels>,
    pub webhook_in_flight: Family<WebhookLabels, Gauge>,
    pub certificate_expiry: Gauge,

    pub nodes: Family<NodeLabels, Gauge>,
    pub nodes_current_ratio: Gauge<f64, AtomicU64>,
    pub records: Family<RecordLabels, Gauge>,
    pub records_invalid: Gauge,
    pub records_unsigned: Gauge,
    pub records_collected: Counter,
    pub captures: Family<ViaLabels, Counter>,
    pub restores: Family<ViaLabels, Counter>,
    pub labels_restored: Counter,
    pub restore_latency: Histogram,
    pub label_flaps: Counter,
    pub protected_refusals: Counter,
    pub mass_absence: Gauge,
    pub placement_replicas: Family<ClassLabels, Gauge>,
    pub placement_drift: Gauge,
    pub placement_moves: Family<MoveLabels, Counter>,
    pub fallback_active: Gauge,
    pub errors: Family<ErrorLabels, Counter>,
}

impl Metrics {
    pub fn new() -> Self {
        let mut all = Registering(Registry::default());
        let build = Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION") });
        all.0.register("perennial_build", "The version that runs", build);
        all.0.register_collector(Box::new(Process));
        let metrics = Self {
            reconciles: all.add("controller_runtime_reconcile", "Reconciliations by result", Family::default()),
            reconcile_errors: all.add(
                "controller_runtime_reconcile_errors",
                "Failed reconciliations",
                Family::default(),
            ),
            reconcile_time: all.add("controller_runtime_reconcile_time_seconds", "Time of a reconciliation", times()),
            queue_depth: all.add("workqueue_depth", "Items that wait", Family::default()),
            queue_adds: all.add("workqueue_adds", "Items added", Family::default()),
            queue_retries: all.add("workqueue_retries", "Items added again after a failure", Family::default()),
            queue_duration: all.add("workqueue_queue_duration_seconds", "Time that an item waits", times()),
            queue_work_duration: all.add("workqueue_work_duration_seconds", "Time that an item takes", times()),
            requests: all.add("rest_client_requests", "Requests to the API server", Family::default()),
            leading: all.add(
                "leader_election_master_status",
                "1 while this process holds the Lease",
                Family::default(),
            ),
            webhook_requests: all.add("controller_runtime_webhook_requests", "Admission requests", Family::default()),
            webhook_latency: all.add(
                "controller_runtime_webhook_latency_seconds",
                "Time of an admission request",
                Family::new_with_constructor(moments),
            ),
            webhook_in_flight: all.add(
                "controller_runtime_webhook_requests_in_flight",
                "Admission requests being answered",
                Family::default(),
            ),
            certificate_expiry: all.add(
                "perennial_certificate_expiry_timestamp_seconds",
                "When the certificate of the webhooks ends; 0 while none is served",
                Gauge::default(),
            ),
            nodes: all.add("perennial_nodes", "Nodes by state", Family::default()),
            nodes_current_ratio: all.add(
                "perennial_nodes_current_ratio",
                "Nodes whose record is up to date, of all nodes",
                Gauge::default(),
            ),
            records: all.add("perennial_records", "Records by state", Family::default()),
            records_invalid: all.add("perennial_records_invalid", "Records in quarantine", Gauge::default()),
            records_unsigned: all.add(
                "perennial_records_unsigned",
                "Records that the newest key has not signed yet, where records are signed",
                Gauge::default(),
            ),
            records_collected: all.add(
                "perennial_records_collected",
                "Records collected after retention",
                Counter::default(),
            ),
            captures: all.add("perennial_captures", "Captures: node to record", Family::default()),
            restores: all.add("perennial_restores", "Restores: record to node", Family::default()),
            labels_restored: all.add("perennial_labels_restored", "Labels given back", Counter::default()),
            restore_latency: all.add(
                "perennial_restore_latency_seconds",
                "Time from a node's creation to its restore",
                seconds(),
            ),
            label_flaps: all.add(
                "perennial_label_flaps",
                "Labels that something else keeps setting back",
                Counter::default(),
            ),
            protected_refusals: all.add(
                "perennial_protected_refusals",
                "Protected keys that were not given to another machine",
                Counter::default(),
            ),
            mass_absence: all.add(
                "perennial_mass_absence",
                "1 while so many nodes are absent that no record is collected",
                Gauge::default(),
            ),
            placement_replicas: all.add("perennial_placement_replicas", "Managed replicas by class", Family::default()),
            placement_drift: all.add(
                "perennial_placement_drift",
                "Replicas that are in the wrong class",
                Gauge::default(),
            ),
            placement_moves: all.add("perennial_placement_moves", "Moves between classes", Family::default()),
            fallback_active: all.add(
                "perennial_fallback_active",
                "Workloads that run on fallback capacity",
                Gauge::default(),
            ),
            errors: all.add("perennial_errors", "Errors by category", Family::default()),
            registry: Arc::default(),
        };
        let metrics = Self { registry: Arc::new(all.0), ..metrics };
        metrics.show_from_the_start();
        metrics
    }

    /// The OpenMetrics text of all metrics.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Counts an item that was added to a queue.
    pub fn enqueued(&self, name: &'static str) {
        self.queue_adds.get_or_create(&QueueLabels { name }).inc();
    }

    /// Notes how long an item waited in a queue.
    pub fn dequeued(&self, name: &'static str, waited: Duration) {
        self.queue_duration.get_or_create(&QueueLabels { name }).observe(waited.as_secs_f64());
    }

    /// Counts an item that was added to a queue again after a failure.
    pub fn requeued(&self, name: &'static str) {
        self.queue_retries.get_or_create(&QueueLabels { name }).inc();
    }

    /// Sets the number of items in a queue.
    pub fn queue_has(&self, name: &'static str, items: usize) {
        self.queue_depth.get_or_create(&QueueLabels { name }).set(i64::try_from(items).unwrap_or(i64::MAX));
    }

    /// Counts a reconciliation, its time and, where it failed, its error.
    pub fn reconciled(&self, controller: &'static str, result: Outcome, took: Duration) {
        self.reconciles.get_or_create(&ReconcileLabels { controller, result }).inc();
        self.reconcile_time.get_or_create(&ControllerLabels { controller }).observe(took.as_secs_f64());
        self.queue_work_duration.get_or_create(&QueueLabels { name: controller }).observe(took.as_secs_f64());
        if result == Outcome::Error {
            self.reconcile_errors.get_or_create(&ControllerLabels { controller }).inc();
        }
    }

    /// Counts a request to the API server; `None` when it got no answer.
    pub fn requested(&self, code: Option<http::StatusCode>, method: &http::Method, host: &str) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.as_str().to_owned());
        let (method, host) = (method.to_string(), host.to_owned());
        self.requests.get_or_create(&RequestLabels { code, method, host }).inc();
    }

    /// Counts an answered admission request and its time.
    pub fn admitted(&self, webhook: &'static str, code: u16, took: Duration) {
        self.webhook_requests.get_or_create(&WebhookCodeLabels { webhook, code }).inc();
        self.webhook_latency.get_or_create(&WebhookLabels { webhook }).observe(took.as_secs_f64());
    }

    pub fn leads(&self, lease: &str, leads: bool) {
        self.leading.get_or_create(&LeaseLabels { name: lease.to_owned() }).set(i64::from(leads));
    }

    pub fn failed(&self, category: &'static str) {
        self.errors.get_or_create(&ErrorLabels { category }).inc();
    }

    /// Shows a controller and its queue from the start.
    pub fn expect_controller(&self, controller: &'static str) {
        for &result in Outcome::ALL {
            self.reconciles.get_or_create(&ReconcileLabels { controller, result }).inc_by(0);
        }
        self.reconcile_errors.get_or_create(&ControllerLabels { controller }).inc_by(0);
        let queue = QueueLabels { name: controller };
        self.queue_depth.get_or_create(&queue).set(0);
        self.queue_adds.get_or_create(&queue).inc_by(0);
        self.queue_retries.get_or_create(&queue).inc_by(0);
    }

    /// A counter that appears with its first event has no rate for it: what is known beforehand is there at 0.
    fn show_from_the_start(&self) {
        for &state in NodeState::ALL {
            self.nodes.get_or_create(&NodeLabels { state }).set(0);
        }
        for &state in RecordState::ALL {
            self.records.get_or_create(&RecordLabels { state }).set(0);
        }
        for &via in Via::ALL {
            self.captures.get_or_create(&ViaLabels { via }).inc_by(0);
            self.restores.get_or_create(&ViaLabels { via }).inc_by(0);
        }
        for &class in Class::ALL {
            self.placement_replicas.get_or_create(&ClassLabels { class }).set(0);
        }
        for category in Category::ALL.map(Category::as_str) {
            self.errors.get_or_create(&ErrorLabels { category }).inc_by(0);
        }
        for &result in MoveResult::ALL {
            self.placement_moves.get_or_create(&MoveLabels { result }).inc_by(0);
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

struct Registering(Registry);

impl Registering {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }
}

/// 1 ms to 65 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

/// 1 ms to 2 s, fine where admission has to be: somebody waits for it.
fn moments() -> Histogram {
    Histogram::new([
        0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0,
    ])
}

fn times<L: Clone + std::hash::Hash + Eq>() -> Histograms<L> {
    Family::new_with_constructor(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &[
        "controller_runtime_reconcile_total{controller=\"keeper\",result=\"error\"} 1",
        "controller_runtime_reconcile_errors_total{controller=\"keeper\"} 1",
        "controller_runtime_reconcile_time_seconds_bucket{le=\"0.001\",controller=\"keeper\"}",
        "workqueue_depth{name=\"nodes\"}",
        "workqueue_adds_total{name=\"nodes\"}",
        "workqueue_queue_duration_seconds_count{name=\"nodes\"}",
        "workqueue_work_duration_seconds_count{name=\"nodes\"}",
        "workqueue_retries_total{name=\"nodes\"}",
        "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"api:6443\"} 1",
        "rest_client_requests_total{code=\"<error>\",method=\"PATCH\",host=\"api:6443\"} 1",
        "leader_election_master_status{name=\"perennial-0\"} 1",
        "controller_runtime_webhook_requests_total{webhook=\"nodes\",code=\"200\"} 1",
        "controller_runtime_webhook_latency_seconds_count{webhook=\"nodes\"} 1",
        "controller_runtime_webhook_requests_in_flight{webhook=\"nodes\"}",
        "perennial_nodes{state=\"settled\"}",
        "perennial_records{state=\"tombstone\"}",
        "perennial_captures_total{via=\"admission\"} 0",
        "perennial_restores_total{via=\"watch\"} 0",
        "perennial_labels_restored_total",
        "perennial_restore_latency_seconds_count",
        "perennial_nodes_current_ratio",
        "perennial_label_flaps_total",
        "perennial_records_invalid",
        "perennial_records_unsigned",
        "perennial_records_collected_total",
        "perennial_placement_replicas{class=\"on-demand\"}",
        "perennial_placement_drift",
        "perennial_placement_moves_total{result=\"evicted\"}",
        "perennial_fallback_active",
        "perennial_errors_total{category=\"forbidden\"} 1",
        "perennial_protected_refusals_total",
        "perennial_certificate_expiry_timestamp_seconds",
        "perennial_mass_absence",
        "perennial_build_info{version=",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
    ];

    #[test]
    fn every_metric_of_the_design_is_in_the_text() {
        let metrics = Metrics::new();
        let queue = QueueLabels { name: "nodes" };
        metrics.reconciled("keeper", Outcome::Error, Duration::from_millis(3));
        metrics.queue_depth.get_or_create(&queue).set(2);
        metrics.queue_adds.get_or_create(&queue).inc();
        metrics.queue_retries.get_or_create(&queue).inc();
        metrics.queue_duration.get_or_create(&queue).observe(0.1);
        metrics.queue_work_duration.get_or_create(&queue).observe(0.1);
        metrics.requested(Some(http::StatusCode::OK), &http::Method::GET, "api:6443");
        metrics.requested(None, &http::Method::PATCH, "api:6443");
        metrics.leads("perennial-0", true);
        metrics.admitted("nodes", 200, Duration::from_millis(1));
        metrics.webhook_in_flight.get_or_create(&WebhookLabels { webhook: "nodes" }).inc();
        metrics.failed("forbidden");

        let text = metrics.encode().unwrap();

        for name in NAMES {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_clone_counts_into_the_same_metrics() {
        let metrics = Metrics::new();
        metrics.clone().labels_restored.inc_by(3);
        assert!(metrics.encode().unwrap().contains("perennial_labels_restored_total 3\n"));
    }

    #[test]
    fn the_figures_of_the_process_are_plausible() {
        let text = Metrics::new().encode().unwrap();
        let line = text.lines().find(|line| line.starts_with("process_resident_memory_bytes ")).unwrap();
        let bytes: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((1 << 20..1 << 40).contains(&bytes), "{bytes}");
    }
}
