//! Check of the Leases: whether replicas run, hold every shard and can read and write.

use std::fmt::Write as _;

use super::{CheckResult, remedy};
use crate::{
    inspect::{
        leases::{LeaseSnapshot, ReplicaGroup, namespaces_of_live_replicas},
        session::Session,
    },
    runtime::health::UNWRITABLE,
};

pub(super) async fn check(session: &Session) -> CheckResult {
    let namespace = session.settings.lease_namespace();
    let found = match LeaseSnapshot::read(&session.client, namespace).await {
        Ok(found) => found,
        Err(error) => {
            let fix = remedy(error.category(), "list leases in this namespace");
            return CheckResult::fail("leases", error.to_string(), fix);
        }
    };
    if found.groups.is_empty() && session.settings.controller.dry_run {
        let message = "dry run: an operator holds no Lease, so this does not show whether one is running";
        return CheckResult::warn("leases", message, "read the log of the operator");
    }
    if found.groups.is_empty() {
        let others = namespaces_of_live_replicas(&session.client).await;
        let mut message = format!("no operator holds a Lease in namespace {namespace}");
        if let Some(other) = others.first() {
            let _ = write!(message, "; one runs in namespace {other}: use --system-namespace {other}");
        }
        return if session.settings.controller.leader_election.enabled {
            CheckResult::fail(
                "leases",
                message,
                "start the operator or read its log; select another namespace with --system-namespace",
            )
        } else {
            CheckResult::warn("leases", message, "leader election is off: make sure that only one operator runs")
        };
    }
    let unheld: Vec<String> = found.groups.iter().flat_map(ReplicaGroup::unheld).collect();
    if !unheld.is_empty() {
        let message = format!("no replica holds {}", unheld.join(", "));
        return CheckResult::fail(
            "leases",
            message,
            "read the operator's log; the Lease of a crashed replica expires after its duration",
        );
    }
    let impaired = found.groups.iter().flat_map(|group| &group.members).filter(|member| member.alive);
    let impaired: Vec<String> = impaired
        .filter_map(|member| Some(format!("{} {}", member.identity, cannot(member.impaired.as_ref()?))))
        .collect();
    if !impaired.is_empty() {
        return CheckResult::fail(
            "leases",
            impaired.join("; "),
            "what depends on these resources is paused; check the API server and the permissions of the operator, and read its log",
        );
    }
    let members: usize =
        found.groups.iter().map(|group| group.members.iter().filter(|member| member.alive).count()).sum();
    let shards: usize = found.groups.iter().map(|group| group.shards.len()).sum();
    CheckResult::pass("leases", format!("{members} replica(s) hold {shards} shard(s)"))
}

/// Returns what a replica announces that it cannot do.
fn cannot(impairments: &str) -> String {
    let (write, read): (Vec<&str>, Vec<&str>) = impairments.split(',').partition(|one| one.starts_with(UNWRITABLE));
    let read = (!read.is_empty()).then(|| format!("cannot read {}", read.join(",")));
    let write: Vec<&str> = write.into_iter().filter_map(|one| one.strip_prefix(UNWRITABLE)).collect();
    let write = (!write.is_empty()).then(|| format!("cannot write {}", write.join(",")));
    read.into_iter().chain(write).collect::<Vec<_>>().join(" and ")
}
