//! `make soak`: random life on a local cluster for as long as one likes. What people wanted is known here, and compared with what
//! the API server says all along; memory and open files of the operator have to stay where they are.
//!
//! `soak MINUTES [SEED]`. It ends at the first thing that is not as it should be, and says what it was.

#![allow(clippy::expect_used, clippy::panic, reason = "whatever fails here is what it looks for")]

mod lives;
mod replicas;
mod watch;

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

/// What was done so far.
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

/// What everyone who takes part knows.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) cluster: Rc<TestCluster>,
    pub(crate) tally: Rc<Tally>,
    pub(crate) until: Instant,
    pub(crate) seed: u64,
    /// Everyone else is done: the operator may go.
    pub(crate) curtain: Rc<Notify>,
}

impl Stage {
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    LocalSet::new().run_until(soak()).await;
}

async fn soak() {
    let mut words = std::env::args().skip(1);
    let minutes: f64 = words.next().map_or(10.0, |text| text.parse().expect("soak MINUTES [SEED]"));
    let seed: u64 = words.next().map_or_else(rand::random, |text| text.parse().expect("soak MINUTES [SEED]"));
    println!("soak: {minutes} minutes, seed {seed}");
    let cluster = Rc::new(TestCluster::whole().await);
    cluster.capacity("spot", 1, 100).await;
    cluster.capacity("on-demand", 1, 100).await;
    let replicas = replicas::Replicas::start(&cluster).await;
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let stage = Stage { cluster, tally: Rc::default(), until, seed, curtain: Rc::default() };

    let mut tasks = JoinSet::new();
    for number in 0..lives::COUNT {
        tasks.spawn_local(lives::live(stage.clone(), number));
    }
    tasks.spawn_local(lives::meddle(stage.clone()));
    tasks.spawn_local(lives::scale(stage.clone()));
    tasks.spawn_local(watch::sequences(stage.clone()));
    tasks.spawn_local(replicas.run(stage.clone()));
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() {
            // It has said what it was.
            eprintln!("soak: failed after {}; seed {seed}", stage.tally.line());
            std::process::exit(1);
        }
        if tasks.len() == 1 {
            stage.curtain.notify_one();
        }
    }
    println!("soak: nothing lost, nothing undone, nothing grown: {}", stage.tally.line());
}
