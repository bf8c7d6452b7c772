//! helm, as people type it.

use std::{path::PathBuf, process::Command};

use crate::{Answer, Helm, TestCluster};

/// The chart of this repository.
pub fn chart() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/perennial"))
}

impl Helm {
    /// Without a cluster. A program that Go built knows of no Kubernetes version, so it is told one.
    pub fn template(self, sets: &[&str]) -> Answer {
        let mut command = self.command();
        command.args(["template", "perennial"]).arg(chart()).args(["--namespace", "perennial-system"]);
        command.args(["--kube-version", "1.36.0"]);
        for set in sets {
            command.args(["--set-json", set]);
        }
        Answer::of(command.output().expect("helm starts"))
    }

    pub fn lint(self) -> Answer {
        let mut command = self.command();
        command.arg("lint").arg("--strict").arg(chart());
        Answer::of(command.output().expect("helm starts"))
    }

    fn command(self) -> Command {
        Command::new(self.program())
    }

    /// On a cluster, as the admin. Other tasks go on meanwhile: hooks wait for them.
    pub async fn on(self, cluster: &TestCluster, words: &[&str]) -> Answer {
        let mut command = self.command();
        command.args(words).env("KUBECONFIG", cluster.plane().kubeconfig_path()).env("HOME", cluster.plane().dir());
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        Answer::of(output.expect("a thread for helm").expect("helm starts"))
    }
}
