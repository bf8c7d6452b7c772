//! The arithmetic of slots: how many of `n` replicas are spot, and which slot is of which class.
//!
//! Owns `s(n)` and its inverses, each in constant time. Contains no pods.
//!
//! `s(n) = max(0, min(floor(n·P/100), n − M, X))` grows by 0 or 1 with each `n`, and slot `i` is
//! spot exactly when `s(i+1) > s(i)`. So slots `0..n` hold exactly `s(n)` spot slots at every `n`,
//! and removing replicas from the top stays exact. M may be a percentage; X is optional.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Class;

/// Division of replicas: at most `percentage` of them and at most `max_spot` on spot, never fewer
/// than `floor` on-demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Split {
    percentage: u8,
    floor: Floor,
    max_spot: Option<u32>,
}

/// Minimum number of on-demand replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Floor {
    Count(u32),
    /// Share of the replicas, rounded up.
    Percentage(u8),
}

impl Floor {
    /// Returns the minimum of `n` replicas as requested; may be above `n`.
    pub fn of(self, n: u32) -> u32 {
        match self {
            Floor::Count(count) => count,
            Floor::Percentage(share) => {
                u32::try_from((u64::from(n) * u64::from(share.min(100))).div_ceil(100)).unwrap_or(n)
            }
        }
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Floor::Count(count) => count.fmt(f),
            Floor::Percentage(share) => write!(f, "{share}%"),
        }
    }
}

impl Split {
    /// A percentage above 100 counts as 100; [`super::spec::parse`] refuses such a value.
    pub fn new(percentage: u8, floor: u32) -> Self {
        Self { percentage: percentage.min(100), floor: Floor::Count(floor), max_spot: None }
    }

    #[must_use]
    pub fn with_floor(self, floor: Floor) -> Self {
        Self { floor, ..self }
    }

    /// Limits the number of spot replicas.
    #[must_use]
    pub fn with_max_spot(self, max_spot: u32) -> Self {
        Self { max_spot: Some(max_spot), ..self }
    }

    pub fn percentage(self) -> u8 {
        self.percentage
    }

    /// Minimum number of on-demand replicas as requested.
    pub fn floor(self) -> Floor {
        self.floor
    }

    /// Returns the request as text.
    pub fn describe(self) -> String {
        let most = self.max_spot.map(|max_spot| format!(", at most {max_spot} of them")).unwrap_or_default();
        format!("{}% on spot{most}, at least {} on-demand", self.percentage, self.floor)
    }

    pub fn max_spot(self) -> Option<u32> {
        self.max_spot
    }

    /// `s(n)`: number of spot replicas out of `n`.
    pub fn spot(self, n: u32) -> u32 {
        let share = u64::from(n) * u64::from(self.percentage) / 100;
        // `share` is at most `n`, so the conversion never fails.
        let share = u32::try_from(share).unwrap_or(n).min(n.saturating_sub(self.floor.of(n)));
        share.min(self.max_spot.unwrap_or(u32::MAX))
    }

    /// Number of on-demand replicas out of `n`.
    pub fn on_demand(self, n: u32) -> u32 {
        n - self.spot(n)
    }

    /// Number of replicas of this class out of `n`.
    pub fn quota(self, class: Class, n: u32) -> u32 {
        match class {
            Class::Spot => self.spot(n),
            Class::OnDemand => self.on_demand(n),
        }
    }

    pub fn class(self, slot: u32) -> Class {
        let above = slot.saturating_add(1);
        if self.spot(above) > self.spot(slot) { Class::Spot } else { Class::OnDemand }
    }

    /// Returns the position of a slot among the slots of its own class.
    pub fn index(self, slot: u32) -> u32 {
        self.quota(self.class(slot), slot)
    }

    /// Returns the `k`-th slot (from 0) of a class, or None if the class has no such slot.
    pub fn slot(self, class: Class, k: u32) -> Option<u32> {
        u32::try_from(self.position(class, k)?).ok()
    }

    /// Returns the class of the next replica when `spot` and `on_demand` replicas exist: the class
    /// of the lower one of the next spot slot and the next on-demand slot. From any counts, this
    /// reaches `s(n)` as early as adding replicas can.
    pub fn next(self, spot: u32, on_demand: u32) -> Class {
        match (self.position(Class::Spot, spot), self.position(Class::OnDemand, on_demand)) {
            (Some(_), None) => Class::Spot,
            (Some(s), Some(d)) if s < d => Class::Spot,
            _ => Class::OnDemand,
        }
    }

    fn position(self, class: Class, k: u32) -> Option<u64> {
        // A floor of F% is the same as at most (100 − F)% on spot.
        let (percentage, floor) = match self.floor {
            Floor::Count(floor) => (self.percentage, floor),
            Floor::Percentage(share) => (self.percentage.min(100 - share.min(100)), 0),
        };
        let (k, p, floor) = (u64::from(k), u64::from(percentage), u64::from(floor));
        let capped = self.max_spot.map(|max_spot| k + u64::from(max_spot));
        match class {
            Class::Spot if self.max_spot.is_some_and(|max_spot| k >= u64::from(max_spot)) => None,
            // The last slot of the smallest n with floor(n·P/100) ≥ k+1 and n − M ≥ k+1.
            Class::Spot if p == 0 => None,
            Class::Spot => Some(((k + 1) * 100).div_ceil(p).max(k + 1 + floor) - 1),
            Class::OnDemand if k < floor => Some(k),
            Class::OnDemand if p == 100 => capped,
            // n − floor(n·P/100) ≥ k+1 exactly when n·(100−P) > 100·k.
            Class::OnDemand => Some((100 * k / (100 - p)).min(capped.unwrap_or(u64::MAX))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Splits with a floor in replicas or in percent, with and without a maximum.
    fn splits() -> impl Strategy<Value = Split> {
        let floor = prop_oneof![(0u32..40).prop_map(Floor::Count), (0u8..=100).prop_map(Floor::Percentage)];
        (0u8..=100, floor, proptest::option::of(0u32..60)).prop_map(|(percentage, floor, max_spot)| {
            let split = Split::new(percentage, 0).with_floor(floor);
            max_spot.map_or(split, |max_spot| split.with_max_spot(max_spot))
        })
    }

    proptest! {
        #[test]
        fn limits_hold_and_the_inverses_find_every_slot(split in splits(), n in 0u32..300) {
            let spot = split.spot(n);
            let plain = u64::from(n) * u64::from(split.percentage()) / 100;
            let limit = u64::from(split.max_spot().unwrap_or(u32::MAX)).min(u64::from(n.saturating_sub(split.floor().of(n))));
            prop_assert_eq!(u64::from(spot), plain.min(limit));
            prop_assert_eq!((0..n).filter(|&slot| split.class(slot) == Class::Spot).count(), usize::try_from(spot).unwrap());
            for class in [Class::Spot, Class::OnDemand] {
                let counted: Vec<u32> = (0..n).filter(|&slot| split.class(slot) == class).collect();
                for (k, &slot) in (0..).zip(&counted) {
                    prop_assert_eq!(split.slot(class, k), Some(slot));
                }
                let next = split.slot(class, u32::try_from(counted.len()).unwrap());
                prop_assert!(next.is_none_or(|slot| slot >= n));
            }
        }

        #[test]
        fn every_prefix_of_the_slots_holds_exactly_its_share(p in 0u8..=100, m in 0u32..40, n in 0u32..300) {
            let split = Split::new(p, m);
            let spot = (0..n).filter(|&i| split.class(i) == Class::Spot).count();
            let expected = (i64::from(n) * i64::from(p) / 100).min(i64::from(n) - i64::from(m)).max(0);
            prop_assert_eq!(i64::try_from(spot).unwrap(), expected);
            prop_assert_eq!(i64::from(split.spot(n)), expected);
            prop_assert_eq!(split.spot(n) + split.on_demand(n), n);
            prop_assert!(split.on_demand(n) >= m.min(n));
        }

        #[test]
        fn the_kth_slot_of_a_class_is_where_counting_finds_it(p in 0u8..=100, m in 0u32..40) {
            let split = Split::new(p, m);
            for class in [Class::Spot, Class::OnDemand] {
                let counted: Vec<u32> = (0..600).filter(|&i| split.class(i) == class).collect();
                for (k, &slot) in (0..).zip(&counted) {
                    prop_assert_eq!(split.slot(class, k), Some(slot));
                    prop_assert_eq!(split.index(slot), k);
                }
                let next = split.slot(class, u32::try_from(counted.len()).unwrap());
                prop_assert!(next.is_none_or(|slot| slot >= 600));
            }
        }

        #[test]
        fn filling_by_counts_is_exact_at_every_step(p in 0u8..=100, m in 0u32..40) {
            let split = Split::new(p, m);
            let (mut x, mut y) = (0, 0);
            for n in 1..300 {
                match split.next(x, y) { Class::Spot => x += 1, Class::OnDemand => y += 1 }
                prop_assert_eq!(x, split.spot(n));
            }
        }

        #[test]
        fn filling_by_counts_repairs_any_start(p in 0u8..=100, m in 0u32..40, x in 0u32..60, y in 0u32..60) {
            let split = Split::new(p, m);
            let (mut a, mut b) = (x, y);
            for n in x + y + 1..400 {
                match split.next(a, b) { Class::Spot => a += 1, Class::OnDemand => b += 1 }
                // Exact, or one class began with too many and has not grown since.
                prop_assert!(a == split.spot(n) || (a == x && a > split.spot(n)) || (b == y && b > split.on_demand(n)));
            }
        }

        #[test]
        fn the_largest_numbers_do_not_overflow(p in any::<u8>(), m in any::<u32>(), n in any::<u32>()) {
            let split = Split::new(p, m);
            prop_assert!(split.spot(n) <= n);
            let _ = (split.class(n), split.index(n), split.slot(Class::Spot, n), split.slot(Class::OnDemand, n), split.next(n, n));
        }
    }

    #[test]
    fn seventy_percent_over_a_floor_of_three() {
        let split = Split::new(70, 3);
        let picture: String = (0..12).map(|i| if split.class(i) == Class::Spot { 's' } else { 'D' }).collect();
        assert_eq!(picture, "DDDsssssssDs");
    }
}
