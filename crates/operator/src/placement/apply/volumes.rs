//! Classes in which the volumes of a pod can be used.
//!
//! Read on demand, for pods of StatefulSets only. The node affinity of a PersistentVolume may select
//! the labels of a class, or nodes by name that are all of one class. A zone decides nothing: nodes
//! of the other class may be added to it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim,
};
use kube::{
    Api,
    api::ListParams,
    core::{Expression, Selector},
};
use perennial_core::{
    config::names::is_dns_subdomain,
    placement::{Class, node_labels::Choice},
};
use serde_json::json;

use super::{super::settings::Configured, PlacementClient, PlacementError};
use crate::runtime::{budget::Urgency, request::RequestFailure};

/// Maximum number of nodes that a volume by node name may be on.
const MAX_NODES: u32 = 50;

impl PlacementClient {
    /// Returns the classes in which all of these claims can be used.
    pub async fn volume_choice(
        &self,
        namespace: &str,
        claims: &[String],
        configured: &Configured,
    ) -> Result<Choice, PlacementError> {
        let mut choice = Choice::Any;
        for claim in claims {
            let Some(required) = self.volume_affinity(namespace, claim).await? else { continue };
            let found = match permitted(&required, configured) {
                Choice::Any => self.class_of_nodes(&required, configured).await?,
                selected => selected,
            };
            choice = match (choice, found) {
                (Choice::Any, other) | (other, Choice::Any) => other,
                (one, other) if one == other => one,
                _ => Choice::Neither,
            };
        }
        Ok(choice)
    }

    /// Returns the required node affinity of the volume that a claim is bound to.
    async fn volume_affinity(&self, namespace: &str, claim: &str) -> Result<Option<NodeSelector>, PlacementError> {
        let read = |what: String| move |source: RequestFailure| PlacementError::ReadVolume { what, source };
        // Names come from pods and claims, and decide a path.
        if !is_dns_subdomain(claim) {
            return Ok(None);
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client().clone(), namespace);
        let found = self.send(Urgency::Normal, claims.get_opt(claim)).await;
        let found = found.map_err(read(format!("persistentvolumeclaim {namespace}/{claim}")))?;
        let Some(volume) = found.and_then(|found| found.spec?.volume_name).filter(|name| is_dns_subdomain(name)) else {
            return Ok(None);
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client().clone());
        let found = self.send(Urgency::Normal, volumes.get_opt(&volume)).await;
        let found = found.map_err(read(format!("persistentvolume {volume}")))?;
        Ok(found.and_then(|found| found.spec?.node_affinity?.required))
    }

    /// Returns the class of the nodes that an affinity selects by name.
    async fn class_of_nodes(&self, required: &NodeSelector, configured: &Configured) -> Result<Choice, PlacementError> {
        let mut classes: Vec<Option<Class>> = Vec::new();
        for term in &required.node_selector_terms {
            let Some(selector) = by_name(term) else { return Ok(Choice::Any) };
            let api: Api<Node> = Api::all(self.client().clone());
            let params = ListParams::default().labels(&selector.to_string()).limit(MAX_NODES);
            let found = self.send(Urgency::Normal, api.list_metadata(&params)).await;
            let found = found.map_err(|source| PlacementError::Read { what: "nodes".to_owned(), source })?;
            let none = BTreeMap::new();
            classes.extend(found.items.iter().map(|node| {
                let labels = node.metadata.labels.as_ref().unwrap_or(&none);
                configured.schemes.classes_of_node(labels).class(configured.active)
            }));
        }
        Ok(match classes.first().copied().flatten() {
            Some(class) if classes.iter().all(|other| *other == Some(class)) => Choice::Only(class),
            _ => Choice::Any,
        })
    }
}

/// Returns the classes whose labels an affinity allows.
fn permitted(required: &NodeSelector, configured: &Configured) -> Choice {
    let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
    configured.schemes.permitted(&BTreeMap::new(), Some(&affinity)).choice(configured.active)
}

/// Returns the requirements of a term that name nodes, if there are any.
fn by_name(term: &NodeSelectorTerm) -> Option<Selector> {
    let names_nodes = |one: &&NodeSelectorRequirement| {
        let name = one.key.rsplit('/').next().unwrap_or_default();
        one.operator == "In" && (name.contains("host") || name.contains("node"))
    };
    let named = term.match_expressions.iter().flatten().filter(names_nodes);
    let named: Vec<Expression> =
        named.map(|one| Expression::In(one.key.clone(), one.values.iter().flatten().cloned().collect())).collect();
    (!named.is_empty()).then(|| named.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use perennial_core::config::Settings;
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    fn selector(key: &str, values: &[&str]) -> NodeSelector {
        let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]});
        serde_json::from_value(json!({"nodeSelectorTerms": [term]})).unwrap()
    }

    #[rstest]
    #[case("karpenter.sh/capacity-type", &["spot"], Choice::Only(Class::Spot))]
    #[case("karpenter.sh/capacity-type", &["on-demand"], Choice::Only(Class::OnDemand))]
    #[case("topology.kubernetes.io/zone", &["a"], Choice::Any)]
    #[case("kubernetes.io/hostname", &["n1"], Choice::Any)]
    fn labels_of_a_class_decide(#[case] key: &str, #[case] values: &[&str], #[case] choice: Choice) {
        let configured = Configured::new(&Settings::default()).unwrap();
        assert_eq!(permitted(&selector(key, values), &configured), choice);
    }

    #[rstest]
    #[case("kubernetes.io/hostname", Some("kubernetes.io/hostname in (n1)"))]
    #[case("topology.topolvm.io/node", Some("topology.topolvm.io/node in (n1)"))]
    #[case("openebs.io/nodename", Some("openebs.io/nodename in (n1)"))]
    #[case("topology.kubernetes.io/zone", None)]
    #[case("topology.ebs.csi.aws.com/zone", None)]
    fn nodes_by_name_are_searched_and_zones_are_not(#[case] key: &str, #[case] text: Option<&str>) {
        let found = by_name(&selector(key, &["n1"]).node_selector_terms[0]);
        assert_eq!(found.map(|found| found.to_string()).as_deref(), text);
    }

    #[test]
    fn a_term_without_requirements_names_no_node() {
        assert!(by_name(&serde_json::from_value(Value::Object(serde_json::Map::new())).unwrap()).is_none());
    }
}
