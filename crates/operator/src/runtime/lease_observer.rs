//! Observes which shards have an owner, for a process that does not compete for them: one that only
//! serves admission, or that has other roles.
//!
//! Owns the watch of other processes' Leases. Holds no Lease and writes none.
//!
//! # Assumptions
//! The observed processes have the same number of shards as this one (`controller.shards`).

use super::jitter::Jitter;
use super::lease::state;
use super::lease_metadata::{GROUP, SHARD, shard_lease};
use super::ownership::Ownership;
use super::watch::Watch;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use perennial_core::coordination::lease::{Election, Terms};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// The Leases to observe.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct ObservedLeases {
    pub client: Client,
    pub namespace: String,
    /// Groups of processes, each of which may own any shard.
    pub groups: Vec<String>,
    pub shards: u32,
    pub lease: Duration,
}

/// Returns an ownership of no shard that shows which shards have an owner, and the task that
/// updates it until `stop`.
pub fn observe_owners(
    observed: &ObservedLeases,
    jitter: &Jitter,
    stop: &CancellationToken,
) -> (Ownership, impl Future<Output = ()> + Send + use<>) {
    let ownership = Ownership::none(observed.shards);
    let api: Api<Lease> = Api::namespaced(observed.client.clone(), &observed.namespace);
    let labels = format!("{SHARD},{GROUP} in ({})", observed.groups.join(","));
    let mut leases = Observer::new(observed, ownership.clone());
    let watch = Watch::new("Leases of others", api, jitter, stop).labels(&labels);
    let on_error = |category| debug!(?category, "shard owners unknown, retrying");
    (ownership, watch.run(move |event| leases.on(event), on_error))
}

/// The last state of each observed Lease.
struct Observer {
    ownership: Ownership,
    /// The shard of each Lease, and its state.
    leases: BTreeMap<String, (u32, Election)>,
    terms: Terms,
    listed: BTreeSet<String>,
    start: Instant,
}

impl Observer {
    fn new(observed: &ObservedLeases, ownership: Ownership) -> Self {
        let (shards, terms) = (ownership.shards(), Terms::new(observed.lease));
        let lease = |group: &String, shard| (shard_lease(group, shard, shards), (shard, outsider(terms)));
        let leases = observed.groups.iter().flat_map(|group| (0..shards).map(move |shard| lease(group, shard)));
        Self { ownership, leases: leases.collect(), terms, listed: BTreeSet::new(), start: Instant::now() }
    }

    fn on(&mut self, event: Event<Lease>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(lease) => {
                self.listed.extend(lease.metadata.name.clone());
                self.applied(&lease);
            }
            Event::InitDone => {
                let gone = self.leases.keys().filter(|name| !self.listed.contains(*name));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.gone(&name);
                }
            }
            Event::Apply(lease) => self.applied(&lease),
            Event::Delete(lease) => self.gone(lease.metadata.name.as_deref().unwrap_or_default()),
        }
    }

    fn applied(&mut self, lease: &Lease) {
        let now = self.start.elapsed();
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        if let Some((shard, election)) = self.leases.get_mut(name) {
            election.observed(now, Some(state(lease)));
            let shard = *shard;
            self.show(shard);
        }
    }

    fn gone(&mut self, name: &str) {
        if let Some((shard, election)) = self.leases.get_mut(name) {
            *election = outsider(self.terms);
            let shard = *shard;
            self.show(shard);
        }
    }

    fn show(&self, shard: u32) {
        let of = self.leases.values().filter(|(of, _)| *of == shard);
        let until = of.filter_map(|(_, election)| election.held_until()).max();
        self.ownership.set_owner_until(shard, until.map(|until| self.start + until));
    }
}

/// Returns the view of a candidate whose name is empty, so that every holder is another process.
fn outsider(terms: Terms) -> Election {
    Election::new("", terms)
}
