//! Freeing gated pods without a slot: when nobody decides in time, when Perennial is uninstalled, when the workload is no longer
//! managed. Owns that last resort; knows nothing of slots. What is freed here is taken in later by its class and relabelled.

use jiff::{SignedDuration, Timestamp};

use super::Class;
use super::action::{Action, ungate_patch};
use super::labels::Choice;
use super::spec::Strength;
use super::view::{PodView, Settings};

/// Why a pod is freed without a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Timeout,
    Uninstall,
    /// Nobody holds the workload's shard.
    Ownerless,
    /// The workload asks for nothing any more, or for something that cannot be understood.
    Unmanaged,
    /// The pod chooses its capacity itself, or the API server refused our choice.
    Refused,
}

/// On-demand for safety, except where the class is not ours to give: then only the gate goes.
pub fn free(pod: &PodView, why: Why, strength: Strength, settings: &Settings) -> Action {
    let reason = match why {
        Why::Timeout => "gated for too long: freed on-demand",
        Why::Uninstall => "Perennial is being removed: freed on-demand",
        Why::Ownerless => "nobody owns this workload's shard at the moment: freed on-demand",
        Why::Unmanaged => "the workload is not managed: freed as it is",
        Why::Refused => "its class cannot be set: freed as it is",
    };
    let gate_only =
        matches!(why, Why::Unmanaged | Why::Refused) || strength == Strength::Preferred || pod.choice != Choice::Any;
    let class = (!gate_only).then_some(Class::OnDemand);
    let selection = class.map(|class| settings.labels.select(class, Strength::Required, pod.node_affinity.as_ref()));
    let on_refusal = class.map(|_| ungate_patch(pod, None));
    Action::Free { pod: pod.into(), class, patch: ungate_patch(pod, selection), on_refusal, reason: reason.to_owned() }
}

/// When a replica that does not own the workload frees a gated pod: soon if the owner's Lease is stale; if it is fresh only when the
/// owner has let pass the longest hold that there is, so that a hold in a rollout is never cut short by a bystander.
pub fn bystander_frees_at(created: Timestamp, lease_fresh: bool, settings: &Settings) -> Timestamp {
    let patience = if lease_fresh { settings.hold_timeout + settings.gate_timeout } else { settings.gate_timeout };
    after(created, patience)
}

pub(super) fn after(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}
