//! Runs `kubectl` and `perennial` as commands.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use localplane::Process;
use serde_json::Value;

use crate::{TestCluster, binaries, operator::peak_memory_of};

/// Interval at which the memory of a running command is sampled.
const LOOK: Duration = Duration::from_millis(1);

/// Output of a command that has ended.
#[derive(Debug)]
pub struct CommandOutput {
    pub success: bool,
    /// Exit code; `None` if a signal ended the command.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    pub fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (success, code) = (output.status.success(), output.status.code());
        Self { success, code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Returns stdout. Fails the test if the command failed.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert!(self.success, "the command failed: {}", self.stderr);
        self.stdout
    }

    /// Returns stderr. Fails the test if the command succeeded.
    #[track_caller]
    pub fn expect_failure(self) -> String {
        assert!(!self.success, "the command did not fail: {}", self.stdout);
        self.stderr
    }
}

/// Cost of a command whose output was read and discarded.
#[derive(Clone, Copy, Debug)]
pub struct CommandCost {
    pub success: bool,
    pub took: Duration,
    /// Number of bytes on stdout.
    pub bytes: usize,
    /// Peak resident memory in bytes, sampled every millisecond.
    pub peak: u64,
}

/// A command that runs until it is dropped.
#[derive(Debug)]
pub struct BackgroundCommand {
    process: Process,
    log: PathBuf,
}

impl BackgroundCommand {
    /// Returns its output so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        self.process.kill();
    }
}

impl TestCluster {
    fn kubectl_command(&self) -> Command {
        let mut command = self.plane().kubectl();
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// Runs `kubectl` as admin. Fails the test if the command fails.
    #[track_caller]
    pub fn kubectl(&self, words: &str) -> String {
        let output = self.kubectl_command().args(words.split_whitespace()).output().expect("kubectl starts");
        CommandOutput::of(output).expect_success()
    }

    /// Like [`TestCluster::kubectl`], for commands that may fail.
    pub fn try_kubectl(&self, words: &str) -> CommandOutput {
        CommandOutput::of(self.kubectl_command().args(words.split_whitespace()).output().expect("kubectl starts"))
    }

    /// Runs `kubectl VERB -f` with an object.
    pub fn try_kubectl_with(&self, verb: &str, text: &str) -> CommandOutput {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = self.plane().dir().join(format!("object-{number}.yaml"));
        std::fs::write(&file, text).expect("writing a manifest");
        self.try_kubectl(&format!("{verb} -f {}", file.display()))
    }

    /// Runs `perennial` as admin in Perennial's namespace.
    pub fn perennial(&self, words: &str) -> CommandOutput {
        let kubeconfig = self.plane().kubeconfig_path();
        let mut command = command();
        command.args(words.split_whitespace()).arg("--kubeconfig").arg(kubeconfig).args(["-n", self.namespace()]);
        CommandOutput::of(command.output().expect("the program under test starts"))
    }

    /// Runs `perennial` as admin and measures it.
    pub fn measure(&self, words: &str) -> CommandCost {
        let mut command = command();
        command.args(words.split_whitespace()).arg("--kubeconfig").arg(self.plane().kubeconfig_path());
        command.args(["-n", self.namespace()]).stdout(Stdio::piped());
        let begun = Instant::now();
        let mut child = command.spawn().expect("the program under test starts");
        let mut output = child.stdout.take().expect("its output");
        let reader = thread::spawn(move || {
            let (mut bytes, mut part) = (0, vec![0; 64 << 10]);
            while let read @ 1.. = output.read(&mut part).expect("reading its output") {
                bytes += read;
            }
            bytes
        });
        let mut peak = 0;
        let status = loop {
            peak = peak_memory_of(child.id()).max(peak);
            match child.try_wait().expect("its end") {
                Some(status) => break status,
                None => thread::sleep(LOOK),
            }
        };
        let took = begun.elapsed();
        CommandCost { success: status.success(), took, bytes: reader.join().expect("its output"), peak }
    }

    /// Runs `perennial` as another user.
    pub fn perennial_as(&self, user: &str, groups: &[&str], words: &str) -> CommandOutput {
        let file = self.plane().dir().join(format!("{user}.kubeconfig"));
        let text = self.plane().kubeconfig_for(user, groups).expect("a kubeconfig");
        std::fs::write(&file, text).expect("writing a kubeconfig");
        let mut command = command();
        command.args(words.split_whitespace()).arg("--kubeconfig").arg(file).args(["-n", self.namespace()]);
        CommandOutput::of(command.output().expect("the program under test starts"))
    }

    /// Runs `perennial` as admin in the background.
    pub fn perennial_in_background(&self, words: &str) -> BackgroundCommand {
        self.start_in_background(&self.plane().kubeconfig_path(), words)
    }

    /// Runs `perennial` as another user in the background.
    pub fn perennial_in_background_as(&self, user: &str, groups: &[&str], words: &str) -> BackgroundCommand {
        let file = self.plane().dir().join(format!("{user}.kubeconfig"));
        let text = self.plane().kubeconfig_for(user, groups).expect("a kubeconfig");
        std::fs::write(&file, text).expect("writing a kubeconfig");
        self.start_in_background(&file, words)
    }

    /// Runs `perennial` in the background without a namespace flag.
    pub fn perennial_all_namespaces_in_background(&self, words: &str) -> BackgroundCommand {
        self.run_on(self.kubeconfig(), words.split_whitespace())
    }

    pub(crate) fn start_in_background(&self, kubeconfig: &Path, words: &str) -> BackgroundCommand {
        self.run_on(kubeconfig, words.split_whitespace().chain(["-n", self.namespace()]))
    }

    fn run_on<'a>(&self, kubeconfig: &Path, words: impl Iterator<Item = &'a str>) -> BackgroundCommand {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = self.plane().dir().join("logs").join(format!("{}-command-{number}.log", self.namespace()));
        let mut args: Vec<String> = vec!["-i".to_owned(), binaries::path().display().to_string()];
        args.extend(words.map(str::to_owned));
        args.extend(["--kubeconfig".to_owned(), kubeconfig.display().to_string()]);
        let process = Process::start("env".as_ref(), &args, &log).expect("the program under test starts");
        BackgroundCommand { process, log }
    }

    /// Runs a shell script with `perennial` on the PATH, also as a kubectl plugin, and with this
    /// cluster and Perennial's namespace in its environment.
    pub fn shell(&self, script: &str) -> CommandOutput {
        let folder = self.plane().dir().join(format!("{}-path", self.namespace()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for name in ["perennial", "kubectl-perennial"] {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(binaries::path(), &link).expect("a link to the program");
        }
        let kubectl = self.plane().kubectl();
        let beside = PathBuf::from(kubectl.get_program());
        let path = [folder.as_path(), beside.parent().unwrap_or(&folder), "/usr/bin".as_ref(), "/bin".as_ref()];
        let mut command = Command::new("bash");
        command.args(["-c", script]).env_clear().env("KUBECONFIG", self.plane().kubeconfig_path());
        command.env("PATH", std::env::join_paths(path).expect("a PATH")).env("PERENNIAL_NAMESPACE", self.namespace());
        command.env("TERM", "xterm").env("FOLDER", &folder).env("HOME", &folder);
        CommandOutput::of(command.output().expect("bash starts"))
    }

    /// Creates a user that may read everything that the commands read, and write nothing. Returns
    /// its name.
    pub fn read_only_user(&self) -> String {
        let user = format!("{}-reader", self.namespace());
        let rules = serde_json::json!([
            {"apiGroups": [""], "resources": ["nodes", "events"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["perennial.dev"], "resources": ["keeppolicies"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["admissionregistration.k8s.io"], "verbs": ["get", "list"],
             "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]},
        ]);
        let role = serde_json::json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules,
        });
        let binding = serde_json::json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        for object in [role, binding] {
            self.try_kubectl_with("apply", &object.to_string()).expect_success();
        }
        user
    }

    /// Runs `perennial` without a namespace flag, so for the workloads of all namespaces. Fails the
    /// test if the command fails.
    #[track_caller]
    pub fn perennial_all_namespaces(&self, words: &str) -> String {
        let mut command = command();
        command.args(words.split_whitespace()).arg("--kubeconfig").arg(self.kubeconfig());
        CommandOutput::of(command.output().expect("the program under test starts")).expect_success()
    }

    /// Runs `perennial` and parses its output as JSON.
    #[track_caller]
    pub fn perennial_json(&self, words: &str) -> Value {
        let text = self.perennial(words).expect_success();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON: {error}: {text}"))
    }
}

/// Command for the program under test, with an empty environment.
pub(crate) fn command() -> Command {
    let mut command = Command::new(binaries::path());
    command.env_clear();
    command
}

/// Runs the program under test without a cluster.
pub fn perennial<'a>(words: impl IntoIterator<Item = &'a str>, environment: &[(&str, &str)]) -> CommandOutput {
    let mut command = command();
    command.args(words).envs(environment.iter().copied());
    CommandOutput::of(command.output().expect("the program under test starts"))
}
