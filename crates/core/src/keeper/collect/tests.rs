use std::sync::Arc;

use jiff::ToSpan;
use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::keeper::{
    case::CaseContext,
    decide::Decision,
    selection::Node,
    testing::{Defaults, labels, live, policy},
};

const DAY: Duration = Duration::from_hours(24);

fn now() -> Timestamp {
    "2026-06-01T00:00:00Z".parse().unwrap()
}

fn record() -> Candidate {
    Candidate {
        present: false,
        tombstone: false,
        bad: false,
        captured_at: now() - 2000.hours(),
        absent_since: None,
        held: false,
        confirmed: false,
        mass_absence: None,
        had_node: true,
        retention: DAY * 30,
    }
}

/// Decides about a record. `mass`: the node list shows a mass absence of other nodes.
fn decide(record: &Candidate, now: Timestamp, mass: bool) -> Collection {
    let trust = if mass { Trust::MassAbsence { before: 10 } } else { Trust::Full };
    collect(record, now, &NodeList { nodes: 4, trust }, false)
}

fn absent(days: i64) -> Candidate {
    Candidate { absent_since: Some(now() - (days * 24).hours()), ..record() }
}

#[test]
fn an_absence_is_noted_first_and_collected_past_the_retention() {
    assert_eq!(decide(&record(), now(), false), Collection::NoteAbsence);
    assert_eq!(decide(&absent(29), now(), false), Collection::Keep);
    assert_eq!(decide(&absent(30), now(), false), Collection::Delete);
}

#[test]
fn a_node_that_is_back_clears_the_note() {
    assert_eq!(decide(&Candidate { present: true, ..absent(40) }, now(), false), Collection::ClearAbsence);
    assert_eq!(decide(&Candidate { present: true, ..record() }, now(), false), Collection::Keep);
}

#[rstest]
#[case::held(Candidate { held: true, ..absent(400) }, false)]
#[case::bad(Candidate { bad: true, ..absent(400) }, false)]
#[case::in_a_mass_absence(absent(40), true)]
fn it_is_kept(#[case] candidate: Candidate, #[case] mass: bool) {
    assert_eq!(decide(&candidate, now(), mass), Collection::Keep);
}

#[test]
fn a_person_or_time_ends_a_mass_absence() {
    assert_eq!(decide(&Candidate { confirmed: true, ..absent(40) }, now(), true), Collection::Delete);
    assert_eq!(decide(&absent(60), now(), true), Collection::Delete);
}

/// The list of a later audit is not a mass absence any more, but its nodes are still missing.
#[rstest]
#[case::few_are_back(4, Collection::Keep)]
#[case::half_are_back(5, Collection::Delete)]
fn a_mass_absence_lasts_until_half_as_many_nodes_exist(#[case] nodes: usize, #[case] expected: Collection) {
    let left = Candidate { mass_absence: Some(10), ..absent(40) };
    let list = NodeList { nodes, trust: Trust::Full };
    assert_eq!(collect(&left, now(), &list, false), expected);
    assert_eq!(collect(&Candidate { confirmed: true, ..left.clone() }, now(), &list, false), Collection::Delete);
    assert_eq!(collect(&Candidate { mass_absence: None, ..left }, now(), &list, false), Collection::Delete);
    assert_eq!(
        collect(&Candidate { mass_absence: Some(10), ..absent(60) }, now(), &list, false),
        Collection::Delete,
        "after twice the retention"
    );
}

#[rstest]
#[case::new(record(), true, Collection::NoteMassAbsence(10))]
#[case::noted_by_another_audit(absent(0), true, Collection::NoteMassAbsence(10))]
#[case::left_before(absent(40), false, Collection::Keep)]
#[case::imported(Candidate { had_node: false, ..record() }, false, Collection::NoteAbsence)]
#[case::noted(Candidate { mass_absence: Some(8), ..absent(0) }, true, Collection::Keep)]
fn records_of_nodes_that_left_in_a_mass_absence_are_marked(
    #[case] candidate: Candidate,
    #[case] became_absent: bool,
    #[case] expected: Collection,
) {
    let list = NodeList { nodes: 4, trust: Trust::MassAbsence { before: 10 } };
    assert_eq!(collect(&candidate, now(), &list, became_absent), expected);
}

#[test]
fn a_tombstone_is_collected_an_hour_later() {
    let fresh = Candidate { tombstone: true, captured_at: now() - 30.minutes(), ..record() };
    assert_ne!(decide(&fresh, now(), false), Collection::Delete);
    let old = Candidate { tombstone: true, captured_at: now() - 90.minutes(), ..record() };
    assert_eq!(decide(&old, now(), false), Collection::Delete);
    assert_eq!(decide(&Candidate { present: true, ..old }, now(), false), Collection::Delete);
}

#[test]
fn a_clock_that_runs_ahead_collects_nothing() {
    assert_eq!(
        decide(&Candidate { absent_since: Some(now() + 1000.hours()), ..record() }, now(), false),
        Collection::Keep
    );
}

#[rstest]
#[case::absent(absent(3))]
#[case::held(Candidate { held: true, ..absent(3) })]
#[case::bad(Candidate { bad: true, ..absent(3) })]
#[case::present(Candidate { present: true, ..record() })]
#[case::not_noted(record())]
#[case::tombstone(Candidate { tombstone: true, ..absent(0) })]
#[case::fresh_tombstone(Candidate { tombstone: true, captured_at: now(), ..record() })]
#[case::live_tombstone(Candidate { tombstone: true, present: true, captured_at: now(), ..record() })]
#[case::forever(Candidate { retention: Duration::MAX, ..absent(3) })]
fn the_time_of_collection_is_when_it_is_collected(#[case] candidate: Candidate) {
    let far = now() + (24 * 365 * 50).hours();
    match collection_time(&candidate) {
        CollectionTime::At(at) => {
            assert_ne!(decide(&candidate, at - 1.second(), false), Collection::Delete);
            assert_eq!(decide(&candidate, at, false), Collection::Delete);
        }
        _ => assert_ne!(decide(&candidate, far, false), Collection::Delete),
    }
}

/// Period of the audits of [`audit`].
const PERIOD: Duration = Duration::from_hours(1);

/// Judges the node list of an audit over records of live nodes, of nodes that became absent, and of
/// nodes that were noted absent a month ago.
fn audit(completed: bool, nodes: usize, peak: usize, became_absent: usize, long_absent: usize) -> NodeList {
    let mut audits = Audits::new(PERIOD, now() - 1.hour());
    if completed {
        audits.complete();
    }
    let mut tally = audits.begin(nodes, peak, now());
    let created = Some(now() - 100.hours());
    (0..nodes).for_each(|_| tally.count(&Candidate { present: true, ..record() }, created));
    (0..became_absent).for_each(|_| tally.count(&record(), created));
    (0..long_absent).for_each(|_| tally.count(&absent(30), created));
    tally.node_list()
}

#[rstest]
#[case::half(5, 10, 5, Trust::Full)]
#[case::most(4, 10, 6, Trust::MassAbsence { before: 10 })]
#[case::all(0, 10, 10, Trust::MassAbsence { before: 10 })]
#[case::all_of_a_few(0, 2, 2, Trust::Empty)]
#[case::a_few(1, 3, 2, Trust::Full)]
#[case::replaced_by_other_names(10, 10, 10, Trust::Full)]
#[case::short_lived_names(5, 8, 40, Trust::Full)]
#[case::nothing(5, 5, 0, Trust::Full)]
fn a_node_list_is_judged_by_the_nodes_that_became_absent(
    #[case] nodes: usize,
    #[case] peak: usize,
    #[case] became_absent: usize,
    #[case] trust: Trust,
) {
    assert_eq!(audit(true, nodes, peak, became_absent, 0), NodeList { nodes, trust });
    assert_eq!(audit(true, nodes, peak, became_absent, 1000).trust, trust, "names that never return count for nothing");
}

/// No peak is known of the time before the start: the records tell.
#[rstest]
#[case::lived_through_an_audit(100, Trust::MassAbsence { before: 10 })]
#[case::short_lived(0, Trust::Full)]
#[case::since_the_start(1, Trust::Full)]
fn the_first_audit_judges_by_the_age_of_records(#[case] hours: i64, #[case] trust: Trust) {
    let mut tally = Audits::new(PERIOD, now() - 1.hour()).begin(2, 2, now());
    let created = Some(now() - hours.hours());
    (0..2).for_each(|_| tally.count(&Candidate { present: true, ..record() }, created));
    (0..8).for_each(|_| tally.count(&record(), created));
    (0..50).for_each(|_| tally.count(&Candidate { had_node: false, ..record() }, created));
    assert_eq!(tally.node_list().trust, trust);
}

/// A third of the nodes leaves before each of three audits.
#[test]
fn a_mass_absence_may_extend_over_several_audits() {
    let mut audits = Audits::new(PERIOD, now() - 1.hour());
    audits.complete();
    let judged: Vec<Trust> = (1..=5i64)
        .map(|i| {
            let left = usize::try_from(i.min(3)).unwrap() * 3;
            let mut tally = audits.begin(10 - left, if i == 1 { 10 } else { 10 - left }, now() + i.hours());
            for one in 0..10usize {
                // The audit before it noted the absence.
                let noted = now() + i64::try_from(one / 3 + 2).unwrap().hours();
                let since = Some(noted).filter(|noted| *noted <= now() + i.hours());
                tally.count(
                    &Candidate { present: one >= left, absent_since: since.filter(|_| one < left), ..record() },
                    None,
                );
            }
            tally.node_list().trust
        })
        .collect();
    let mass = Trust::MassAbsence { before: 10 };
    assert_eq!(judged, [Trust::Full, mass, mass, Trust::MassAbsence { before: 4 }, Trust::Full]);
}

fn limited(limit: usize, batch: usize, records: &[(&'static str, Candidate)], list: &NodeList) -> Vec<&'static str> {
    let mut over = AbsentLimit::new(limit, batch);
    for (name, record) in records {
        over.count(record, list.nodes, || *name);
    }
    over.exceeding(list)
}

#[test]
fn the_oldest_absences_over_the_limit_are_selected() {
    let records = [
        ("newest", absent(1)),
        ("held", Candidate { held: true, ..absent(90) }),
        ("oldest", absent(9)),
        ("live", Candidate { present: true, ..absent(99) }),
        ("bad", Candidate { bad: true, ..absent(99) }),
        ("tombstone", Candidate { tombstone: true, ..absent(99) }),
        ("doubted", Candidate { mass_absence: Some(10), ..absent(99) }),
        ("not noted", record()),
        ("old", absent(5)),
    ];
    let list = NodeList { nodes: 1, trust: Trust::Full };

    // Seven are absent.
    assert_eq!(limited(5, 100, &records, &list), ["oldest", "old"]);
    assert_eq!(limited(6, 100, &records, &list), ["oldest"]);
    assert_eq!(limited(1, 100, &records, &list), ["oldest", "old", "newest"]);
    assert_eq!(limited(1, 2, &records, &list), ["oldest", "old"], "no more than a batch");
    assert_eq!(limited(7, 100, &records, &list), [""; 0]);
    assert_eq!(limited(0, 100, &records, &list), [""; 0], "no limit");
    assert_eq!(limited(1, 100, &records, &NodeList { trust: Trust::Empty, ..list }), [""; 0]);
}

/// A record that was captured while a clock was wrong is not noted again in every audit.
#[rstest]
#[case::right(-48, -24, true)]
#[case::a_note_from_before_the_capture(-24, -48, false)]
#[case::in_the_future(24 * 31, -1, true)]
#[case::a_little_ahead(1, -1, false)]
fn a_note_is_believed_unless_the_capture_refutes_it(#[case] captured: i64, #[case] noted: i64, #[case] believed: bool) {
    let defaults = Defaults::default();
    let context = CaseContext { now: now(), ..defaults.context() };
    let node = Node { name: "n".into(), uid: "u".into(), labels: labels("team=ml"), ..Node::default() };
    let Decision::WriteRecord(_, mut record) = live(&node, None, &policy()) else { panic!("nothing is captured") };
    record.captured_at = now() + captured.hours();
    let case = Case::absent(Some(Arc::new(Stored::Good(record))), &context);
    let since = now() + noted.hours();

    let candidate = Candidate::new(&case, &BTreeMap::from([(ABSENT_SINCE.to_owned(), since.to_string())]));

    assert_eq!(candidate.absent_since, believed.then_some(since));
}

/// Plays the passes of an audit of 10 records of nodes that left, each noted in turn. Returns the
/// number of notes in each pass.
fn play(batch: usize, trust: Trust) -> Vec<usize> {
    let mut records = vec![record(); 10];
    // Due, and doubted in a mass absence: these must not take the place of the others.
    records.extend(vec![absent(40); 10]);
    let mut passes = Vec::new();
    loop {
        let mut selected = Batch::new(batch);
        for (i, record) in records.iter().enumerate() {
            selected.count(record, record.absent_since.is_none_or(|since| since == now()), (now(), 4), || i);
        }
        let list = NodeList { nodes: 4, trust };
        let (mut noted, mut more) = (0, false);
        for (items, is_full) in selected.into_kinds(&list) {
            let mut written = 0;
            for i in items {
                let became_absent = records[i].absent_since.is_none_or(|since| since == now());
                match collect(&records[i], now(), &list, became_absent) {
                    Collection::NoteAbsence => records[i].absent_since = Some(now()),
                    Collection::NoteMassAbsence(before) => {
                        (records[i].absent_since, records[i].mass_absence) = (Some(now()), Some(before));
                    }
                    Collection::Delete => records[i].bad = true,
                    _ => continue,
                }
                written += 1;
                noted += usize::from(records[i].absent_since == Some(now()));
            }
            more |= is_full && written > 0;
        }
        passes.push(noted);
        assert!(passes.len() < 100, "endless: {passes:?}");
        if !more {
            return passes;
        }
    }
}

#[rstest]
#[case::trusted(Trust::Full)]
#[case::empty(Trust::Empty)]
#[case::mass_absence(Trust::MassAbsence { before: 20 })]
fn every_record_is_noted_once_however_small_a_batch_is(#[case] trust: Trust, #[values(1, 3, 10, 100)] batch: usize) {
    let passes = play(batch, trust);

    assert_eq!(passes.iter().sum::<usize>(), 10, "{passes:?}");
    assert!(passes.len() <= 10 / batch + 2, "{passes:?}");
}

/// More passes than audits are remembered do not forget the nodes before them.
#[test]
fn the_passes_of_an_audit_judge_by_the_same_nodes() {
    let mut audits = Audits::new(PERIOD, now() - 1.hour());
    audits.begin(10, 10, now());
    audits.complete();
    let mut trust = None;
    for pass in 0..6 {
        let mut tally = if pass == 0 { audits.begin(3, 3, now()) } else { audits.resume(3, 3, now()) };
        (0..3).for_each(|_| tally.count(&Candidate { present: true, ..record() }, None));
        (0..7).for_each(|_| tally.count(&record(), None));
        let list = tally.node_list().or_as_doubtful_as(trust);
        assert_eq!(list.trust, Trust::MassAbsence { before: 10 }, "pass {pass}");
        trust = Some(list.trust);
    }
}

proptest! {
    /// Whatever was absent before counts for nothing, and the loss of most nodes is always noticed.
    #[test]
    fn only_nodes_that_became_absent_trip_the_brake(
        nodes in 0usize..50, left in 0usize..50, long_absent in 0usize..200, completed: bool
    ) {
        let peak = nodes + left;
        let list = audit(completed, nodes, peak, left, long_absent);
        let is_mass = matches!(list.trust, Trust::MassAbsence { .. });
        prop_assert_eq!(is_mass, peak >= 4 && left > nodes);
        prop_assert_eq!(list.trust == Trust::Full, !is_mass && (nodes > 0 || left + long_absent == 0));
    }

    /// A record that left in a mass absence is kept for twice its retention while its nodes are
    /// missing, and no longer.
    #[test]
    fn a_doubted_record_is_kept_for_twice_its_retention(days in 1i64..100, nodes in 0usize..20, before in 0usize..20) {
        let record = Candidate { mass_absence: Some(before), ..absent(days) };
        let list = NodeList { nodes, trust: Trust::Full };
        let limit = if nodes * 2 < before { 60 } else { 30 };
        prop_assert_eq!(collect(&record, now(), &list, false) == Collection::Delete, days >= limit);
    }

    #[test]
    fn the_limit_never_selects_more_than_the_excess(
        ages in proptest::collection::vec(0i64..100, 0..40), limit in 0usize..40, batch in 1usize..40
    ) {
        let mut over = AbsentLimit::new(limit, batch);
        for (i, age) in ages.iter().enumerate() {
            over.count(&absent(*age), 1, || (i, *age));
        }
        let selected = over.exceeding(&NodeList { nodes: 1, trust: Trust::Full });
        let excess = if limit == 0 { 0 } else { ages.len().saturating_sub(limit) };
        prop_assert_eq!(selected.len(), excess.min(batch));
        let youngest = selected.iter().map(|(_, age)| *age).min().unwrap_or(i64::MAX);
        let rest = ages.iter().enumerate().filter(|(i, _)| !selected.iter().any(|(j, _)| j == i));
        prop_assert!(rest.into_iter().all(|(_, age)| *age <= youngest));
    }
}
