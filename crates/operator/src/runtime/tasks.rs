//! Named tasks and their supervision: the one place that spawns what runs as long as the process.

use std::{collections::HashMap, time::Duration};

use futures::future::BoxFuture;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// A task that runs until the process stops. Parts of the operator hand them over; only
/// [`Supervisor::start`] runs them.
#[expect(missing_debug_implementations, reason = "a future has none")]
#[must_use = "a task does nothing until it is started"]
pub struct Task {
    name: &'static str,
    future: BoxFuture<'static, ()>,
}

impl Task {
    /// A task that notices the stop itself.
    pub fn new(name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { name, future: Box::pin(future) }
    }

    /// A task that is cancelled at the stop.
    pub fn until(
        stop: &CancellationToken,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let stop = stop.clone();
        Self::new(name, async move {
            stop.run_until_cancelled(future).await;
        })
    }

    /// A task that calls `tick` after each period, until the stop, which also ends a tick that is in
    /// progress. A period begins when the last tick has ended.
    pub fn every<F: Future<Output = ()> + Send>(
        stop: &CancellationToken,
        name: &'static str,
        period: Duration,
        tick: impl FnMut() -> F + Send + 'static,
    ) -> Self {
        Self::every_after(stop, name, (period, period), tick)
    }

    /// The same with another time before the first tick.
    pub fn every_after<F: Future<Output = ()> + Send>(
        stop: &CancellationToken,
        name: &'static str,
        (first, period): (Duration, Duration),
        mut tick: impl FnMut() -> F + Send + 'static,
    ) -> Self {
        let stop = stop.clone();
        Self::new(name, async move {
            let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + first, period);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let ticks = async {
                loop {
                    interval.tick().await;
                    tick().await;
                }
            };
            stop.run_until_cancelled(ticks).await;
        })
    }
}

/// A task ended before the process was stopped.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("task {name} panicked: {reason}")]
    Panicked { name: &'static str, reason: String },
    #[error("task {name} ended unexpectedly")]
    Ended { name: &'static str },
}

/// The tasks that run, by name. Dropping it aborts them.
#[derive(Debug)]
pub struct Supervisor {
    running: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Supervisor {
    pub fn start(tasks: impl IntoIterator<Item = Task>) -> Self {
        let mut running = JoinSet::new();
        let names = tasks.into_iter().map(|task| (running.spawn(task.future).id(), task.name)).collect();
        Self { running, names }
    }

    /// Waits for the first task that ends, which none may do before the stop.
    pub async fn first_end(&mut self) -> TaskError {
        match self.running.join_next_with_id().await {
            Some(Ok((id, ()))) => TaskError::Ended { name: self.name(id) },
            Some(Err(error)) => {
                let name = self.name(error.id());
                match panic_message(error) {
                    Some(reason) => TaskError::Panicked { name, reason },
                    None => TaskError::Ended { name },
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Waits until every task has ended, no longer than `deadline`. Returns the names of those that
    /// still run.
    pub async fn join(&mut self, deadline: Duration) -> Vec<&'static str> {
        let all = async {
            while let Some(ended) = self.running.join_next_with_id().await {
                self.names.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
            }
        };
        let _ = tokio::time::timeout(deadline, all).await;
        let mut left: Vec<&'static str> = self.names.values().copied().collect();
        left.sort_unstable();
        left
    }

    fn name(&self, id: Id) -> &'static str {
        self.names.get(&id).copied().unwrap_or_default()
    }
}

fn panic_message(error: JoinError) -> Option<String> {
    let panic = error.try_into_panic().ok()?;
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endless(name: &'static str) -> Task {
        Task::new(name, std::future::pending())
    }

    #[tokio::test]
    async fn a_panic_names_its_task() {
        let broken = Task::new("broken", async { panic!("index {} of nothing", 3) });

        let error = Supervisor::start([endless("sound"), broken]).first_end().await;

        assert_eq!(error.to_string(), "task broken panicked: index 3 of nothing");
    }

    #[tokio::test]
    async fn an_early_end_names_its_task() {
        let early = Task::new("early", std::future::ready(()));

        let error = Supervisor::start([early, endless("sound")]).first_end().await;

        assert_eq!(error.to_string(), "task early ended unexpectedly");
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_ignore_the_stop_are_named() {
        let stop = CancellationToken::new();
        let ticks = Task::every(&stop, "ticks", Duration::from_secs(1), || std::future::ready(()));
        let waits = Task::until(&stop, "waits", std::future::pending());
        let (began, mut tick) = tokio::sync::mpsc::unbounded_channel();
        let long = Task::every(&stop, "long tick", Duration::from_secs(1), move || {
            let _ = began.send(());
            std::future::pending()
        });
        let mut supervisor = Supervisor::start([ticks, waits, long, endless("deaf")]);

        tick.recv().await;
        stop.cancel();

        assert_eq!(supervisor.join(Duration::from_secs(5)).await, ["deaf"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_tick_may_come_early() {
        let (stop, start) = (CancellationToken::new(), tokio::time::Instant::now());
        let (sent, mut ticks) = tokio::sync::mpsc::unbounded_channel();
        let (first, period) = (Duration::from_mins(2), Duration::from_hours(1));
        let task = Task::every_after(&stop, "ticks", (first, period), move || {
            let _ = sent.send(start.elapsed());
            std::future::ready(())
        });
        let _supervisor = Supervisor::start([task]);

        assert_eq!((ticks.recv().await, ticks.recv().await), (Some(first), Some(first + period)));
    }
}
