//! Events about shortages.

use super::{SupplyObservation, Transition};
use crate::placement::Class;
use crate::placement::decision::{Action, PlacementDecision, WorkloadEvent};
use crate::placement::occupancy::{Occupant, count};
use crate::placement::workload::Managed;

/// Adds the Event of a transition.
pub(in crate::placement) fn report(
    transition: Transition,
    observed: &SupplyObservation,
    decision: &mut PlacementDecision,
) {
    decision.actions.extend(match transition {
        Transition::Opened => Some(WorkloadEvent::warning(
            "SpotShortage",
            format!(
                "no spot capacity for {} pods: up to {} replicas run on-demand until it is back",
                observed.stuck, observed.budget
            ),
        )),
        Transition::StillShort => {
            Some(WorkloadEvent::normal("SpotStillShort", "spot capacity is still short; the next probe is later"))
        }
        Transition::Probe => Some(WorkloadEvent::normal("SpotProbe", "probing spot capacity with one replica")),
        Transition::Closed => Some(WorkloadEvent::normal("SpotBack", "spot capacity is back")),
        Transition::Stay if observed.stuck > 0 && observed.budget == 0 => {
            Some(Action::Report(WorkloadEvent::lasting_warning(
                "SpotShortage",
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
