//! Webhooks: whether they are installed, and whether the API server reaches and trusts us.

use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::WebhookClientConfig, core::v1::Node},
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use perennial_core::keeper::mark::MARK;

use super::Line;
use crate::{
    admission::configuration::{Configurations, Present},
    inspect::session::Session,
    runtime::error_category::{self, Category},
};

const WHAT: &str = "webhooks";
/// A node that is only ever created for show.
const PROBE: &str = "perennial-check";

pub(super) async fn check(session: &Session) -> Vec<Line> {
    let present = match Configurations::new(session.client.clone()).read().await {
        Ok(present) => present,
        Err(error) => {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            return vec![Line::warn(
                WHAT,
                format!("{error}: {why}"),
                "you need to be allowed to get the two configurations named perennial",
            )];
        }
    };
    let clients = clients(&present);
    if clients.is_empty() {
        if !session.settings.webhook.enabled {
            return vec![Line::pass(WHAT, "off, as configured")];
        }
        let said = "not installed: labels come back right after a create instead of in it";
        let fix = "the operator installs them with webhook.enabled; outside a cluster it needs webhook.url";
        return vec![if session.configured { Line::fail(WHAT, said, fix) } else { Line::warn(WHAT, said, fix) }];
    }
    let mut lines = vec![bundles(&clients)];
    lines.push(reached(session).await);
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

/// All of them have to trust the same authorities.
fn bundles(clients: &[WebhookClientConfig]) -> Line {
    let bundle = |client: &WebhookClientConfig| client.ca_bundle.clone().unwrap_or_else(|| ByteString(Vec::new()));
    let first = clients.first().map(bundle);
    if clients.iter().any(|client| Some(bundle(client)) != first) {
        return Line::warn(
            WHAT,
            "they do not all trust the same authorities",
            "the operator makes them equal within seconds; look at its log if it does not",
        );
    }
    let wheres = clients.first().map(|client| match (&client.url, &client.service) {
        (Some(url), _) => url.split('/').take(3).collect::<Vec<_>>().join("/"),
        (None, Some(service)) => format!("service {}/{}", service.namespace, service.name),
        (None, None) => "nowhere".to_owned(),
    });
    Line::pass(WHAT, format!("{} installed, at {}", clients.len(), wheres.unwrap_or_default()))
}

/// A create for show, with a mark that came along: whoever answers takes it off, and then the API server was answered.
async fn reached(session: &Session) -> Line {
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
        Ok(answer) if answer.metadata.annotations.as_ref().is_some_and(|found| found.contains_key(MARK)) => Line::fail(
            what,
            "the API server gets no answer from the webhooks, and goes on without them",
            "does it reach the address above (Service, NetworkPolicy, firewall), and is the operator's certificate of the bundle's authority? its own log and metrics (apiserver_admission_webhook_fail_open_count) say why",
        ),
        Ok(_) => Line::pass(what, "the API server reaches and trusts the webhooks (a create for show was answered)"),
        Err(error) if Category::of(&error) == Category::Forbidden => Line::warn(
            what,
            "not tried: you may not create nodes, not even for show",
            "run this as somebody who may, to be sure",
        ),
        Err(error) => Line::fail(what, error_category::message(&error), "a create for show was refused"),
    }
}
