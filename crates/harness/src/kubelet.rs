//! A kubelet for the pods of one namespace on a cluster where nothing else runs pods. It runs each
//! pod's command as a process.
//!
//! Supported: the service account (with a token from the API server), arguments, environment
//! variables, mounted ConfigMaps and Secrets, and `/readyz` as the readiness probe. Not supported:
//! isolation, other probes, and images, except for the tag `next`, which selects the operator of
//! the next version. A process that serves gets its own ports, because all pods share one machine.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use localplane::{PlaneFolder, Process};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{TestCluster, binaries, ports::free_port};

/// The kubelet stops with all its pods when it is dropped.
#[derive(Debug)]
pub struct Kubelet {
    task: JoinHandle<()>,
    state: Arc<Mutex<KubeletState>>,
}

#[derive(Debug, Default)]
struct KubeletState {
    /// Arguments, success and log of each pod that has ended.
    ended: Vec<(Vec<String>, bool, String)>,
    error: Option<String>,
}

struct RunningPod {
    process: Process,
    log: PathBuf,
    args: Vec<String>,
    serves: Option<u16>,
    reported: ReportedStatus,
}

/// Pod status that was last written to the API server.
#[derive(PartialEq, Eq)]
enum ReportedStatus {
    Nothing,
    Ready,
    Ended,
}

struct Node {
    client: Client,
    namespace: String,
    plane: PlaneFolder,
    folder: PathBuf,
    pods: BTreeMap<String, RunningPod>,
    state: Arc<Mutex<KubeletState>>,
}

impl TestCluster {
    /// Starts a kubelet for the pods of this namespace.
    pub fn kubelet(&self, namespace: &str) -> Kubelet {
        let state = Arc::<Mutex<KubeletState>>::default();
        let mut node = Node {
            client: self.client(),
            namespace: namespace.to_owned(),
            plane: self.plane().folder().clone(),
            folder: self.plane().dir().join("pods"),
            pods: BTreeMap::new(),
            state: Arc::clone(&state),
        };
        let task = tokio::spawn(async move {
            loop {
                if let Err(error) = node.sync().await {
                    lock(&node.state).error = Some(error.to_string());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Kubelet { task, state }
    }
}

impl Kubelet {
    /// Returns whether a pod that has ended succeeded, and its log; the pod is found by the first
    /// argument of its command.
    pub fn log_of(&self, command: &str) -> Option<(bool, String)> {
        let state = lock(&self.state);
        let ended = state.ended.iter().rev().find(|(args, ..)| args.first().is_some_and(|word| word == command));
        ended.map(|(_, success, text)| (*success, text.clone()))
    }

    /// Returns the last error.
    pub fn last_error(&self) -> Option<String> {
        lock(&self.state).error.clone()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<KubeletState>) -> std::sync::MutexGuard<'_, KubeletState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    async fn sync(&mut self) -> anyhow::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pods = api.list(&ListParams::default()).await?.items;
        self.pods.retain(|name, running| {
            let gone = !pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name));
            if gone {
                // SIGTERM first, like a kubelet. A pod without a node is deleted before its process
                // ends.
                let _ = running.process.signal(Signal::TERM);
                for _ in 0..100 {
                    if running.process.ended().is_some() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            !gone
        });
        for pod in pods {
            let name = pod.metadata.name.clone().unwrap_or_default();
            if !self.pods.contains_key(&name) {
                let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
                if matches!(phase.as_deref(), Some("Succeeded" | "Failed")) {
                    continue;
                }
                let started = self.start(&name, &pod).await?;
                self.pods.insert(name.clone(), started);
            }
            if let Some(status) = self.pods.get_mut(&name).and_then(|running| status(running, &self.state)) {
                api.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
            }
        }
        Ok(())
    }

    async fn start(&self, name: &str, pod: &Pod) -> anyhow::Result<RunningPod> {
        let spec = pod.spec.clone().unwrap_or_default();
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder)?;
        let account = spec.service_account_name.clone().unwrap_or_else(|| "default".to_owned());
        let kubeconfig = folder.join("kubeconfig");
        fs::write(&kubeconfig, self.plane.kubeconfig_for_service_account(&self.namespace, &account)?)?;

        let container = &spec.containers[0];
        let mut args = container.args.clone().unwrap_or_default();
        for mount in container.volume_mounts.iter().flatten() {
            let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name);
            let Some(volume) = volume else { continue };
            let place = folder.join(&mount.name);
            if let Some(source) = &volume.config_map {
                let object: ConfigMap = self.read(&source.name).await?;
                write_all(&place, object.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.into_bytes())))?;
            } else if let Some(source) = &volume.secret {
                let object: Secret = self.read(source.secret_name.as_deref().unwrap_or_default()).await?;
                write_all(&place, object.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.0)))?;
            } else {
                continue;
            }
            let path = place.display().to_string();
            for file in fs::read_dir(&place)?.filter_map(Result::ok) {
                // The config file refers to folders in the container.
                let text = fs::read_to_string(file.path()).unwrap_or_default();
                fs::write(
                    file.path(),
                    text.replace("/etc/perennial-certificate", &folder.join("certificate").display().to_string()),
                )?;
            }
            for arg in &mut args {
                *arg = arg.replace(&mount.mount_path, &path);
            }
        }
        let words = args.clone();
        let serves = (args.first().map(String::as_str) == Some("run")).then(free_port);
        args.push(format!("--kubeconfig={}", kubeconfig.display()));
        if let Some(port) = serves {
            let webhook = free_port();
            args.push(format!("--set=metrics.port={port}"));
            args.push(format!("--set=webhook.port={webhook}"));
            args.push(format!("--set=webhook.url=https://127.0.0.1:{webhook}"));
        }
        let mut env = vec!["-i".to_owned(), "KUBERNETES_SERVICE_HOST=127.0.0.1".to_owned(), format!("POD_NAME={name}")];
        for variable in container.env.iter().flatten() {
            if let Some(value) = &variable.value {
                env.push(format!("{}={value}", variable.name));
            }
        }
        let next = container.image.as_ref().is_some_and(|image| image.ends_with(":next"));
        let program = if next { &binaries::NEXT_OPERATOR } else { &binaries::OPERATOR };
        env.push(program.path().display().to_string());
        env.extend(args);
        let log = folder.join("log");
        let process = Process::start("env".as_ref(), &env, &log)?;
        Ok(RunningPod { process, log, args: words, serves, reported: ReportedStatus::Nothing })
    }

    async fn read<K>(&self, name: &str) -> anyhow::Result<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        Ok(Api::namespaced(self.client.clone(), &self.namespace).get(name).await?)
    }
}

/// Returns the pod status to write, if it changed.
fn status(running: &mut RunningPod, state: &Mutex<KubeletState>) -> Option<Value> {
    if let Some(status) = running.process.ended() {
        if running.reported == ReportedStatus::Ended {
            return None;
        }
        running.reported = ReportedStatus::Ended;
        let text = fs::read_to_string(&running.log).unwrap_or_default();
        lock(state).ended.push((running.args.clone(), status.success(), text));
        return Some(json!({ "phase": if status.success() { "Succeeded" } else { "Failed" } }));
    }
    let port = running.serves.filter(|_| running.reported == ReportedStatus::Nothing)?;
    if !crate::operator::get(port, "/readyz").is_ok_and(|(status, _)| status == 200) {
        return None;
    }
    running.reported = ReportedStatus::Ready;
    let now = jiff::Timestamp::now().to_string();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition);
    Some(json!({ "phase": "Running", "conditions": conditions }))
}

fn write_all(folder: &Path, files: impl Iterator<Item = (String, Vec<u8>)>) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}
