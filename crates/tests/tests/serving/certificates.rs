//! Certificates are rotated under load without losing an admission request.

use crate::configuration::{maintenance, settings, turn};
use crate::{client, client_of, eventually, namespace};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use perennial::admission::certificates::SECRET;
use perennial::admission::configuration::{ConfigurationSettings, Configurations, MUTATE_NODES, NAME, WebhookTarget};
use perennial::admission::limits::Limits;
use perennial::admission::server::Webhooks;
use perennial_core::admission_review::AdmissionResponse;
use perennial_core::certs::{Certificates, Lifetimes};
use perennial_harness::{handshake, perennial};
use rstest::rstest;
use serde_json::json;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Distributes connections over the replicas, like a Service.
async fn service(backends: Arc<Vec<SocketAddr>>, listener: TcpListener) {
    for next in 0.. {
        let (mut incoming, _) = listener.accept().await.unwrap();
        let backend = backends[next % backends.len()];
        tokio::spawn(async move {
            if let Ok(mut outgoing) = TcpStream::connect(backend).await {
                let _ = tokio::io::copy_bidirectional(&mut incoming, &mut outgoing).await;
            }
        });
    }
}

/// The cause of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Age,
    /// `perennial webhook rotate`.
    Command,
    /// `kubectl delete secret`, as in the runbook.
    DeletedSecret,
}

#[rstest]
#[case::age(Cause::Age, Lifetimes { authority: 21, serving: 9, settle: 2, backdate: 60 })]
#[case::command(Cause::Command, Lifetimes { authority: 9000, serving: 3000, settle: 2, backdate: 60 })]
#[case::deleted_secret(Cause::DeletedSecret, Lifetimes { authority: 9000, serving: 3000, settle: 2, backdate: 60 })]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_is_lost_while_certificates_rotate(#[case] cause: Cause, #[case] lifetimes: Lifetimes) {
    let _turn = turn().await;
    let client = client().await;
    let name = match cause {
        Cause::Age => "rotation",
        Cause::Command => "rotation-command",
        Cause::DeletedSecret => "rotation-deleted-secret",
    };
    let namespace = namespace(&client, name).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let configuration = ConfigurationSettings {
        // A lost request fails, so that the test detects it.
        failure_policy: "Fail".to_owned(),
        timeout: Duration::from_secs(10),
        node_delete: false,
        pods: None,
        ..settings(&namespace, WebhookTarget::Url(url.clone()))
    };
    let stop = CancellationToken::new();
    let mut tasks = Vec::new();
    let mut backends = Vec::new();
    for _ in 0..2 {
        let (maintenance, served) = maintenance(&client, configuration.clone(), lifetimes);
        let label = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]);
        let patch: Vec<serde_json::Value> = serde_json::from_value(label).unwrap();
        let listening = Webhooks::new(Limits::default(), Arc::new(|_| {}))
            .on(MUTATE_NODES, move |_| std::future::ready(AdmissionResponse::patched(patch.clone())))
            .listen("127.0.0.1:0".parse().unwrap(), Arc::clone(&served))
            .unwrap();
        backends.push(listening.address());
        let (serving, keeping) = (stop.clone(), stop.clone());
        tasks.push(tokio::spawn(async move { listening.run(serving).await.unwrap() }));
        tasks.push(tokio::spawn(maintenance.run(keeping)));
    }
    let proxy = tokio::spawn(service(Arc::new(backends), listener));
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let bundle = async || -> Result<Vec<u8>, String> {
        let object = mutating.get(NAME).await.map_err(|error| error.to_string())?;
        let hook = object.webhooks.unwrap_or_default().pop().ok_or("no webhook")?;
        Ok(hook.client_config.ca_bundle.ok_or("no bundle")?.0)
    };
    let check = async || -> Result<(), String> {
        let (url, bundle) = (url.clone(), bundle().await?);
        tokio::task::spawn_blocking(move || handshake(&url, &bundle)).await.unwrap()
    };
    let nodes: Api<Node> = Api::all(client.clone());
    let create = async |name: String| -> Result<(), String> {
        let metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
        let node = Node { metadata, ..Node::default() };
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let answer = nodes.create(&dry, &node).await.map_err(|error| error.to_string())?;
        let seen = answer.metadata.labels.unwrap_or_default().get("seen").cloned();
        if seen.as_deref() == Some("yes") { Ok(()) } else { Err("passed without the webhook".to_owned()) }
    };
    // The API server uses a new configuration after a moment.
    eventually(Duration::from_secs(20), "the webhook is called", async || create("first".to_owned()).await).await;
    eventually(Duration::from_secs(20), "handshakes succeed", &check).await;

    let requests = AtomicUsize::new(0);
    let handshakes = AtomicUsize::new(0);
    let load = async {
        loop {
            let number = requests.fetch_add(1, Ordering::SeqCst);
            create(format!("n{number}")).await.unwrap_or_else(|error| panic!("request {number} was lost: {error}"));
        }
    };
    let probes = async {
        loop {
            // The bundle may change between read and handshake; the older one trusts the served
            // certificate too.
            check().await.unwrap_or_else(|error| panic!("a handshake failed: {error}"));
            handshakes.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let (mut signers, mut served) = (BTreeSet::new(), BTreeSet::new());
    let (enough_signers, enough_served) = if cause == Cause::Age { (3, 5) } else { (2, 2) };
    let before = bundle().await.unwrap();
    let rotation = async {
        let start = std::time::Instant::now();
        let mut is_over = cause == Cause::Age;
        while signers.len() < enough_signers || served.len() < enough_served || !is_over {
            let Ok(secret) = secrets.get(SECRET).await else { continue };
            let kept = Certificates::read(&secret.data.unwrap()["certificates.json"].0).unwrap();
            let first = signers.is_empty();
            signers.insert(kept.serving.authority.clone());
            served.insert(kept.serving.certificate.clone());
            match cause {
                Cause::Command if first => rotate(&namespace).await,
                Cause::DeletedSecret if first => drop(secrets.delete(SECRET, &DeleteParams::default()).await.unwrap()),
                Cause::Age => {}
                // The old authority is trusted no longer, and its key is gone.
                _ => {
                    is_over = kept.authorities.len() == 1
                        && !String::from_utf8_lossy(&bundle().await.unwrap())
                            .contains(&*String::from_utf8_lossy(&before));
                }
            }
            assert!(start.elapsed() < Duration::from_secs(90), "only {} authorities signed", signers.len());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = load => unreachable!(),
        () = probes => unreachable!(),
        () = rotation => {}
    }

    let (requests, handshakes) = (requests.into_inner(), handshakes.into_inner());
    assert!(requests > 50 && handshakes > 20, "too little load to tell: {requests} requests, {handshakes} handshakes");
    stop.cancel();
    for task in tasks {
        task.await.unwrap();
    }
    proxy.abort();
    Configurations::new(client).remove().await.unwrap();
}

/// Runs `perennial webhook rotate` as admin.
async fn rotate(namespace: &str) {
    let (namespace, plane) = (namespace.to_owned(), || localplane::Plane::shared().unwrap().kubeconfig_path());
    let run = move || {
        let kubeconfig = plane();
        let kubeconfig = kubeconfig.to_str().unwrap();
        perennial(["webhook", "rotate", "--kubeconfig", kubeconfig, "-n", namespace.as_str()], &[]).expect_success()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(output, "rotation requested; the operator logs each step\n");
}

/// Grants a user everything, except for writes of webhook configurations.
async fn forbid_configurations(client: &kube::Client, user: &str) {
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": user},
        "rules": [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]},
            {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["get"]},
        ],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &role).await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_signed_by_an_authority_that_the_configurations_do_not_carry() {
    let _turn = turn().await;
    let client = client().await;
    let namespace = namespace(&client, "order").await;
    forbid_configurations(&client, "hindered").await;
    let lifetimes = Lifetimes { authority: 24, serving: 24, settle: 1, backdate: 60 };
    let configuration = settings(&namespace, WebhookTarget::Service);
    let (mut free, _) = maintenance(&client, configuration.clone(), lifetimes);
    let (mut hindered, _) = maintenance(&client_of("hindered", &[]).await, configuration, lifetimes);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let kept = async || -> Certificates {
        let secret = secrets.get(SECRET).await.unwrap();
        Certificates::read(&secret.data.unwrap()["certificates.json"].0).unwrap()
    };
    eventually(Duration::from_secs(10), "the first authority is confirmed", async || {
        free.look().await.map_err(|error| error.to_string())?;
        if kept().await.authorities[0].confirmed { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let first = kept().await.authorities[0].id.clone();

    // A replica that may not write the configurations adds a CA and cannot continue.
    eventually(Duration::from_secs(30), "a second authority", async || {
        let _ = hindered.look().await;
        let authorities = kept().await.authorities.len();
        if authorities == 2 { Ok(()) } else { Err(format!("{authorities} authorities")) }
    })
    .await;
    let looked = std::time::Instant::now();
    while looked.elapsed() < Duration::from_secs(3) {
        assert!(hindered.look().await.is_err(), "the configurations cannot be written");
        let kept = kept().await;
        assert_eq!(kept.serving.authority, first, "the new authority signs before it is trusted");
        assert!(!kept.authorities[1].confirmed);
    }

    // A replica that may completes the rotation.
    let second = kept().await.authorities[1].id.clone();
    eventually(Duration::from_secs(10), "the new authority signs", async || {
        free.look().await.map_err(|error| error.to_string())?;
        let signer = kept().await.serving.authority;
        if signer == second { Ok(()) } else { Err(signer) }
    })
    .await;
    Configurations::new(client).remove().await.unwrap();
}
