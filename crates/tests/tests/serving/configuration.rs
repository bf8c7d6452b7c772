//! Webhook configurations: created, unchanged if correct, repaired, removed.

use crate::{client, eventually, namespace};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use perennial::admission::certificates::{SECRET, Served};
use perennial::admission::configuration::{ConfigurationSettings, Configurations, NAME, Repair, Target};
use perennial::admission::maintenance::{Maintenance, MaintenanceSettings, Origin};
use perennial::runtime::clock::Clock;
use perennial_core::certs::Lifetimes;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// There is one pair of configurations per cluster: tests that write it take turns.
pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

pub(crate) fn settings(namespace: &str, target: Target) -> ConfigurationSettings {
    ConfigurationSettings {
        namespace: namespace.to_owned(),
        target,
        failure_policy: "Ignore".to_owned(),
        timeout: Duration::from_secs(2),
        node_create: true,
        node_delete: true,
        pods: Some(LabelSelector::default()),
    }
}

pub(crate) fn maintenance(
    client: &kube::Client,
    configuration: ConfigurationSettings,
    lifetimes: Lifetimes,
) -> (Maintenance, Arc<Served>) {
    let served = Arc::new(Served::default());
    let settings = MaintenanceSettings {
        namespace: configuration.namespace.clone(),
        origin: Origin::Secret { lifetimes },
        names: configuration.names(),
        configuration: Some(configuration),
        clock: Clock::system(),
    };
    (Maintenance::new(client.clone(), settings, Arc::clone(&served)), served)
}

/// Runs until everything is correct.
async fn right(maintenance: &mut Maintenance) {
    for _ in 0..10 {
        if maintenance.look().await.unwrap() == Repair::Right {
            return;
        }
    }
    panic!("not right after ten looks");
}

#[tokio::test]
async fn drift_is_repaired_and_what_is_right_is_left_alone() {
    let _turn = turn().await;
    let client = client().await;
    let namespace = namespace(&client, "drift").await;
    let (mut maintenance, served) = maintenance(&client, settings(&namespace, Target::Service), Lifetimes::default());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);

    right(&mut maintenance).await;
    assert!(served.is_ready());
    // Once more for the confirmation that follows.
    right(&mut maintenance).await;
    let versions = async || {
        let version = |metadata: kube::api::ObjectMeta| metadata.resource_version.unwrap();
        [
            version(validating.get(NAME).await.unwrap().metadata),
            version(mutating.get(NAME).await.unwrap().metadata),
            version(secrets.get(SECRET).await.unwrap().metadata),
        ]
    };
    let before = versions().await;
    for _ in 0..3 {
        assert_eq!(maintenance.look().await.unwrap(), Repair::Right);
    }
    assert_eq!(before, versions().await, "quiet means quiet");

    // A rule is widened, a bundle replaced, the label removed and another one added.
    let widen = json!([{"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["nodes", "nodes/status"]}]);
    let patch = Patch::Json::<()>(serde_json::from_value(widen).unwrap());
    validating.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
    let labels = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null, "team": "infra"}}});
    mutating.patch(NAME, &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
    right(&mut maintenance).await;
    let rules = validating.get(NAME).await.unwrap().webhooks.unwrap().remove(0).rules.unwrap();
    assert_eq!(rules[0].resources.as_deref(), Some(&["nodes".to_owned()][..]));
    let labels = mutating.get(NAME).await.unwrap().metadata.labels.unwrap();
    assert_eq!((labels["app.kubernetes.io/managed-by"].as_str(), labels["team"].as_str()), ("perennial", "infra"));

    // One is deleted.
    mutating.delete(NAME, &DeleteParams::default()).await.unwrap();
    right(&mut maintenance).await;
    assert_eq!(mutating.get(NAME).await.unwrap().webhooks.unwrap().len(), 2);

    // The Secret is deleted or corrupted: the served certificate is still valid and stays.
    let state = async || secrets.get(SECRET).await.unwrap().data.unwrap()["certificates.json"].0.clone();
    let good = state().await;
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    right(&mut maintenance).await;
    assert_eq!(good, state().await);
    let spoilt = json!({"stringData": {"certificates.json": "{"}});
    secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(spoilt)).await.unwrap();
    right(&mut maintenance).await;
    assert_eq!(good, state().await);

    // Removal is idempotent.
    let configurations = Configurations::new(client.clone());
    configurations.remove().await.unwrap();
    configurations.remove().await.unwrap();
    assert!(validating.get_opt(NAME).await.unwrap().is_none());
    assert!(mutating.get_opt(NAME).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_start_together_agree_on_one_authority() {
    let _turn = turn().await;
    let client = client().await;
    let namespace = namespace(&client, "together").await;
    let stop = tokio_util::sync::CancellationToken::new();
    let replicas: Vec<_> = (0..5)
        .map(|_| {
            let (maintenance, served) =
                maintenance(&client, settings(&namespace, Target::Service), Lifetimes::default());
            (tokio::spawn(maintenance.run(stop.clone())), served)
        })
        .collect();

    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    eventually(Duration::from_secs(15), "all serve, and the configurations carry the bundle", || async {
        if !replicas.iter().all(|(_, served)| served.is_ready()) {
            return Err("a replica has no certificate".to_owned());
        }
        let secret = secrets.get(SECRET).await.map_err(|error| error.to_string())?;
        let bundle = secret.data.unwrap()["ca.crt"].0.clone();
        let object = mutating.get(NAME).await.map_err(|error| error.to_string())?;
        let hooks = object.webhooks.unwrap_or_default();
        let carried = hooks.iter().all(|hook| hook.client_config.ca_bundle.as_ref().is_some_and(|ca| ca.0 == bundle));
        if carried { Ok(()) } else { Err("another bundle".to_owned()) }
    })
    .await;

    stop.cancel();
    for (task, _) in replicas {
        task.await.unwrap();
    }
    Configurations::new(client).remove().await.unwrap();
}
