//! Floor of every webhook: Perennial's own server with the same TLS, whose answers change nothing.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use localplane::Process;
use perennial::admission::{
    certificates::Served,
    configuration::{ConfigurationSettings, Configurations, MUTATE_NODES, VALIDATE_NODES, WebhookTarget},
    issue,
    limits::Limits,
    server::Webhooks,
};
use perennial_core::{admission_review::AdmissionResponse, certs::Lifetimes};
use perennial_harness::{TestCluster, eventually_within};
use tokio_util::sync::CancellationToken;

/// Argument that makes this program the webhook.
pub(crate) const COMMAND: &str = "no-op-webhook";
/// Printed at the first request.
const CALLED: &str = "called";
const TIMEOUT: Duration = Duration::from_secs(2);

/// A running webhook for the creates and deletes of nodes.
pub(crate) struct NoOpWebhook {
    client: Client,
    process: Process,
}

impl NoOpWebhook {
    /// Starts it as its own process, and returns when the API server calls it.
    pub(crate) async fn start(cluster: &TestCluster) -> Self {
        let log = cluster.plane().dir().join("logs").join(format!("{}-no-op.log", cluster.namespace()));
        let us = std::env::current_exe().expect("a running program has a path");
        let words = [COMMAND.to_owned(), cluster.plane().kubeconfig_path().display().to_string()];
        let process = Process::start(&us, &words, &log).expect("the no-op webhook starts");
        let nodes: Api<Node> = Api::all(cluster.client());
        eventually_within(Duration::from_mins(1), "the API server calls the no-op webhook", async || {
            let metadata = ObjectMeta { name: Some("probe".to_owned()), ..ObjectMeta::default() };
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            let created = nodes.create(&dry, &Node { metadata, ..Node::default() }).await;
            created.map_err(|error| error.to_string())?;
            if is_called(&log) { Ok(()) } else { Err("not called yet".to_owned()) }
        })
        .await;
        Self { client: cluster.client(), process }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Removes the webhook configurations and ends the process.
    pub(crate) async fn stop(self) {
        Configurations::new(self.client).remove().await.expect("removing the webhook configurations");
    }
}

fn is_called(log: &Path) -> bool {
    fs::read_to_string(log).is_ok_and(|text| text.lines().any(|line| line == CALLED))
}

/// Serves the webhook and installs its configurations.
pub(crate) async fn run(kubeconfig: PathBuf) {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a cluster");
    let configurations = Configurations::new(Client::try_from(config).expect("a client"));

    let names = [Ipv4Addr::LOCALHOST.to_string()];
    let now = jiff::Timestamp::now().as_second();
    let certificates = issue::create(&names, &Lifetimes::default(), now).expect("a certificate");
    let served = Arc::new(Served::default());
    let serving = &certificates.serving;
    served.install(serving.certificate.as_bytes(), serving.key.as_bytes(), "the benchmark").expect("a certificate");

    let called = Arc::new(AtomicBool::new(false));
    let answer = move |_| {
        if !called.swap(true, Ordering::Relaxed) {
            println!("{CALLED}");
        }
        std::future::ready(AdmissionResponse::allowed())
    };
    let listening = Webhooks::new(Limits::for_timeout(TIMEOUT), Arc::new(|_| {}))
        .on(MUTATE_NODES, answer.clone())
        .on(VALIDATE_NODES, answer)
        .listen((Ipv4Addr::LOCALHOST, 0).into(), served)
        .expect("a free port");
    let settings = ConfigurationSettings {
        namespace: "default".to_owned(),
        target: WebhookTarget::Url(format!("https://{}", listening.address())),
        failure_policy: "Fail".to_owned(),
        timeout: TIMEOUT * 5,
        node_create: true,
        node_delete: true,
        pods: None,
    };
    configurations.create_empty().await.expect("creating the webhook configurations");
    let present = configurations.read().await.expect("reading the webhook configurations");
    let authority: String = certificates.authorities.iter().map(|authority| authority.certificate.as_str()).collect();
    let installed = configurations.repair(&settings, &present, Some(authority.as_bytes())).await;
    installed.expect("installing the webhooks");
    listening.run(CancellationToken::new()).await.expect("serving");
}
