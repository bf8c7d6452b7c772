//! Placement state of one workload that must survive a restart of the operator: the annotation
//! [`super::STATE`].

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Class;
use super::supply::Breaker;

/// The last move, for the cooldown and to detect moves without effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastMove {
    pub at: Timestamp,
    /// Replicas in the wrong class at that time.
    pub drift: u32,
    /// Consecutive moves that did not reduce the drift.
    pub stalled: u32,
    /// UID of the pod. If it still exists, its eviction was refused. None for a probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// Value of the annotation, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementState {
    /// Breaker of spot.
    #[serde(default)]
    pub breaker: Breaker,
    /// Breaker of on-demand, where on-demand pods may fall back to spot.
    #[serde(default, skip_serializing_if = "Breaker::is_initial")]
    pub on_demand: Breaker,
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "moved")]
    pub last_move: Option<LastMove>,
    /// Spot slots of a StatefulSet that currently run on-demand.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "fallen")]
    pub fallback_slots: Vec<u32>,
    /// On-demand slots of a StatefulSet that currently run on spot.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "onSpot")]
    pub spot_slots: Vec<u32>,
    /// Slots of a StatefulSet whose volumes exist in one class only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", rename = "volumes")]
    pub volume_slots: BTreeMap<u32, Class>,
}

impl PlacementState {
    /// Reads the annotation. An unreadable value counts as empty; the second value is false then.
    pub fn read(annotation: Option<&str>) -> (Self, bool) {
        match annotation.map(serde_json::from_str) {
            None => (Self::default(), true),
            Some(Ok(state)) => (state, true),
            Some(Err(_)) => (Self::default(), false),
        }
    }

    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + minutes * 60).unwrap()
    }

    #[test]
    fn the_state_survives_its_annotation_and_an_unreadable_one_counts_as_none() {
        let state = PlacementState {
            breaker: Breaker::Open { since: at(0), probe: at(5), attempt: 1 },
            last_move: Some(LastMove { at: at(1), drift: 3, stalled: 0, pod: Some("uid".to_owned()) }),
            fallback_slots: vec![3, 7],
            spot_slots: vec![4],
            volume_slots: [(2, Class::Spot)].into(),
            ..PlacementState::default()
        };
        assert_eq!(PlacementState::read(Some(&state.to_annotation())), (state, true));
        assert_eq!(PlacementState::read(Some("{]")), (PlacementState::default(), false));
        assert_eq!(PlacementState::read(None), (PlacementState::default(), true));
    }
}
