//! Creates of StatefulSet pods that never appear, most likely because a policy refuses their class.
//!
//! # Guarantees
//! A pod whose create is repeated without ever appearing is admitted without a class and with it in
//! turn: if the class is the cause, the next create succeeds; if it is not (a quota, for example),
//! the class is not given up for good. After a success without a class, the pods of the StatefulSet
//! that would get this class are admitted without it for [`DISTRUST_FOR`].

use jiff::{SignedDuration, Timestamp};
use perennial_core::placement::Class;

use crate::runtime::map::HashMap;

/// Age at which a create whose pod has not appeared counts as refused.
const LATE: SignedDuration = SignedDuration::from_secs(1);
/// Number of creates with a class, none of which appeared in time, after which the class counts as
/// refused. The watch may have missed a pod that was created and deleted at once.
const REFUSED: u32 = 2;
/// Age at which a create is forgotten.
const FORGOTTEN: SignedDuration = SignedDuration::from_mins(30);
const DISTRUST_FOR: SignedDuration = SignedDuration::from_mins(5);
/// Maximum number of StatefulSets; beyond it the oldest creates are forgotten.
const MAX_SETS: usize = 4_096;

/// Answer to the create of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrdinalAdmission {
    WithClass,
    WithoutClass {
        /// The class was refused just now.
        newly: bool,
    },
}

/// Open creates by UID of a StatefulSet.
#[derive(Debug, Default)]
pub struct Refusals {
    sets: HashMap<String, SetRefusals>,
}

#[derive(Debug, Default)]
struct SetRefusals {
    open: HashMap<u32, OpenCreate>,
    distrusted: Vec<(Class, Timestamp)>,
}

#[derive(Clone, Copy, Debug)]
struct OpenCreate {
    since: Timestamp,
    with_class: bool,
    /// Number of creates with this answer.
    creates: u32,
}

impl Refusals {
    /// Notes the create of a pod and returns whether it gets its class.
    pub fn admit(&mut self, set: &str, ordinal: u32, class: Class, now: Timestamp) -> OrdinalAdmission {
        if self.sets.len() >= MAX_SETS && !self.sets.contains_key(set) {
            self.sets.retain(|_, set| set.open.values().any(|open| now < open.since + LATE));
        }
        let set = self.sets.entry(set.to_owned()).or_default();
        set.distrusted.retain(|(_, until)| now < *until);
        let distrusted = set.distrusted.iter().any(|(distrusted, _)| *distrusted == class);
        let before = set.open.get(&ordinal).copied().filter(|open| now < open.since + FORGOTTEN);
        let (with_class, newly, creates) = match before {
            Some(open) if now < open.since + LATE => {
                return if open.with_class {
                    OrdinalAdmission::WithClass
                } else {
                    OrdinalAdmission::WithoutClass { newly: false }
                };
            }
            Some(open) if open.with_class && open.creates < REFUSED => (true, false, open.creates + 1),
            Some(open) => (!open.with_class, open.with_class, 1),
            None => (!distrusted, false, 1),
        };
        set.open.insert(ordinal, OpenCreate { since: now, with_class, creates });
        if with_class {
            set.distrusted.retain(|(distrusted, _)| *distrusted != class);
            return OrdinalAdmission::WithClass;
        }
        if newly {
            set.distrusted.retain(|(distrusted, _)| *distrusted != class);
            set.distrusted.push((class, now + DISTRUST_FOR));
        }
        OrdinalAdmission::WithoutClass { newly }
    }

    /// Notes that the pod exists.
    pub fn fulfil(&mut self, set: &str, ordinal: u32) {
        let Some(known) = self.sets.get_mut(set) else { return };
        known.open.remove(&ordinal);
        if known.open.is_empty() && known.distrusted.is_empty() {
            self.sets.remove(set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    const WITH: OrdinalAdmission = OrdinalAdmission::WithClass;

    fn without(newly: bool) -> OrdinalAdmission {
        OrdinalAdmission::WithoutClass { newly }
    }

    #[test]
    fn a_class_that_is_refused_is_dropped_for_the_set_for_a_while() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(0)), WITH);
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(0)), WITH, "a quick retry proves nothing");
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(1)), WITH, "the watch may have missed a pod");
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(2)), without(true));
        refusals.fulfil("db", 3);
        assert_eq!(refusals.admit("db", 4, Class::Spot, at(3)), without(false));
        assert_eq!(refusals.admit("db", 5, Class::OnDemand, at(3)), WITH);
        assert_eq!(refusals.admit("other", 4, Class::Spot, at(3)), WITH);
        refusals.fulfil("db", 4);
        assert_eq!(refusals.admit("db", 6, Class::Spot, at(400)), WITH, "trusted again");
    }

    #[test]
    fn a_create_that_fails_without_a_class_too_gets_its_class_again() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(0)), WITH);
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(5)), WITH);
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(10)), without(true));
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(15)), WITH);
        refusals.fulfil("db", 3);
        assert_eq!(refusals.admit("db", 4, Class::Spot, at(16)), WITH);
    }

    #[test]
    fn a_pod_that_appears_was_not_refused() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(0)), WITH);
        refusals.fulfil("db", 3);
        assert_eq!(refusals.admit("db", 3, Class::Spot, at(60)), WITH);
    }
}
