//! The configuration of placement, converted at startup and completed with what the nodes reveal.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use perennial_core::{
    config,
    keeper::keys::Taint,
    placement::{
        admission::Tolerations,
        node_labels::{
            LabelsError,
            schemes::{LabelSchemes, SchemeSet},
        },
        spec::AnnotationRules,
        workload::PlacementSettings,
    },
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::objects::Toleration;

/// Namespace whose workloads are never managed.
const SYSTEM: &str = "kube-system";

/// Settings that placement uses.
#[derive(Clone, Debug)]
pub struct Configured {
    pub settings: Arc<PlacementSettings>,
    pub annotations: AnnotationRules,
    pub tolerations: Tolerations,
    /// Ways to label node classes, and those in use.
    pub schemes: Arc<LabelSchemes>,
    pub active: SchemeSet,
    detected: SchemeSet,
    /// `placement.spotTolerations`.
    spot_tolerations: Vec<Value>,
    /// Maximum number of workloads with separate metrics.
    pub workload_metrics: usize,
    /// Maximum number of evictions of the whole cluster in one minute.
    pub moves_per_minute: u32,
    selector: config::LabelSelector,
    own_namespace: String,
}

impl Configured {
    pub fn new(all: &config::Settings) -> Result<Self, LabelsError> {
        let placement = &all.placement;
        let schemes = Arc::new(LabelSchemes::new(&all.node_labels)?);
        let active = schemes.active(SchemeSet::default());
        let mut configured = Self {
            settings: Arc::new(PlacementSettings {
                labels: schemes.labels(active),
                cooldown: signed(placement.cooldown),
                gate_timeout: signed(placement.gate_timeout),
                hold_timeout: signed(placement.hold_timeout),
            }),
            annotations: placement.annotation_rules(),
            tolerations: Tolerations::default(),
            schemes,
            active,
            detected: SchemeSet::default(),
            spot_tolerations: placement.spot_tolerations.iter().map(toleration).collect(),
            workload_metrics: usize::try_from(placement.workload_metrics).unwrap_or(usize::MAX),
            moves_per_minute: placement.moves_per_minute,
            selector: all.controller.namespace_selector.clone(),
            own_namespace: all.namespace.to_string(),
        };
        configured.activate(active);
        Ok(configured)
    }

    /// Uses the labels of the detected schemes. Returns whether that changes anything.
    pub fn detect(&mut self, detected: SchemeSet) -> bool {
        self.detected = detected;
        let active = self.schemes.active(detected);
        let changed = active != self.active;
        if changed {
            self.activate(active);
        }
        changed
    }

    /// Returns the schemes that were detected.
    pub fn detected(&self) -> SchemeSet {
        self.detected
    }

    fn activate(&mut self, active: SchemeSet) {
        self.active = active;
        self.settings = Arc::new(PlacementSettings {
            labels: self.schemes.labels(active),
            ..PlacementSettings::clone(&self.settings)
        });
        let mut spot = self.spot_tolerations.clone();
        let platform = self.schemes.spot_tolerations(active).into_iter();
        spot.extend(platform.filter(|toleration| !self.spot_tolerations.contains(toleration)));
        self.tolerations = Tolerations { spot, on_demand: Vec::new() };
    }

    /// Returns the names of the schemes in use.
    pub fn scheme_names(&self) -> String {
        self.schemes.names(self.active)
    }

    /// Returns whether workloads of this namespace may be managed.
    pub fn selects(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        namespace != SYSTEM && namespace != self.own_namespace && self.selector.matches(labels)
    }

    /// Returns whether spot pods get a toleration for this taint.
    pub fn tolerates_spot(&self, taint: &Taint) -> bool {
        let all = self.tolerations.spot.iter();
        all.filter_map(|toleration| Toleration::deserialize(toleration).ok()).any(|one| one.tolerates(taint))
    }

    /// Returns whether an annotation has a prefix of placement.
    pub fn reads(&self, annotation: &str) -> bool {
        let domain = annotation.split_once('/').map_or("", |(domain, _)| domain);
        self.annotations.prefixes.iter().any(|prefix| prefix.trim_end_matches('/') == domain)
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
