//! A process of the operator, built like `perennial run`: its client, clock, jitter and name come
//! from the simulation, and its admission is called without a port.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::body::{Body, to_bytes};
use futures::FutureExt as _;
use http::Request;
use jiff::SignedDuration;
use kube::Api;
use perennial::{
    admission::metrics::AdmissionMetrics,
    keeper::{node::Node, record_keys::Signatures},
    run,
    runtime::{
        budget::Budget,
        client::{self, Listeners},
        clock::Clock,
        environment::Environment,
        health::Health,
        history::History,
        jitter::Jitter,
        metrics::Metrics,
        tasks::Supervisor,
    },
};
use perennial_core::config::Settings;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{
    server::{
        authn::User,
        http::Transport,
        world::{Call, Hook, World},
    },
    tamper,
};

const LARGEST: usize = 16 * 1024 * 1024;

/// A running process.
pub struct Operator {
    pub id: usize,
    alive: Arc<AtomicBool>,
    stop: CancellationToken,
    drained: CancellationToken,
    tasks: Supervisor,
    history: History,
    world: World,
}

impl Operator {
    /// Starts a process. Its clock is off by `skew`. Only with `observes_history` it looks for
    /// restores of etcd.
    pub fn start(
        world: &World,
        id: usize,
        settings: &Settings,
        skew: SignedDuration,
        observes_history: bool,
    ) -> anyhow::Result<Self> {
        let settings = &tamper::settings(world, settings);
        let alive = Arc::new(AtomicBool::new(true));
        let metrics = Metrics::new();
        let budget = Budget::new(settings.controller.qps, settings.controller.burst);
        let front = Transport::new(world.clone(), User::Operator(id), Arc::clone(&alive));
        let clock = Clock::from_fn({
            let world = world.clone();
            move || world.now() + skew
        });
        let health = Health::new();
        let listeners = Listeners {
            metrics: metrics.clone(),
            budget: Some(budget.clone()),
            clock: Some(clock.clone()),
            health: Some(health.clone()),
        };
        let client = client::over(front, settings.namespace.as_str(), listeners);
        let seed = world.lock().prng.number();
        let env = Environment {
            leases: client.clone(),
            admission: client.clone(),
            admission_budget: Budget::unlimited(),
            client,
            budget,
            metrics,
            clock,
            jitter: Jitter::seeded(seed),
            identity: format!("operator-{id}"),
            history: History::default(),
            health,
            stop: CancellationToken::new(),
            drained: CancellationToken::new(),
        };
        let (parts, mut tasks) = run::operate(settings, &env, Signatures::none())?;
        if observes_history && tamper::observes_history(world) {
            tasks.push(env.history.watch(Api::<Node>::all(env.client.clone()), &env.stop));
        }
        let tasks = Supervisor::start(tasks);
        let router = run::webhooks(settings, &parts, AdmissionMetrics::register(&env.metrics)).router();
        let call: Call = Arc::new(move |path, review| {
            let router = router.clone();
            Box::pin(async move {
                let request = Request::post(path).body(Body::from(review)).ok()?;
                let response = router.oneshot(request).await.ok()?;
                if !response.status().is_success() {
                    return None;
                }
                to_bytes(response.into_body(), LARGEST).await.ok().map(|bytes| bytes.to_vec())
            })
        });
        let at = world.elapsed();
        let mut state = world.lock();
        state.hooks.retain(|hook| hook.alive);
        state.hooks.push(Hook { id, call, alive: true });
        state.journal.lives.insert(id, (at, None));
        state.seen.add("operators started");
        state.note(at, || format!("operator-{id} starts"));
        drop(state);
        let (stop, drained) = (env.stop, env.drained);
        Ok(Self { id, alive, stop, drained, tasks, history: env.history, world: world.clone() })
    }

    /// Returns whether the process noticed that the history of the API server went back. It starts
    /// again then.
    pub fn noticed_restore(&self) -> bool {
        self.history.went_back().now_or_never().is_some()
    }

    /// Reports a task that has panicked or ended early, as a violation.
    pub fn check(&mut self) {
        if let Some(error) = self.tasks.first_end().now_or_never() {
            self.world.lock().violation("G8", format!("operator-{}: {error}", self.id));
        }
    }

    /// Crashes the process. Requests that it has sent are still processed.
    pub fn crash(mut self) {
        self.check();
        self.end("crashes");
        drop(self.tasks);
    }

    /// Stops the process as SIGTERM does, or as it does itself after a restore of etcd: last states
    /// that are not written belong to a history that is gone.
    pub async fn stop(mut self) {
        self.check();
        self.stop.cancel();
        if self.noticed_restore() {
            self.drained.cancel();
        }
        self.tasks.join(run::STOP_WITHIN).await;
        self.end("stops");
    }

    fn end(&mut self, how: &'static str) {
        self.alive.store(false, Ordering::Relaxed);
        let at = self.world.elapsed();
        let id = self.id;
        let mut state = self.world.lock();
        state.note(at, || format!("operator-{id} {how}"));
        state.faults.add(if how == "crashes" { "operator crashed" } else { "operator restarted" });
        for hook in state.hooks.iter_mut().filter(|hook| hook.id == id) {
            hook.alive = false;
        }
        if let Some(life) = state.journal.lives.get_mut(&id) {
            life.1 = Some(at);
        }
    }
}
