//! The KeepPolicy resource: its spec and status as the API server delivers them, and the types of
//! their schemas.
//!
//! Spec and status are not deserialized here: an object that does not fit would fail the whole
//! watch. The spec is parsed by [`perennial_core::keeper::policy::KeepPolicy::parse`], and its
//! problems are reported in the status.

use kube::CustomResource;
use perennial_core::keeper::policy::KeepPolicySpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

// Without a doc comment: it would replace the description of the spec.
#[derive(Clone, Debug, Default, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "perennial.dev",
    version = "v1alpha1",
    kind = "KeepPolicy",
    root = "KeepPolicyResource",
    plural = "keeppolicies",
    shortname = "kp",
    status = "RawStatus",
    derive = "Default",
    doc = "KeepPolicy configures what is kept of the nodes that it selects. If several policies select a node, only the one \
           with the highest priority applies. If none does, the operator's config file applies.",
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(
        name = "Nodes",
        type_ = "integer",
        json_path = ".status.nodes",
        description = "Nodes that this policy applies to"
    ),
    printcolumn(
        name = "Records",
        type_ = "integer",
        json_path = ".status.records",
        description = "Those of these nodes that have a record"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(transparent)]
#[expect(clippy::duplicated_attributes, reason = "several columns have the same type")]
pub struct RawSpec(#[schemars(with = "KeepPolicySpec")] pub Value);

// Without a doc comment: it would replace the description of the status.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct RawStatus(#[schemars(with = "KeepPolicyStatus")] pub Value);

/// State of the policy, and the number of nodes that it applies to.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct KeepPolicyStatus {
    /// Generation of the spec that this status is about.
    observed_generation: Option<i64>,
    /// Number of nodes that this policy applies to.
    nodes: Option<i64>,
    /// Number of those nodes that have a record.
    records: Option<i64>,
    /// Ready: the policy is in force.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    conditions: Option<Vec<ConditionSchema>>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct ConditionSchema {
    r#type: String,
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    status: String,
    observed_generation: Option<i64>,
    #[schemars(extend("format" = "date-time"))]
    last_transition_time: String,
    reason: String,
    message: String,
}
