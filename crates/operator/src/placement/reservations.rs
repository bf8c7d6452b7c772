//! Slots that pods are assigned in their own create request, by the owner of their workload.
//!
//! # Guarantees
//! A slot is reserved once. A pod with a reservation is expected until the watch delivers it, or
//! given up after [`EXPECTED_FOR`]. If creates are refused because of the assigned class (by a
//! policy, for example), at most one create per [`DISTRUST_FOR`] is: no second slot of a class is
//! reserved until a pod of that class was created, and after a pod that never appeared all pods of
//! its ReplicaSet are gated.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use perennial_core::placement::{
    Class,
    workload::{EXPECTED_FOR, Place, PodView, ReplicaSetView},
};

use crate::runtime::map::HashMap;

/// Age at which an expected pod may have been refused: no further slots are reserved until it
/// appears or is given up.
const LATE: SignedDuration = SignedDuration::from_secs(1);
/// Time for which the pods of a ReplicaSet are gated after one that never appeared.
const DISTRUST_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Reservations by UID of a ReplicaSet.
#[derive(Debug, Default)]
pub struct Reservations {
    sets: HashMap<String, SetReservations>,
}

#[derive(Debug, Default)]
struct SetReservations {
    /// The term of ownership in which the open slots were decided. They are void in any other term.
    term: u64,
    open: VecDeque<Place>,
    expected: Vec<(Place, Timestamp)>,
    /// Classes of which a pod was created.
    proven: Vec<Class>,
    distrust_until: Option<Timestamp>,
}

impl Reservations {
    /// Replaces the open slots by those of a new decision.
    pub fn offer(&mut self, places: BTreeMap<String, Vec<Place>>, term: u64) {
        for (uid, open) in places {
            let set = self.sets.entry(uid).or_default();
            (set.term, set.open) = (term, open.into());
        }
    }

    /// Reserves the next open slot of a ReplicaSet for a pod that is being created.
    pub fn reserve(&mut self, set: &str, term: u64, now: Timestamp) -> Option<Place> {
        let set = self.sets.get_mut(set).filter(|set| set.term == term)?;
        let next = *set.open.front()?;
        let distrusted = set.distrust_until.is_some_and(|until| now < until);
        let unproven = !set.proven.contains(&next.class) && set.expected.iter().any(|(p, _)| p.class == next.class);
        let late = set.expected.iter().any(|(_, since)| now >= *since + LATE);
        if distrusted || unproven || late {
            return None;
        }
        set.open.pop_front();
        set.expected.push((next, now));
        Some(next)
    }

    /// Notes that a pod with this slot exists: the expected one or another. In both cases the slot
    /// is filled.
    pub fn fulfil(&mut self, set: &str, slot: u32) {
        let Some(set) = self.sets.get_mut(set) else { return };
        if let Some(found) = set.expected.iter().position(|(place, _)| place.slot == slot) {
            let (place, _) = set.expected.swap_remove(found);
            if !set.proven.contains(&place.class) {
                set.proven.push(place.class);
            }
        }
    }

    /// Returns the pods with a reservation that are not in the cache yet, and gives up those that
    /// are overdue.
    pub fn expected(&mut self, sets: &[ReplicaSetView], now: Timestamp) -> Vec<PodView> {
        let mut pods = Vec::new();
        for view in sets {
            let Some(set) = self.sets.get_mut(&view.uid) else { continue };
            let before = set.expected.len();
            set.expected.retain(|(_, since)| (*since..*since + EXPECTED_FOR).contains(&now));
            if set.expected.len() < before {
                set.distrust_until = Some(now + DISTRUST_FOR);
                set.proven.clear();
            }
            pods.extend(set.expected.iter().map(|(place, since)| PodView::expected(&view.uid, *place, *since)));
        }
        pods
    }

    pub fn forget(&mut self, set: &str) {
        self.sets.remove(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPOT: Place = Place { class: Class::Spot, slot: 4 };
    const ON_DEMAND: Place = Place { class: Class::OnDemand, slot: 5 };
    const MORE_SPOT: Place = Place { class: Class::Spot, slot: 6 };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    /// Three open slots, in the first term.
    fn reservations() -> Reservations {
        let mut reservations = Reservations::default();
        reservations.offer([("r1".to_owned(), vec![SPOT, ON_DEMAND, MORE_SPOT])].into(), 1);
        reservations
    }

    fn slots(reservations: &mut Reservations, now: Timestamp) -> Vec<Option<u32>> {
        let set = ReplicaSetView { uid: "r1".to_owned(), replicas: 9, newest: true, observed: true };
        reservations.expected(&[set], now).iter().map(|pod| pod.slot).collect()
    }

    #[test]
    fn a_slot_is_reserved_once_and_in_its_term_only() {
        let mut reservations = reservations();
        assert_eq!(reservations.reserve("r1", 2, at(0)), None, "decided by a former owner");
        assert_eq!(reservations.reserve("r2", 1, at(0)), None);
        assert_eq!(reservations.reserve("r1", 1, at(0)), Some(SPOT));
        assert_eq!(reservations.reserve("r1", 1, at(0)), Some(ON_DEMAND));
        reservations.fulfil("r1", 4);
        assert_eq!(reservations.reserve("r1", 1, at(0)), Some(MORE_SPOT));
        assert_eq!(reservations.reserve("r1", 1, at(0)), None, "no open slots");
    }

    #[test]
    fn a_pod_with_a_reservation_is_expected_until_it_exists_or_is_given_up() {
        let mut reservations = reservations();
        reservations.reserve("r1", 1, at(0)).unwrap();
        reservations.reserve("r1", 1, at(0)).unwrap();
        assert_eq!(slots(&mut reservations, at(0)), [Some(4), Some(5)]);
        reservations.fulfil("r1", 4);
        assert_eq!(slots(&mut reservations, at(9)), [Some(5)]);
        assert!(slots(&mut reservations, at(10)).is_empty());
    }

    #[test]
    fn when_creates_are_refused_because_of_the_class_only_one_is() {
        let mut reservations = reservations();
        reservations.reserve("r1", 1, at(0)).unwrap();
        reservations.reserve("r1", 1, at(0)).unwrap();
        assert_eq!(reservations.reserve("r1", 1, at(0)), None, "no spot pod was created yet");
        reservations.fulfil("r1", 5);
        assert_eq!(reservations.reserve("r1", 1, at(2)), None, "the expected pod is late");

        assert!(slots(&mut reservations, at(10)).is_empty());
        reservations.offer([("r1".to_owned(), vec![ON_DEMAND])].into(), 1);
        assert_eq!(reservations.reserve("r1", 1, at(11)), None, "an expected pod never appeared");
        assert_eq!(reservations.reserve("r1", 1, at(310)), Some(ON_DEMAND), "trusted again");
    }

    #[test]
    fn a_new_decision_replaces_the_open_slots_and_keeps_the_expected_pods() {
        let mut reservations = reservations();
        reservations.reserve("r1", 1, at(0)).unwrap();
        reservations.offer([("r1".to_owned(), vec![ON_DEMAND])].into(), 1);
        assert_eq!(slots(&mut reservations, at(0)), [Some(4)]);
        assert_eq!(reservations.reserve("r1", 1, at(0)), Some(ON_DEMAND));
        assert_eq!(reservations.reserve("r1", 1, at(0)), None);
    }
}
