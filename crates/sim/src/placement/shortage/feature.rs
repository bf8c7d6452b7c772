//! The features that a seed switches on and off.

/// A feature of a history. Each is on or off for a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    SpotComesAndGoes,
    OnDemandFillsUp,
    Pauses,
    PercentageChanges,
    FloorChanges,
    BudgetOfZero,
    AnnotationsRemoved,
    NodesOfNoClass,
    PolicyRefuses,
    RollOuts,
    Scaling,
    OperatorsCrash,
    PodsDeleted,
    PartitionChanges,
}

pub(super) const FEATURES: [Feature; 14] = [
    Feature::SpotComesAndGoes,
    Feature::OnDemandFillsUp,
    Feature::Pauses,
    Feature::PercentageChanges,
    Feature::FloorChanges,
    Feature::BudgetOfZero,
    Feature::AnnotationsRemoved,
    Feature::NodesOfNoClass,
    Feature::PolicyRefuses,
    Feature::RollOuts,
    Feature::Scaling,
    Feature::OperatorsCrash,
    Feature::PodsDeleted,
    Feature::PartitionChanges,
];
