//! Webhook configurations: created, unchanged if correct, repaired, removed.

use crate::{client, eventually, namespace};
use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use perennial::admission::certificates::{SECRET, Served};
use perennial::admission::configuration::{ConfigurationSettings, Configurations, NAME, Repair, WebhookTarget};
use perennial::admission::maintenance::{CertificateOrigin, Maintenance, MaintenanceSettings};
use perennial::runtime::clock::Clock;
use perennial_core::certs::Lifetimes;
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// There is one pair of configurations per cluster: tests that write it take turns.
pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

pub(crate) fn settings(namespace: &str, target: WebhookTarget) -> ConfigurationSettings {
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
        origin: CertificateOrigin::Secret { lifetimes },
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
    let (mut maintenance, served) =
        maintenance(&client, settings(&namespace, WebhookTarget::Service), Lifetimes::default());
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
    // Labels belong to the tool that installed the object.
    assert_eq!((labels.get("app.kubernetes.io/managed-by"), labels["team"].as_str()), (None, "infra"));

    // One is deleted.
    mutating.delete(NAME, &DeleteParams::default()).await.unwrap();
    right(&mut maintenance).await;
    assert_eq!(mutating.get(NAME).await.unwrap().webhooks.unwrap().len(), 2);

    // The Secret is deleted or corrupted: the authority of the served certificate stays, so that no
    // request is lost while a new one takes over.
    let authorities = async || {
        let state = secrets.get(SECRET).await.unwrap().data.unwrap()["certificates.json"].0.clone();
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
        let all = state["authorities"].as_array().unwrap().clone();
        all.iter().map(|authority| authority["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let served = authorities().await;
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    right(&mut maintenance).await;
    let after = authorities().await;
    assert!(served.iter().all(|id| after.contains(id)), "{after:?} instead of {served:?}");
    assert!(after.len() > served.len(), "a deleted Secret asks for a new authority: {after:?}");
    let spoilt = json!({"stringData": {"certificates.json": "{"}});
    secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(spoilt)).await.unwrap();
    right(&mut maintenance).await;
    let after = authorities().await;
    assert!(served.iter().all(|id| after.contains(id)), "{after:?} instead of {served:?}");

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
                maintenance(&client, settings(&namespace, WebhookTarget::Service), Lifetimes::default());
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

/// AKS' admissions enforcer adds requirements to the namespace selector of every webhook.
#[tokio::test]
async fn requirements_that_a_platform_adds_are_left_alone_and_kept() {
    let _turn = turn().await;
    let client = client().await;
    let namespace = namespace(&client, "enforcer").await;
    let (mut maintenance, _served) =
        maintenance(&client, settings(&namespace, WebhookTarget::Service), Lifetimes::default());
    right(&mut maintenance).await;
    right(&mut maintenance).await;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let annotations = mutating.get(NAME).await.unwrap().metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get("admissions.enforcer/disabled").map(String::as_str), Some("true"));

    // The stand-in of the enforcer.
    let added = json!({"matchExpressions": [
        {"key": "control-plane", "operator": "NotIn", "values": ["true"]},
        {"key": "kubernetes.azure.com/managedby", "operator": "NotIn", "values": ["aks"]},
    ]});
    let requirement = &added["matchExpressions"][0];
    let enforce = json!([
        {"op": "replace", "path": "/webhooks/0/namespaceSelector", "value": added},
        {"op": "add", "path": "/webhooks/1/namespaceSelector/matchExpressions/-", "value": requirement},
    ]);
    let enforce = Patch::Json::<()>(serde_json::from_value(enforce).unwrap());
    let enforced = mutating.patch(NAME, &PatchParams::default(), &enforce).await.unwrap();
    for _ in 0..3 {
        assert_eq!(maintenance.look().await.unwrap(), Repair::Right);
    }
    let version = mutating.get(NAME).await.unwrap().metadata.resource_version;
    assert_eq!(version, enforced.metadata.resource_version, "nothing is written");

    // A repair of something else keeps them.
    let spoil = json!([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 29}]);
    let spoil = Patch::Json::<()>(serde_json::from_value(spoil).unwrap());
    mutating.patch(NAME, &PatchParams::default(), &spoil).await.unwrap();
    right(&mut maintenance).await;
    let hook = mutating.get(NAME).await.unwrap().webhooks.unwrap().remove(0);
    let expressions = hook.namespace_selector.unwrap().match_expressions.unwrap_or_default();
    assert_eq!((hook.timeout_seconds, expressions.len()), (Some(2), 2));

    // A selector that matches fewer namespaces in another way is repaired.
    let narrow =
        json!([{"op": "replace", "path": "/webhooks/1/namespaceSelector", "value": {"matchLabels": {"a": "b"}}}]);
    let narrow = Patch::Json::<()>(serde_json::from_value(narrow).unwrap());
    mutating.patch(NAME, &PatchParams::default(), &narrow).await.unwrap();
    right(&mut maintenance).await;
    let hook = mutating.get(NAME).await.unwrap().webhooks.unwrap().remove(1);
    assert_eq!(hook.namespace_selector.unwrap_or_default().match_labels.unwrap_or_default().len(), 0);
}

/// Stand-in for AKS' admissions enforcer: a controller that watches the configuration and adds a
/// requirement to the namespace selector of every webhook that lacks it. Counts its writes.
async fn enforce(client: kube::Client, writes: Arc<AtomicUsize>) {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let mut events = std::pin::pin!(watcher(mutating.clone(), config).applied_objects());
    let requirement =
        LabelSelectorRequirement { key: "control-plane".to_owned(), operator: "DoesNotExist".to_owned(), values: None };
    while let Some(event) = events.next().await {
        let Ok(mut object) = event else { continue };
        let mut lacking = 0;
        for hook in object.webhooks.iter_mut().flatten() {
            let selector = hook.namespace_selector.get_or_insert_default();
            let expressions = selector.match_expressions.get_or_insert_default();
            if !expressions.contains(&requirement) {
                expressions.push(requirement.clone());
                lacking += 1;
            }
        }
        if lacking > 0 && mutating.replace(NAME, &PostParams::default(), &object).await.is_ok() {
            writes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Two replicas and the enforcer maintain the same object. Every change is written once, by one of
/// them, and nothing is written back and forth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_a_platform_that_changes_the_configurations_do_not_fight() {
    let _turn = turn().await;
    let client = client().await;
    let namespace = namespace(&client, "enforced").await;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let stop = tokio_util::sync::CancellationToken::new();
    // Short lifetimes, so that the replicas check often. Certificates are renewed only later.
    let lifetimes = Lifetimes { settle: 1, ..Lifetimes::default() };
    let replicas: Vec<_> = (0..2)
        .map(|_| {
            let (maintenance, _) = maintenance(&client, settings(&namespace, WebhookTarget::Service), lifetimes);
            tokio::spawn(maintenance.run(stop.clone()))
        })
        .collect();
    let writes = Arc::new(AtomicUsize::new(0));
    let rewriter = tokio::spawn(enforce(client.clone(), Arc::clone(&writes)));
    let enforced = async || {
        let object = mutating.get(NAME).await.map_err(|error| error.to_string())?;
        let secret = secrets.get(SECRET).await.map_err(|error| error.to_string())?;
        let bundle = secret.data.unwrap_or_default().remove("ca.crt");
        let hooks = object.webhooks.unwrap_or_default();
        let is_enforced = |hook: &MutatingWebhook| {
            let expressions = hook.namespace_selector.iter().flat_map(|it| it.match_expressions.iter().flatten());
            { expressions }.any(|expression| expression.key == "control-plane")
        };
        let is_ours =
            |hook: &MutatingWebhook| hook.timeout_seconds == Some(2) && hook.client_config.ca_bundle == bundle;
        let right = hooks.len() == 2 && hooks.iter().all(|hook| is_enforced(hook) && is_ours(hook));
        if right { Ok(object.metadata.generation) } else { Err(format!("{hooks:?}")) }
    };
    eventually(Duration::from_secs(15), "the enforcer has added its requirement", &enforced).await;

    // Every repair needs a check of both replicas, so that a fight would show.
    for round in 1..=4 {
        let before = mutating.get(NAME).await.unwrap().metadata.generation.unwrap();
        let enforced_before = writes.load(Ordering::SeqCst);
        let spoil = json!([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 20 + round}]);
        let spoil = Patch::Json::<()>(serde_json::from_value(spoil).unwrap());
        mutating.patch(NAME, &PatchParams::default(), &spoil).await.unwrap();

        let (after, _) = eventually(Duration::from_secs(15), "the replicas repair it", &enforced).await;

        assert_eq!(after, Some(before + 2), "round {round}: one change and one repair");
        assert_eq!(writes.load(Ordering::SeqCst), enforced_before, "round {round}: the requirement was kept");
    }

    rewriter.abort();
    stop.cancel();
    for replica in replicas {
        replica.await.unwrap();
    }
    Configurations::new(client).remove().await.unwrap();
}
