//! Events about shortages.

use super::{SupplyObservation, Transition};
use crate::placement::Class;
use crate::placement::decision::{Action, PlacementDecision, WorkloadEvent};
use crate::placement::occupancy::{Occupant, count};
use crate::placement::workload::Managed;

/// Reasons of the Events about one class.
struct Reasons {
    short: &'static str,
    probe: &'static str,
    still_short: &'static str,
    back: &'static str,
    /// The pods that may run in the other class.
    outside: &'static str,
}

fn reasons(class: Class) -> Reasons {
    match class {
        Class::Spot => Reasons {
            short: "SpotShortage",
            probe: "SpotProbe",
            still_short: "SpotStillShort",
            back: "SpotBack",
            outside: "replicas",
        },
        Class::OnDemand => Reasons {
            short: "OnDemandShortage",
            probe: "OnDemandProbe",
            still_short: "OnDemandStillShort",
            back: "OnDemandBack",
            outside: "replicas above min-on-demand",
        },
    }
}

/// Adds the Event of a transition of the breaker of a class.
pub(in crate::placement) fn report(
    class: Class,
    transition: Transition,
    observed: &SupplyObservation,
    decision: &mut PlacementDecision,
) {
    let Reasons { short, probe, still_short, back, outside } = reasons(class);
    let place = match class {
        Class::Spot => "on-demand",
        Class::OnDemand => "on spot",
    };
    decision.actions.extend(match transition {
        Transition::Opened => Some(WorkloadEvent::warning(
            short,
            format!(
                "no {class} capacity for {} pods: up to {} {outside} run {place} until it is back",
                observed.stuck, observed.budget
            ),
        )),
        Transition::StillShort => Some(WorkloadEvent::normal(
            still_short,
            format!("{class} capacity is still short; the next probe is later"),
        )),
        Transition::Probe => Some(WorkloadEvent::normal(probe, format!("probing {class} capacity with one replica"))),
        Transition::Closed => Some(WorkloadEvent::normal(back, format!("{class} capacity is back"))),
        Transition::Stay if class == Class::Spot && observed.stuck > 0 && observed.budget == 0 => {
            Some(Action::Report(WorkloadEvent::lasting_warning(
                short,
                "no spot capacity for some of its pods, and fallback-budget allows no fallback: they stay Pending",
            )))
        }
        Transition::Stay => None,
    });
}

/// Adds the Events about classes without capacity.
pub(in crate::placement) fn report_capacity<'a, 's>(
    workload: &Managed<'_>,
    occupants: &(impl Iterator<Item = &'s Occupant<'a>> + Clone),
    decision: &mut PlacementDecision,
) where
    'a: 's,
{
    let nodes = workload.nodes;
    let unlabelled = nodes.other > 0 && nodes.spot.total + nodes.on_demand.total == 0;
    for class in [Class::Spot, Class::OnDemand] {
        let waiting = count(occupants.clone().filter(|occupant| workload.unplaced(occupant, class).is_some()));
        let stuck = count(occupants.clone().filter(|occupant| workload.stuck(occupant, class)));
        if nodes.other > 0 && nodes.of(class).total == 0 && (stuck > 0 || unlabelled && waiting > 0) {
            decision.actions.push(Action::Report(WorkloadEvent::lasting_warning(
                "NoNodesOfClass",
                format!(
                    "no node is {class}: none of {} nodes has {}; label the nodes or set nodeLabels",
                    nodes.other,
                    workload.settings.labels.describe(class)
                ),
            )));
        }
        if class == Class::OnDemand && stuck > 0 {
            decision.actions.push(Action::Report(WorkloadEvent::lasting_warning(
                "OnDemandShortage",
                if workload.on_demand_budget(workload.view.replicas) > 0 {
                    "no on-demand capacity for some of its pods: those within min-on-demand stay Pending"
                } else {
                    "no on-demand capacity for some of its pods: they stay Pending until there is"
                },
            )));
        }
    }
}
