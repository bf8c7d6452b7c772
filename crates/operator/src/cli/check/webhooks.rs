//! Webhooks: whether they are installed, and whether the API server reaches and trusts them.

use std::time::{Duration, Instant};

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
    manifests::Features,
    runtime::{
        error_category::{self, Category},
        error_chain::Chain,
    },
};

const WHAT: &str = "webhooks";
/// Name of the node in the dry-run request.
const PROBE: &str = "perennial-check";

pub(super) async fn check(session: &Session) -> Vec<CheckResult> {
    let present = match Configurations::new(session.client.clone()).read().await {
        Ok(present) => present,
        Err(error) => {
            let fix =
                "if permission is missing, grant permission to get the two webhook configurations named perennial";
            return vec![CheckResult::warn(WHAT, Chain(&error).to_string(), fix)];
        }
    };
    let clients = clients(&present);
    let dry_run = session.settings.controller.dry_run;
    if clients.is_empty() {
        if dry_run {
            return vec![CheckResult::pass(WHAT, "not installed: a dry run serves no admission")];
        }
        if !Features::of(&session.settings).webhooks {
            return vec![CheckResult::pass(WHAT, "off, as configured")];
        }
        let message = "not installed: labels are restored after a node is created instead of during its creation";
        let fix = "start the operator, which adds them, or read its log; outside the cluster it needs webhook.url";
        return vec![if session.source.as_ref().is_ok_and(|source| source.is_configured()) {
            CheckResult::fail(WHAT, message, fix)
        } else {
            CheckResult::warn(WHAT, message, fix)
        }];
    }
    if dry_run {
        let message = format!("{} installed, but a dry run serves no admission", clients.len());
        return vec![CheckResult::warn(WHAT, message, "remove them with `perennial webhook disable`")];
    }
    // The port of the pod: a Service maps its own port to it.
    let port = match clients.first().and_then(|client| client.url.as_deref()) {
        Some(_) => None,
        None => Some(session.settings.webhook.port),
    };
    vec![bundles(&clients), probe(session, port).await]
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

/// Creates a node with a mark in dry-run mode. A webhook that answers removes the mark. `port`: the
/// port of the operator's pods, unless the webhooks have a URL.
async fn probe(session: &Session, port: Option<u16>) -> CheckResult {
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
    let begun = Instant::now();
    let created = Api::<Node>::all(session.client.clone()).create(&params, &node).await;
    let took = begun.elapsed();
    match created {
        Ok(answer) if answer.metadata.annotations.as_ref().is_some_and(|found| found.contains_key(MARK)) => {
            let (message, fix) = unreached(took, port);
            CheckResult::fail(what, message, fix)
        }
        Ok(_) => CheckResult::pass(
            what,
            format!(
                "the API server reaches and trusts the webhooks (checked with a dry-run create, which took {} ms)",
                took.as_millis()
            ),
        ),
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

/// Returns the problem and its remedy if the webhooks were not called in a request that took this
/// long.
fn unreached(took: Duration, port: Option<u16>) -> (String, String) {
    let message = format!(
        "the API server gets no response from the webhooks and ignores them; the create of a node took {} ms",
        took.as_millis()
    );
    let reach = match port {
        Some(port) => format!(
            "check that it reaches port {port} of the operator's pods (Service, NetworkPolicy, firewall of a private \
             cluster). If it cannot reach pods, set hostNetwork=true in the chart; if it cannot reach them at all, \
             webhook.enabled=false restores labels after the creation, without the wait"
        ),
        None => "check that it reaches the address above".to_owned(),
    };
    let fix = format!(
        "{reach}. Check also that the CA bundle matches the operator's certificate; the log of the API server and its \
         metric apiserver_admission_webhook_fail_open_count contain the reason"
    );
    (message, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_port_is_named_with_the_wait_and_the_ways_out() {
        let (message, fix) = unreached(Duration::from_millis(2013), Some(9443));
        assert!(message.contains("2013 ms"), "{message}");
        for word in ["port 9443", "hostNetwork", "webhook.enabled=false", "firewall"] {
            assert!(fix.contains(word), "no {word} in {fix}");
        }
        let (_, fix) = unreached(Duration::ZERO, None);
        assert!(fix.contains("the address above") && !fix.contains("port"), "{fix}");
    }
}
