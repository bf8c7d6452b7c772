//! Webhooks: whether they are installed, and whether the API server reaches and trusts them.

use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::WebhookClientConfig, core::v1::Node},
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use perennial_core::keeper::mark::MARK;

use super::CheckResult;
use crate::{
    admission::configuration::{Configurations, Present},
    inspect::session::Session,
    runtime::error_category::{self, Category},
};

const WHAT: &str = "webhooks";
/// Name of the node in the dry-run request.
const PROBE: &str = "perennial-check";

pub(super) async fn check(session: &Session) -> Vec<CheckResult> {
    let present = match Configurations::new(session.client.clone()).read().await {
        Ok(present) => present,
        Err(error) => {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            return vec![CheckResult::warn(
                WHAT,
                format!("{error}: {why}"),
                "grant permission to get the two webhook configurations named perennial",
            )];
        }
    };
    let clients = clients(&present);
    if clients.is_empty() {
        if !session.settings.webhook.enabled {
            return vec![CheckResult::pass(WHAT, "off, as configured")];
        }
        let said = "not installed: labels are restored after a node is created instead of during its creation";
        let fix = "enable webhook.enabled; an operator outside the cluster also needs webhook.url";
        return vec![if session.configured {
            CheckResult::fail(WHAT, said, fix)
        } else {
            CheckResult::warn(WHAT, said, fix)
        }];
    }
    let mut lines = vec![bundles(&clients)];
    lines.push(probe(session).await);
    lines
}

fn clients(present: &Present) -> Vec<WebhookClientConfig> {
    let mutating = present
        .mutating
        .iter()
        .flat_map(|found| found.webhooks.iter().flatten())
        .map(|hook| hook.client_config.clone());
    let validating = present
        .validating
        .iter()
        .flat_map(|found| found.webhooks.iter().flatten())
        .map(|hook| hook.client_config.clone());
    mutating.chain(validating).collect()
}

/// All webhooks must trust the same certificate authorities.
fn bundles(clients: &[WebhookClientConfig]) -> CheckResult {
    let bundle = |client: &WebhookClientConfig| client.ca_bundle.clone().unwrap_or_else(|| ByteString(Vec::new()));
    let first = clients.first().map(bundle);
    if clients.iter().any(|client| Some(bundle(client)) != first) {
        return CheckResult::warn(
            WHAT,
            "the webhooks trust different certificate authorities",
            "the operator corrects this within seconds; read its log if it does not",
        );
    }
    let address = clients.first().map(|client| match (&client.url, &client.service) {
        (Some(url), _) => url.split('/').take(3).collect::<Vec<_>>().join("/"),
        (None, Some(service)) => format!("service {}/{}", service.namespace, service.name),
        (None, None) => "no address".to_owned(),
    });
    CheckResult::pass(WHAT, format!("{} installed, at {}", clients.len(), address.unwrap_or_default()))
}

/// Creates a node with a mark in dry-run mode. A webhook that answers removes the mark.
async fn probe(session: &Session) -> CheckResult {
    let node = Node {
        metadata: ObjectMeta {
            name: Some(PROBE.to_owned()),
            annotations: Some([(MARK.to_owned(), "{}".to_owned())].into()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    };
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let what = "admission";
    match Api::<Node>::all(session.client.clone()).create(&params, &node).await {
        Ok(answer) if answer.metadata.annotations.as_ref().is_some_and(|found| found.contains_key(MARK)) => {
            CheckResult::fail(
                what,
                "the API server gets no response from the webhooks and ignores them",
                "check that it reaches the address above (Service, NetworkPolicy, firewall) and that the CA bundle matches the operator's certificate; its log and the metric apiserver_admission_webhook_fail_open_count contain the reason",
            )
        }
        Ok(_) => {
            CheckResult::pass(what, "the API server reaches and trusts the webhooks (checked with a dry-run create)")
        }
        Err(error) if Category::of(&error) == Category::Forbidden => CheckResult::warn(
            what,
            "not checked: you are not allowed to create nodes, not even with dry-run",
            "run this check with permission to create nodes",
        ),
        Err(error) => CheckResult::fail(
            what,
            error_category::message(&error),
            "the dry-run create was rejected; check the policies for nodes",
        ),
    }
}
