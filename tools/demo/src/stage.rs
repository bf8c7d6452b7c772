//! The environment of the story: a plane, an operator, `kubectl`, and an observer.

use std::{
    fmt::Write as _,
    fs,
    future::Future,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Node;
use kube::{Client, Config, config::KubeConfigOptions};
use localplane::{Component, Kubernetes, Plane, Process, Program, Sources};
use perennial_harness::install::Installed;
use serde_json::json;

use crate::{observer::Observer, terminal::Terminal};

/// Fields are dropped in order: the operator before the cluster that it works on.
#[derive(Debug)]
pub(crate) struct Stage {
    operator: Option<Process>,
    installed: Installed,
    plane: Plane,
    /// Working directory of the commands.
    pub(crate) folder: PathBuf,
    pub(crate) client: Connection,
    pub(crate) observer: Observer,
    pub(crate) terminal: Terminal,
    /// Number of claims checked.
    pub(crate) checked: usize,
}

/// Admin client. kube's client has no `Debug`.
#[derive(Clone)]
pub(crate) struct Connection(pub(crate) Client);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

/// Number of real nodes with `REAL=1`.
const REAL_NODES: usize = 2;

/// The nodes of the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// kwok acts as the kubelet.
    Fake,
    /// Each has a kubelet and containerd. Needs root.
    Real,
}

impl Nodes {
    /// Returns the nodes that the environment variable `REAL` selects.
    pub(crate) fn from_env() -> Self {
        match std::env::var("REAL") {
            Ok(value) if !value.is_empty() && value != "0" => Self::Real,
            _ => Self::Fake,
        }
    }
}

/// Downloads or builds the programs of a control plane: some minutes the first time.
pub(crate) fn fetch(nodes: Nodes) -> anyhow::Result<Kubernetes> {
    let kubernetes = Kubernetes::from_env()?;
    let mut needed = vec![
        Program::Etcd,
        Program::KubeApiserver,
        Program::KubeControllerManager,
        Program::KubeScheduler,
        Program::Kubectl,
        Program::Kwok,
    ];
    if nodes == Nodes::Real {
        localplane::real_nodes_supported()?;
        needed.extend(Program::NODE);
    }
    Sources::from_env().find(kubernetes, &needed)?;
    Ok(kubernetes)
}

/// Starts a control plane in a temporary folder. kwok acts as the kubelet of annotated nodes.
pub(crate) fn start_plane(kubernetes: Kubernetes, nodes: Nodes) -> anyhow::Result<Plane> {
    if nodes == Nodes::Real {
        let builder = Plane::builder().kubernetes(kubernetes).controller_manager(true).scheduler(true);
        return Ok(builder.real_nodes(REAL_NODES).start()?);
    }
    let some = ["--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"];
    Ok(Plane::builder().kubernetes(kubernetes).kwok(true).args(Program::Kwok, some).start()?)
}

/// Starts a control plane with scheduler and controllers.
pub(crate) fn start_whole_plane() -> anyhow::Result<Plane> {
    Ok(Plane::builder().kubernetes(Kubernetes::from_env()?).everything().start()?)
}

impl Stage {
    /// Installs the operator on the plane and starts it.
    pub(crate) async fn set(plane: Plane, terminal: Terminal) -> anyhow::Result<Self> {
        let folder = plane.dir().join("demo");
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let kubectl = PathBuf::from(plane.kubectl().get_program());
        let installed = Installed::new(plane.folder(), folder.join("bin"), &kubectl)?;
        let kubeconfig = kube::config::Kubeconfig::read_from(plane.kubeconfig_path())?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let observer = Observer::start(client.clone());
        let operator = Some(installed.start(false)?);
        let client = Connection(client);
        Ok(Self { operator, installed, plane, folder, client, observer, terminal, checked: 0 })
    }

    /// Continues the story on another cluster, with webhooks on. The previous cluster ends.
    pub(crate) async fn move_to(&mut self, plane: Plane) -> anyhow::Result<()> {
        self.kill_operator();
        let checked = self.checked;
        *self = Self::set(plane, self.terminal).await?;
        self.checked = checked;
        self.kill_operator();
        self.start_operator_with_webhooks()
    }

    /// Returns how often the operator has logged this text on the current cluster.
    pub(crate) fn count_in_operator_log(&self, what: &str) -> usize {
        self.installed.log_tail(usize::MAX).lines().filter(|line| line.contains(what)).count()
    }

    fn kubeconfig(&self) -> PathBuf {
        self.plane.kubeconfig_path()
    }

    pub(crate) fn operator_log(&self) -> String {
        self.installed.log_tail(12)
    }

    pub(crate) fn narrate(&self, text: &str) {
        self.terminal.narrate(text);
    }

    /// Writes a file into the working directory of the commands.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Runs a command (`kubectl …`, `perennial …`), prints it, and returns its output.
    pub(crate) fn run(&self, command: &str) -> anyhow::Result<String> {
        self.terminal.command(command);
        let mut words = command.split_whitespace();
        let program = words.next().unwrap_or_default();
        let output = Command::new(self.installed.bin.join(program))
            .args(words)
            .current_dir(&self.folder)
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.folder.join("cache"))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("running {program}"))?;
        if !output.status.success() {
            bail!("`{command}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a command and prints its output.
    pub(crate) fn show(&self, command: &str) -> anyhow::Result<()> {
        let output = self.run(command)?;
        self.terminal.output(&output);
        Ok(())
    }

    /// Runs `kubectl get nodes --show-labels` and hides the labels that every kubelet writes.
    pub(crate) fn show_labels(&self, nodes: &str) -> anyhow::Result<()> {
        let output = self.run(&format!("kubectl get node {nodes} --show-labels"))?;
        self.terminal.output(&excerpt(&output));
        Ok(())
    }

    /// Restarts the kubelet of a real node, with further arguments, and waits until its node is
    /// ready.
    pub(crate) fn restart_kubelet(&self, node: usize, args: &[&str]) -> anyhow::Result<()> {
        let name = format!("--hostname-override=real-{node}");
        let words = ["kubelet", &name].into_iter().chain(args.iter().copied());
        self.terminal.command(&words.collect::<Vec<_>>().join(" "));
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        tokio::task::block_in_place(|| self.plane.restart_with(Component::Kubelet(node), &args))?;
        Ok(())
    }

    /// Sends SIGKILL.
    pub(crate) fn kill_operator(&mut self) {
        self.operator = None;
    }

    pub(crate) fn start_operator(&mut self) -> anyhow::Result<()> {
        self.operator = Some(self.installed.start(false)?);
        Ok(())
    }

    pub(crate) fn start_operator_with_webhooks(&mut self) -> anyhow::Result<()> {
        self.operator = Some(self.installed.start(true)?);
        Ok(())
    }
}

/// Manifest of a node as a kubelet creates it, with further labels.
pub(crate) fn manifest(name: &str, machine: &str, labels: &[(&str, &str)]) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  annotations:\n    kwok.x-k8s.io/node: fake\n  labels:\n    \
         kubernetes.io/hostname: {name}\n    kubernetes.io/os: linux\n    kubernetes.io/arch: amd64\n"
    );
    for (key, value) in labels {
        let _ = writeln!(text, "    {key}: {value}");
    }
    let _ = writeln!(text, "spec:\n  providerID: demo://{machine}");
    text
}

/// A node as a kubelet creates it.
pub(crate) fn bare_node(name: &str) -> anyhow::Result<Node> {
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
        },
        "spec": {"providerID": format!("demo://{name}")},
    }))?)
}

/// Shortens the labels of every kubelet to `…` and removes columns that are not needed.
fn excerpt(table: &str) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in table.lines() {
        let cells: Vec<_> = line.split_whitespace().collect();
        let (Some(name), Some(status), Some(roles), Some(labels)) =
            (cells.first(), cells.get(1), cells.get(2), cells.last())
        else {
            continue;
        };
        let mut shown: Vec<&str> = Vec::new();
        for label in labels.split(',') {
            let of_kubelet = label.starts_with("kubernetes.io/") || label.starts_with("beta.kubernetes.io/");
            let label = if of_kubelet { "…" } else { label };
            if !(label == "…" && shown.last() == Some(&"…")) {
                shown.push(label);
            }
        }
        rows.push(vec![(*name).to_owned(), (*status).to_owned(), (*roles).to_owned(), shown.join(",")]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default() + 3;
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(text, "{cell:<width$}");
        }
        text.push_str(&row[3]);
        text.push('\n');
    }
    text
}

/// Runs an action for every item, 16 at a time.
pub(crate) async fn all<T, F>(items: impl IntoIterator<Item = T>, work: impl Fn(T) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    use futures::{StreamExt as _, TryStreamExt as _};
    futures::stream::iter(items.into_iter().map(work)).buffer_unordered(16).try_collect().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_leaves_out_what_every_node_has() {
        let table = "NAME  STATUS  ROLES  AGE  VERSION  LABELS\n\
            w1  Ready  gpu  1s  v1  disk=nvme,kubernetes.io/arch=amd64,kubernetes.io/os=linux,team=ml\n";
        assert_eq!(excerpt(table), "NAME   STATUS   ROLES   LABELS\nw1     Ready    gpu     disk=nvme,…,team=ml\n");
    }
}
