//! Configurations to explore: replicas, webhooks, and the budget of each step.

use super::{mutation::Mutation, world::Budget};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    pub(crate) name: &'static str,
    pub(crate) budget: Budget,
    pub(crate) replicas: usize,
    pub(crate) delete_webhook: bool,
    pub(crate) create_webhook: bool,
    /// The second key is protected and withheld from creates.
    pub(crate) kubelet_creates: bool,
    /// The second key is protected, and the name may return on another machine.
    pub(crate) machines: u8,
    /// Machine fields that a new node reports; the others follow later.
    pub(crate) first_report: u8,
    /// A DELETE handler that timed out may still write.
    pub(crate) zombies: bool,
    pub(crate) overwrite: bool,
    /// The key that the narrower policy no longer keeps.
    pub(crate) unkept_key: usize,
    /// The highest value of each key.
    pub(crate) values: [u8; 2],
    pub(crate) first_labels: [u8; 2],
    /// The first node is a restored one.
    pub(crate) returned: bool,
    /// Maximum number of states to explore.
    pub(crate) limit: usize,
}

const NONE: Budget = Budget {
    changes: 2,
    deletes: 2,
    faults: 0,
    delete_failures: 0,
    create_failures: 0,
    refusals: 0,
    forgets: 0,
    saves: 0,
    policies: 0,
    audits: 0,
    ages: 0,
};

pub(crate) const PLAIN: Config = Config {
    name: "one replica, webhooks on",
    budget: NONE,
    replicas: 1,
    delete_webhook: true,
    create_webhook: true,
    kubelet_creates: false,
    machines: 1,
    first_report: 2,
    zombies: false,
    overwrite: false,
    unkept_key: 0,
    values: [2, 1],
    first_labels: [1, 0],
    returned: false,
    limit: 30_000_000,
};

impl Config {
    pub(crate) fn protects_second_key(&self) -> bool {
        self.kubelet_creates || self.machines > 1 || self.first_report < 2
    }

    const fn webhooks_off(mut self) -> Self {
        self.delete_webhook = false;
        self.create_webhook = false;
        self
    }

    const fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    const fn values(mut self, first: u8, second: u8) -> Self {
        self.values = [first, second];
        self
    }

    const fn first(mut self, labels: [u8; 2]) -> Self {
        self.first_labels = labels;
        self
    }

    /// The second key is protected, and there are this many machines.
    const fn machines(mut self, machines: u8, first_report: u8) -> Self {
        self.machines = machines;
        self.first_report = first_report;
        self.first([1, 1])
    }

    const fn kubelet(mut self) -> Self {
        self.kubelet_creates = true;
        self.first([1, 1])
    }

    const fn zombies(mut self) -> Self {
        self.zombies = true;
        self
    }

    const fn overwrite(mut self) -> Self {
        self.overwrite = true;
        self
    }

    const fn unkept(mut self, key: usize) -> Self {
        self.unkept_key = key;
        self
    }
}

const fn world(name: &'static str, budget: Budget) -> Config {
    Config { name, budget, ..PLAIN }
}

/// One change, two deletes, and the given additions.
const fn one_change() -> Budget {
    Budget { changes: 1, ..NONE }
}

/// Explored with every `cargo test`.
pub(crate) fn small() -> Vec<Config> {
    let one = one_change();
    vec![
        world("webhooks on", NONE),
        world("webhooks off", NONE).webhooks_off(),
        world("webhooks off, a fault", Budget { faults: 1, ..one }).webhooks_off(),
        world("starts empty", NONE).first([0, 0]),
        world("webhooks that fail", Budget { delete_failures: 1, create_failures: 1, ..one }),
        world("webhooks that fail, a fault", Budget { delete_failures: 1, create_failures: 1, faults: 1, ..one }),
        world("a handler that writes late", Budget { delete_failures: 1, refusals: 1, ..one }).zombies(),
        world("a refused delete", Budget { refusals: 1, ..NONE }).values(1, 1),
        world("a deleted record", Budget { forgets: 1, ..one }),
        world("a deleted record, webhooks off", Budget { forgets: 1, ..one }).webhooks_off(),
        world("a saved manifest", Budget { saves: 1, create_failures: 1, ..one }),
        world("two replicas", one).replicas(2),
        world("two replicas, webhooks off", one).replicas(2).webhooks_off(),
        world("overwrite", NONE).overwrite(),
        world("overwrite, webhooks off, a fault", Budget { faults: 1, ..one }).overwrite().webhooks_off(),
        world("a kubelet's create", Budget { create_failures: 1, ..one }).kubelet(),
        world("another machine", one).machines(2, 2),
        world("another machine, three lives", Budget { changes: 0, deletes: 3, ..NONE }).machines(2, 2),
        world("machines that report late who they are", one).machines(2, 1),
        world("machines that report late who they are, three lives", Budget { changes: 0, deletes: 3, ..NONE })
            .machines(2, 1),
        world("a machine that reports late who it is", one).machines(1, 0),
        world("another machine, webhooks off", one).machines(2, 1).webhooks_off(),
        world("collection", Budget { audits: 2, ages: 1, ..one }),
        world("collection, webhooks off", Budget { audits: 2, ages: 1, ..one }).webhooks_off().values(1, 0),
        world("collection, a crash", Budget { audits: 2, ages: 1, faults: 1, changes: 0, ..NONE })
            .webhooks_off()
            .values(1, 0),
        world("a policy that changes", Budget { policies: 2, ..one }),
        world("a policy that changes, webhooks off", Budget { policies: 2, ..one }).webhooks_off().first([1, 1]),
        world("a policy that changes, a fault", Budget { policies: 2, faults: 1, ..one }),
        world("a policy that changes, overwrite", Budget { policies: 2, ..one }).overwrite(),
        world("a policy that drops a protected key, another machine", Budget { policies: 2, ..one })
            .machines(2, 2)
            .unkept(1),
    ]
}

/// Millions of states each. For release builds.
pub(crate) fn full() -> Vec<Config> {
    let one = one_change();
    let failing = Budget { delete_failures: 1, create_failures: 1, ..NONE };
    vec![
        world("three changes", Budget { changes: 3, ..NONE }),
        world("three lives", Budget { deletes: 3, faults: 1, ..NONE }),
        world("three lives, webhooks off", Budget { deletes: 3, faults: 2, ..NONE }).webhooks_off(),
        world("webhooks that fail, faults", Budget { faults: 2, ..failing }),
        world("webhooks that fail, refusals", Budget { refusals: 1, ..failing }),
        world("webhooks that fail, three lives", Budget { deletes: 3, ..failing }).values(1, 1),
        world("two replicas", Budget { faults: 1, ..NONE }).replicas(2),
        world("two replicas, webhooks off", Budget { faults: 1, ..NONE }).replicas(2).webhooks_off(),
        world("two replicas, everything fails", Budget { changes: 1, faults: 2, refusals: 1, ..failing })
            .replicas(2)
            .zombies(),
        world("two replicas, three lives", Budget { deletes: 3, ..one }).replicas(2),
        world("a saved manifest", Budget { saves: 1, deletes: 3, create_failures: 1, ..NONE }).values(1, 1),
        world("a deleted record", Budget { forgets: 1, faults: 1, ..NONE }),
        world("a kubelet's create", Budget { refusals: 1, faults: 1, ..failing }).kubelet(),
        world("two replicas, a kubelet's create", Budget { create_failures: 1, ..one }).replicas(2).kubelet(),
        world("overwrite, everything fails", Budget { faults: 1, refusals: 1, ..failing }).overwrite(),
        world("overwrite, two replicas", Budget { faults: 1, ..one }).overwrite().replicas(2),
        world("machines that report late who they are", Budget { changes: 1, deletes: 3, ..failing }).machines(2, 1),
        world("another machine, webhooks off", Budget { changes: 1, deletes: 3, faults: 1, ..NONE })
            .machines(2, 1)
            .webhooks_off(),
        world("another machine, refusals", Budget { changes: 1, deletes: 3, refusals: 1, ..NONE }).machines(2, 1),
        world("another machine, two replicas", one).machines(2, 1).replicas(2),
        world("collection, two replicas", Budget { audits: 3, ages: 2, ..one }).replicas(2).values(1, 0),
        world("a policy that changes, everything fails", Budget { changes: 1, policies: 2, faults: 1, ..failing }),
        world("a policy that changes, two replicas", Budget { policies: 2, ..one }).replicas(2).first([1, 1]),
        world("a policy that changes, another machine", Budget { policies: 2, deletes: 3, ..one })
            .machines(2, 2)
            .unkept(1),
        world("a policy that changes, late machines", Budget { policies: 1, deletes: 3, ..one })
            .machines(2, 1)
            .unkept(1),
    ]
}

/// Returns a small configuration in which a rule is needed.
pub(crate) fn that_needs(rule: Mutation) -> Config {
    use Mutation as M;
    let one = one_change();
    match rule {
        M::NoEvidence | M::NoRetryInDelete => {
            world("needs a rule", Budget { deletes: 3, faults: 1, delete_failures: 1, ..NONE }).values(1, 0)
        }
        M::BelieveIncomingMark => {
            Config { returned: true, ..world("needs a rule", Budget { saves: 1, ..NONE }).values(1, 0) }
        }
        M::RecordReadBeforeNode => world("needs a rule", Budget { deletes: 3, faults: 1, ..NONE }).values(2, 0),
        M::CaptureFromRelist | M::FoldOwns => world("needs a rule", Budget { faults: 1, ..NONE }).webhooks_off(),
        M::FoldWithoutBefore => world("needs a rule", Budget { refusals: 1, ..NONE }).kubelet(),
        M::OwnerByUidOnly => {
            world("needs a rule", Budget { faults: 1, ..one }).webhooks_off().replicas(2).values(1, 1).first([1, 1])
        }
        M::UnconditionalWrite => {
            world("needs a rule", Budget { delete_failures: 1, create_failures: 1, ..NONE }).values(1, 0)
        }
        M::PartialIsComplete => world("needs a rule", one).kubelet(),
        M::GiveProtectedToAnyone => world("needs a rule", one).machines(2, 2),
        M::DropWithheld => world("needs a rule", Budget { deletes: 3, ..one }).machines(2, 2),
        M::CaptureErasesUnkept | M::SilentMarkSettles => world("needs a rule", Budget { policies: 2, ..one }),
        M::EqualVersionIsOlder => world("needs a rule", Budget { policies: 2, faults: 1, ..one }),
        M::SuccessorFirst => world("needs a rule", one).webhooks_off(),
        M::CollectAtOnce | M::CollectWithoutLook | M::UnconditionalCollect | M::KeepNote => {
            world("needs a rule", Budget { audits: 2, ages: 1, ..one }).webhooks_off().values(1, 0)
        }
        _ => PLAIN,
    }
}
