use proptest::prelude::*;

use super::*;

const BOUNDS: RateBounds = RateBounds { floor: 5.0, initial: 500.0, ceiling: 5000.0 };
const READ: RequestClass = RequestClass { is_write: false, resource: None };
const WRITE: RequestClass = RequestClass { is_write: true, resource: Some("nodes") };

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A flow that always has requests to send, one after the other at its rate.
struct Flow {
    rate: AdaptiveRate,
    now: Instant,
}

impl Flow {
    fn new() -> Self {
        Self { rate: AdaptiveRate::new(BOUNDS), now: Instant::now() }
    }

    /// Sends requests for this time. Each is answered after `latency`.
    fn run(&mut self, time: Duration, latency: Duration, class: RequestClass) {
        let end = self.now + time;
        while self.now < end {
            self.rate.limit(self.now);
            self.now += Duration::from_secs_f64(1.0 / self.rate.per_second());
            self.rate.answered(self.now, self.now + latency, class);
        }
    }

    fn refuse(&mut self) -> bool {
        self.now += ms(1);
        self.rate.refused(self.now, self.now)
    }
}

#[test]
fn the_rate_doubles_every_second_up_to_the_ceiling_while_it_is_used() {
    let mut flow = Flow::new();
    flow.run(ms(1000), ms(5), WRITE);
    assert!((950.0..1050.0).contains(&flow.rate.per_second()), "{}", flow.rate.per_second());
    flow.run(ms(5000), ms(5), WRITE);
    assert!((flow.rate.per_second() - BOUNDS.ceiling).abs() < 1.0);
}

#[test]
fn a_rate_that_is_not_used_does_not_grow() {
    let mut flow = Flow::new();
    for _ in 0..10_000 {
        flow.now += ms(10);
        flow.rate.answered(flow.now, flow.now + ms(5), READ);
    }
    assert!((flow.rate.per_second() - BOUNDS.initial).abs() < f64::EPSILON);
}

#[test]
fn all_refusals_of_one_round_trip_are_one_decrease() {
    let mut rate = AdaptiveRate::new(BOUNDS);
    let start = Instant::now();

    let sent = (0..100u64).map(|number| start + ms(number));
    let decreases = sent.filter(|sent| rate.refused(*sent, start + ms(100))).count();

    assert_eq!(decreases, 1);
    assert!((rate.per_second() - 250.0).abs() < f64::EPSILON);
    assert!(rate.refused(start + ms(101), start + ms(200)), "sent after the decrease");
    assert!((rate.per_second() - 125.0).abs() < f64::EPSILON);
}

#[test]
fn the_rate_returns_quickly_to_half_of_the_refused_one_and_slowly_from_there() {
    let mut flow = Flow::new();
    for _ in 0..3 {
        flow.refuse();
    }
    flow.run(ms(1000), ms(5), WRITE);
    let soon = flow.rate.per_second();
    assert!((62.5..125.0).contains(&soon), "near the rate at which the server was overloaded: {soon}");
    flow.run(ms(10_000), ms(5), WRITE);
    let later = flow.rate.per_second();
    assert!((soon + 400.0..soon + 600.0).contains(&later), "{later}");
}

#[test]
fn slow_responses_decrease_the_rate_and_a_single_slow_one_does_not() {
    let mut flow = Flow::new();
    flow.run(ms(1000), ms(10), WRITE);
    let before = flow.rate.per_second();
    flow.rate.answered(flow.now, flow.now + ms(8_000), WRITE);
    assert!(flow.rate.per_second() >= before, "one of many");
    flow.run(ms(3000), ms(900), WRITE);
    assert!(flow.rate.per_second() < before / 1.5, "{} of {before}", flow.rate.per_second());
}

#[test]
fn slow_responses_alone_never_bring_the_work_to_a_halt() {
    let mut flow = Flow::new();
    flow.run(ms(1000), ms(10), WRITE);
    flow.run(ms(25_000), ms(900), WRITE);
    assert!((flow.rate.per_second() - 50.0).abs() < 1.0, "{}", flow.rate.per_second());
}

#[test]
fn a_class_of_requests_that_is_always_slow_is_no_sign_of_load() {
    let mut flow = Flow::new();
    for _ in 0..200 {
        flow.run(ms(50), ms(5), READ);
        flow.run(ms(50), ms(1500), WRITE);
    }
    assert!((flow.rate.per_second() - BOUNDS.ceiling).abs() < 1.0, "{}", flow.rate.per_second());
}

#[test]
fn a_server_that_becomes_slower_for_good_is_the_new_normal() {
    let mut flow = Flow::new();
    flow.run(ms(2000), ms(5), WRITE);
    flow.run(ms(40_000), ms(400), WRITE);
    let low = flow.rate.per_second();
    flow.run(ms(120_000), ms(400), WRITE);
    assert!(flow.rate.per_second() > low * 2.0, "{low} to {}", flow.rate.per_second());
}

#[derive(Clone, Copy, Debug)]
enum RateStep {
    Answer { latency: u64 },
    Refuse { age: u64 },
    Pause { time: u64 },
    Limit,
}

fn steps() -> impl Strategy<Value = Vec<RateStep>> {
    let step = prop_oneof![
        8 => (0u64..5000).prop_map(|latency| RateStep::Answer { latency }),
        2 => (0u64..5000).prop_map(|age| RateStep::Refuse { age }),
        2 => (0u64..100_000).prop_map(|time| RateStep::Pause { time }),
        4 => Just(RateStep::Limit),
    ];
    proptest::collection::vec(step, 0..400)
}

fn bounds() -> impl Strategy<Value = RateBounds> {
    (0.0..1000.0, 0.0..1000.0, 0.0..20_000.0).prop_map(|(floor, initial, ceiling)| RateBounds {
        floor,
        initial,
        ceiling,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_rate_stays_within_its_bounds_and_shrinks_once_per_round_trip(bounds in bounds(), steps in steps()) {
        let mut rate = AdaptiveRate::new(bounds);
        let mut now = Instant::now() + Duration::from_secs(10);
        let mut decreased: Option<Instant> = None;
        for step in steps {
            let before = rate.per_second();
            let sent = match step {
                RateStep::Answer { latency } => {
                    let sent = now;
                    now += ms(latency);
                    rate.answered(sent, now, WRITE).then_some(sent)
                }
                RateStep::Refuse { age } => rate.refused(now - ms(age), now).then(|| now - ms(age)),
                RateStep::Pause { time } => {
                    now += ms(time);
                    None
                }
                RateStep::Limit => {
                    rate.limit(now);
                    None
                }
            };
            let after = rate.per_second();
            prop_assert!((1.0..=bounds.ceiling.max(1.0)).contains(&after), "{after}");
            prop_assert!(after >= bounds.floor.min(bounds.ceiling), "below the floor: {after}");
            if let Some(sent) = sent {
                prop_assert!(decreased.is_none_or(|at| sent >= at), "two decreases in one round trip");
                prop_assert!(after >= before * AFTER_REFUSAL - f64::EPSILON);
                decreased = Some(now);
            } else {
                prop_assert!((before..=before + 1.0).contains(&after));
            }
        }
    }

    #[test]
    fn the_rate_recovers_from_any_number_of_refusals(refusals in 1usize..60) {
        let mut flow = Flow::new();
        for _ in 0..refusals {
            flow.refuse();
        }
        flow.run(Duration::from_secs(20), ms(5), WRITE);
        prop_assert!(flow.rate.per_second() >= BOUNDS.initial, "{}", flow.rate.per_second());
    }
}
