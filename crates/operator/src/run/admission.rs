//! The admission server and what keeps it right.

use std::{
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use kube::Client;
use perennial_core::{certs::Lifetimes, config::Settings};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{Parts, tasks::every};
use crate::admission::{
    certificates::Served,
    configuration::{ConfigurationSettings, Configurations, MUTATE_NODES, MUTATE_PODS, Target, VALIDATE_NODES},
    maintenance::{Maintenance, MaintenanceSettings, Origin},
    server::{Limits, Listening, Observation, Webhooks},
};
use crate::monitoring::health::Health;

const CERTIFIED: &str = "webhooks";
/// How long admission is still answered after a stop was asked for. Leases are given up at once, but the API server finds us by a Service, and
/// it takes a while until every node knows that we are going.
pub(super) const LINGER: Duration = Duration::from_secs(3);

/// Starts the admission server, and keeps its certificate and the webhook configurations right.
pub(super) fn serve_webhooks(
    settings: &Settings,
    client: &Client,
    parts: &Parts,
    health: &Health,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let webhook = &settings.webhook;
    let target = webhook.url.clone().map_or(Target::Service, Target::Url);
    let configuration = ConfigurationSettings {
        namespace: settings.namespace.to_string(),
        target,
        failure_policy: webhook.failure_policy.to_string(),
        timeout: webhook.timeout,
        node_create: true,
        node_delete: true,
        pods: parts.placer.as_ref().map(|placer| placer.configured.namespaces()),
    };
    let served = Arc::new(Served::default());
    let listening = listen(settings, parts, &served)?;
    info!(address = %listening.address(), "serving admission");
    tasks.spawn({
        let stop = stop.clone();
        async move {
            if let Err(error) = listening.run(stop).await {
                error!(%error, "the admission server ended");
            }
        }
    });
    let origin = webhook
        .cert_dir
        .as_ref()
        .map_or_else(|| Origin::Secret { lifetimes: Lifetimes::default() }, |dir| Origin::Directory(dir.into()));
    let maintenance = MaintenanceSettings {
        namespace: settings.namespace.to_string(),
        origin,
        names: configuration.names(),
        configuration: Some(configuration),
        clock: parts.keeper.clock.clone(),
    };
    tasks.spawn(Maintenance::new(client.clone(), maintenance, Arc::clone(&served)).run(stop.clone()));
    health.expect(CERTIFIED);
    tasks.spawn({
        let (stop, health, metrics) = (stop.clone(), health.clone(), parts.keeper.metrics.clone());
        every(stop, Duration::from_millis(250), move || {
            health.set(CERTIFIED, served.is_ready());
            metrics.certificate_expiry.set(served.expires().unwrap_or_default());
            std::future::ready(())
        })
    });
    Ok(())
}

fn listen(settings: &Settings, parts: &Parts, served: &Arc<Served>) -> anyhow::Result<Listening> {
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, settings.webhook.port));
    Ok(webhooks(settings, parts).listen(address, Arc::clone(served))?)
}

/// What answers admission, without its port.
pub fn webhooks(settings: &Settings, parts: &Parts) -> Webhooks {
    let Parts { keeper, placer } = parts;
    let metrics = keeper.metrics.clone();
    let report = move |seen: &Observation| {
        let code = if seen.outcome.is_answered() { http_code(200) } else { http_code(503) };
        metrics.admitted(seen.path.trim_start_matches('/'), code, seen.elapsed);
    };
    let (on_create, on_delete) = (Arc::clone(keeper), Arc::clone(keeper));
    let mut webhooks = Webhooks::new(limits(settings), Arc::new(report))
        .on(MUTATE_NODES, move |request| {
            let keeper = Arc::clone(&on_create);
            async move { keeper.admit_create(request).await }
        })
        .on(VALIDATE_NODES, move |request| {
            let keeper = Arc::clone(&on_delete);
            async move { keeper.admit_delete(request).await }
        });
    if let Some(placer) = placer.clone() {
        webhooks = webhooks.on(MUTATE_PODS, move |request| {
            let placer = Arc::clone(&placer);
            async move { placer.admit_pod(request).await }
        });
    }
    webhooks
}

fn limits(settings: &Settings) -> Limits {
    // Who has an address of their own is known by nobody else.
    let linger = if settings.webhook.url.is_none() { LINGER } else { Duration::ZERO };
    Limits { linger, ..Limits::for_timeout(settings.webhook.timeout) }
}

fn http_code(code: u16) -> http::StatusCode {
    http::StatusCode::from_u16(code).unwrap_or_default()
}

/// Webhooks that were switched off would only be failed open: they are taken away.
pub(super) async fn remove_webhooks(client: &Client) {
    if let Err(error) = Configurations::new(client.clone()).remove().await {
        warn!(%error, "webhooks are off, but their configurations could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_a_service_admission_is_answered_for_a_while_after_the_stop() {
        let mut settings = Settings::default();
        assert!(limits(&settings).linger >= Duration::from_secs(2));
        assert!(limits(&settings).linger < super::super::STOP_WITHIN);

        settings.webhook.url = Some("https://127.0.0.1:9443".to_owned());
        assert_eq!(limits(&settings).linger, Duration::ZERO);
    }
}
