//! How members name and describe themselves and the shards in Leases.
//!
//! Owns names, labels and annotations of Leases: what replicas of different versions understand of each other.

use super::lease::seen;
use super::{clock::Clock, history::History};
use k8s_openapi::api::coordination::v1::Lease;
use perennial_core::coordination::members::Announcement;
use perennial_core::coordination::shards::Member;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// On every Lease: which processes share the work.
pub const GROUP: &str = "perennial.dev/group";
const MEMBER: &str = "perennial.dev/member";
/// On the Leases of shards.
pub const SHARD: &str = "perennial.dev/shard";
const SHARDS: &str = "perennial.dev/shards";
const VERSION: &str = "v1";

/// Told whenever a Lease is won or lost: its name, and whether it is held (`leader_election_master_status`).
pub type Report = Arc<dyn Fn(&str, bool) + Send + Sync>;

/// How this process takes part.
#[derive(Clone)]
pub struct Coordination {
    /// Without kube's default retry: [`crate::runtime::lease::client_without_retry`].
    pub client: kube::Client,
    pub namespace: String,
    /// Processes that share the same work; the prefix of the Leases' names.
    pub group: String,
    /// Unique for this process: [`identity`].
    pub identity: String,
    pub shards: u32,
    pub lease: Duration,
    /// The time of day that is written into Leases, for people.
    pub clock: Clock,
    /// Receives the report of a Lease that went back in history.
    pub history: History,
    pub report: Report,
}

impl std::fmt::Debug for Coordination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordination")
            .field("namespace", &self.namespace)
            .field("group", &self.group)
            .field("identity", &self.identity)
            .field("shards", &self.shards)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// A name that no other process has had: that of the pod or host, and a random end.
pub fn identity(host: &str) -> String {
    let proper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let host: String = host.chars().map(proper).take(180).collect();
    let host = host.trim_matches('-');
    let host = if host.is_empty() { "process" } else { host };
    // The standard library seeds its hash maps from the system: random enough for a name.
    format!("{host}-{:016x}", RandomState::new().build_hasher().finish())
}

/// What a Lease stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Member,
    Shard(u32),
}

impl Coordination {
    pub(super) fn labels(&self, kind: Kind) -> BTreeMap<String, String> {
        let role = if kind == Kind::Member { MEMBER } else { SHARD };
        BTreeMap::from([
            ("app.kubernetes.io/managed-by".to_owned(), "perennial".to_owned()),
            (GROUP.to_owned(), self.group.clone()),
            (role.to_owned(), VERSION.to_owned()),
        ])
    }

    pub(super) fn notes(&self, kind: Kind) -> BTreeMap<String, String> {
        match kind {
            Kind::Member => BTreeMap::from([(SHARDS.to_owned(), self.shards.max(1).to_string())]),
            Kind::Shard(_) => BTreeMap::new(),
        }
    }
}

/// The name of a shard's Lease.
pub fn shard_lease(group: &str, shard: u32, shards: u32) -> String {
    if shards <= 1 { group.to_owned() } else { format!("{group}-shard-{shard}") }
}

/// What a Lease announces, if it is an announcement that we understand.
pub fn announcement(lease: &Lease) -> Option<Announcement> {
    lease.metadata.labels.as_ref()?.get(MEMBER).filter(|version| *version == VERSION)?;
    let shards = lease.metadata.annotations.as_ref()?.get(SHARDS)?.parse().ok()?;
    let seen = seen(lease);
    let member = Member { identity: seen.holder, shards, since: since(lease) };
    (!member.identity.is_empty()).then_some(Announcement { member, renewed: seen.renewed, lease: seen.lease })
}

/// Since when, by the API server's clock.
pub(super) fn since(lease: &Lease) -> i64 {
    lease.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::lease::object;
    use perennial_core::coordination::lease::{Act, Write};

    #[test]
    fn an_identity_is_unique_and_can_be_a_name() {
        let (a, b) = (identity("Pod_1.example"), identity("Pod_1.example"));

        assert_ne!(a, b);
        assert!(a.starts_with("pod-1-example-"));
        assert!(identity(&"x".repeat(300)).len() < 200);
        assert!(identity("__").starts_with("process-"));
    }

    #[test]
    fn one_shard_is_plain_leader_election() {
        assert_eq!(shard_lease("perennial", 0, 1), "perennial");
        assert_eq!(shard_lease("perennial", 3, 8), "perennial-shard-3");
    }

    #[test]
    fn what_is_announced_is_understood() {
        let labels = BTreeMap::from([(MEMBER.to_owned(), VERSION.to_owned())]);
        let notes = BTreeMap::from([(SHARDS.to_owned(), "8".to_owned())]);
        let write = Write {
            act: Act::Acquire,
            on: None,
            holder: "a".to_owned(),
            lease: Duration::from_secs(15),
            renewed: 7,
            transitions: 0,
        };

        let read = announcement(&object("perennial-member-a", &write, None, &labels, &notes)).unwrap();
        assert_eq!((read.member.identity.as_str(), read.member.shards, read.renewed), ("a", 8, Some(7)));

        let strange = BTreeMap::from([(SHARDS.to_owned(), "many".to_owned())]);
        assert!(announcement(&object("x", &write, None, &labels, &strange)).is_none());
        assert!(announcement(&Lease::default()).is_none());
    }
}
