//! The registry of all metrics, and those that every controller has.
//!
//! The latter are named as controller-runtime names them, so that existing dashboards work. Other
//! parts register their own metrics, named `perennial_*`, and keep the handles. The library appends
//! `_total` to counters and `_info` to infos.

use std::{
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::text,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Metric, Registry},
};

use super::{
    error_category::Category,
    labels::{
        BuildLabels, ControllerLabels, ErrorLabels, LeaseLabels, QueueLabels, ReconcileLabels, ReconcileOutcome,
        RequestLabels, ResourceLabels,
    },
    process::Process,
};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The registry of all metrics. Clones share it.
#[derive(Clone)]
struct SharedRegistry(Arc<Mutex<Registry>>);

impl SharedRegistry {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.lock().register(name, help, metric.clone());
        metric
    }
}

/// The registry, and handles to the metrics of the runtime. Clones share both.
#[derive(Clone)]
pub struct Metrics {
    registry: SharedRegistry,
    reconciles: Family<ReconcileLabels, Counter>,
    reconcile_errors: Family<ControllerLabels, Counter>,
    reconcile_time: Histograms<ControllerLabels>,
    queue_depth: Family<QueueLabels, Gauge>,
    queue_adds: Family<QueueLabels, Counter>,
    queue_retries: Family<QueueLabels, Counter>,
    queue_duration: Histograms<QueueLabels>,
    queue_work_duration: Histograms<QueueLabels>,
    requests: Family<RequestLabels, Counter>,
    leading: Family<LeaseLabels, Gauge>,
    leader_changes: Family<LeaseLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    unreadable: Family<ResourceLabels, Gauge>,
    unwritable: Family<ResourceLabels, Gauge>,
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let build = Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION") });
        registry.register("perennial_build", "Version of this process", build);
        registry.register_collector(Box::new(Process));
        let registry = SharedRegistry(Arc::new(Mutex::new(registry)));
        let metrics = Self {
            reconciles: registry.register(
                "controller_runtime_reconcile",
                "Reconciliations by result",
                Family::default(),
            ),
            reconcile_errors: registry.register(
                "controller_runtime_reconcile_errors",
                "Failed reconciliations",
                Family::default(),
            ),
            reconcile_time: registry.register(
                "controller_runtime_reconcile_time_seconds",
                "Time of a reconciliation",
                histograms(),
            ),
            queue_depth: registry.register("workqueue_depth", "Items in the queue", Family::default()),
            queue_adds: registry.register("workqueue_adds", "Items added", Family::default()),
            queue_retries: registry.register(
                "workqueue_retries",
                "Items added again after a failure",
                Family::default(),
            ),
            queue_duration: registry.register(
                "workqueue_queue_duration_seconds",
                "Time that an item waits",
                histograms(),
            ),
            queue_work_duration: registry.register(
                "workqueue_work_duration_seconds",
                "Time that an item takes",
                histograms(),
            ),
            requests: registry.register("rest_client_requests", "Requests to the API server", Family::default()),
            leading: registry.register(
                "leader_election_master_status",
                "1 while this process holds the Lease",
                Family::default(),
            ),
            leader_changes: registry.register(
                "perennial_leader_changes",
                "Times that this process acquired the Lease",
                Family::default(),
            ),
            errors: registry.register("perennial_errors", "Errors by category", Family::default()),
            unreadable: registry.register(
                "perennial_resource_unreadable",
                "1 while a resource cannot be read, which pauses what depends on it",
                Family::default(),
            ),
            unwritable: registry.register(
                "perennial_resource_unwritable",
                "1 while all writes of a resource fail; this replica hands its shards over",
                Family::default(),
            ),
            registry,
        };
        for category in Category::ALL.map(Category::as_str) {
            metrics.errors.get_or_create(&ErrorLabels { category }).inc_by(0);
        }
        metrics
    }

    /// Adds a metric to the registry and returns it. Each name is registered once.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.registry.register(name, help, metric)
    }

    /// Returns the OpenMetrics text of all registered metrics.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry.lock())?;
        Ok(text)
    }

    /// Exports a controller and its queue at 0. A counter that appears with its first event has no
    /// rate for it.
    pub fn expect_controller(&self, controller: &'static str) {
        for &result in ReconcileOutcome::ALL {
            self.reconciles.get_or_create(&ReconcileLabels { controller, result }).inc_by(0);
        }
        self.reconcile_errors.get_or_create(&ControllerLabels { controller }).inc_by(0);
        let queue = QueueLabels { name: controller };
        self.queue_depth.get_or_create(&queue).set(0);
        self.queue_adds.get_or_create(&queue).inc_by(0);
        self.queue_retries.get_or_create(&queue).inc_by(0);
    }

    /// Sets whether a resource can be read.
    pub fn resource_is_readable(&self, resource: &'static str, readable: bool) {
        self.unreadable.get_or_create(&ResourceLabels { resource }).set(i64::from(!readable));
    }

    /// Sets whether a resource can be written.
    pub fn resource_is_writable(&self, resource: &'static str, writable: bool) {
        self.unwritable.get_or_create(&ResourceLabels { resource }).set(i64::from(!writable));
    }

    /// Counts an item that was added to a queue.
    pub fn enqueued(&self, name: &'static str) {
        self.queue_adds.get_or_create(&QueueLabels { name }).inc();
    }

    /// Records how long an item waited in a queue.
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
    pub fn reconciled(&self, controller: &'static str, result: ReconcileOutcome, took: Duration) {
        self.reconciles.get_or_create(&ReconcileLabels { controller, result }).inc();
        self.reconcile_time.get_or_create(&ControllerLabels { controller }).observe(took.as_secs_f64());
        self.queue_work_duration.get_or_create(&QueueLabels { name: controller }).observe(took.as_secs_f64());
        if result == ReconcileOutcome::Error {
            self.reconcile_errors.get_or_create(&ControllerLabels { controller }).inc();
        }
    }

    /// Counts a request to the API server; `None` when there was no response.
    pub fn requested(&self, code: Option<http::StatusCode>, method: &http::Method, host: &str) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.as_str().to_owned());
        let (method, host) = (method.to_string(), host.to_owned());
        self.requests.get_or_create(&RequestLabels { code, method, host }).inc();
    }

    /// Sets whether this process holds a Lease, and counts when it acquires it.
    pub fn leads(&self, lease: &str, leads: bool) {
        let labels = LeaseLabels { name: lease.to_owned() };
        let before = self.leading.get_or_create(&labels).set(i64::from(leads));
        self.leader_changes.get_or_create(&labels).inc_by(u64::from(leads && before == 0));
    }

    /// Counts an error.
    pub fn failed(&self, category: Category) {
        self.errors.get_or_create(&ErrorLabels { category: category.as_str() }).inc();
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

/// A histogram from 1 ms to 65 s.
pub fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

fn histograms<L: Clone + Hash + Eq>() -> Histograms<L> {
    Family::new_with_constructor(histogram)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &[
        "controller_runtime_reconcile_total{controller=\"nodes\",result=\"error\"} 1",
        "controller_runtime_reconcile_errors_total{controller=\"nodes\"} 1",
        "controller_runtime_reconcile_time_seconds_bucket{le=\"0.001\",controller=\"nodes\"}",
        "workqueue_depth{name=\"nodes\"} 2",
        "workqueue_adds_total{name=\"nodes\"} 1",
        "workqueue_queue_duration_seconds_count{name=\"nodes\"} 1",
        "workqueue_work_duration_seconds_count{name=\"nodes\"} 1",
        "workqueue_retries_total{name=\"nodes\"} 1",
        "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"api:6443\"} 1",
        "rest_client_requests_total{code=\"<error>\",method=\"PATCH\",host=\"api:6443\"} 1",
        "leader_election_master_status{name=\"perennial-0\"} 1",
        "perennial_errors_total{category=\"forbidden\"} 1",
        "perennial_build_info{version=",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
    ];

    #[test]
    fn every_metric_of_the_runtime_is_in_the_text() {
        let metrics = Metrics::new();
        metrics.reconciled("nodes", ReconcileOutcome::Error, Duration::from_millis(3));
        metrics.queue_has("nodes", 2);
        metrics.enqueued("nodes");
        metrics.requeued("nodes");
        metrics.dequeued("nodes", Duration::from_millis(100));
        metrics.requested(Some(http::StatusCode::OK), &http::Method::GET, "api:6443");
        metrics.requested(None, &http::Method::PATCH, "api:6443");
        metrics.leads("perennial-0", true);
        metrics.failed(Category::Forbidden);

        let text = metrics.encode().unwrap();

        for name in NAMES {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_clone_counts_into_the_same_metrics() {
        let metrics = Metrics::new();
        metrics.clone().failed(Category::Server);
        assert!(metrics.encode().unwrap().contains("perennial_errors_total{category=\"server\"} 1\n"));
    }

    #[test]
    fn the_figures_of_the_process_are_plausible() {
        let text = Metrics::new().encode().unwrap();
        let line = text.lines().find(|line| line.starts_with("process_resident_memory_bytes ")).unwrap();
        let bytes: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((1 << 20..1 << 40).contains(&bytes), "{bytes}");
    }
}
