//! Replicas and shard owners, read from the Leases and judged by the API server's clock.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use http::{Request, header::DATE};
use jiff::{Timestamp, fmt::rfc2822};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::ListParams};
use perennial_core::{
    config::{Role, Settings},
    coordination::shards::{shard_of, shards_in_force},
};

use super::format::span;
use crate::runtime::{
    error_category::{self, Category},
    lease::state,
    lease_metadata::{GROUP, IMPAIRED, SHARD, announcement, shard_lease},
};

/// Name of the group of replicas with every role.
const ALL_ROLES: &str = "perennial";

/// Leases in the namespace of Perennial at one time of the API server. Without those of replicas whose
/// roles others have taken over.
#[derive(Debug)]
pub(crate) struct LeaseSnapshot {
    pub(crate) groups: Vec<ReplicaGroup>,
    pub(crate) now: Timestamp,
}

/// Replicas that share the same shards.
#[derive(Debug)]
pub(crate) struct ReplicaGroup {
    pub(crate) name: String,
    pub(crate) members: Vec<Replica>,
    pub(crate) shards: Vec<ShardLease>,
    /// Time of the last renewal of any of its Leases in microseconds since 1970.
    last_renewed: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) identity: String,
    pub(crate) shards: u32,
    pub(crate) since: i64,
    /// Time of the last renewal in microseconds since 1970.
    pub(crate) renewed: i64,
    /// Seconds since the last renewal.
    pub(crate) silent: i64,
    pub(crate) alive: bool,
    /// Resources that it cannot read or write, from its Lease.
    pub(crate) impaired: Option<String>,
}

#[derive(Debug)]
pub(crate) struct ShardLease {
    pub(crate) lease: String,
    /// Empty if the Lease has no holder.
    pub(crate) holder: String,
    pub(crate) silent: i64,
    /// The holder renewed the Lease in time.
    pub(crate) held: bool,
    pub(crate) transitions: i32,
}

/// Owner of the shard of a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ShardOwner {
    By {
        holder: String,
        lease: String,
    },
    /// There is no Lease.
    NoOperator,
    /// The Lease of the shard has no holder.
    NoHolder {
        lease: String,
    },
    /// The holder stopped renewing the Lease.
    Silent {
        lease: String,
        holder: String,
        seconds: i64,
    },
}

/// State of the operators according to their Leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attendance {
    /// Every operator holds Leases.
    Leases,
    /// Without leader election no operator holds a Lease.
    Unknown,
    /// No operator writes.
    DryRun,
}

impl Attendance {
    pub(crate) fn of(settings: &Settings) -> Self {
        match &settings.controller {
            controller if controller.dry_run => Self::DryRun,
            controller if controller.leader_election.enabled => Self::Leases,
            _ => Self::Unknown,
        }
    }
}

/// Returns the API server's time.
pub(crate) async fn server_time(client: &Client) -> anyhow::Result<Timestamp> {
    let request = Request::get("/version").body(kube::client::Body::empty())?;
    let answer = client.send(request).await.map_err(|error| anyhow::anyhow!(error_category::message(&error)))?;
    let date = answer.headers().get(DATE).context("the API server sent no Date header")?;
    Ok(rfc2822::parse(date.to_str()?)?.timestamp())
}

/// The Leases could not be read.
#[derive(Debug, thiserror::Error)]
#[error("could not list leases in namespace {namespace}: {}", error_category::message(cause))]
pub(crate) struct LeaseListError {
    namespace: String,
    cause: Box<kube::Error>,
}

impl LeaseListError {
    pub(crate) fn category(&self) -> Category {
        Category::of(&self.cause)
    }
}

/// Returns the namespaces in which a live replica renews its Lease. Empty without permission to
/// list all Leases.
pub(crate) async fn namespaces_of_live_replicas(client: &Client) -> BTreeSet<String> {
    let Ok(all) = LeaseSnapshot::read_all(client).await else { return BTreeSet::new() };
    all.into_iter()
        .filter(|(_, snapshot)| snapshot.live_members().next().is_some())
        .map(|(namespace, _)| namespace)
        .collect()
}

impl LeaseSnapshot {
    pub(crate) async fn read(client: &Client, namespace: &str) -> Result<Self, LeaseListError> {
        let now = server_time(client).await.unwrap_or_else(|_| Timestamp::now());
        let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let leases = api
            .list(&ListParams::default().labels(GROUP))
            .await
            .map_err(|error| LeaseListError { namespace: namespace.to_owned(), cause: Box::new(error) })?;
        Ok(Self::of(leases.items, now))
    }

    /// Reads the Leases of every namespace.
    pub(crate) async fn read_all(client: &Client) -> Result<BTreeMap<String, Self>, kube::Error> {
        let now = server_time(client).await.unwrap_or_else(|_| Timestamp::now());
        let api: Api<Lease> = Api::all(client.clone());
        let mut leases: BTreeMap<String, Vec<Lease>> = BTreeMap::new();
        for lease in api.list(&ListParams::default().labels(GROUP)).await?.items {
            leases.entry(lease.metadata.namespace.clone().unwrap_or_default()).or_default().push(lease);
        }
        Ok(leases.into_iter().map(|(namespace, leases)| (namespace, Self::of(leases, now))).collect())
    }

    /// Returns the replicas that renewed their Lease in time.
    pub(crate) fn live_members(&self) -> impl Iterator<Item = &Replica> {
        self.groups.iter().flat_map(|group| &group.members).filter(|member| member.alive)
    }

    fn of(leases: Vec<Lease>, now: Timestamp) -> Self {
        let mut groups: BTreeMap<String, Vec<Lease>> = BTreeMap::new();
        for lease in leases {
            let group = lease.metadata.labels.as_ref().and_then(|labels| labels.get(GROUP)).cloned();
            groups.entry(group.unwrap_or_default()).or_default().push(lease);
        }
        let mut groups: Vec<ReplicaGroup> =
            groups.into_iter().map(|(name, leases)| ReplicaGroup::of(name, &leases, now)).collect();
        let superseded: BTreeSet<String> =
            groups.iter().filter(|group| group.is_superseded(&groups)).map(|group| group.name.clone()).collect();
        groups.retain(|group| !superseded.contains(&group.name));
        Self { groups, now }
    }

    /// Returns the owner of the shard of a node, among replicas with this role. While roles move to
    /// other replicas, one that holds the shard is preferred.
    pub(crate) fn owner(&self, node: &str, role: Role) -> ShardOwner {
        let owners = self.groups.iter().filter(|group| group.has(role)).map(|group| group.owner(node));
        let found = owners.reduce(|found, other| if found.is_attended() { found } else { other });
        found.unwrap_or(ShardOwner::NoOperator)
    }
}

impl ReplicaGroup {
    fn of(name: String, leases: &[Lease], now: Timestamp) -> Self {
        let (mut members, mut shards, mut last_renewed) = (Vec::new(), Vec::new(), None);
        for lease in leases {
            let seen = state(lease);
            last_renewed = last_renewed.max(seen.renewed);
            let silent = seen.renewed.map_or(i64::MAX, |at| (now.as_microsecond() - at).max(0) / 1_000_000);
            let limit = seen.lease.map_or(15, |lease| i64::try_from(lease.as_secs()).unwrap_or(i64::MAX));
            if let Some(announced) = announcement(lease) {
                let (identity, since) = (announced.member.identity, announced.member.since);
                let (shards, renewed) = (announced.member.shards, seen.renewed.unwrap_or_default());
                let annotations = lease.metadata.annotations.as_ref();
                let impaired = annotations.and_then(|annotations| annotations.get(IMPAIRED)).cloned();
                let impaired = impaired.filter(|resources| !resources.is_empty());
                let alive = silent <= limit;
                members.push(Replica { identity, shards, since, renewed, silent, alive, impaired });
            } else if lease.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(SHARD)) {
                let held = !seen.holder.is_empty() && silent <= limit;
                let lease = lease.metadata.name.clone().unwrap_or_default();
                shards.push(ShardLease { lease, holder: seen.holder, silent, held, transitions: seen.transitions });
            }
        }
        members.sort_by(|a, b| a.since.cmp(&b.since).then_with(|| a.identity.cmp(&b.identity)));
        shards.sort_by_key(ShardLease::number);
        let mut group = Self { name, members, shards, last_renewed };
        // Ignores Leases of an earlier number of shards.
        let count = group.shard_count();
        let wanted: BTreeSet<String> = (0..count).map(|shard| shard_lease(&group.name, shard, count)).collect();
        group.shards.retain(|shard| wanted.contains(&shard.lease));
        group
    }

    /// Whether its replicas have the role: `perennial` has all, `perennial-capture-restore` two.
    fn has(&self, role: Role) -> bool {
        self.name == ALL_ROLES || self.name.split('-').any(|part| part == role.as_str())
    }

    fn is_alive(&self) -> bool {
        self.members.iter().any(|member| member.alive)
    }

    /// Whether its Leases are left from replicas whose roles others have taken over.
    fn is_superseded(&self, all: &[Self]) -> bool {
        let takes_over = |other: &Self| other.is_alive() || other.last_renewed > self.last_renewed;
        let is_taken =
            |role: Role| all.iter().any(|other| other.name != self.name && other.has(role) && takes_over(other));
        // Placement needs no successor: it may be disabled by now.
        let keeps = self.has(Role::Capture) || self.has(Role::Restore);
        let roles: &[Role] = if keeps { &[Role::Capture, Role::Restore] } else { &[Role::Placement] };
        !self.is_alive() && roles.iter().copied().filter(|role| self.has(*role)).all(is_taken)
    }

    fn owner(&self, node: &str) -> ShardOwner {
        let lease = shard_lease(&self.name, shard_of(node, self.shard_count()), self.shard_count());
        match self.shards.iter().find(|shard| shard.lease == lease) {
            None if self.members.is_empty() => ShardOwner::NoOperator,
            None => ShardOwner::NoHolder { lease },
            Some(shard) if shard.held => ShardOwner::By { holder: shard.holder.clone(), lease },
            Some(shard) if shard.holder.is_empty() => ShardOwner::NoHolder { lease },
            Some(shard) => ShardOwner::Silent { lease, holder: shard.holder.clone(), seconds: shard.silent },
        }
    }

    /// Number of shards in use.
    pub(crate) fn shard_count(&self) -> u32 {
        let members: Vec<perennial_core::coordination::shards::Member> = self
            .members
            .iter()
            .filter(|member| member.alive)
            .map(|member| perennial_core::coordination::shards::Member {
                identity: member.identity.clone(),
                shards: member.shards,
                since: member.since,
                impaired: member.impaired.is_some(),
            })
            .collect();
        let announced = shards_in_force(&members);
        announced.unwrap_or_else(|| u32::try_from(self.shards.len().max(1)).unwrap_or(1))
    }

    /// Leases of shards without an owner.
    pub(crate) fn unheld(&self) -> Vec<String> {
        let count = self.shard_count();
        let held = |name: &String| self.shards.iter().any(|shard| shard.held && shard.lease == *name);
        (0..count).map(|shard| shard_lease(&self.name, shard, count)).filter(|name| !held(name)).collect()
    }
}

impl ShardLease {
    /// Index of the shard.
    pub(crate) fn number(&self) -> u32 {
        self.lease.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
    }
}

impl ShardOwner {
    /// Returns the cause of a pending write, as a sentence.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::By { holder, lease } => {
                format!("{holder} holds {lease} and should write it soon; if not, check its log and the Events of the node")
            }
            Self::NoOperator => {
                "no operator holds a Lease: start the operator or check its log (with --dry-run or without leader election it holds no Lease)".to_owned()
            }
            Self::NoHolder { lease } => format!("no replica holds the Lease {lease}, so the shard of this node is not reconciled"),
            Self::Silent { lease, holder, seconds } => format!(
                "{holder} has not renewed the Lease {lease} for {}: the operator is not running or not connected",
                span(*seconds)
            ),
        }
    }

    /// Returns why no operator works on the node.
    pub(crate) fn unattended(&self, attendance: Attendance) -> Option<String> {
        match attendance {
            Attendance::Leases => (!self.is_attended()).then(|| self.sentence()),
            Attendance::Unknown => None,
            Attendance::DryRun => Some("the operator only reports what it would do (controller.dryRun)".to_owned()),
        }
    }

    pub(crate) fn is_attended(&self) -> bool {
        matches!(self, Self::By { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    /// A group with one shard, whose replica has not renewed its Leases for some seconds.
    fn group(name: &str, silent: i64) -> ReplicaGroup {
        let alive = silent <= 15;
        let (identity, lease) = (format!("{name}-0"), name.to_owned());
        let (renewed, holder) = ((NOW - silent) * 1_000_000, identity.clone());
        let member = Replica { identity, shards: 1, since: 0, renewed, silent, alive, impaired: None };
        let shard = ShardLease { lease, holder, silent, held: alive, transitions: 0 };
        ReplicaGroup { name: name.to_owned(), members: vec![member], shards: vec![shard], last_renewed: Some(renewed) }
    }

    fn superseded(groups: &[ReplicaGroup]) -> Vec<&str> {
        groups.iter().filter(|group| group.is_superseded(groups)).map(|group| group.name.as_str()).collect()
    }

    #[test]
    fn leases_are_superseded_when_every_role_is_taken_over() {
        let (former, capture) = (group("perennial", 60), group("perennial-capture", 1));
        let rest = group("perennial-restore-placement", 1);
        assert_eq!(superseded(&[former, capture, rest]), ["perennial"]);
        // The replicas that took over may have failed since: they are missing, not the former ones.
        let all = [group("perennial", 60), group("perennial-capture", 30), group("perennial-restore-placement", 1)];
        assert_eq!(superseded(&all), ["perennial"]);
        // And back to one Deployment.
        let all = [group("perennial", 1), group("perennial-capture", 60), group("perennial-restore-placement", 60)];
        assert_eq!(superseded(&all), ["perennial-capture", "perennial-restore-placement"]);
        let all = [group("perennial", 60), group("perennial-capture", 1), group("perennial-restore", 1)];
        assert_eq!(superseded(&all), ["perennial"], "placement may be off");
        // A role without a live replica is missing.
        let all = [group("perennial", 60), group("perennial-capture", 1)];
        assert_eq!(superseded(&all), [""; 0]);
        assert_eq!(superseded(&[group("perennial", 60)]), [""; 0]);
        assert_eq!(superseded(&[group("perennial", 1), group("perennial-capture", 1)]), [""; 0]);
    }

    #[test]
    fn the_owner_of_a_node_has_the_role() {
        let groups = vec![group("perennial", 60), group("perennial-capture", 1), group("perennial-restore", 1)];
        let leases = LeaseSnapshot { groups, now: Timestamp::from_second(NOW).unwrap() };
        let by = |name: &str| ShardOwner::By { holder: format!("{name}-0"), lease: name.to_owned() };
        assert_eq!(leases.owner("n1", Role::Capture), by("perennial-capture"));
        assert_eq!(leases.owner("n1", Role::Restore), by("perennial-restore"));
        assert!(matches!(leases.owner("n1", Role::Placement), ShardOwner::Silent { .. }));
        let none = LeaseSnapshot { groups: Vec::new(), now: leases.now };
        assert_eq!(none.owner("n1", Role::Capture), ShardOwner::NoOperator);
    }
}
