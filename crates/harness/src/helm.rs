//! Runs helm.

use std::{path::PathBuf, process::Command};

use crate::{CommandOutput, Helm, TestCluster};

/// Path of the chart in this repository.
pub fn chart() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/perennial"))
}

impl Helm {
    /// Renders the chart without a cluster. A helm built by Go has no default Kubernetes version,
    /// so one is passed.
    pub fn template(self, sets: &[&str]) -> CommandOutput {
        let mut command = self.command();
        command.args(["template", "perennial"]).arg(chart()).args(["--namespace", "perennial-system"]);
        command.args(["--kube-version", "1.36.0"]);
        for set in sets {
            command.args(["--set-json", set]);
        }
        CommandOutput::of(command.output().expect("helm starts"))
    }

    pub fn lint(self) -> CommandOutput {
        let mut command = self.command();
        command.arg("lint").arg("--strict").arg(chart());
        CommandOutput::of(command.output().expect("helm starts"))
    }

    fn command(self) -> Command {
        Command::new(self.program())
    }

    /// Runs helm on a cluster as admin. Other tasks keep running, because hooks wait for their
    /// pods.
    pub async fn on(self, cluster: &TestCluster, words: &[&str]) -> CommandOutput {
        let mut command = self.command();
        command.args(words).env("KUBECONFIG", cluster.plane().kubeconfig_path()).env("HOME", cluster.plane().dir());
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        CommandOutput::of(output.expect("a thread for helm").expect("helm starts"))
    }
}
