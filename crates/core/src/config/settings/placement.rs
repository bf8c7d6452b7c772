//! Sections `placement` and `nodeLabels`: workloads and the classes of nodes.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NodeLabel, Prefix, Toleration};
use crate::config::duration::DurationText;
use crate::config::text::EmptyIsNone;
use crate::placement::spec::AnnotationRules;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Placement {
    /// Place the replicas of annotated workloads.
    pub enabled: bool,
    /// Domains of the annotations that are read, in order of precedence.
    pub annotation_prefixes: Vec<Prefix>,
    /// Minimum time between two moves of one workload.
    #[serde(with = "DurationText")]
    pub cooldown: Duration,
    /// Maximum number of pods that are evicted in one minute, over all workloads of the cluster.
    /// Each replica uses the share of the shards that it owns.
    pub moves_per_minute: u32,
    /// Time after which a gated pod is released as on-demand.
    #[serde(with = "DurationText")]
    pub gate_timeout: Duration,
    /// Maximum time that the spot pods of a rollout wait until its on-demand pods are Ready.
    #[serde(with = "DurationText")]
    pub hold_timeout: Duration,
    /// Tolerations that are added to spot pods, as `key=value:Effect` or as in a pod.
    pub spot_tolerations: Vec<Toleration>,
    /// Maximum number of workloads that have metrics of their own. 0: none.
    pub workload_metrics: u32,
    pub defaults: PlacementDefaults,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            enabled: true,
            annotation_prefixes: vec![Prefix::default()],
            cooldown: Duration::from_secs(30),
            moves_per_minute: 300,
            gate_timeout: Duration::from_secs(30),
            hold_timeout: Duration::from_mins(5),
            spot_tolerations: Vec::new(),
            workload_metrics: 0,
            defaults: PlacementDefaults::default(),
        }
    }
}

impl Placement {
    /// Returns how annotations are read.
    pub fn annotation_rules(&self) -> AnnotationRules {
        let PlacementDefaults {
            spot_percentage,
            min_on_demand,
            max_spot,
            fallback_after,
            fallback_budget,
            disruption_schedule,
            disruption_duration,
            disruption_time_zone,
            selection,
            move_statefulset_pods,
        } = &self.defaults;
        let all = [
            ("spot-percentage", spot_percentage),
            ("min-on-demand", min_on_demand),
            ("max-spot", max_spot),
            ("fallback-after", fallback_after),
            ("fallback-budget", fallback_budget),
            ("disruption-schedule", disruption_schedule),
            ("disruption-duration", disruption_duration),
            ("disruption-time-zone", disruption_time_zone),
            ("selection", selection),
            ("move-statefulset-pods", move_statefulset_pods),
        ];
        let set = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
        AnnotationRules {
            prefixes: self.annotation_prefixes.iter().map(|prefix| prefix.as_str().to_owned()).collect(),
            defaults: set.collect(),
        }
    }
}

/// Values of annotations that neither the workload nor its namespace has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PlacementDefaults {
    /// `spot-percentage` of workloads that are enabled by `enabled: "true"`. Does not enable any.
    #[serde(with = "EmptyIsNone")]
    pub spot_percentage: Option<String>,
    /// Default of the annotation `min-on-demand`.
    #[serde(with = "EmptyIsNone")]
    pub min_on_demand: Option<String>,
    /// Default of the annotation `max-spot`.
    #[serde(with = "EmptyIsNone")]
    pub max_spot: Option<String>,
    /// Default of the annotation `fallback-after`.
    #[serde(with = "EmptyIsNone")]
    pub fallback_after: Option<String>,
    /// Default of the annotation `fallback-budget`.
    #[serde(with = "EmptyIsNone")]
    pub fallback_budget: Option<String>,
    /// Default of the annotation `disruption-schedule`.
    #[serde(with = "EmptyIsNone")]
    pub disruption_schedule: Option<String>,
    /// Default of the annotation `disruption-duration`.
    #[serde(with = "EmptyIsNone")]
    pub disruption_duration: Option<String>,
    /// Default of the annotation `disruption-time-zone`.
    #[serde(with = "EmptyIsNone")]
    pub disruption_time_zone: Option<String>,
    /// Default of the annotation `selection`.
    #[serde(with = "EmptyIsNone")]
    pub selection: Option<String>,
    /// Default of the annotation `move-statefulset-pods`.
    #[serde(with = "EmptyIsNone")]
    pub move_statefulset_pods: Option<String>,
}

/// The labels that determine the capacity class of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeLabelSettings {
    /// Label selectors: `key=value`, `key in (a,b)`, `!key`, or several that must all match, joined
    /// by commas. A node that any of them matches is a spot node. `auto`: the labels of Karpenter,
    /// EKS, GKE or AKS, detected from the nodes.
    pub spot: Vec<NodeLabel>,
    /// Label selectors of on-demand nodes, as for `nodeLabels.spot`. A node of both classes is a
    /// spot node.
    pub on_demand: Vec<NodeLabel>,
}

impl Default for NodeLabelSettings {
    fn default() -> Self {
        Self { spot: vec![NodeLabel::Auto], on_demand: vec![NodeLabel::Auto] }
    }
}
