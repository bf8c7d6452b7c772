//! The configuration of placement, converted once at startup.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use perennial_core::{
    config::{self, NodeLabel},
    placement::{
        admission::Tolerations,
        node_labels::{Label, LabelsError, NodeLabels},
        workload::PlacementSettings,
    },
};
use serde_json::{Map, Value, json};

/// Namespace whose workloads are never managed.
const SYSTEM: &str = "kube-system";

/// Settings that placement uses.
#[derive(Clone, Debug)]
pub struct Configured {
    pub settings: Arc<PlacementSettings>,
    pub prefixes: Vec<String>,
    pub tolerations: Tolerations,
    selector: config::LabelSelector,
    own_namespace: String,
}

impl Configured {
    pub fn new(all: &config::Settings) -> Result<Self, LabelsError> {
        let placement = &all.placement;
        let spot = placement.spot_tolerations.iter().map(toleration).collect();
        Ok(Self {
            settings: Arc::new(PlacementSettings {
                labels: NodeLabels::new(labels(&all.node_labels.spot), labels(&all.node_labels.on_demand))?,
                cooldown: signed(placement.cooldown),
                gate_timeout: signed(placement.gate_timeout),
                hold_timeout: signed(placement.hold_timeout),
            }),
            prefixes: placement.annotation_prefixes.iter().map(|prefix| prefix.as_str().to_owned()).collect(),
            tolerations: Tolerations { spot, on_demand: Vec::new() },
            selector: all.controller.namespace_selector.clone(),
            own_namespace: all.namespace.to_string(),
        })
    }

    /// Returns whether workloads of this namespace may be managed.
    pub fn selects(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        namespace != SYSTEM && namespace != self.own_namespace && self.selector.matches(labels)
    }

    /// Returns whether an annotation has a prefix of placement.
    pub fn reads(&self, annotation: &str) -> bool {
        let domain = annotation.split_once('/').map_or("", |(domain, _)| domain);
        self.prefixes.iter().any(|prefix| prefix.trim_end_matches('/') == domain)
    }

    /// Returns the selector of the namespaces whose pods the webhook admits.
    pub fn namespaces(&self) -> LabelSelector {
        let expressions = self.selector.match_expressions.iter().map(|expression| LabelSelectorRequirement {
            key: expression.key.clone(),
            operator: expression.operator.to_string(),
            values: (!expression.values.is_empty()).then(|| expression.values.clone()),
        });
        LabelSelector {
            match_labels: Some(self.selector.match_labels.clone()).filter(|labels| !labels.is_empty()),
            match_expressions: Some(expressions.collect()),
        }
    }
}

fn labels(labels: &[NodeLabel]) -> Vec<Label> {
    labels.iter().map(|label| Label { key: label.key.clone(), value: label.value.clone() }).collect()
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

fn toleration(toleration: &config::Toleration) -> Value {
    let mut object = Map::new();
    object.insert("key".to_owned(), json!(toleration.key));
    match &toleration.value {
        Some(value) => object.extend([("operator".to_owned(), json!("Equal")), ("value".to_owned(), json!(value))]),
        None => object.extend([("operator".to_owned(), json!("Exists"))]),
    }
    if let Some(effect) = toleration.effect {
        object.insert("effect".to_owned(), json!(effect.to_string()));
    }
    Value::Object(object)
}
