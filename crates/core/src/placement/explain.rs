//! Text and slot pictures of decisions, for `explain`, `simulate`, `workloads` and the dashboard.
//!
//! Owns the wording. Decides nothing.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::Class;
use super::decision::{Action, Counts, PlacementDecision};
use super::schedule::WindowState;
use super::slots::Split;
use super::spec::Spec;
use super::supply::Breaker;
use super::workload::{Kind, PodView, Workload};

/// Meaning of a picture's letters.
pub const LEGEND: &str =
    "D on-demand, s spot, f spot slot running on-demand, ! on-demand slot running on spot, . empty";

/// Maximum number of slots in a picture.
pub const MAX_DRAWN: u32 = 10_000;

/// Draws the slots `0..n` as letters, in groups of ten, up to [`MAX_DRAWN`].
pub fn picture(split: Split, n: u32) -> String {
    grouped((0..n.min(MAX_DRAWN)).map(|slot| letter(split.class(slot))), n)
}

/// Draws the slots `0..n` with the class of each occupant.
pub fn filled(spec: &Spec, n: u32, pods: &[PodView]) -> String {
    let split = spec.split;
    let drawn = n.min(MAX_DRAWN);
    let mut slots: Vec<Option<Class>> = vec![None; usize::try_from(drawn).unwrap_or(0)];
    for pod in pods.iter().filter(|pod| pod.occupies() && !pod.gated) {
        let slot = pod.slot.and_then(|slot| usize::try_from(slot).ok());
        if let Some(place) = slot.and_then(|slot| slots.get_mut(slot)) {
            *place = pod.counts_as(spec.strength);
        }
    }
    let letters = (0..drawn).zip(slots).map(|(slot, class)| match (split.class(slot), class) {
        (_, None) => '.',
        (Class::Spot, Some(Class::OnDemand)) => 'f',
        (Class::OnDemand, Some(Class::Spot)) => '!',
        (class, Some(_)) => letter(class),
    });
    grouped(letters, n)
}

fn letter(class: Class) -> char {
    match class {
        Class::Spot => 's',
        Class::OnDemand => 'D',
    }
}

fn grouped(letters: impl Iterator<Item = char>, of: u32) -> String {
    let mut text = String::new();
    for (index, letter) in letters.enumerate() {
        if index > 0 && index % 10 == 0 {
            text.push(' ');
        }
        text.push(letter);
    }
    if of > MAX_DRAWN {
        let _ = write!(text, " … and {} more", of - MAX_DRAWN);
    }
    text
}

/// Split of a workload of a given size, computed without a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Simulation {
    pub replicas: u32,
    pub spot: u32,
    pub on_demand: u32,
    pub slots: String,
    pub notes: Vec<String>,
}

pub fn simulate(split: Split, replicas: u32) -> Simulation {
    Simulation {
        replicas,
        spot: split.spot(replicas),
        on_demand: split.on_demand(replicas),
        slots: picture(split, replicas),
        notes: Spec::new(split).notes(replicas),
    }
}

/// Summarizes the requested split and, if it differs, the observed one.
pub fn headline(counts: &Counts) -> String {
    let Counts { replicas, desired_spot, desired_on_demand, spot, on_demand, .. } = *counts;
    let mut text = format!("requested: {desired_spot} of {replicas} replicas on spot, {desired_on_demand} on-demand");
    let exact = (spot, on_demand) == (desired_spot, desired_on_demand);
    if exact && counts.unplaced() == 0 {
        text.push_str("; running as requested");
    } else {
        let _ = write!(text, "; observed: {spot} on spot, {on_demand} on-demand");
    }
    for (count, what) in [
        (counts.fallback, "on-demand because spot is short"),
        (counts.unplaced_spot, "unschedulable on spot"),
        (counts.unplaced_on_demand, "unschedulable on-demand"),
        (counts.gated, "gated"),
        (counts.unknown, "of unknown class"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

/// Explains a managed workload in one sentence: the current action, the reason to wait, or that the
/// split is exact.
pub fn why(workload: &Workload, spec: &Spec, decision: &PlacementDecision) -> String {
    let reason = decision.actions.iter().find_map(|action| match action {
        Action::Wait { reason, .. }
        | Action::Hold { reason, .. }
        | Action::Evict { reason, .. }
        | Action::Delete { reason, .. } => Some(reason.clone()),
        Action::Report(event) if event.warning => Some(event.message.clone()),
        _ => None,
    });
    let counts = &decision.counts;
    reason.or_else(|| shortage(workload, counts)).unwrap_or_else(|| at_rest(workload, spec, counts))
}

fn shortage(workload: &Workload, counts: &Counts) -> Option<String> {
    let passed = |from: Timestamp, to: Timestamp| {
        format!("{:#}", SignedDuration::from_secs(to.duration_since(from).as_secs().max(0)))
    };
    let (fallback, now) = (counts.fallback, workload.now);
    let on_demand = match counts.unplaced_on_demand {
        0 => "run on-demand".to_owned(),
        waiting => format!("placed on-demand, {waiting} on-demand pods wait for capacity"),
    };
    match workload.state().breaker {
        Breaker::Closed | Breaker::Wary { .. } => None,
        Breaker::Open { since, probe, .. } => {
            let next =
                if probe > now { format!("next probe in {}", passed(now, probe)) } else { "probe due now".to_owned() };
            Some(format!("spot has been short for {}: {fallback} {on_demand}, {next}", passed(since, now)))
        }
        Breaker::Probing { since, .. } => {
            Some(format!("probing spot for {}: {fallback} {on_demand}", passed(since, now)))
        }
    }
}

/// Returns the setting that keeps running replicas in the wrong class from being moved, if there is
/// one.
pub fn stays(workload: &Workload, spec: &Spec) -> Option<&'static str> {
    if spec.paused {
        return Some("moves are paused by annotation");
    }
    if !workload.view.kind.has_known_size() {
        return Some("its desired replicas are not known, so running pods stay");
    }
    let stateful = matches!(workload.view.kind, Kind::StatefulSet { .. });
    (stateful && !spec.move_stateful).then_some("they move when they are next created, or with move-statefulset-pods")
}

/// Describes a workload whose decision has no action.
fn at_rest(workload: &Workload, spec: &Spec, counts: &Counts) -> String {
    let Counts { replicas, spot, on_demand, gated, unknown, drift, .. } = *counts;
    if drift > 0 {
        return match stays(workload, spec) {
            Some(why) => format!("{drift} in the wrong class: {why}"),
            None => format!("{drift} in the wrong class while it is rolling out"),
        };
    }
    if gated > 0 {
        return format!("{gated} gated, about to be placed");
    }
    for (waiting, class) in [(counts.unplaced_spot, Class::Spot), (counts.unplaced_on_demand, Class::OnDemand)] {
        if waiting > 0 {
            return format!("{waiting} {class} pods are unschedulable");
        }
    }
    if unknown > 0 {
        return format!("{unknown} have neither a node nor a class yet");
    }
    match spot + on_demand {
        counted if counted < replicas => {
            format!("{} of {replicas} replicas do not exist yet", replicas - counted)
        }
        counted if counted > replicas => {
            format!("{} replicas more than {replicas} still exist", counted - replicas)
        }
        _ => "as requested".to_owned(),
    }
}

/// Explains a managed workload: requested and observed split, shortage, pause, window, notes and
/// actions.
pub fn explain(workload: &Workload, spec: &Spec, decision: &PlacementDecision) -> Vec<String> {
    let counts = &decision.counts;
    let floor = spec.split.floor().of(counts.replicas);
    let mut lines = vec![format!("requested: {}", spec.split.describe()), headline(counts)];
    if counts.drift > 0 {
        lines.push(format!("{} in the wrong class", counts.drift));
    }
    if counts.ready_on_demand < floor.min(counts.replicas) {
        lines.push(format!("only {} on-demand replicas are Ready, fewer than min-on-demand", counts.ready_on_demand));
    }
    match workload.state().breaker {
        Breaker::Closed | Breaker::Wary { .. } => {}
        Breaker::Open { since, probe, .. } => {
            let next = if probe > workload.now { format!("next probe at {probe}") } else { "probe due".to_owned() };
            lines.push(format!("spot has been short since {since}; {next}"));
        }
        Breaker::Probing { since, .. } => lines.push(format!("probing spot since {since}")),
    }
    if let Breaker::Open { since, .. } = workload.state().on_demand {
        lines.push(format!("on-demand has been short since {since}: replicas above min-on-demand run on spot"));
    }
    if spec.paused {
        lines.push("paused: new pods are placed, running pods are not moved".to_owned());
    }
    match spec.window.as_ref().map(|window| window.state(workload.now)) {
        Some(WindowState::Open { until }) => lines.push(format!("the disruption window is open until {until}")),
        Some(WindowState::Closed { opens: Some(opens) }) => {
            lines.push(format!("running pods are not moved before {opens}"));
        }
        Some(WindowState::Closed { opens: None }) | None => {}
    }
    lines.extend(spec.notes(counts.replicas));
    lines.extend(decision.actions.iter().filter_map(sentence));
    for action in &decision.actions {
        if let Action::Report(event) = action
            && event.warning
            && event.lasting
            && !lines.iter().any(|line| line.contains(&event.message))
        {
            lines.push(event.message.clone());
        }
    }
    lines
}

/// Describes one action. Returns None for Events, which repeat other lines.
pub fn sentence(action: &Action) -> Option<String> {
    Some(match action {
        Action::Save { reason, .. } => format!("save the state on the workload: {reason}"),
        Action::Place { pod, class, reason, .. } => format!("place {} on {class}: {reason}", pod.name),
        Action::Hold { pod, until, reason, .. } => format!("hold {} until {until} at most: {reason}", pod.name),
        Action::Ungate { pod, reason, .. } => format!("ungate {}: {reason}", pod.name),
        Action::Relabel { pod, reason, .. } => format!("relabel {}: {reason}", pod.name),
        Action::Evict { pod, reason } => format!("evict {}: {reason}", pod.name),
        Action::Delete { pod, reason } => format!("delete {}: {reason}", pod.name),
        Action::Wait { until: Some(until), reason } => format!("wait until {until}: {reason}"),
        Action::Wait { until: None, reason } => format!("wait: {reason}"),
        Action::Report(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulation_shows_the_slots() {
        let simulation = simulate(Split::new(70, 3), 37);
        assert_eq!(simulation.slots, "DDDsssssss DssDssDsss DssDssDsss DssDssD");
        assert_eq!((simulation.spot, simulation.on_demand), (25, 12));
        assert!(simulate(Split::new(70, 9), 4).notes[0].contains("all of them run on-demand"));
    }

    #[test]
    fn a_picture_has_a_maximum_number_of_slots() {
        let most = simulate(Split::new(70, 3), u32::MAX);
        assert_eq!(u64::from(most.spot) + u64::from(most.on_demand), u64::from(u32::MAX));
        assert!(most.slots.len() < 12_000, "{} bytes", most.slots.len());
        assert!(most.slots.starts_with("DDDsssssss DssD") && most.slots.ends_with(" … and 4294957295 more"));
        let slots = filled(&Spec::new(Split::new(70, 3)), u32::MAX, &[]);
        assert!(slots.starts_with("..........") && slots.ends_with(" … and 4294957295 more"));
        assert!(!picture(Split::new(70, 3), MAX_DRAWN).contains('…'));
    }

    #[test]
    fn the_headline_contains_the_difference() {
        let mut counts =
            Counts { replicas: 10, desired_spot: 7, desired_on_demand: 3, spot: 7, on_demand: 3, ..Counts::default() };
        assert_eq!(headline(&counts), "requested: 7 of 10 replicas on spot, 3 on-demand; running as requested");
        (counts.spot, counts.on_demand, counts.fallback) = (5, 5, 2);
        assert!(headline(&counts).ends_with("; observed: 5 on spot, 5 on-demand, 2 on-demand because spot is short"));
    }
}
