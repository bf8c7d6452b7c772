//! Controller in the style of kube's examples: a finalizer on every node, a ConfigMap when the node
//! is deleted, a PATCH when it is back.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{
        Controller,
        controller::Action,
        finalizer::{Event, finalizer},
        watcher,
    },
};
use localplane::Process;
use serde_json::json;

const FINALIZER: &str = "peer.example.com/labels";
const MANAGER: &str = "plain-peer";

type Error = kube::runtime::finalizer::Error<kube::Error>;

struct Context {
    client: Client,
    namespace: String,
}

/// Starts it as its own process: this program with other arguments.
pub(crate) fn start(kubeconfig: &Path, namespace: &str, log: &Path) -> Process {
    let us = std::env::current_exe().expect("a running program has a path");
    let words = ["plain-peer".to_owned(), kubeconfig.display().to_string(), namespace.to_owned()];
    Process::start(&us, &words, log).expect("the plain controller starts")
}

/// Runs the controller.
pub(crate) async fn run(kubeconfig: PathBuf, namespace: String) {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a cluster");
    let client = Client::try_from(config).expect("a client");
    let nodes: Api<Node> = Api::all(client.clone());
    Controller::new(nodes, watcher::Config::default())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(5)), Arc::new(Context { client, namespace }))
        .for_each(async |_| ())
        .await;
}

async fn reconcile(node: Arc<Node>, context: Arc<Context>) -> Result<Action, Error> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    finalizer(&nodes, FINALIZER, node, async |event| match event {
        Event::Apply(node) => restore(&nodes, &node, &context).await,
        Event::Cleanup(node) => store(&node, &context).await,
    })
    .await
}

async fn restore(nodes: &Api<Node>, node: &Node, context: &Context) -> Result<Action, kube::Error> {
    let stored: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let Some(found) = stored.get_opt(&node.name_any()).await? else { return Ok(Action::await_change()) };
    let missing: BTreeMap<&String, &String> = found
        .data
        .iter()
        .flatten()
        .filter(|(key, _)| !node.labels().contains_key(&key.replace("_SLASH_", "/")))
        .collect();
    if !missing.is_empty() {
        let labels: BTreeMap<String, &String> =
            missing.into_iter().map(|(key, value)| (key.replace("_SLASH_", "/"), value)).collect();
        let patch = json!({"metadata": {"labels": labels}});
        nodes.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(Action::await_change())
}

async fn store(node: &Node, context: &Context) -> Result<Action, kube::Error> {
    let stored: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let data: BTreeMap<String, &String> =
        node.labels().iter().map(|(key, value)| (key.replace('/', "_SLASH_"), value)).collect();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": node.name_any()}, "data": data,
    });
    stored.patch(&node.name_any(), &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await?;
    Ok(Action::await_change())
}
