//! Commands as people type them.

use std::{
    process::{Command, Output},
    sync::atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;

use crate::{TestCluster, program};

/// What a command answered.
#[derive(Debug)]
pub struct Answer {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { success: output.status.success(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// What was printed, of a command that must not fail.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert!(self.success, "the command failed: {}", self.stderr);
        self.stdout
    }

    /// What was complained, of a command that must fail.
    #[track_caller]
    pub fn expect_failure(self) -> String {
        assert!(!self.success, "the command did not fail: {}", self.stdout);
        self.stderr
    }
}

impl TestCluster {
    /// `kubectl` with the words of a command line, as the admin. It must not fail.
    #[track_caller]
    pub fn kubectl(&self, words: &str) -> String {
        let output = self.plane().kubectl().args(words.split_whitespace()).output().expect("kubectl starts");
        Answer::of(output).expect_success()
    }

    /// The same for commands that may fail.
    pub fn try_kubectl(&self, words: &str) -> Answer {
        Answer::of(self.plane().kubectl().args(words.split_whitespace()).output().expect("kubectl starts"))
    }

    /// `kubectl VERB -f` with an object.
    pub fn try_kubectl_with(&self, verb: &str, text: &str) -> Answer {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = self.plane().dir().join(format!("object-{number}.yaml"));
        std::fs::write(&file, text).expect("writing a manifest");
        self.try_kubectl(&format!("{verb} -f {}", file.display()))
    }

    /// `perennial` with the words of a command line, as the admin, in Perennial's namespace.
    pub fn perennial(&self, words: &str) -> Answer {
        let kubeconfig = self.plane().kubeconfig_path();
        let mut command = command();
        command.args(words.split_whitespace()).arg("--kubeconfig").arg(kubeconfig).args(["-n", self.namespace()]);
        Answer::of(command.output().expect("the program under test starts"))
    }

    /// `perennial` about the workloads of all namespaces. It must not fail.
    #[track_caller]
    pub fn about_workloads(&self, words: &str) -> String {
        let mut command = command();
        command.args(words.split_whitespace()).arg("--kubeconfig").arg(self.plane().kubeconfig_path());
        Answer::of(command.output().expect("the program under test starts")).expect_success()
    }

    /// The same for commands that print JSON.
    #[track_caller]
    pub fn perennial_json(&self, words: &str) -> Value {
        let text = self.perennial(words).expect_success();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON: {error}: {text}"))
    }
}

/// The program under test, in an environment that says nothing.
pub(crate) fn command() -> Command {
    let mut command = Command::new(program::path());
    command.env_clear();
    command
}

/// The program under test without a cluster.
pub fn perennial<'a>(words: impl IntoIterator<Item = &'a str>, environment: &[(&str, &str)]) -> Answer {
    let mut command = command();
    command.args(words).envs(environment.iter().copied());
    Answer::of(command.output().expect("the program under test starts"))
}
