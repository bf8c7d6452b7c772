//! The story: a list of chapters. Each plays a piece on the real cluster and checks what it claims; one that fails names
//! the claim. To add a chapter, write the function and put it into the list.

mod admission;
mod keeper;
mod mass;
mod placement;

use futures::future::LocalBoxFuture;

use crate::stage::Stage;

/// A piece of the story.
pub(crate) struct Chapter {
    pub(crate) title: &'static str,
    pub(crate) play: for<'a> fn(&'a mut Stage) -> LocalBoxFuture<'a, anyhow::Result<()>>,
}

macro_rules! chapters {
    ($($title:literal => $play:path),* $(,)?) => {
        &[$(Chapter { title: $title, play: |stage| Box::pin($play(stage)) }),*]
    };
}

/// In the order in which they are told: later ones use what earlier ones left. Placement comes last, on another cluster.
pub(crate) const STORY: &[Chapter] = chapters![
    "Nodes appear, and people label them" => keeper::people_label_nodes,
    "A node is deleted and comes back bare" => keeper::a_node_comes_back,
    "A label that a person removed stays removed" => keeper::a_removed_label_stays_removed,
    "A value that the new incarnation brings wins" => keeper::a_new_value_wins,
    "A role goes back to its own machine, and to no other" => keeper::a_role_stays_with_its_machine,
    "A node flaps" => keeper::a_node_flaps,
    "The operator is dead while things happen" => keeper::the_operator_is_dead_meanwhile,
    "1,000 nodes are deleted and return" => mass::a_thousand_nodes_return,
    "Once more, and the operator is killed in the middle of it" => mass::killed_in_the_middle,
    "With the webhooks on, labels ride in the create itself" => admission::labels_ride_in_the_create,
    "70% of a Deployment on spot, exactly, also in a burst" => placement::exact_in_a_burst,
    "Scaled in, it is exact without a pod being moved" => placement::exact_after_scale_in,
    "A rollout keeps the floor of on-demand replicas" => placement::a_rollout_keeps_the_floor,
    "Spot capacity runs out" => placement::spot_runs_out,
];
