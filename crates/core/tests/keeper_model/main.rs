//! The keeper's rules, explored as an explicit-state model.
mod config;
mod explore;
mod hash;
mod mutation;
mod replica;
mod rules;
mod spec;
mod steps;
mod world;

use config::{Config, PLAIN};
use mutation::Mutation;

fn run(config: Config, mutation: Mutation) -> bool {
    let e = explore::explore(config, mutation);
    println!("{} {:?}: {} states depth {} rest {} {:.1}s exhausted {}", config.name, mutation, e.states, e.depth, e.at_rest, e.seconds, e.exhausted);
    if let Some(f) = &e.found { println!("VIOLATION {}\n{}", f.violation, f.trace); }
    e.found.is_none()
}

#[test]
fn scratch() {
    let mut c = PLAIN;
    for word in std::env::var("MODEL").unwrap_or_default().split_whitespace() {
        let (k, v) = word.split_once('=').unwrap_or((word, "1"));
        let n: u8 = v.parse().unwrap();
        match k {
            "u" => c.budget.changes = n, "inc" => c.budget.deletes = n, "f" => c.budget.faults = n,
            "wd" => c.budget.delete_failures = n, "wc" => c.budget.create_failures = n, "deny" => c.budget.refusals = n,
            "forget" => c.budget.forgets = n, "save" => c.budget.saves = n, "pol" => c.budget.policies = n,
            "reps" => c.replicas = n as usize, "del" => c.delete_webhook = n == 1, "cre" => c.create_webhook = n == 1,
            "kubelet" => c.kubelet_creates = n == 1, "machines" => c.machines = n, "born" => c.born_saying = n,
            "zombie" => c.zombies = n == 1, "over" => c.overwrite = n == 1, "unkept" => c.unkept_key = n as usize,
            "avals" => c.values[0] = n, "bvals" => c.values[1] = n, "init" => c.first_labels = [[0,0],[1,0],[1,1]][n as usize],
            "cap" => c.limit = n as usize * 100_000,
            _ => panic!("{k}"),
        }
    }
    run(c, Mutation::None);
}
