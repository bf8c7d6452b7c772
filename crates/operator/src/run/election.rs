//! The Leases that this process takes part in, by its roles.

use std::{collections::BTreeSet, sync::Arc};

use perennial_core::config::{Role, Settings};

use crate::runtime::{
    coordinator::coordinate,
    environment::Environment,
    jitter::Jitter,
    lease_metadata::Coordination,
    lease_observer::{ObservedLeases, observe_owners},
    ownership::Ownership,
    tasks::Task,
};

/// Takes part in the election for shards. Without leader election this process owns every shard.
pub(super) fn elect(settings: &Settings, env: &Environment) -> (Ownership, Vec<Task>) {
    let (controller, election) = (&settings.controller, &settings.controller.leader_election);
    let shards = u32::from(controller.shards);
    if !election.enabled || controller.dry_run {
        return (Ownership::all(shards), Vec::new());
    }
    let mut tasks = Vec::new();
    let ours = lease_group(&controller.roles).map(|group| {
        let (metrics, health) = (env.metrics.clone(), env.health.clone());
        let coordination = Coordination {
            client: env.leases.clone(),
            namespace: settings.lease_namespace().to_owned(),
            group,
            identity: env.identity.clone(),
            shards,
            lease: election.lease_duration,
            clock: env.clock.clone(),
            history: env.history.clone(),
            report: Arc::new(move |lease, held| metrics.leads(lease, held)),
            impairments: Arc::new(move || health.impairments()),
        };
        let (ownership, task) = coordinate(coordination, env.drained.clone());
        tasks.push(Task::new("leader election", task));
        ownership
    });
    if let Some(ours) = &ours
        && controller.roles.contains(&Role::Placement)
    {
        return (ours.clone(), tasks);
    }
    // Admission gates a pod only where a replica with the placement role holds its shard.
    let observed = ObservedLeases {
        client: env.leases.clone(),
        namespace: settings.lease_namespace().to_owned(),
        groups: placing_groups(),
        shards,
        lease: election.lease_duration,
    };
    let (others, task) = observe_owners(&observed, &Jitter::seeded(rand::random()), &env.stop);
    tasks.push(Task::new("observation of placement Leases", task));
    let ownership = match ours {
        Some(ours) => ours.with_owners_from(&others),
        None => others,
    };
    (ownership, tasks)
}

/// Prefix of the Leases of all processes with the same roles. A process that only serves admission
/// has none.
fn lease_group(roles: &BTreeSet<Role>) -> Option<String> {
    let all = [Role::Capture, Role::Restore, Role::Placement];
    let ours: Vec<&str> = all.iter().filter(|role| roles.contains(role)).map(|role| role.as_str()).collect();
    match ours.len() {
        0 => None,
        3 => Some("perennial".to_owned()),
        _ => Some(format!("perennial-{}", ours.join("-"))),
    }
}

/// Groups of all processes that have the placement role, whatever their other roles.
pub(crate) fn placing_groups() -> Vec<String> {
    let others: [&[Role]; 4] = [&[], &[Role::Capture], &[Role::Restore], &[Role::Capture, Role::Restore]];
    let roles = others.into_iter().map(|others| others.iter().copied().chain([Role::Placement]).collect());
    roles.filter_map(|roles: BTreeSet<Role>| lease_group(&roles)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_observes_the_leases_of_every_process_that_places() {
        let group = |roles: &[Role]| lease_group(&roles.iter().copied().collect());
        let everything = [Role::Capture, Role::Restore, Role::Placement, Role::Webhooks];
        for roles in [&everything[..], &[Role::Placement], &[Role::Restore, Role::Placement, Role::Webhooks]] {
            assert!(placing_groups().contains(&group(roles).unwrap()), "{roles:?}");
        }
        assert_eq!(group(&[Role::Webhooks]), None);
        assert!(!placing_groups().contains(&group(&[Role::Capture, Role::Restore]).unwrap()));
    }
}
