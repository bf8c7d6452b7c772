//! Two replicas: one runs throughout and must not grow, the other is stopped, killed and paused.

use std::time::{Duration, Instant};

use perennial_harness::{LoadBalancer, Operator, TestCluster};
use perennial_testkit::prng::Prng;

use crate::Soak;

const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Allowed growth of memory between the second and the last quarter, because allocators keep some.
const SLACK: u64 = 12 << 20;
const FILES_SLACK: usize = 20;

pub(crate) struct Replicas {
    balancer: LoadBalancer,
    permanent: Operator,
    disrupted: Operator,
}

/// Resource usage of the permanent replica at one moment.
#[derive(Clone, Copy, Debug)]
struct Usage {
    memory: u64,
    files: usize,
}

impl Replicas {
    pub(crate) async fn start(cluster: &TestCluster) -> Self {
        let balancer = LoadBalancer::of(2).await;
        let permanent = balancer.operator(cluster, 0).set("placement.cooldown", "1s").start().await;
        // Before another replica can answer instead.
        cluster.wait_for_admission(&permanent).await;
        let disrupted = balancer.operator(cluster, 1).set("placement.cooldown", "1s").start().await;
        Self { balancer, permanent, disrupted }
    }

    pub(crate) async fn run(self, soak: Soak) {
        let Self { balancer, permanent, mut disrupted } = self;
        let mut prng = Prng::new(soak.seed ^ 0xbeef);
        let (start, mut samples, mut next_sample) = (Instant::now(), Vec::new(), Instant::now());
        let mut next_disruption = Instant::now() + Duration::from_secs(15);
        while !soak.is_over() {
            if Instant::now() >= next_sample {
                let sample = Usage { memory: permanent.rss(), files: permanent.open_files() };
                println!(
                    "soak: {:>5} s, {:>5.1} MiB, {:>3} files; {}",
                    start.elapsed().as_secs(),
                    mib(sample.memory),
                    sample.files,
                    soak.tally.line()
                );
                samples.push(sample);
                next_sample = Instant::now() + SAMPLE_EVERY;
            }
            if Instant::now() >= next_disruption {
                let again = || balancer.operator(&soak.cluster, 1).set("placement.cooldown", "1s").start();
                disrupted = match prng.below(3) {
                    0 => {
                        let status = disrupted.stop().await.expect("it stops within five seconds");
                        assert!(status.success(), "{status}");
                        again().await
                    }
                    1 => {
                        disrupted.crash();
                        again().await
                    }
                    _ => {
                        disrupted.pause();
                        tokio::time::sleep(prng.millis(1000, 9000)).await;
                        disrupted.resume();
                        disrupted
                    }
                };
                soak.tally.add(|tally| &tally.restarts);
                next_disruption = Instant::now() + prng.millis(10_000, 29_000);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_flat(&samples);
        // The last changes must be recorded first.
        soak.others_done.notified().await;
    }
}

/// Compares the last quarter with the second; the first quarter fills caches.
fn assert_flat(samples: &[Usage]) {
    let quarter = samples.len() / 4;
    if quarter == 0 {
        println!("soak: too short to check for growth");
        return;
    }
    let most = |part: &[Usage]| {
        let memory = part.iter().map(|sample| sample.memory).max().unwrap_or_default();
        (memory, part.iter().map(|sample| sample.files).max().unwrap_or_default())
    };
    let (before, after) = (most(&samples[quarter..2 * quarter]), most(&samples[samples.len() - quarter..]));
    println!(
        "soak: {:.1} MiB and {} files at most in the second quarter, {:.1} MiB and {} files in the last",
        mib(before.0),
        before.1,
        mib(after.0),
        after.1
    );
    assert!(after.0 <= before.0 + SLACK, "memory grows: {:.1} MiB, then {:.1} MiB", mib(before.0), mib(after.0));
    assert!(after.1 <= before.1 + FILES_SLACK, "open files grow: {}, then {}", before.1, after.1);
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: impl Fn(u64) -> u64) -> Vec<Usage> {
        (0..16).map(|number| Usage { memory: memory(number), files: 20 }).collect()
    }

    #[test]
    fn memory_may_grow_in_the_first_quarter() {
        assert_flat(&samples(|number| if number < 4 { number << 20 } else { 100 << 20 }));
    }

    #[test]
    #[should_panic(expected = "memory grows")]
    fn memory_that_keeps_growing_fails() {
        assert_flat(&samples(|number| number * (8 << 20)));
    }
}
