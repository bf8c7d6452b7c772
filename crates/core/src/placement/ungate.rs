//! Removal of scheduling gates without assigning a slot: the last resort that keeps pods from
//! staying gated.
//!
//! Used when no owner decides in time, when the workload is no longer managed and when Perennial is
//! uninstalled. A pod that is ungated here is later counted by its class and relabelled.

use jiff::{SignedDuration, Timestamp};

use super::decision::Action;
use super::node_labels::Choice;
use super::spec::Strength;
use super::workload::{PlacementSettings, PodView};
use super::{Class, pod_patch};

/// Reason for which a pod is ungated without a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UngateReason {
    Timeout,
    Uninstall,
    /// Placement is disabled in the configuration.
    Disabled,
    /// No replica holds the workload's shard.
    Ownerless,
    /// The workload does not request placement, or its annotations are invalid.
    Unmanaged,
    /// The pod selects its capacity itself, or the API server refused the class.
    Refused,
}

impl UngateReason {
    /// Returns whether no replica places the workload any more.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Uninstall | Self::Disabled)
    }
}

/// Decides how a pod is ungated: on-demand for safety, or without a class where Perennial must not
/// set one.
pub fn ungate(pod: &PodView, reason: UngateReason, strength: Strength, settings: &PlacementSettings) -> Action {
    let text = match reason {
        UngateReason::Timeout => "gated for too long: ungated on-demand",
        UngateReason::Uninstall => "Perennial is being uninstalled: ungated on-demand",
        UngateReason::Disabled => "placement is disabled: ungated on-demand",
        UngateReason::Ownerless => "no replica owns the shard of its workload: ungated on-demand",
        UngateReason::Unmanaged => "the workload is not managed: ungated without a class",
        UngateReason::Refused => "its class cannot be set: ungated without a class",
    };
    let gate_only = matches!(reason, UngateReason::Unmanaged | UngateReason::Refused)
        || strength == Strength::Preferred
        || pod.choice != Choice::Any;
    let class = (!gate_only).then_some(Class::OnDemand);
    let selected =
        class.map(|class| (class, settings.labels.select(class, Strength::Required, pod.node_affinity.as_ref())));
    let on_refusal = class.map(|_| pod_patch::ungate(pod, None));
    let patch = pod_patch::ungate(pod, selected);
    Action::Ungate { pod: pod.into(), class, patch, on_refusal, reason: text.to_owned() }
}

/// Decides how a pod is ungated whose class the API server refused: without a class, and marked so
/// that no pod is evicted for that class.
pub fn ungate_refused(pod: &PodView, class: Class) -> Action {
    let reason = format!("the API server refused class {class}: ungated without a class");
    let (patch, gate_only) = (pod_patch::ungate_refused(pod, class), pod_patch::ungate(pod, None));
    Action::Ungate { pod: pod.into(), class: None, patch, on_refusal: Some(gate_only), reason }
}

/// Returns when a replica that does not own the workload ungates a pod: after the gate timeout if
/// the owner's Lease is stale. If it is fresh, the longest possible hold is added, so that a hold
/// in a rollout is never cut short by another replica.
pub fn bystander_ungates_at(created: Timestamp, lease_fresh: bool, settings: &PlacementSettings) -> Timestamp {
    let patience = if lease_fresh { settings.hold_timeout + settings.gate_timeout } else { settings.gate_timeout };
    after(created, patience)
}

/// Returns a time later than another one.
pub fn after(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}
