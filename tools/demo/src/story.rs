//! The story: a list of chapters. Each chapter acts on the real cluster and checks its claims; a
//! failure names the claim. To add a chapter, write a function and add it to the list.

mod admission;
mod keeper;
mod mass;
mod placement;
mod real;

use futures::future::LocalBoxFuture;

use crate::stage::Stage;

/// A chapter.
pub(crate) struct Chapter {
    pub(crate) title: &'static str,
    pub(crate) play: for<'a> fn(&'a mut Stage) -> LocalBoxFuture<'a, anyhow::Result<()>>,
}

macro_rules! chapters {
    ($($title:literal => $play:path),* $(,)?) => {
        &[$(Chapter { title: $title, play: |stage| Box::pin($play(stage)) }),*]
    };
}

/// In order: later chapters use objects of earlier ones. Placement is last, on its own cluster.
pub(crate) const STORY: &[Chapter] = chapters![
    "Nodes are created and labelled" => keeper::nodes_are_labelled,
    "A node is deleted and created again without labels" => keeper::a_node_returns,
    "A label that was removed stays removed" => keeper::a_removed_label_stays_removed,
    "A value that the new node sets itself wins" => keeper::a_new_value_wins,
    "A role is restored to the same machine only" => keeper::a_role_stays_with_its_machine,
    "A node flaps" => keeper::a_node_flaps,
    "Nodes change while the operator is down" => keeper::nodes_change_while_the_operator_is_down,
    "1,000 nodes are deleted and created again" => mass::a_thousand_nodes_return,
    "The same, and the operator is killed twice during the restore" => mass::killed_in_the_middle,
    "With webhooks, the create itself adds the labels" => admission::creates_include_the_labels,
    "70% of a Deployment on spot, exactly, even in a burst" => placement::exact_in_a_burst,
    "After a scale-in the split is exact without evictions" => placement::exact_after_scale_in,
    "A rollout keeps the minimum of on-demand replicas" => placement::a_rollout_keeps_the_floor,
    "Spot capacity runs out" => placement::spot_runs_out,
];

/// The chapters that apply to real nodes, with `REAL=1`.
pub(crate) const REAL_STORY: &[Chapter] = chapters![
    "Real nodes have joined and are labelled" => real::nodes_are_labelled,
    "A node is deleted, and its kubelet restarts" => real::a_node_returns,
    "A label that was removed stays removed" => real::a_removed_label_stays_removed,
    "A value that the kubelet sets itself wins" => real::a_value_of_the_kubelet_wins,
    "A role comes back to its machine" => real::a_role_comes_back,
    "A kubelet restarts while its node exists" => real::a_restart_changes_nothing,
    "Nodes change while the operator is down" => real::nodes_change_while_the_operator_is_down,
    "With webhooks, the create itself adds the labels" => real::creates_include_the_labels,
];
