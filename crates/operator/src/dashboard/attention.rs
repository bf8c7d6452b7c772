//! Problems that need attention, most severe first, each with a command for details.

use perennial_core::keeper::status::KeepState;
use serde::Serialize;
use serde_json::Value;

use super::{Dashboard, Server, freshness::Stale, overview::OverviewState, shell_quoted};
use crate::{
    inspect::{leases::Attendance, states::WorkloadState},
    keeper::cache::Row,
};

/// Maximum number of names in a problem.
const NAMED: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    level: AttentionLevel,
    title: String,
    detail: String,
    /// Names of nodes, or keys of workloads.
    about: Vec<String>,
    /// Address of the list of all of them.
    link: String,
    command: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum AttentionLevel {
    Bad,
    Warn,
    Note,
}

pub(super) fn list(dashboard: &Dashboard, rows: &[Row], overview: &OverviewState) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(overview.stale.as_ref().map(about_staleness));
    problems.extend(without_owner(dashboard, overview));
    problems.extend(about_nodes(rows));
    problems.extend(about_policies(dashboard));
    problems.extend(about_workloads(overview));
    problems.sort_by_key(|problem| problem.level);
    problems
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn about_staleness(stale: &Stale) -> Problem {
    Problem {
        level: AttentionLevel::Bad,
        title: stale.title.clone(),
        detail: format!("Everything on this page may be outdated: {}.", stale.why),
        about: Vec::new(),
        link: String::new(),
        command: "perennial check".to_owned(),
    }
}

/// Shards that no replica owns.
fn without_owner(dashboard: &Dashboard, overview: &OverviewState) -> Option<Problem> {
    let problem = |title: &str, detail: String| Problem {
        level: AttentionLevel::Bad,
        title: title.to_owned(),
        detail,
        about: Vec::new(),
        link: String::new(),
        command: "perennial check".to_owned(),
    };
    match &overview.groups {
        Err(_) if overview.stale.is_some() => None,
        Err(why) => {
            Some(Problem { level: AttentionLevel::Warn, ..problem("The owners of shards are unknown", why.clone()) })
        }
        // An operator that serves this page runs, even without a Lease.
        Ok(groups) if !has_live_member(groups) && dashboard.server == Server::Command => {
            // Without leader election and in a dry run, operators hold no Lease.
            (dashboard.attendance == Attendance::Leases).then(|| {
                problem(
                    "No operator is running",
                    "No operator holds a Lease. Deleted nodes are not captured, and new nodes are not restored."
                        .to_owned(),
                )
            })
        }
        Ok(_) if !overview.unheld.is_empty() => {
            Some(problem("Some nodes are not reconciled", format!("No replica holds {}.", overview.unheld.join(", "))))
        }
        Ok(_) => None,
    }
}

fn has_live_member(groups: &[Value]) -> bool {
    let members = groups.iter().filter_map(|group| group["members"].as_array()).flatten();
    members.into_iter().any(|member| member["alive"] == true)
}

fn about_nodes(rows: &[Row]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |level, found: Vec<&Row>, [one, many]: [&str; 2], detail: &str, link: &str| {
        let Some(first) = found.first() else { return };
        problems.push(Problem {
            level,
            title: counted(found.len(), one, many),
            detail: detail.to_owned(),
            about: found.iter().take(NAMED).map(|row| row.name.to_string()).collect(),
            link: link.to_owned(),
            command: format!("perennial explain {}", shell_quoted(&first.name)),
        });
    };
    let in_state = |state: KeepState| rows.iter().filter(|row| row.state == state).collect::<Vec<_>>();
    add(
        AttentionLevel::Bad,
        rows.iter().filter(|row| row.bad).collect(),
        ["record is quarantined", "records are quarantined"],
        "Quarantined records are neither restored nor overwritten.",
        "",
    );
    add(
        AttentionLevel::Bad,
        in_state(KeepState::Contested),
        ["node has the same identity as another node", "nodes have the same identity as other nodes"],
        "Nothing is restored while two live nodes have the same identity.",
        "#/nodes?state=Contested",
    );
    add(
        AttentionLevel::Warn,
        in_state(KeepState::Unsettled),
        ["node waits for its restore", "nodes wait for their restore"],
        "Nodes are restored within moments. If not, the command below shows why.",
        "#/nodes?state=Unsettled",
    );
    add(
        AttentionLevel::Warn,
        in_state(KeepState::Unidentified),
        ["node has no identity yet", "nodes have no identity yet"],
        "Nothing is captured or restored before the node can be identified.",
        "#/nodes?state=Unidentified",
    );
    add(
        AttentionLevel::Note,
        in_state(KeepState::Waiting),
        ["node has an unknown machine", "nodes have an unknown machine"],
        "Protected keys are restored when the machine is known.",
        "#/nodes?state=Waiting",
    );
    problems
}

fn about_policies(dashboard: &Dashboard) -> Option<Problem> {
    let entries = dashboard.parts.keeper.policies().entries();
    let bad: Vec<String> =
        entries.iter().filter(|(_, entry)| entry.read.is_err()).map(|(name, _)| name.clone()).collect();
    let first = bad.first()?;
    Some(Problem {
        level: AttentionLevel::Warn,
        title: counted(bad.len(), "KeepPolicy is invalid", "KeepPolicies are invalid"),
        detail: format!("Ignored: {}.", bad.join(", ")),
        about: Vec::new(),
        link: "#/policies".to_owned(),
        command: format!("kubectl describe keeppolicy {}", shell_quoted(first)),
    })
}

fn about_workloads(overview: &OverviewState) -> Vec<Problem> {
    let mut problems = Vec::new();
    let sums = &overview.workloads;
    for (state, level, [one, many], detail) in [
        (
            WorkloadState::Invalid,
            AttentionLevel::Warn,
            ["workload is not managed", "workloads are not managed"],
            "Their placement annotations are invalid.".to_owned(),
        ),
        (
            WorkloadState::Fallback,
            AttentionLevel::Warn,
            ["workload runs on-demand: no spot capacity", "workloads run on-demand: no spot capacity"],
            "Spot is retried with growing pauses.".to_owned(),
        ),
        (
            WorkloadState::Drift,
            AttentionLevel::Note,
            ["workload has replicas in the wrong class", "workloads have replicas in the wrong class"],
            about_moves(sums.states.get(&WorkloadState::Drift).copied().unwrap_or_default(), sums.staying),
        ),
    ] {
        let Some(keys) = sums.keys.get(&state).filter(|keys| !keys.is_empty()) else { continue };
        problems.push(Problem {
            level,
            title: counted(sums.states.get(&state).copied().unwrap_or_default(), one, many),
            detail,
            about: keys.iter().take(NAMED).cloned().collect(),
            link: format!("#/workloads?state={state}"),
            command: keys.first().map(|key| super::workload::explain_command(key)).unwrap_or_default(),
        });
    }
    problems
}

/// Describes whether the replicas in the wrong class are moved.
fn about_moves(workloads: usize, staying: usize) -> String {
    const WHY: &str = "moves are paused, or not enabled (move-statefulset-pods)";
    if staying == 0 {
        "They are moved one at a time.".to_owned()
    } else if staying == workloads {
        format!("They stay where they are: {WHY}.")
    } else {
        format!("They are moved one at a time; those of {staying} workload(s) stay where they are: {WHY}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::NodeKey;

    fn row(name: &str, state: KeepState, bad: bool) -> Row {
        Row { name: NodeKey::from(name), state, record: None, bad }
    }

    #[test]
    fn leases_of_dead_replicas_are_no_running_operator() {
        let group = |alive: &[bool]| {
            let members: Vec<Value> = alive.iter().map(|alive| serde_json::json!({"alive": alive})).collect();
            serde_json::json!({"members": members})
        };
        assert!(!has_live_member(&[]));
        assert!(!has_live_member(&[group(&[false, false]), group(&[])]));
        assert!(has_live_member(&[group(&[false]), group(&[false, true])]));
    }

    #[test]
    fn healthy_nodes_need_no_attention() {
        let rows = [
            row("a", KeepState::Current, false),
            row("b", KeepState::Away, false),
            row("c", KeepState::Pending, false),
        ];
        assert_eq!(about_nodes(&rows), []);
    }

    #[test]
    fn detail_distinguishes_moved_and_staying_replicas() {
        let details = [(3, 0), (3, 3), (3, 1)].map(|(workloads, staying)| about_moves(workloads, staying));
        let parts = details.map(|text| (text.contains("moved one at a time"), text.contains("stay where they are")));
        assert_eq!(parts, [(true, false), (false, true), (true, true)]);
    }

    #[test]
    fn problem_counts_all_nodes_and_names_the_first() {
        let rows: Vec<Row> = (0..7).map(|n| row(&format!("n{n}"), KeepState::Unsettled, n == 6)).collect();
        let problems = about_nodes(&rows);
        assert_eq!(problems.len(), 2);
        assert_eq!(
            (problems[0].level, problems[0].about.as_slice()),
            (AttentionLevel::Bad, ["n6".to_owned()].as_slice())
        );
        assert!(problems[1].title.starts_with("7 ") && problems[1].about.len() == NAMED);
        assert_eq!(problems[1].command, "perennial explain n0");
    }
}
