//! Who attends to what, for a process that takes no part in the work itself: one that only serves admission, or whose own
//! roles are others.
//!
//! Owns the watch of other processes' Leases. Holds nothing, announces nothing and writes nothing.
//!
//! # Assumptions
//! The processes that are looked at have the same number of shards as this one (`controller.shards`).

use super::jitter::Jitter;
use super::lease::seen;
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

/// Whose Leases are looked at.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Attendance {
    pub client: Client,
    pub namespace: String,
    /// Groups of processes, each of which may attend to any shard.
    pub groups: Vec<String>,
    pub shards: u32,
    pub lease: Duration,
}

/// Returns the handle, which owns nothing and knows who attends, and the task that keeps it true until `stop`.
pub fn attend(
    attendance: &Attendance,
    jitter: &Jitter,
    stop: &CancellationToken,
) -> (Ownership, impl Future<Output = ()> + Send + use<>) {
    let ownership = Ownership::none(attendance.shards);
    let api: Api<Lease> = Api::namespaced(attendance.client.clone(), &attendance.namespace);
    let labels = format!("{SHARD},{GROUP} in ({})", attendance.groups.join(","));
    let mut book = Book::new(attendance, ownership.clone());
    let watch = Watch::new("Leases of others", api, jitter, stop).labels(&labels);
    let on_error = |category| debug!(?category, "the shard owners are not known for now");
    (ownership, watch.run(move |event| book.on(event), on_error))
}

/// What was seen of each Lease.
struct Book {
    ownership: Ownership,
    /// Each Lease's shard, and when somebody was last seen to hold it.
    seats: BTreeMap<String, (u32, Election)>,
    terms: Terms,
    listed: BTreeSet<String>,
    start: Instant,
}

impl Book {
    fn new(attendance: &Attendance, ownership: Ownership) -> Self {
        let (shards, terms) = (ownership.shards(), Terms::new(attendance.lease));
        let seat = |group: &String, shard| (shard_lease(group, shard, shards), (shard, nobody(terms)));
        let seats = attendance.groups.iter().flat_map(|group| (0..shards).map(move |shard| seat(group, shard)));
        Self { ownership, seats: seats.collect(), terms, listed: BTreeSet::new(), start: Instant::now() }
    }

    fn on(&mut self, event: Event<Lease>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(lease) => {
                self.listed.extend(lease.metadata.name.clone());
                self.seen(&lease);
            }
            Event::InitDone => {
                let gone = self.seats.keys().filter(|name| !self.listed.contains(*name));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.gone(&name);
                }
            }
            Event::Apply(lease) => self.seen(&lease),
            Event::Delete(lease) => self.gone(lease.metadata.name.as_deref().unwrap_or_default()),
        }
    }

    fn seen(&mut self, lease: &Lease) {
        let now = self.start.elapsed();
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        if let Some((shard, election)) = self.seats.get_mut(name) {
            election.observed(now, Some(seen(lease)));
            let shard = *shard;
            self.show(shard);
        }
    }

    fn gone(&mut self, name: &str) {
        if let Some((shard, election)) = self.seats.get_mut(name) {
            *election = nobody(self.terms);
            let shard = *shard;
            self.show(shard);
        }
    }

    fn show(&self, shard: u32) {
        let of = self.seats.values().filter(|(of, _)| *of == shard);
        let until = of.filter_map(|(_, election)| election.attended_until()).max();
        self.ownership.set_attended(shard, until.map(|until| self.start + until));
    }
}

/// No identity is empty: whoever is named is another.
fn nobody(terms: Terms) -> Election {
    Election::new("", terms)
}
