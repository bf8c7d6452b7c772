//! Check of the nodes and records: identities and quarantined records.

use perennial_core::keeper::{status::KeepState, stored_record::Stored};

use super::{CheckResult, category_of, remedy};
use crate::{inspect::session::Session, runtime::error_chain::Chain};

/// Nodes of which nothing is kept, although the policy keeps some of their keys.
pub(super) async fn check_nodes(session: &Session) -> Vec<CheckResult> {
    let (mut all, mut unidentified, mut contested) = (0_usize, Vec::new(), Vec::new());
    let read = session
        .each_pair(None, false, |page| {
            for look in page.iter().filter(|look| look.node().is_some()) {
                all += 1;
                match look.status().state() {
                    KeepState::Unidentified => unidentified.push(look.name().to_owned()),
                    KeepState::Contested => contested.push(look.name().to_owned()),
                    _ => {}
                }
            }
            Ok(())
        })
        .await;
    match read {
        Err(error) => {
            let fix = remedy(category_of(&error), "list nodes, and configmaps in this namespace");
            vec![CheckResult::fail("nodes", Chain(error.as_ref()).to_string(), fix)]
        }
        Ok(()) => judge_nodes(all, &unidentified, &contested),
    }
}

fn judge_nodes(all: usize, unidentified: &[String], contested: &[String]) -> Vec<CheckResult> {
    let some = |names: &[String]| names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    let mut lines = Vec::new();
    if !unidentified.is_empty() {
        lines.push(CheckResult::fail(
            "nodes",
            format!(
                "{} of {all} have no identity, so nothing is kept of them: {}",
                unidentified.len(),
                some(unidentified)
            ),
            "wait until they report it, or set another keeper.identity; `perennial explain NODE` names the missing field",
        ));
    }
    if !contested.is_empty() {
        lines.push(CheckResult::fail(
            "nodes",
            format!(
                "{} of {all} have the identity of another node, so nothing is restored to them: {}",
                contested.len(),
                some(contested)
            ),
            "make the identity unique, or set another keeper.identity",
        ));
    }
    if lines.is_empty() {
        lines.push(CheckResult::pass("nodes", format!("{all}, each with an identity of its own")));
    }
    lines
}

pub(super) async fn check(session: &Session) -> CheckResult {
    let (mut all, mut bad) = (0_usize, Vec::new());
    let read = session
        .each_record(|page| {
            all += page.len();
            bad.extend(
                page.iter()
                    .filter(|held| matches!(held.stored(), Stored::Bad { .. }))
                    .map(|held| held.name().to_owned()),
            );
            Ok(())
        })
        .await;
    match read {
        Err(error) => {
            let fix = remedy(category_of(&error), "list configmaps in this namespace");
            CheckResult::fail("records", Chain(error.as_ref()).to_string(), fix)
        }
        Ok(()) if bad.is_empty() => CheckResult::pass("records", format!("{all}, all valid")),
        Ok(()) => {
            let some = bad.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
            let message = format!("{} of {all} are quarantined: {some}", bad.len());
            CheckResult::warn(
                "records",
                message,
                "run `perennial explain NODE` for the reason; quarantined records are not restored",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::CheckSeverity, *};

    #[test]
    fn unidentified_and_contested_nodes_are_both_reported() {
        let (bare, twins) = (vec!["bare".to_owned()], vec!["twin-1".to_owned(), "twin-2".to_owned()]);
        let lines = judge_nodes(4, &bare, &twins);
        let messages: Vec<&str> = lines.iter().map(|line| line.message.as_str()).collect();
        assert!(messages[0].starts_with("1 of 4") && messages[0].ends_with(": bare"), "{messages:?}");
        assert!(messages[1].starts_with("2 of 4") && messages[1].ends_with(": twin-1, twin-2"), "{messages:?}");
        assert!(lines.iter().all(|line| line.severity == CheckSeverity::Fail));
        assert_eq!(judge_nodes(4, &[], &[])[0].severity, CheckSeverity::Pass);
    }
}
