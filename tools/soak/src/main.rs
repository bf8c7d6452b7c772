//! `make soak`: random churn on a local cluster. Expected labels are tracked here and compared with
//! the API server throughout. Memory and open files of the operator must not grow.
//!
//! Usage: `soak MINUTES [SEED]`. It stops at the first violation and prints it.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is the result of the soak")]

mod actors;
mod invariants;
mod replicas;

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use perennial_harness::TestCluster;
use tokio::{
    sync::Notify,
    task::{JoinSet, LocalSet},
};

/// Number of actions so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) changes: Cell<u64>,
    pub(crate) returns: Cell<u64>,
    pub(crate) scalings: Cell<u64>,
    pub(crate) restarts: Cell<u64>,
    pub(crate) checks: Cell<u64>,
}

impl Tally {
    pub(crate) fn add(&self, which: impl Fn(&Self) -> &Cell<u64>) {
        let count = which(self);
        count.set(count.get() + 1);
    }

    fn line(&self) -> String {
        format!(
            "{} label changes, {} returns, {} scalings, {} restarts, {} checks",
            self.changes.get(),
            self.returns.get(),
            self.scalings.get(),
            self.restarts.get(),
            self.checks.get()
        )
    }
}

/// Shared by all actors.
#[derive(Clone)]
pub(crate) struct Soak {
    pub(crate) cluster: Rc<TestCluster>,
    pub(crate) tally: Rc<Tally>,
    pub(crate) until: Instant,
    pub(crate) seed: u64,
    /// Notified when all other actors are done, so that the operator may stop.
    pub(crate) others_done: Rc<Notify>,
}

impl Soak {
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    LocalSet::new().run_until(run()).await;
}

async fn run() {
    let mut words = std::env::args().skip(1);
    let minutes: f64 = words.next().map_or(10.0, |text| text.parse().expect("soak MINUTES [SEED]"));
    let seed: u64 = words.next().map_or_else(rand::random, |text| text.parse().expect("soak MINUTES [SEED]"));
    println!("soak: {minutes} minutes, seed {seed}");
    let cluster = Rc::new(TestCluster::full().await);
    cluster.capacity("spot", 1, 100).await;
    cluster.capacity("on-demand", 1, 100).await;
    let replicas = replicas::Replicas::start(&cluster).await;
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let soak = Soak { cluster, tally: Rc::default(), until, seed, others_done: Rc::default() };

    let mut tasks = JoinSet::new();
    for number in 0..actors::COUNT {
        tasks.spawn_local(actors::churn_node(soak.clone(), number));
    }
    tasks.spawn_local(actors::update_continuously(soak.clone()));
    tasks.spawn_local(actors::scale_workload(soak.clone()));
    tasks.spawn_local(invariants::check(soak.clone()));
    tasks.spawn_local(replicas.run(soak.clone()));
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() {
            // The panic message has been printed.
            eprintln!("soak: failed after {}; seed {seed}", soak.tally.line());
            std::process::exit(1);
        }
        if tasks.len() == 1 {
            soak.others_done.notify_one();
        }
    }
    println!("soak: passed: {}", soak.tally.line());
}
