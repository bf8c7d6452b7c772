//! A process of the operator, built like `perennial run`: its client, clock, jitter and name come from
//! the simulation, and its admission is called without a port.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::body::{Body, to_bytes};
use http::Request;
use jiff::SignedDuration;
use perennial::{
    admission::metrics::AdmissionMetrics,
    keeper::record_keys::Signatures,
    run,
    runtime::{
        budget::Budget,
        client::{self, Listeners},
        clock::Clock,
        environment::Environment,
        health::Health,
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
    tasks: Supervisor,
    world: World,
}

impl Operator {
    /// Starts a process. Its clock is off by `skew`.
    pub fn start(world: &World, id: usize, settings: &Settings, skew: SignedDuration) -> anyhow::Result<Self> {
        let settings = &tamper::settings(world, settings);
        let alive = Arc::new(AtomicBool::new(true));
        let metrics = Metrics::new();
        let budget = Budget::new(settings.controller.qps, settings.controller.burst);
        let front = Transport::new(world.clone(), User::Operator(id), Arc::clone(&alive));
        let clock = Clock::from_fn({
            let world = world.clone();
            move || world.now() + skew
        });
        let listeners =
            Listeners { metrics: metrics.clone(), budget: Some(budget.clone()), clock: Some(clock.clone()) };
        let client = client::over(front, settings.namespace.as_str(), listeners);
        let seed = world.lock().prng.number();
        let env = Environment {
            client,
            budget,
            metrics,
            clock,
            jitter: Jitter::seeded(seed),
            identity: format!("operator-{id}"),
            history: perennial::runtime::history::History::default(),
            health: Health::new(),
            stop: CancellationToken::new(),
        };
        let (parts, tasks) = run::operate(settings, &env, Signatures::none())?;
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
        Ok(Self { id, alive, stop: env.stop, tasks, world: world.clone() })
    }

    /// Crashes the process. Requests that it has sent are still processed.
    pub fn crash(mut self) {
        self.end("crashes");
        drop(self.tasks);
    }

    /// Stops the process as SIGTERM does.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.tasks.join(std::time::Duration::from_secs(4)).await;
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
