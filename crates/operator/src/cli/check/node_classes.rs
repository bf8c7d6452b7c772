//! Classes of nodes: whether there are nodes of both classes where placement is on.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use kube::{Api, Resource as _, api::ListParams};
use perennial_core::placement::{Class, node_labels::schemes::SchemeSet};

use super::{CheckResult, remedy};
use crate::{
    inspect::session::Session,
    keeper::node::Node,
    manifests::Features,
    placement::settings::Configured,
    runtime::{
        error_category::{Category, message},
        pages::{PAGE, next_token, pages},
    },
};

const WHAT: &str = "node classes";

/// Returns `None` if placement is off, or no role does it.
pub(super) async fn check(session: &Session) -> Option<CheckResult> {
    if !Features::of(&session.settings).placement {
        return None;
    }
    let configured = match Configured::new(&session.settings) {
        Ok(configured) => configured,
        Err(error) => return Some(CheckResult::fail(WHAT, error.to_string(), "correct nodeLabels")),
    };
    Some(match read(session, configured).await {
        Ok((configured, counts)) => judge(counts, &configured),
        Err(error) => CheckResult::warn(WHAT, message(&error), remedy(Category::of(&error), "list nodes")),
    })
}

/// Detects the labels of the classes, and counts the nodes that are spot, on-demand and neither.
async fn read(session: &Session, mut configured: Configured) -> Result<(Configured, [u32; 3]), kube::Error> {
    let api: Api<Node> = Api::all(session.client.clone());
    let api = &api;
    let list = |params: ListParams| async move {
        let page = api.list(&params).await?;
        let next = next_token(&page.metadata);
        Ok::<_, kube::Error>((page.items, next))
    };
    let (mut nodes, mut detected, none) = (Vec::new(), SchemeSet::default(), BTreeMap::new());
    let mut pages = std::pin::pin!(pages(ListParams::default().limit(PAGE), list));
    while let Some(page) = pages.try_next().await? {
        for node in page {
            let labels = node.meta().labels.as_ref().unwrap_or(&none);
            detected = detected | configured.schemes.detect(labels);
            nodes.push(configured.schemes.classes_of_node(labels));
        }
    }
    configured.detect(detected);
    let mut counts = [0; 3];
    for node in nodes {
        let place = match node.class(configured.active) {
            Some(Class::Spot) => 0,
            Some(Class::OnDemand) => 1,
            None => 2,
        };
        counts[place] += 1;
    }
    Ok((configured, counts))
}

fn judge([spot, on_demand, other]: [u32; 3], configured: &Configured) -> CheckResult {
    let (labels, scheme) = (&configured.settings.labels, configured.scheme_names());
    let found = format!("{spot} spot, {on_demand} on-demand, {other} of neither class (labels: {scheme})");
    let missing: Vec<String> = [(spot, Class::Spot), (on_demand, Class::OnDemand)]
        .into_iter()
        .filter(|(count, _)| *count == 0)
        .map(|(_, class)| format!("no node is {class} ({})", labels.describe(class)))
        .collect();
    if missing.is_empty() || spot + on_demand + other == 0 {
        return CheckResult::pass(WHAT, found);
    }
    let fix = "label the nodes or set nodeLabels (see docs/explain/placement.md); nodes that an autoscaler creates on demand \
               need no action";
    CheckResult::warn(WHAT, format!("{}: {found}", missing.join(", ")), fix)
}

#[cfg(test)]
mod tests {
    use perennial_core::config::Settings;

    use super::*;
    use crate::cli::check::CheckSeverity;

    #[test]
    fn a_missing_class_is_named() {
        let labels = Configured::new(&Settings::default()).unwrap();
        let result = judge([0, 3, 2], &labels);
        assert_eq!(result.severity, CheckSeverity::Warn);
        assert!(result.message.starts_with("no node is spot (karpenter.sh/capacity-type=spot)"), "{}", result.message);
        assert_eq!(judge([1, 1, 0], &labels).severity, CheckSeverity::Pass);
        assert_eq!(judge([0, 0, 0], &labels).severity, CheckSeverity::Pass, "no node has joined yet");
    }
}
