use std::{collections::VecDeque, sync::Arc};

use super::*;

#[derive(Debug, thiserror::Error)]
#[error("failed")]
struct Failed {
    category: Category,
    retry_after: Option<Duration>,
}

impl CategorizedError for Failed {
    fn category(&self) -> Category {
        self.category
    }

    fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    fn permission(&self) -> Option<&'static str> {
        None
    }
}

fn failed(category: Category) -> Result<NextStep, Failed> {
    Err(Failed { category, retry_after: None })
}

/// Answers with a script, and notes when each key was reconciled.
#[derive(Debug, Default)]
struct Controller {
    script: Mutex<VecDeque<Result<NextStep, Failed>>>,
    reconciled: Mutex<Vec<(u8, Instant)>>,
    reports: Mutex<Vec<Retry>>,
    disowned: Mutex<Vec<u8>>,
    /// Time that one reconciliation takes.
    takes: Duration,
}

impl Reconcile for Controller {
    type Key = u8;
    type Priority = u8;
    type Error = Failed;

    fn shard_key(_key: &u8) -> &'static str {
        "key"
    }

    fn span(&self, _key: &u8) -> Span {
        Span::none()
    }

    async fn reconcile(&self, work: &WorkItem<u8, u8>, _term: u64) -> Result<NextStep, Failed> {
        self.reconciled.lock().unwrap().push((work.key, Instant::now()));
        tokio::time::sleep(self.takes).await;
        self.script.lock().unwrap().pop_front().unwrap_or(Ok(NextStep::Done))
    }

    fn report(&self, _key: &u8, _error: &Failed, retry: Retry) {
        self.reports.lock().unwrap().push(retry);
    }

    fn disown(&self, key: &u8) {
        self.disowned.lock().unwrap().push(*key);
    }
}

const RETRY: RetryPolicy = RetryPolicy {
    backoff: (Duration::from_millis(100), Duration::from_secs(10)),
    immediate_conflicts: 2,
    longest_conflict: Duration::from_millis(150),
    refused: (Duration::from_secs(270), Duration::from_secs(330)),
    forbidden: (Duration::from_secs(30), Duration::from_mins(1)),
};

fn reconciler(ownership: Ownership) -> Reconciler<u8, u8> {
    Reconciler::new("test", RETRY, ownership, Jitter::seeded(1), Metrics::new())
}

/// Runs two workers over one key until nothing is due within an hour.
async fn run(reconciler: Reconciler<u8, u8>, controller: Controller) -> Arc<Controller> {
    let (reconciler, controller) = (Arc::new(reconciler), Arc::new(controller));
    reconciler.add_after(&1, 0, Duration::ZERO);
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (reconciler, controller) = (Arc::clone(&reconciler), Arc::clone(&controller));
            tokio::spawn(async move { reconciler.work(&*controller).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_hours(1)).await;
    reconciler.close();
    for worker in workers {
        worker.await.unwrap();
    }
    controller
}

fn scripted(script: impl IntoIterator<Item = Result<NextStep, Failed>>) -> Controller {
    Controller { script: Mutex::new(script.into_iter().collect()), ..Controller::default() }
}

fn pauses(controller: &Controller) -> Vec<Duration> {
    controller.reports.lock().unwrap().iter().map(|retry| retry.pause).collect()
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_back_off_and_a_success_resets_them() {
    let script = [
        failed(Category::Server),
        failed(Category::Server),
        Ok(NextStep::RequeueAfter(Duration::from_secs(1))),
        failed(Category::Server),
    ];

    let controller = run(reconciler(Ownership::all(1)), scripted(script)).await;

    let attempts: Vec<u32> = controller.reports.lock().unwrap().iter().map(|retry| retry.attempt).collect();
    assert_eq!(attempts, [0, 1, 0]);
    let pauses = pauses(&controller);
    assert!(pauses[1] >= Duration::from_millis(100) && pauses[1] <= Duration::from_millis(200), "{pauses:?}");
    assert!(pauses[2] <= Duration::from_millis(100), "{pauses:?}");
    assert_eq!(controller.reconciled.lock().unwrap().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_category_of_a_failure_determines_the_pause() {
    let throttled = Failed { category: Category::Throttled, retry_after: Some(Duration::from_secs(20)) };
    let script = [
        failed(Category::Conflict),
        failed(Category::Conflict),
        failed(Category::Conflict),
        Err(throttled),
        failed(Category::Refused),
        failed(Category::Forbidden),
    ];

    let pauses = pauses(&*run(reconciler(Ownership::all(1)), scripted(script)).await);

    assert_eq!(pauses[..2], [Duration::ZERO; 2], "the first conflicts are retried at once");
    assert!(pauses[2] > Duration::ZERO && pauses[2] <= RETRY.longest_conflict, "{pauses:?}");
    assert_eq!(pauses[3], Duration::from_secs(20), "the API server's own pause");
    assert!(pauses[4] >= RETRY.refused.0 && pauses[4] <= RETRY.refused.1, "{pauses:?}");
    assert!(pauses[5] >= RETRY.forbidden.0 && pauses[5] <= RETRY.forbidden.1, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_of_another_owner_is_disowned_and_not_reconciled() {
    let controller = run(reconciler(Ownership::none(1)), Controller::default()).await;

    assert_eq!(*controller.disowned.lock().unwrap(), [1]);
    assert!(controller.reconciled.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reconciliation_ends_with_its_permit_and_starts_over_under_the_next() {
    let ownership = Ownership::none(1);
    ownership.set(0, Some(Instant::now() + Duration::from_secs(5)));
    let controller = Controller { takes: Duration::from_mins(1), ..Controller::default() };
    let (reconciler, start) = (reconciler(ownership.clone()), Instant::now());

    let controller = run(reconciler, controller).await;

    assert_eq!(*controller.reconciled.lock().unwrap(), [(1, start)]);
    assert_eq!(*controller.disowned.lock().unwrap(), [1], "requeued when the permit ended, and found to be lost");
    assert!(!ownership.is_ours(0));
}
