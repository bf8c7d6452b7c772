//! Garbage collection: audits that note absences and delete the records of nodes that stay absent.
//! The real `collect` decides.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use perennial_core::keeper::collect::{Candidate, Collection, NodeList, collect};
use perennial_testkit::explorer::Successors;

use super::{
    mutation::Mutation,
    rules::{Decision, Rules},
    spec,
    steps::{outside, spend},
    world::{Audit, Read, Record, State},
};

const RETENTION: Duration = Duration::from_hours(24);

pub(crate) fn node_leaves(state: &mut State) {
    state.away = u8::from(state.left.ages > 0 || state.left.audits > 0 || state.audit.on);
}

pub(crate) fn node_returns(state: &mut State) {
    state.away = 0;
    state.returned = state.record.noted > 0;
}

/// Returns whether a replica that observes the node clears its absence note.
pub(crate) fn clears(state: &State, rules: &Rules) -> bool {
    let sees = |cache: u8| cache != 0 && cache == state.node.uid;
    let noted = state.record.present && state.record.noted > 0 && rules.mutation != Mutation::KeepNote;
    noted
        && state.replicas[..rules.config.replicas].iter().any(|replica| {
            replica.synced
                && sees(replica.cache.uid)
                && replica.last.uid == 0
                && !replica.read.done
                && rules.live(&replica.cache, &state.record, state.policy) == Decision::Nothing
        })
}

pub(crate) fn steps(state: &State, rules: &Rules, out: &mut Successors<State>) {
    // Much longer than any pending work takes.
    if (state.record.noted == 1 || state.away == 1)
        && spec::is_at_rest(state, rules)
        && let Some(mut next) = spend(state, |left| &mut left.ages)
    {
        next.record.noted = if state.record.noted == 1 { 2 } else { state.record.noted };
        next.away = if state.away == 1 { 2 } else { state.away };
        outside(out, next, || "as much time passes as records are kept for".into());
    }
    if clears(state, rules) {
        let mut next = *state;
        note(&mut next, 0);
        out.push(next, || "a replica sees the node, and takes the note of its absence away".into());
    }
    if state.audit.on {
        act(state, rules, out);
    } else if state.record.present
        && let Some(mut next) = spend(state, |left| &mut left.audits)
    {
        let read = Read { done: true, fresh: true, record: state.record };
        next.audit = Audit { on: true, absent: state.node.uid == 0, read };
        out.push(next, || format!("an audit lists {} and {}", state.node, state.record));
    }
}

fn act(state: &State, rules: &Rules, out: &mut Successors<State>) {
    let Audit { absent, read, .. } = state.audit;
    let mut next = *state;
    next.audit = Audit::default();
    match decide(rules, absent, &read.record) {
        Collection::NoteAbsence if read.fresh => note(&mut next, 1),
        Collection::ClearAbsence if read.fresh && rules.mutation != Mutation::KeepNote => note(&mut next, 0),
        Collection::Delete => {
            let gone =
                state.node.uid == 0 || read.record.is_tombstone() || rules.mutation == Mutation::CollectWithoutLook;
            let same = read.fresh || rules.mutation == Mutation::UnconditionalCollect;
            if gone && same && state.record.present {
                spec::record_is_collected(&mut next, rules);
                next.write_record(Record::default());
            }
        }
        Collection::Keep | Collection::NoteAbsence | Collection::NoteMassAbsence(_) | Collection::ClearAbsence => {}
    }
    out.push(next, || format!("the audit leaves {}", next.record));
}

fn note(state: &mut State, noted: u8) {
    state.write_record(Record { noted, ..state.record });
}

fn decide(rules: &Rules, absent: bool, record: &Record) -> Collection {
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1000);
    let ago = |hours: i64| now - SignedDuration::from_hours(hours);
    let since = match record.noted {
        _ if rules.mutation == Mutation::CollectAtOnce && absent => Some(ago(100)),
        0 => None,
        1 => Some(ago(1)),
        _ => Some(ago(100)),
    };
    let candidate = Candidate {
        present: !absent,
        tombstone: record.is_tombstone(),
        bad: false,
        // Tombstones expire after an hour regardless of absence.
        captured_at: now,
        absent_since: since,
        held: false,
        confirmed: false,
        mass_absence: None,
        had_node: true,
        retention: RETENTION,
    };
    collect(&candidate, now, &NodeList::TRUSTED, false)
}
