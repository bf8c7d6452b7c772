//! Names, labels and annotations of Leases, which replicas of different versions agree on.

use super::lease::state;
use super::{clock::Clock, history::History};
use k8s_openapi::api::coordination::v1::Lease;
use perennial_core::coordination::members::Announcement;
use perennial_core::coordination::shards::Member;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Label of every Lease: the group of processes that share the work.
pub const GROUP: &str = "perennial.dev/group";
const MEMBER: &str = "perennial.dev/member";
/// Label of the Leases of shards.
pub const SHARD: &str = "perennial.dev/shard";
const SHARDS: &str = "perennial.dev/shards";
/// Annotation of an announcement: [`super::health::Health::impairments`], separated by commas.
pub const IMPAIRED: &str = "perennial.dev/impaired";
const VERSION: &str = "v1";

/// Called with the name of a Lease and whether it is held, whenever that changes
/// (`leader_election_master_status`).
pub type LeaseReport = Arc<dyn Fn(&str, bool) + Send + Sync>;

/// Returns why this process should not own shards.
pub type Impairments = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Part of this process in the coordination.
#[derive(Clone)]
pub struct Coordination {
    /// Without kube's default retry, which would delay a renewal by minutes:
    /// [`super::client::config`].
    pub client: kube::Client,
    pub namespace: String,
    /// Name of the group of processes that share the work, and prefix of the Leases' names.
    pub group: String,
    /// Unique name of this process: [`identity`].
    pub identity: String,
    pub shards: u32,
    pub lease: Duration,
    /// Source of `renewTime`, for people.
    pub clock: Clock,
    /// Receives the report of a Lease that went back in history.
    pub history: History,
    pub report: LeaseReport,
    pub impairments: Impairments,
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

/// Returns a name that no other process has: that of the pod or host, with a random suffix.
pub fn identity(host: &str) -> String {
    let proper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let host: String = host.chars().map(proper).take(180).collect();
    let host = host.trim_matches('-');
    let host = if host.is_empty() { "process" } else { host };
    // The standard library seeds its hash maps from the system, which is random enough for a name.
    format!("{host}-{:016x}", RandomState::new().build_hasher().finish())
}

/// The purpose of a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseKind {
    Member,
    Shard(u32),
}

impl Coordination {
    pub(super) fn labels(&self, kind: LeaseKind) -> BTreeMap<String, String> {
        let role = if kind == LeaseKind::Member { MEMBER } else { SHARD };
        BTreeMap::from([
            ("app.kubernetes.io/managed-by".to_owned(), "perennial".to_owned()),
            (GROUP.to_owned(), self.group.clone()),
            (role.to_owned(), VERSION.to_owned()),
        ])
    }

    pub(super) fn notes(&self, kind: LeaseKind) -> BTreeMap<String, String> {
        match kind {
            LeaseKind::Member => BTreeMap::from([
                (SHARDS.to_owned(), self.shards.max(1).to_string()),
                (IMPAIRED.to_owned(), (self.impairments)().join(",")),
            ]),
            LeaseKind::Shard(_) => BTreeMap::new(),
        }
    }
}

/// Returns the name of a shard's Lease.
pub fn shard_lease(group: &str, shard: u32, shards: u32) -> String {
    if shards <= 1 { group.to_owned() } else { format!("{group}-shard-{shard}") }
}

/// Decodes the announcement of a member. Returns `None` for other Leases and unknown versions.
pub fn announcement(lease: &Lease) -> Option<Announcement> {
    lease.metadata.labels.as_ref()?.get(MEMBER).filter(|version| *version == VERSION)?;
    let annotations = lease.metadata.annotations.as_ref()?;
    let shards = annotations.get(SHARDS)?.parse().ok()?;
    let impaired = annotations.get(IMPAIRED).is_some_and(|resources| !resources.is_empty());
    let state = state(lease);
    let member = Member { identity: state.holder, shards, since: since(lease), impaired };
    (!member.identity.is_empty()).then_some(Announcement { member, renewed: state.renewed, lease: state.lease })
}

/// Returns the creation time of a Lease, by the API server's clock.
pub(super) fn since(lease: &Lease) -> i64 {
    lease.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::lease::object;
    use perennial_core::coordination::lease::{LeaseWrite, WriteKind};

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
    fn an_announcement_reads_back_the_same() {
        let labels = BTreeMap::from([(MEMBER.to_owned(), VERSION.to_owned())]);
        let notes = BTreeMap::from([(SHARDS.to_owned(), "8".to_owned())]);
        let write = LeaseWrite {
            kind: WriteKind::Acquire,
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
