//! What is explored: how many replicas, which webhooks, and how often each thing may happen.

use super::world::Budget;

#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub name: &'static str,
    pub budget: Budget,
    pub replicas: usize,
    pub delete_webhook: bool,
    pub create_webhook: bool,
    /// The second key is protected and may not ride in a create.
    pub kubelet_creates: bool,
    /// The second key is protected, and the name may come back on another machine.
    pub machines: u8,
    /// What a new node says of its machine; the rest follows.
    pub born_saying: u8,
    /// A DELETE handler that timed out may still write.
    pub zombies: bool,
    pub overwrite: bool,
    /// The key that the narrower policy no longer keeps.
    pub unkept_key: usize,
    /// The highest value of each key.
    pub values: [u8; 2],
    pub first_labels: [u8; 2],
    /// The limits count as violations.
    pub strict: bool,
    /// More states than this are not explored.
    pub limit: usize,
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
};

pub const PLAIN: Config = Config {
    name: "one replica, webhooks on",
    budget: NONE,
    replicas: 1,
    delete_webhook: true,
    create_webhook: true,
    kubelet_creates: false,
    machines: 1,
    born_saying: 2,
    zombies: false,
    overwrite: false,
    unkept_key: 0,
    values: [2, 1],
    first_labels: [1, 0],
    strict: false,
    limit: 30_000_000,
};

impl Config {
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    pub const fn webhooks_off(mut self) -> Self {
        self.delete_webhook = false;
        self.create_webhook = false;
        self
    }

    pub fn protects_second_key(&self) -> bool {
        self.kubelet_creates || self.machines > 1 || self.born_saying < 2
    }
}
