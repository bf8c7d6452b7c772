//! Places that pods are given in their own create, by the owner of their workload.
//!
//! # Guarantees
//! A place is given once. Who was given one is expected until seen, or given up after [`EXPECTED_FOR`]. Where our choice is why creates are refused (a policy, say), one create in
//! [`WARY_FOR`] is: until a pod of its class has come through, no second one is given a place, and after one that never came all are gated, as if nobody knew their places.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use perennial_core::placement::{
    Class,
    workload::{EXPECTED_FOR, Place, PodView, ReplicaSetView},
};

use crate::runtime::map::HashMap;

/// One that was not seen for so long may never come: no others are sent after it.
const LATE: SignedDuration = SignedDuration::from_secs(1);
/// After one that never came, pods of its ReplicaSet are gated for so long.
const WARY_FOR: SignedDuration = SignedDuration::from_mins(5);

/// By UID of a ReplicaSet.
#[derive(Debug, Default)]
pub struct Places {
    sets: HashMap<String, Set>,
}

#[derive(Debug, Default)]
struct Set {
    /// The term of ownership in which these were decided on. In any other they mean nothing.
    term: u64,
    open: VecDeque<Place>,
    expected: Vec<(Place, Timestamp)>,
    /// Classes in which a pod has come through.
    proven: Vec<Class>,
    wary_until: Option<Timestamp>,
}

impl Places {
    /// Takes note of the places that are open; those of former looks are void.
    pub fn open(&mut self, places: BTreeMap<String, Vec<Place>>, term: u64) {
        for (uid, open) in places {
            let set = self.sets.entry(uid).or_default();
            (set.term, set.open) = (term, open.into());
        }
    }

    /// Gives the next open place of a ReplicaSet to a pod that is just being created.
    pub fn give(&mut self, set: &str, term: u64, now: Timestamp) -> Option<Place> {
        let set = self.sets.get_mut(set).filter(|set| set.term == term)?;
        let next = *set.open.front()?;
        let wary = set.wary_until.is_some_and(|until| now < until);
        let unproven = !set.proven.contains(&next.class) && set.expected.iter().any(|(p, _)| p.class == next.class);
        let late = set.expected.iter().any(|(_, since)| now >= *since + LATE);
        if wary || unproven || late {
            return None;
        }
        set.open.pop_front();
        set.expected.push((next, now));
        Some(next)
    }

    /// A pod has come that says that it has this slot: the one that was expected, or a stranger. Either way the place is filled.
    pub fn seen(&mut self, set: &str, slot: u32) {
        let Some(set) = self.sets.get_mut(set) else { return };
        if let Some(found) = set.expected.iter().position(|(place, _)| place.slot == slot) {
            let (place, _) = set.expected.swap_remove(found);
            if !set.proven.contains(&place.class) {
                set.proven.push(place.class);
            }
        }
    }

    /// Pods that were given their places, and are not seen yet. Those that do not come are given up.
    pub fn expected(&mut self, sets: &[ReplicaSetView], now: Timestamp) -> Vec<PodView> {
        let mut pods = Vec::new();
        for view in sets {
            let Some(set) = self.sets.get_mut(&view.uid) else { continue };
            let before = set.expected.len();
            set.expected.retain(|(_, since)| (*since..*since + EXPECTED_FOR).contains(&now));
            if set.expected.len() < before {
                set.wary_until = Some(now + WARY_FOR);
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

    /// With three places open, in the first term.
    fn places() -> Places {
        let mut places = Places::default();
        places.open([("r1".to_owned(), vec![SPOT, ON_DEMAND, MORE_SPOT])].into(), 1);
        places
    }

    fn slots(places: &mut Places, now: Timestamp) -> Vec<Option<u32>> {
        let set = ReplicaSetView { uid: "r1".to_owned(), replicas: 9, newest: true, observed: true };
        places.expected(&[set], now).iter().map(|pod| pod.slot).collect()
    }

    #[test]
    fn a_place_is_given_once_and_in_its_term_only() {
        let mut places = places();
        assert_eq!(places.give("r1", 2, at(0)), None, "it was decided by whoever owned the workload then");
        assert_eq!(places.give("r2", 1, at(0)), None);
        assert_eq!(places.give("r1", 1, at(0)), Some(SPOT));
        assert_eq!(places.give("r1", 1, at(0)), Some(ON_DEMAND));
        places.seen("r1", 4);
        assert_eq!(places.give("r1", 1, at(0)), Some(MORE_SPOT));
        assert_eq!(places.give("r1", 1, at(0)), None, "there are no more");
    }

    #[test]
    fn who_was_given_a_place_is_expected_until_seen_or_given_up() {
        let mut places = places();
        places.give("r1", 1, at(0)).unwrap();
        places.give("r1", 1, at(0)).unwrap();
        assert_eq!(slots(&mut places, at(0)), [Some(4), Some(5)]);
        places.seen("r1", 4);
        assert_eq!(slots(&mut places, at(9)), [Some(5)]);
        assert!(slots(&mut places, at(10)).is_empty());
    }

    #[test]
    fn where_creates_are_refused_because_of_us_only_one_is() {
        let mut places = places();
        places.give("r1", 1, at(0)).unwrap();
        places.give("r1", 1, at(0)).unwrap();
        assert_eq!(places.give("r1", 1, at(0)), None, "no pod on spot has come through yet");
        places.seen("r1", 5);
        assert_eq!(places.give("r1", 1, at(2)), None, "the one before is late");

        assert!(slots(&mut places, at(10)).is_empty());
        places.open([("r1".to_owned(), vec![ON_DEMAND])].into(), 1);
        assert_eq!(places.give("r1", 1, at(11)), None, "one never came");
        assert_eq!(places.give("r1", 1, at(310)), Some(ON_DEMAND), "it is tried again");
    }

    #[test]
    fn a_new_look_voids_the_places_of_the_last_one_and_not_who_is_expected() {
        let mut places = places();
        places.give("r1", 1, at(0)).unwrap();
        places.open([("r1".to_owned(), vec![ON_DEMAND])].into(), 1);
        assert_eq!(slots(&mut places, at(0)), [Some(4)]);
        assert_eq!(places.give("r1", 1, at(0)), Some(ON_DEMAND));
        assert_eq!(places.give("r1", 1, at(0)), None);
    }
}
