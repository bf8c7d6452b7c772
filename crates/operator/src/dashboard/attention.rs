//! What needs a person, the worst first: each with what it means, whom it is about and the command that says more.

use serde::Serialize;

use super::{Dashboard, Server, overview::Known, quoted};
use crate::keeper::cache::Row;

/// So many of those that it is about are named.
const NAMED: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Matter {
    level: Level,
    title: String,
    detail: String,
    /// Names of nodes, or keys of workloads.
    about: Vec<String>,
    /// Where the page shows all of them.
    link: String,
    command: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Bad,
    Warn,
    Note,
}

pub(super) fn list(dashboard: &Dashboard, rows: &[Row], known: &Known) -> Vec<Matter> {
    let mut matters = Vec::new();
    matters.extend(nobody(dashboard, known));
    matters.extend(about_nodes(rows));
    matters.extend(about_policies(dashboard));
    matters.extend(about_workloads(known));
    matters.sort_by_key(|matter| matter.level);
    matters
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Nobody works on some nodes.
fn nobody(dashboard: &Dashboard, known: &Known) -> Option<Matter> {
    let matter = |title: &str, detail: String| Matter {
        level: Level::Bad,
        title: title.to_owned(),
        detail,
        about: Vec::new(),
        link: String::new(),
        command: "perennial check".to_owned(),
    };
    match &known.groups {
        Err(why) => Some(Matter { level: Level::Warn, ..matter("It is not known who works", why.clone()) }),
        // One that serves this page works, Lease or not.
        Ok(groups) if groups.is_empty() && dashboard.server == Server::Command => Some(matter(
            "No operator runs",
            "There is no Lease of one. Nodes that leave now are not captured, and those that return are given nothing."
                .to_owned(),
        )),
        Ok(_) if !known.unheld.is_empty() => {
            Some(matter("Nobody works on some nodes", format!("No replica holds {}.", known.unheld.join(", "))))
        }
        Ok(_) => None,
    }
}

fn about_nodes(rows: &[Row]) -> Vec<Matter> {
    let mut matters = Vec::new();
    let mut say = |level, found: Vec<&Row>, [one, many]: [&str; 2], detail: &str, link: &str| {
        let Some(first) = found.first() else { return };
        matters.push(Matter {
            level,
            title: counted(found.len(), one, many),
            detail: detail.to_owned(),
            about: found.iter().take(NAMED).map(|row| row.name.to_string()).collect(),
            link: link.to_owned(),
            command: format!("perennial explain {}", quoted(&first.name)),
        });
    };
    let standing = |state: &str| rows.iter().filter(|row| row.state == state).collect::<Vec<_>>();
    say(
        Level::Bad,
        rows.iter().filter(|row| row.bad).collect(),
        ["record cannot be trusted", "records cannot be trusted"],
        "Quarantined: nothing is restored from such bytes, and nothing overwrites them.",
        "",
    );
    say(
        Level::Bad,
        standing("Contested"),
        ["node claims an identity that another one has", "nodes claim an identity that others have"],
        "Nothing is restored while two live nodes say to be the same.",
        "#/nodes?state=Contested",
    );
    say(
        Level::Warn,
        standing("Unsettled"),
        ["node waits for what its record has", "nodes wait for what their records have"],
        "It is given within moments, unless something is in the way.",
        "#/nodes?state=Unsettled",
    );
    say(
        Level::Warn,
        standing("Unidentified"),
        ["node does not say who it is", "nodes do not say who they are"],
        "Nothing is kept or given before that is known.",
        "#/nodes?state=Unidentified",
    );
    say(
        Level::Note,
        standing("Waiting"),
        ["node has not shown which machine it is", "nodes have not shown which machines they are"],
        "Protected keys wait for that.",
        "#/nodes?state=Waiting",
    );
    matters
}

fn about_policies(dashboard: &Dashboard) -> Option<Matter> {
    let entries = dashboard.parts.keeper.policies.entries();
    let bad: Vec<String> =
        entries.iter().filter(|(_, entry)| entry.read.is_err()).map(|(name, _)| name.clone()).collect();
    let first = bad.first()?;
    Some(Matter {
        level: Level::Warn,
        title: counted(bad.len(), "KeepPolicy cannot be read", "KeepPolicies cannot be read"),
        detail: format!("Ignored: {}.", bad.join(", ")),
        about: Vec::new(),
        link: String::new(),
        command: format!("kubectl describe keeppolicy {}", quoted(first)),
    })
}

fn about_workloads(known: &Known) -> Vec<Matter> {
    let mut matters = Vec::new();
    let sums = &known.workloads;
    for (state, level, [one, many], detail) in [
        (
            "Invalid",
            Level::Warn,
            ["workload is left alone", "workloads are left alone"],
            "What is asked for cannot be obeyed.".to_owned(),
        ),
        (
            "Fallback",
            Level::Warn,
            ["workload runs on-demand for lack of spot", "workloads run on-demand for lack of spot"],
            "Spot is tried again with growing pauses.".to_owned(),
        ),
        (
            "Drift",
            Level::Note,
            ["workload has replicas in the wrong class", "workloads have replicas in the wrong class"],
            about_moves(sums.states.get("Drift").copied().unwrap_or_default(), sums.staying),
        ),
    ] {
        let Some(keys) = sums.keys.get(state).filter(|keys| !keys.is_empty()) else { continue };
        matters.push(Matter {
            level,
            title: counted(sums.states.get(state).copied().unwrap_or_default(), one, many),
            detail,
            about: keys.iter().take(NAMED).cloned().collect(),
            link: format!("#/workloads?state={state}"),
            command: keys.first().map(|key| super::workload::explain_command(key)).unwrap_or_default(),
        });
    }
    matters
}

/// What becomes of replicas in the wrong class, where those of some workloads are not moved.
fn about_moves(workloads: usize, staying: usize) -> String {
    const WHY: &str = "moves are paused, or not asked for (move-statefulset-pods)";
    if staying == 0 {
        "They are moved one at a time.".to_owned()
    } else if staying == workloads {
        format!("They stay where they are: {WHY}.")
    } else {
        format!("They are moved one at a time; those of {staying} stay where they are: {WHY}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::Key;

    fn row(name: &str, state: &'static str, bad: bool) -> Row {
        Row { name: Key::from(name), state, record: None, bad }
    }

    #[test]
    fn what_is_as_it_should_be_needs_nobody() {
        assert_eq!(about_nodes(&[row("a", "Current", false), row("b", "Away", false), row("c", "Pending", false)]), []);
    }

    #[test]
    fn only_what_is_moved_is_said_to_be() {
        let said = [(3, 0), (3, 3), (3, 1)].map(|(workloads, staying)| about_moves(workloads, staying));
        let parts = said.map(|text| (text.contains("moved one at a time"), text.contains("stay where they are")));
        assert_eq!(parts, [(true, false), (false, true), (true, true)]);
    }

    #[test]
    fn each_matter_names_the_first_and_counts_all() {
        let rows: Vec<Row> = (0..7).map(|n| row(&format!("n{n}"), "Unsettled", n == 6)).collect();
        let matters = about_nodes(&rows);
        assert_eq!(matters.len(), 2);
        assert_eq!((matters[0].level, matters[0].about.as_slice()), (Level::Bad, ["n6".to_owned()].as_slice()));
        assert!(matters[1].title.starts_with("7 ") && matters[1].about.len() == NAMED);
        assert_eq!(matters[1].command, "perennial explain n0");
    }
}
