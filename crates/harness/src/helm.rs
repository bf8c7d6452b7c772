//! Runs helm.

use std::{
    env, fs,
    path::PathBuf,
    process::{self, Command},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{CommandOutput, Helm, TestCluster};

/// Path of the chart in this repository.
pub fn chart() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/perennial"))
}

impl Helm {
    /// Renders the chart without a cluster. A helm built by Go has no default Kubernetes version,
    /// so one is passed.
    pub fn template(self, sets: &[&str]) -> CommandOutput {
        self.template_with(sets, &[])
    }

    /// Like [`Helm::template`], with more arguments.
    pub fn template_with(self, sets: &[&str], words: &[&str]) -> CommandOutput {
        let mut command = self.command();
        command.args(["template", "perennial"]).arg(chart()).args(["--namespace", "perennial-system"]);
        command.args(["--kube-version", "1.36.0"]);
        for set in sets {
            command.args(["--set-json", set]);
        }
        CommandOutput::of(command.args(words).output().expect("helm starts"))
    }

    /// Renders the notes that helm prints after an install with this value. `helm template` leaves
    /// them out, so a copy of the chart has them in a ConfigMap.
    pub fn notes(self, set: &str) -> CommandOutput {
        const NOTES: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\n\
            data:\n  notes: {{ tpl (.Files.Get \"NOTES.txt\") . | toJson }}\n";
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let copy = env::temp_dir().join(format!("perennial-notes-{}-{number}", process::id()));
        let copied = Command::new("cp").arg("-R").arg(chart()).arg(&copy).status().expect("cp starts");
        assert!(copied.success(), "copying the chart");
        fs::rename(copy.join("templates/NOTES.txt"), copy.join("NOTES.txt")).expect("moving the notes");
        fs::write(copy.join("templates/notes.yaml"), NOTES).expect("writing a template");
        let mut command = self.command();
        command.args(["template", "perennial"]).arg(&copy).args(["--namespace", "perennial-system"]);
        command.args(["--kube-version", "1.36.0", "--show-only", "templates/notes.yaml", "--set-json", set]);
        let output = command.output().expect("helm starts");
        let _ = fs::remove_dir_all(copy);
        CommandOutput::of(output)
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
