//! Classes that a policy refuses for the pods of a workload.
//!
//! The evidence is on the pods: a pod whose class was refused has the annotation [`super::CLASS`]
//! and no selector for that class. Every replica and every command reads it, also after a restart.

use jiff::{SignedDuration, Timestamp};

use super::Class;
use super::moves::Blocked;
use super::node_labels::Choice;
use super::spec::Strength;
use super::ungate::after;
use super::workload::{Managed, PodView};

/// Time for which new pods do not get a class after it was refused.
pub const NOT_ASSIGNED_FOR: SignedDuration = SignedDuration::from_mins(5);
/// Time for which no running pod is evicted to be replaced in a class that was refused. Pods that
/// are created anyway try the class earlier.
const NO_MOVES_FOR: SignedDuration = SignedDuration::from_hours(6);

/// Returns the class that was refused when the pod was created.
pub fn refused_class(pod: &PodView) -> Option<Class> {
    pod.class.filter(|_| pod.choice == Choice::Any && !pod.gated)
}

impl Managed<'_> {
    /// Returns when the class was last refused, unless a later pod was created with it.
    pub(super) fn refused_at(&self, class: Class) -> Option<Timestamp> {
        if self.spec.strength != Strength::Required || self.view.template != Choice::Any {
            return None;
        }
        let occupying = || self.pods.iter().filter(|pod| pod.occupies());
        let refused = occupying().filter(|pod| refused_class(pod) == Some(class));
        let refused = refused.map(|pod| pod.created).max()?;
        let accepted = |pod: &&PodView| pod.class == Some(class) && pod.choice == Choice::Only(class) && !pod.expected;
        let accepted = occupying().filter(accepted).map(|pod| pod.created).max();
        accepted.is_none_or(|accepted| accepted <= refused).then_some(refused)
    }

    /// Returns whether new pods do not get this class.
    pub(super) fn is_refused(&self, class: Class) -> bool {
        self.refused_at(class).is_some_and(|at| self.now < after(at, NOT_ASSIGNED_FOR))
    }

    /// Checks whether a running pod may be evicted to be replaced in this class: if a policy refuses
    /// the class, the replacement would be in the wrong class again.
    pub(super) fn may_move_to(&self, class: Class) -> Result<(), Blocked> {
        let Some(until) = self.refused_at(class).map(|at| after(at, NO_MOVES_FOR)) else { return Ok(()) };
        if self.now < until {
            return Err(Blocked::until(format!("class {class} was refused by a policy"), until));
        }
        Ok(())
    }
}
