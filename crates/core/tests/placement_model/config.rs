//! Configurations to explore: the workload, and the budget of each step.

use super::{mutation::Mutation, world::Budget};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    pub(crate) name: &'static str,
    pub(crate) budget: Budget,
    pub(crate) percentages: [u8; 2],
    pub(crate) floor: u8,
    /// Initial and maximum number of replicas.
    pub(crate) replicas: u8,
    pub(crate) most: u8,
    pub(crate) max_unavailable: u8,
    /// The webhook assigns places in creates.
    pub(crate) gives_places: bool,
    /// Maximum number of states to explore.
    pub(crate) limit: usize,
}

const NONE: Budget = Budget { scales: 0, policies: 0, rollouts: 0, losses: 0, misses: 0, refusals: 0, crashes: 0 };

const fn world(name: &'static str, budget: Budget) -> Config {
    Config {
        name,
        budget,
        percentages: [50, 100],
        floor: 1,
        replicas: 2,
        most: 3,
        max_unavailable: 0,
        gives_places: true,
        limit: 3_000_000,
    }
}

/// Explored with every `cargo test`.
pub(crate) fn small() -> Vec<Config> {
    vec![
        world("scaled", Budget { scales: 2, ..NONE }),
        world("scaled, everything gated", Budget { scales: 2, crashes: 1, ..NONE }).gated(),
        world("a lost node", Budget { losses: 1, scales: 1, ..NONE }),
        world("pods that the operator never saw", Budget { misses: 1, scales: 1, ..NONE }),
        world("a create that is refused", Budget { refusals: 1, scales: 1, ..NONE }),
        Config { replicas: 3, ..world("another percentage", Budget { policies: 1, crashes: 1, ..NONE }) },
        world("a rollout", Budget { rollouts: 1, ..NONE }),
        world("a rollout, a pod that the operator never saw", Budget { rollouts: 1, misses: 1, ..NONE }).gated(),
        Config {
            percentages: [100, 0],
            replicas: 1,
            most: 2,
            ..world("only the floor on-demand", Budget { misses: 1, losses: 1, scales: 1, ..NONE })
        },
        Config { percentages: [100, 0], floor: 0, ..world("from spot to on-demand", Budget { policies: 1, ..NONE }) },
    ]
}

impl Config {
    const fn gated(mut self) -> Self {
        self.gives_places = false;
        self
    }
}

/// Returns a small configuration in which a rule is needed.
pub(crate) fn that_needs(rule: Mutation) -> Config {
    use Mutation as M;
    let back = Config { percentages: [0, 100], floor: 0, ..world("needs a rule", Budget { policies: 1, ..NONE }) };
    match rule {
        M::SilentWhenFull => world("needs a rule", Budget { scales: 1, misses: 1, losses: 1, ..NONE }),
        M::CountTerminating => world("needs a rule", Budget { losses: 1, ..NONE }),
        M::ForgetExpected => Config { replicas: 1, ..world("needs a rule", Budget { scales: 2, ..NONE }) },
        M::IgnoreNodes | M::NoRelabel => world("needs a rule", Budget { misses: 1, scales: 1, ..NONE }),
        M::AlwaysSpot | M::NoCost => world("needs a rule", Budget { scales: 1, ..NONE }).gated(),
        M::NoHold => {
            Config { most: 2, max_unavailable: 1, ..world("needs a rule", Budget { rollouts: 1, ..NONE }) }.gated()
        }
        M::MoveUnready | M::NoCooldown => back,
        M::BlindToReadiness => Config {
            percentages: [0, 100],
            floor: 2,
            replicas: 3,
            max_unavailable: 1,
            ..world("needs a rule", Budget { policies: 1, losses: 1, ..NONE })
        },
        M::None => world("all rules", NONE),
    }
}
