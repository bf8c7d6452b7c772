//! Commands as people type them.

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

use crate::{TestCluster, program, running::peak_memory_of};

/// A running command's memory is looked at so often.
const LOOK: Duration = Duration::from_millis(1);

/// What a command answered.
#[derive(Debug)]
pub struct Answer {
    pub success: bool,
    /// The exit code, where it ended by itself.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (success, code) = (output.status.success(), output.status.code());
        Self { success, code, stdout: text(output.stdout), stderr: text(output.stderr) }
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

/// What a command took whose output was read to its end and not kept.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    pub success: bool,
    pub took: Duration,
    /// How much it printed.
    pub bytes: usize,
    /// The most that its resident memory was, in bytes, as far as it was seen: it is looked at every millisecond, and what is
    /// seen is the peak so far.
    pub peak: u64,
}

/// A command that goes on until it is dropped.
#[derive(Debug)]
pub struct Background {
    process: Process,
    log: PathBuf,
}

impl Background {
    /// What it has printed so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Background {
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

    /// `kubectl` with the words of a command line, as the admin. It must not fail.
    #[track_caller]
    pub fn kubectl(&self, words: &str) -> String {
        let output = self.kubectl_command().args(words.split_whitespace()).output().expect("kubectl starts");
        Answer::of(output).expect_success()
    }

    /// The same for commands that may fail.
    pub fn try_kubectl(&self, words: &str) -> Answer {
        Answer::of(self.kubectl_command().args(words.split_whitespace()).output().expect("kubectl starts"))
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

    /// `perennial` as the admin, looked at while it prints.
    pub fn drained(&self, words: &str) -> Drained {
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
        Drained { success: status.success(), took, bytes: reader.join().expect("its output"), peak }
    }

    /// The same as somebody else.
    pub fn perennial_as(&self, user: &str, groups: &[&str], words: &str) -> Answer {
        let file = self.plane().dir().join(format!("{user}.kubeconfig"));
        let text = self.plane().kubeconfig_for(user, groups).expect("a kubeconfig");
        std::fs::write(&file, text).expect("writing a kubeconfig");
        let mut command = command();
        command.args(words.split_whitespace()).arg("--kubeconfig").arg(file).args(["-n", self.namespace()]);
        Answer::of(command.output().expect("the program under test starts"))
    }

    /// `perennial` as the admin, until the answer is dropped.
    pub fn perennial_in_background(&self, words: &str) -> Background {
        self.start_in_background(&self.plane().kubeconfig_path(), words)
    }

    /// The same as somebody else.
    pub fn perennial_in_background_as(&self, user: &str, groups: &[&str], words: &str) -> Background {
        let file = self.plane().dir().join(format!("{user}.kubeconfig"));
        let text = self.plane().kubeconfig_for(user, groups).expect("a kubeconfig");
        std::fs::write(&file, text).expect("writing a kubeconfig");
        self.start_in_background(&file, words)
    }

    /// The same about workloads of any namespace: without one that is Perennial's own.
    pub fn about_workloads_in_background(&self, words: &str) -> Background {
        self.run_on(self.kubeconfig(), words.split_whitespace())
    }

    fn start_in_background(&self, kubeconfig: &Path, words: &str) -> Background {
        self.run_on(kubeconfig, words.split_whitespace().chain(["-n", self.namespace()]))
    }

    fn run_on<'a>(&self, kubeconfig: &Path, words: impl Iterator<Item = &'a str>) -> Background {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = self.plane().dir().join("logs").join(format!("{}-command-{number}.log", self.namespace()));
        let mut args: Vec<String> = vec!["-i".to_owned(), program::path().display().to_string()];
        args.extend(words.map(str::to_owned));
        args.extend(["--kubeconfig".to_owned(), kubeconfig.display().to_string()]);
        let process = Process::start("env".as_ref(), &args, &log).expect("the program under test starts");
        Background { process, log }
    }

    /// A shell in which the program is installed as people do it: on the PATH, also as a plugin of kubectl, for this
    /// cluster and Perennial's namespace of this test.
    pub fn shell(&self, script: &str) -> Answer {
        let folder = self.plane().dir().join(format!("{}-path", self.namespace()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for name in ["perennial", "kubectl-perennial"] {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(program::path(), &link).expect("a link to the program");
        }
        let kubectl = self.plane().kubectl();
        let beside = PathBuf::from(kubectl.get_program());
        let path = [folder.as_path(), beside.parent().unwrap_or(&folder), "/usr/bin".as_ref(), "/bin".as_ref()];
        let mut command = Command::new("bash");
        command.args(["-c", script]).env_clear().env("KUBECONFIG", self.plane().kubeconfig_path());
        command.env("PATH", std::env::join_paths(path).expect("a PATH")).env("PERENNIAL_NAMESPACE", self.namespace());
        command.env("TERM", "xterm").env("FOLDER", &folder).env("HOME", &folder);
        Answer::of(command.output().expect("bash starts"))
    }

    /// A user who may read what the commands read, and change nothing. Says its name.
    pub fn reader(&self) -> String {
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

    /// `perennial` about the workloads of all namespaces. It must not fail.
    #[track_caller]
    pub fn about_workloads(&self, words: &str) -> String {
        let mut command = command();
        command.args(words.split_whitespace()).arg("--kubeconfig").arg(self.kubeconfig());
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
