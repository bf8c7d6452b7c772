//! Permissions of the operator, checked one by one with access reviews.

use futures::{StreamExt, stream};
use k8s_openapi::api::{
    authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
        SubjectAccessReviewSpec,
    },
    core::v1::Namespace,
};
use kube::{Api, Client, api::PostParams};
use perennial_core::config::Settings;

use super::CheckResult;
use crate::{
    inspect::session::Session,
    manifests::{Features, Permissions, Rule},
    runtime::error_category::{self, Category},
};

/// Maximum number of concurrent access reviews.
const AT_ONCE: usize = 8;

/// One permission.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NeededPermission {
    group: String,
    resource: String,
    verb: String,
    name: Option<String>,
    /// In this namespace only.
    namespace: Option<String>,
}

pub(super) async fn check(session: &Session, account: Option<&str>) -> Vec<CheckResult> {
    let namespace = session.settings.namespace.to_string();
    let mut lines = Vec::new();
    let namespaces: Api<Namespace> = Api::all(session.client.clone());
    match namespaces.get_opt(&namespace).await {
        Ok(Some(_)) => lines.push(CheckResult::pass("namespace", format!("{namespace} exists"))),
        Ok(None) => lines.push(CheckResult::fail(
            "namespace",
            format!("{namespace} does not exist"),
            format!("kubectl create namespace {namespace}, or select another with --system-namespace"),
        )),
        Err(error) => {
            lines.push(CheckResult::warn(
                "namespace",
                error_category::message(&error),
                super::remedy(Category::of(&error), "get namespaces"),
            ));
        }
    }
    let account = account.map(|name| format!("system:serviceaccount:{namespace}:{name}"));
    let asked = stream::iter(needs(&session.settings)).map(|need| {
        let (client, namespace, account) = (session.client.clone(), namespace.clone(), account.clone());
        async move { (allowed(&client, &need, &namespace, account).await, need) }
    });
    let answers: Vec<(Result<bool, kube::Error>, NeededPermission)> = asked.buffered(AT_ONCE).collect().await;
    let whose = account.as_deref().unwrap_or("your account");
    let mut missing = Vec::new();
    for (answer, need) in &answers {
        match answer {
            Ok(true) => {}
            Ok(false) => missing.push(need.describe()),
            Err(error) => {
                let fix = super::remedy(
                    Category::of(error),
                    "create selfsubjectaccessreviews, or subjectaccessreviews for a ServiceAccount",
                );
                lines.push(CheckResult::warn("permissions", error_category::message(error), fix));
                return lines;
            }
        }
    }
    lines.push(if missing.is_empty() {
        CheckResult::pass("permissions", format!("{whose} has all {} permissions of the operator", answers.len()))
    } else {
        let fix = "perennial manifests permissions | kubectl apply -f -; if the operator runs as another account, use --service-account NAME";
        CheckResult::fail("permissions", format!("{whose} is not allowed to {}", missing.join(", ")), fix)
    });
    lines
}

impl NeededPermission {
    fn describe(&self) -> String {
        let place = self.namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        let name = self.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        format!("{} {}{name}{place}", self.verb, self.resource)
    }
}

/// Returns every permission of an operator with these settings.
fn needs(settings: &Settings) -> Vec<NeededPermission> {
    let permissions = Permissions::of(Features::of(settings));
    // The Leases may be in another namespace than the rest.
    let place = |rule: &Rule| match rule.resources.as_slice() {
        ["leases"] => settings.lease_namespace().to_owned(),
        _ => settings.namespace.to_string(),
    };
    let cluster = permissions.cluster.iter().map(|rule| (rule, None));
    let rules = cluster.chain(permissions.namespaced.iter().map(|rule| (rule, Some(place(rule)))));
    let mut needs = Vec::new();
    for (rule, namespace) in rules {
        let mut names: Vec<Option<String>> = rule.resource_names.iter().map(|&name| Some(name.to_owned())).collect();
        if names.is_empty() {
            names.push(None);
        }
        for (group, resource) in rule.api_groups.iter().flat_map(|group| rule.resources.iter().map(move |r| (group, r)))
        {
            for verb in &rule.verbs {
                needs.extend(names.iter().map(|name| NeededPermission {
                    group: (*group).to_owned(),
                    resource: (*resource).to_owned(),
                    verb: (*verb).to_owned(),
                    name: name.clone(),
                    namespace: namespace.clone(),
                }));
            }
        }
    }
    needs
}

/// Whether the account, which is in this namespace, has the permission.
async fn allowed(
    client: &Client,
    need: &NeededPermission,
    namespace: &str,
    account: Option<String>,
) -> Result<bool, kube::Error> {
    let (resource, subresource) = match need.resource.split_once('/') {
        Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
        None => (need.resource.clone(), None),
    };
    let attributes = ResourceAttributes {
        group: Some(need.group.clone()),
        resource: Some(resource),
        subresource,
        verb: Some(need.verb.clone()),
        name: need.name.clone(),
        namespace: need.namespace.clone(),
        ..ResourceAttributes::default()
    };
    let params = PostParams::default();
    let status = match account {
        None => {
            let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..Default::default() };
            Api::<SelfSubjectAccessReview>::all(client.clone()).create(&params, &review).await?.status
        }
        Some(user) => {
            let groups = vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ];
            let spec = SubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                user: Some(user),
                groups: Some(groups),
                ..Default::default()
            };
            let review = SubjectAccessReview { spec, ..Default::default() };
            Api::<SubjectAccessReview>::all(client.clone()).create(&params, &review).await?.status
        }
    };
    Ok(status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_match_the_enabled_features() {
        let needs = needs(&Settings::default());
        let has = |verb: &str, resource: &str, namespaced: bool| {
            needs
                .iter()
                .any(|need| need.verb == verb && need.resource == resource && need.namespace.is_some() == namespaced)
        };
        assert!(
            has("patch", "nodes", false) && has("create", "configmaps", true) && has("create", "pods/eviction", false)
        );
        assert!(needs.iter().any(|need| need.resource == "secrets" && need.name.is_some()));
        assert!(needs.len() > 40);
        let mut settings = Settings::default();
        settings.placement.enabled = false;
        settings.webhook.enabled = false;
        let few = super::needs(&settings);
        assert!(few.iter().all(|need| need.resource != "secrets") && few.len() > 10);
        assert!(!few.iter().any(|need| need.resource.starts_with("pods")), "only placement needs pods");
    }

    #[test]
    fn leases_are_needed_in_the_namespace_of_the_election() {
        let mut settings = Settings::default();
        settings.controller.leader_election.namespace = Some("elections".to_owned());
        for need in needs(&settings).into_iter().filter(|need| need.namespace.is_some()) {
            let expected = if need.resource == "leases" { "elections" } else { settings.namespace.as_str() };
            assert_eq!(need.namespace.as_deref(), Some(expected), "{need:?}");
        }
    }
}
