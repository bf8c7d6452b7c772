//! The tasks of admission: the server, and the maintenance of its certificate and of the webhook
//! configurations.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Client;
use perennial_core::{certs::Lifetimes, config::Settings};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tracing::{error, info, warn};

use super::{
    certificates::Served,
    configuration::{ConfigurationSettings, Configurations, WebhookTarget},
    limits::Limits,
    maintenance::{CertificateOrigin, Maintenance, MaintenanceSettings},
    metrics::AdmissionMetrics,
    server::Webhooks,
};
use crate::runtime::{environment::Environment, tasks::Task};

/// Readiness condition: a certificate is served.
const CERTIFIED: &str = "webhooks";
const CERTIFICATE_CHECK: Duration = Duration::from_millis(250);
/// Time for which admission is still served after the stop. Leases are released at once, but the
/// API server reaches this process through a Service, and every node needs a moment to learn that
/// it is gone.
pub const LINGER: Duration = Duration::from_secs(3);

/// Binds the port and returns the tasks. `pods` selects the namespaces whose pods are placed.
pub fn tasks(
    settings: &Settings,
    env: &Environment,
    webhooks: Webhooks,
    pods: Option<LabelSelector>,
    metrics: AdmissionMetrics,
) -> anyhow::Result<[Task; 3]> {
    let webhook = &settings.webhook;
    let configuration = ConfigurationSettings {
        namespace: settings.namespace.to_string(),
        target: webhook.url.clone().map_or(WebhookTarget::Service, WebhookTarget::Url),
        failure_policy: webhook.failure_policy.to_string(),
        timeout: webhook.timeout,
        node_create: true,
        node_delete: true,
        pods,
    };
    let origin = webhook.cert_dir.as_ref().map_or_else(
        || CertificateOrigin::Secret { lifetimes: Lifetimes::default() },
        |dir| CertificateOrigin::Directory(dir.into()),
    );
    let maintenance = MaintenanceSettings {
        namespace: settings.namespace.to_string(),
        origin,
        names: configuration.names(),
        configuration: Some(configuration),
        clock: env.clock.clone(),
    };
    let served = Arc::new(Served::default());
    let address = webhook.address.as_ref().map(|address| address.parse()).transpose();
    let address = address.context("webhook.address is not an IP address")?;
    let webhooks = match &webhook.client_ca {
        Some(file) => webhooks.verify_clients(client_authority(Path::new(file))?),
        None => webhooks,
    };
    let listening = webhooks.listen_on(address, webhook.port, Arc::clone(&served))?;
    info!(address = %listening.address(), "serving admission");
    let stop = env.stop.clone();
    let serve = async move {
        if let Err(error) = listening.run(stop).await {
            error!(%error, "the admission server ended");
        }
    };
    let maintenance = Maintenance::new(env.client.clone(), maintenance, Arc::clone(&served)).run(env.stop.clone());
    env.health.expect(CERTIFIED);
    let health = env.health.clone();
    let report = move || {
        health.set(CERTIFIED, served.is_ready());
        metrics.set_certificate_expiry(served.expires());
        std::future::ready(())
    };
    Ok([
        Task::new("admission server", serve),
        Task::new("webhook certificate and configurations", maintenance),
        Task::every(&env.stop, "webhook readiness", CERTIFICATE_CHECK, report),
    ])
}

/// Reads the authorities of `webhook.clientCA`.
fn client_authority(file: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file);
    let certificates = certificates.with_context(|| format!("cannot read webhook.clientCA {}", file.display()))?;
    for certificate in certificates {
        let certificate = certificate.with_context(|| format!("webhook.clientCA {} is not PEM", file.display()))?;
        roots.add(certificate).with_context(|| format!("unusable certificate in {}", file.display()))?;
    }
    anyhow::ensure!(!roots.is_empty(), "webhook.clientCA {} contains no certificate", file.display());
    Ok(roots)
}

pub(crate) fn limits(settings: &Settings) -> Limits {
    // At an address of its own no Service routes requests to this process after the stop.
    let linger = if settings.webhook.url.is_none() { LINGER } else { Duration::ZERO };
    Limits { linger, ..Limits::for_timeout(settings.webhook.timeout) }
}

/// Removes the webhook configurations where webhooks are off: the API server would only fail open
/// on each request.
pub async fn remove_configurations(client: &Client) {
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
        assert!(limits(&settings).linger < crate::run::STOP_WITHIN);

        settings.webhook.url = Some("https://127.0.0.1:9443".to_owned());
        assert_eq!(limits(&settings).linger, Duration::ZERO);
    }
}
