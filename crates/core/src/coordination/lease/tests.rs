//! Behaviour of one candidate, then many of them against one simulated Lease with every fault that
//! the network has.

use super::*;
use proptest::prelude::*;

const LEASE: Duration = Duration::from_secs(15);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn seen(holder: &str, renewed: i64, version: u64) -> LeaseState {
    LeaseState {
        holder: holder.to_owned(),
        renewed: Some(renewed),
        lease: Some(LEASE),
        transitions: 3,
        resource_version: version.to_string(),
    }
}

fn candidate(name: &str) -> Election {
    let mut election = Election::new(name, Terms::new(LEASE));
    election.set_intent(Intent::HOLD);
    election
}

fn write_of(step: ElectionStep) -> LeaseWrite {
    match step {
        ElectionStep::Write(write) => write,
        other => panic!("expected a write, got {other:?}"),
    }
}

/// A candidate that holds version 7, renewed at 1 s.
fn holder(name: &str) -> Election {
    let mut election = candidate(name);
    election.observed(ms(500), Some(seen("", 0, 6)));
    let write = write_of(election.next(ms(1000), 10));
    election.written(ms(1000), ms(1100), write.kind, seen(name, 10, 7));
    election
}

#[test]
fn the_times_fit_into_each_other() {
    for millis in [0, 1, 999, 1000, 1001, 15_000, 10_000_000] {
        let terms = Terms::new(ms(millis));
        assert_eq!(terms.lease.subsec_nanos(), 0);
        assert!(terms.lease >= Duration::from_secs(1));
        assert!(terms.renew + terms.request * 2 <= terms.act, "two tries fit into the window: {terms:?}");
        assert!(terms.act.mul_f64(1.2) < terms.lease.mul_f64(0.9), "clocks may differ in speed: {terms:?}");
    }
}

#[test]
fn nothing_is_written_before_it_was_read() {
    assert_eq!(candidate("a").next(ms(0), 0), ElectionStep::Read);
}

#[test]
fn a_lease_that_does_not_exist_is_created() {
    let mut a = candidate("a");
    a.observed(ms(0), None);

    let write = write_of(a.next(ms(0), 5));

    assert_eq!((write.kind, write.on, write.holder.as_str()), (WriteKind::Acquire, None, "a"));
}

#[test]
fn a_free_lease_is_taken_at_once_by_the_first_and_later_by_the_next() {
    let mut first = candidate("a");
    let mut next = candidate("b");
    next.set_intent(Intent { take: Some(ms(500)), keep: true });
    first.observed(ms(100), Some(seen("", 1, 5)));
    next.observed(ms(100), Some(seen("", 1, 5)));

    let write = write_of(first.next(ms(100), 0));

    assert_eq!(write.on.as_deref(), Some("5"));
    assert_eq!(write.transitions, 4);
    assert_eq!(write.renewed, 2, "a renewal differs from the one before, whatever the wall clock says");
    assert_eq!(next.next(ms(100), 0), ElectionStep::Wait(Some(ms(600))));
}

#[test]
fn a_held_lease_is_taken_only_after_it_was_seen_unchanged_for_all_of_it() {
    let mut a = candidate("a");
    a.observed(ms(1000), Some(seen("b", 1, 5)));
    a.observed(ms(9000), Some(seen("b", 2, 6)));

    assert_eq!(a.next(ms(16_000), 0), ElectionStep::Wait(Some(ms(24_000))));
    assert_eq!(write_of(a.next(ms(24_000), 0)).on.as_deref(), Some("6"));
}

#[test]
fn an_annotation_does_not_keep_a_dead_holder_alive() {
    let mut a = candidate("a");
    a.observed(ms(1000), Some(seen("b", 1, 5)));
    a.observed(ms(9000), Some(seen("b", 1, 6)));

    assert_eq!(write_of(a.next(ms(16_000), 0)).on.as_deref(), Some("6"));
}

#[test]
fn a_longer_lease_of_another_version_is_waited_for() {
    let mut a = candidate("a");
    a.observed(ms(0), Some(LeaseState { lease: Some(LEASE * 4), ..seen("b", 1, 5) }));

    assert_eq!(a.next(LEASE, 0), ElectionStep::Wait(Some(LEASE * 4)));
}

#[test]
fn a_senseless_lease_counts_as_ours() {
    let mut a = candidate("a");
    a.observed(ms(0), Some(LeaseState { lease: Some(LONGEST * 2), ..seen("b", 1, 5) }));

    assert_eq!(a.next(ms(0), 0), ElectionStep::Wait(Some(LEASE)));
}

#[test]
fn the_window_starts_when_the_write_was_sent() {
    assert_eq!(holder("a").act_until(), Some(ms(11_000)));
}

#[test]
fn a_holder_renews_after_a_fifth() {
    let mut a = holder("a");

    assert_eq!(a.next(ms(1100), 0), ElectionStep::Wait(Some(ms(4000))));
    assert_eq!(write_of(a.next(ms(4000), 20)).kind, WriteKind::Renew);
}

#[test]
fn a_lost_answer_extends_nothing() {
    let mut a = holder("a");
    let _ = write_of(a.next(ms(4000), 20));
    a.unanswered();

    assert_eq!(a.act_until(), Some(ms(11_000)));
    assert_eq!(a.next(ms(7000), 30), ElectionStep::Read);

    a.observed(ms(7000), Some(seen("a", 20, 8)));
    assert_eq!(a.act_until(), Some(ms(11_000)), "a renewal that was only seen gives no window");
    assert_eq!(write_of(a.next(ms(7000), 30)).on.as_deref(), Some("8"));
}

#[test]
fn a_holder_that_hands_over_stops_before_it_writes_the_release() {
    let mut a = holder("a");
    a.set_intent(Intent::NONE);

    let write = write_of(a.next(ms(2000), 20));

    assert_eq!((write.kind, write.holder.as_str()), (WriteKind::Release, ""));
    assert_eq!(a.act_until(), None);
}

#[test]
fn a_holder_that_sees_another_stops() {
    let mut a = holder("a");
    a.observed(ms(3000), Some(seen("b", 11, 9)));

    assert_eq!(a.act_until(), None);
}

#[test]
fn an_old_event_changes_nothing() {
    let mut a = holder("a");
    a.observed(ms(3000), Some(seen("b", 1, 4)));

    assert_eq!(a.act_until(), Some(ms(11_000)));
}

#[test]
fn a_read_that_goes_back_starts_the_election_afresh() {
    let mut a = holder("a");
    let write = write_of(a.next(ms(4000), 20));
    a.conflicted();
    assert_eq!((a.next(ms(4100), 20), write.kind), (ElectionStep::Read, WriteKind::Renew));

    let went_back = a.read(ms(4100), ms(4200), Some(seen("b", 3, 4)));

    assert!(went_back);
    assert_eq!(a.act_until(), None, "the write that gave the window is gone with the history");
    assert_eq!(a.next(ms(4200), 20), ElectionStep::Wait(Some(ms(19_200))), "the holder of the backup may be alive");
    assert_eq!(write_of(a.next(ms(19_200), 20)).on.as_deref(), Some("4"));
}

#[test]
fn an_answer_that_an_event_overtook_is_no_restore() {
    let mut a = candidate("a");
    a.observed(ms(1000), Some(seen("b", 1, 5)));
    a.mark_stale();
    a.observed(ms(2000), Some(seen("b", 2, 6)));

    let went_back = a.read(ms(1900), ms(2100), Some(seen("b", 1, 5)));

    assert!(!went_back);
    assert_eq!(a.seen().map(|seen| seen.resource_version.as_str()), Some("6"));
}

#[test]
fn a_deleted_lease_is_recreated_at_once_by_its_holder_and_late_by_others() {
    let mut a = holder("a");
    let mut b = candidate("b");
    b.observed(ms(1200), Some(seen("a", 10, 7)));

    a.observed(ms(2000), None);
    b.observed(ms(2000), None);

    assert_eq!(a.act_until(), None);
    assert_eq!(write_of(a.next(ms(2000), 0)).on, None);
    assert_eq!(b.next(ms(2000), 0), ElectionStep::Wait(Some(ms(17_000))));
}

#[test]
fn a_lease_is_attended_while_its_holder_renews_it() {
    let mut a = candidate("a");
    assert_eq!(a.held_until(), None);

    a.observed(ms(1000), Some(seen("b", 1, 5)));
    assert_eq!(a.held_until(), Some(ms(11_000)));
    a.observed(ms(5000), Some(seen("b", 1, 6)));
    assert_eq!(a.held_until(), Some(ms(11_000)), "an annotation is no renewal");
    a.observed(ms(6000), Some(seen("", 1, 7)));
    assert_eq!(a.held_until(), None);

    assert_eq!(holder("a").held_until(), Some(ms(11_000)));
}

#[test]
fn one_that_does_not_want_it_writes_nothing() {
    let mut a = candidate("a");
    a.set_intent(Intent::NONE);
    for lease in [None, Some(seen("", 1, 5)), Some(seen("b", 2, 6))] {
        a.observed(ms(0), lease);
        assert_eq!(a.next(LEASE * 10, 0), ElectionStep::Wait(None));
    }
}

// ---- Many candidates, one Lease, a bad network ----

/// A request under way: what it does at the server and when, and when its answer arrives (or that
/// it is lost).
#[derive(Debug, Clone)]
struct Flight {
    who: usize,
    write: Option<LeaseWrite>,
    /// True time of arrival at the server; `None`: lost on the way.
    lands: Option<u64>,
    done: Option<Result<Option<LeaseState>, ()>>,
    /// True time at which the sender receives the result; past its deadline it has given up.
    answers: Option<u64>,
    gives_up: u64,
    sent_local: Duration,
    delivered: bool,
}

struct Process {
    election: Election,
    /// Local time is `offset + true time × rate / 100`.
    offset: u64,
    rate: u64,
    paused_until: u64,
    busy: bool,
    wakes: u64,
}

impl Process {
    fn local(&self, now: u64) -> Duration {
        ms(self.offset + now * self.rate / 100)
    }

    fn acts(&self, now: u64) -> bool {
        self.election.act_until().is_some_and(|until| self.local(now) < until)
    }
}

#[derive(Debug, Clone)]
struct NetworkFault {
    pause: u64,
    to_server: u64,
    to_client: u64,
    lost: u8,
    wish: u8,
}

fn faults() -> impl Strategy<Value = Vec<NetworkFault>> {
    let fault = (0_u64..100, 0_u64..6000, 0_u64..6000, 0_u8..20, 0_u8..8).prop_map(
        |(pause, to_server, to_client, lost, wish)| NetworkFault {
            // Mostly quick, now and then very slow.
            pause: if pause > 90 { (pause - 90) * 4000 } else { 0 },
            to_server: if to_server > 5000 { (to_server - 5000) * 20 } else { to_server % 50 },
            to_client: if to_client > 5000 { (to_client - 5000) * 4 } else { to_client % 50 },
            lost,
            wish,
        },
    );
    prop::collection::vec(fault, 60..200)
}

/// Runs the candidates for the given true time; returns how often the right to act changed hands.
fn simulate(terms: Terms, offsets: &[(u64, u64)], faults: &[NetworkFault], end: u64) -> usize {
    let mut processes: Vec<Process> = offsets
        .iter()
        .enumerate()
        .map(|(i, (offset, rate))| Process {
            election: Election::new(format!("p{i}"), terms),
            offset: *offset,
            rate: *rate,
            paused_until: 0,
            busy: false,
            wakes: 0,
        })
        .collect();
    let mut server: Option<LeaseState> = None;
    let mut version = 1_u64;
    let mut flights: Vec<Flight> = Vec::new();
    let mut script = faults.iter().cycle();
    let mut last_actor = None;
    let mut handovers = 0;

    for now in (0..end).step_by(10) {
        for flight in &mut flights {
            if flight.done.is_none() && flight.lands.is_some_and(|at| at <= now) {
                flight.done = Some(serve(&mut server, &mut version, flight.write.as_ref()));
            }
        }
        for flight in flights.iter_mut().filter(|flight| !flight.delivered) {
            let process = &mut processes[flight.who];
            if process.paused_until > now {
                continue;
            }
            let answered = flight.answers.filter(|at| *at <= now).and(flight.done.clone());
            if let Some(result) = answered {
                deliver(process, flight, result, now);
            } else if flight.gives_up <= now {
                process.election.unanswered();
            } else {
                continue;
            }
            flight.delivered = true;
            process.busy = false;
            process.wakes = now;
        }
        flights.retain(|flight| !flight.delivered || (flight.done.is_none() && flight.lands.is_some()));

        for (who, process) in processes.iter_mut().enumerate() {
            if process.busy || process.paused_until > now || process.wakes > now {
                continue;
            }
            let Some(fault) = script.next() else { return handovers };
            if fault.pause > 0 {
                process.paused_until = now + fault.pause;
                process.wakes = now;
            }
            process.election.set_intent(match fault.wish {
                0 => Intent::NONE,
                1 => Intent { take: Some(terms.step), keep: true },
                2 => Intent { take: None, keep: true },
                _ => Intent::HOLD,
            });
            let local = process.local(now);
            let write = match process.election.next(local, i64::try_from(now).unwrap()) {
                ElectionStep::Wait(_) => {
                    // A watch would tell; here each looks again now and then.
                    process.election.mark_stale();
                    process.wakes = now + 400;
                    continue;
                }
                ElectionStep::Read => None,
                ElectionStep::Write(write) => Some(write),
            };
            process.busy = true;
            let lands = (fault.lost != 0).then_some(now + 10 + fault.to_server);
            flights.push(Flight {
                who,
                write,
                lands,
                done: None,
                answers: lands.filter(|_| fault.lost != 1).map(|at| at + fault.to_client),
                gives_up: now + u64::try_from(terms.request.as_millis()).unwrap(),
                sent_local: local,
                delivered: false,
            });
        }

        let acting: Vec<usize> = (0..processes.len()).filter(|who| processes[*who].acts(now)).collect();
        assert!(acting.len() <= 1, "at {now} ms {acting:?} all act");
        if let Some(actor) = acting.first().copied()
            && last_actor != Some(actor)
        {
            last_actor = Some(actor);
            handovers += 1;
        }
    }
    handovers
}

fn serve(
    server: &mut Option<LeaseState>,
    version: &mut u64,
    write: Option<&LeaseWrite>,
) -> Result<Option<LeaseState>, ()> {
    let Some(write) = write else { return Ok(server.clone()) };
    if write.on.as_deref() != server.as_ref().map(|lease| lease.resource_version.as_str()) {
        return Err(());
    }
    *version += 1;
    *server = Some(LeaseState {
        holder: write.holder.clone(),
        renewed: Some(write.renewed),
        lease: Some(write.lease),
        transitions: write.transitions,
        resource_version: version.to_string(),
    });
    Ok(server.clone())
}

fn deliver(process: &mut Process, flight: &Flight, result: Result<Option<LeaseState>, ()>, now: u64) {
    let local = process.local(now);
    match (&flight.write, result) {
        (None, Ok(lease)) => process.election.observed(local, lease),
        (Some(write), Ok(Some(answer))) => process.election.written(flight.sent_local, local, write.kind, answer),
        _ => process.election.conflicted(),
    }
}

#[test]
fn the_simulation_hands_over_when_nothing_fails() {
    let quick = NetworkFault { pause: 0, to_server: 5, to_client: 5, lost: 9, wish: 5 };
    let hands_over = NetworkFault { wish: 0, ..quick.clone() };
    let script: Vec<NetworkFault> =
        (0..40).map(|i| if i % 11 < 4 { hands_over.clone() } else { quick.clone() }).collect();

    assert!(simulate(Terms::new(LEASE), &[(0, 100), (5000, 100), (77, 100)], &script, 60_000) > 3);
}

#[test]
fn the_simulation_hands_over_after_a_long_pause() {
    let quick = NetworkFault { pause: 0, to_server: 5, to_client: 5, lost: 9, wish: 5 };
    let mut script = vec![quick.clone(); 300];
    for i in [20, 120, 220] {
        script[i].pause = 40_000;
    }

    assert!(simulate(Terms::new(LEASE), &[(0, 100), (900_000, 100)], &script, 200_000) > 1);
}

#[test]
#[should_panic(expected = "all act")]
fn the_simulation_finds_a_window_that_is_too_long() {
    let terms = Terms { act: LEASE * 2, ..Terms::new(LEASE) };
    let quick = NetworkFault { pause: 0, to_server: 5, to_client: 5, lost: 9, wish: 5 };
    let mut script = vec![quick.clone(); 300];
    for i in [20, 21, 22, 120, 220] {
        script[i].lost = 0;
        script[i].pause = 20_000;
    }

    simulate(terms, &[(0, 100), (900_000, 100)], &script, 200_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn two_holders_are_never_both_inside_their_windows(
        offsets in prop::collection::vec((0_u64..10_000_000, 92_u64..108), 2..5),
        faults in faults(),
    ) {
        simulate(Terms::new(LEASE), &offsets, &faults, 240_000);
    }
}
