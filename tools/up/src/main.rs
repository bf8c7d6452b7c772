//! `make up` and `make down`: start a local Kubernetes with Perennial that keeps running, and stop
//! it.

mod supervisor;

use std::{
    fs,
    fs::File,
    io,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use localplane::{Kubernetes, PlaneFolder, PlaneState, ProcessState, Program, Sources};
use perennial_harness::install;
use rustix::process::{Pid, Signal, kill_process};

/// Contains everything; listed in `.gitignore`.
const FOLDER: &str = ".up";
const UP_WITHIN: Duration = Duration::from_mins(3);
const DOWN_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    if let Some(code) = install::called_as_operator() {
        return code;
    }
    let done = match std::env::args().nth(1).as_deref() {
        Some("start") => start(),
        Some("stop") => stop(),
        Some(supervisor::COMMAND) => Paths::new().and_then(|paths| supervisor::run(&paths)),
        _ => Err(anyhow::anyhow!("usage: up start | stop")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("up: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Paths.
#[derive(Debug)]
struct Paths {
    folder: PathBuf,
    plane: PlaneFolder,
}

impl Paths {
    fn new() -> anyhow::Result<Self> {
        let folder = std::path::absolute(FOLDER).context("finding the current folder")?;
        Ok(Self { plane: PlaneFolder::at(folder.join("plane")), folder })
    }

    fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// File with the operator's process ID, written when it is ready.
    fn operator(&self) -> PathBuf {
        self.folder.join("perennial.pid")
    }

    /// Written when `make up` has succeeded. Until then the supervisor ends with it.
    fn started(&self) -> PathBuf {
        self.folder.join("started")
    }

    fn supervisor_log(&self) -> PathBuf {
        self.folder.join("supervisor.log")
    }
}

fn start() -> anyhow::Result<()> {
    let paths = Paths::new()?;
    let began = Instant::now();
    if let Some(state) = paths.plane.running()? {
        wait(&paths, None)?;
        println!("Kubernetes {} and Perennial are already running.", state.kubernetes);
        if is_older_build(&paths) {
            println!(
                "Perennial is running from an earlier build. To start the current one: `make down`, then `make up`."
            );
        }
    } else {
        let kubernetes = Kubernetes::from_env()?;
        // Here and not in the supervisor, so that the progress is visible.
        Sources::from_env().find(kubernetes, &Program::ALL)?;
        fs::create_dir_all(&paths.folder).with_context(|| format!("creating {}", paths.folder.display()))?;
        forget(&paths.operator())?;
        forget(&paths.started())?;
        println!("Starting Kubernetes {} and Perennial …", kubernetes.version());
        wait(&paths, Some(detach(&paths)?))?;
        fs::write(paths.started(), "").context("writing the file that ends the start")?;
        println!("Started in {:.1} s. `make down` stops them.", began.elapsed().as_secs_f64());
    }
    let manifest = paths.folder.join("worker-1.yaml");
    fs::write(&manifest, MANIFEST).with_context(|| format!("writing {}", manifest.display()))?;
    print_usage(&paths);
    Ok(())
}

fn stop() -> anyhow::Result<()> {
    let paths = Paths::new()?;
    let running = paths.plane.running()?;
    match &running {
        Some(state) => end(&paths, state)?,
        None => println!("Nothing is running."),
    }
    match fs::remove_dir_all(&paths.folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", paths.folder.display()));
        }
        _ => {}
    }
    if running.is_some() {
        println!("Kubernetes and Perennial are stopped, and {FOLDER}/ is removed.");
    }
    Ok(())
}

/// Starts this program again as the supervisor, in its own process group, so that Ctrl-C does not
/// reach it.
fn detach(paths: &Paths) -> anyhow::Result<Child> {
    let log = File::create(paths.supervisor_log()).context("creating the supervisor's log")?;
    Command::new(std::env::current_exe().context("finding the path of this program")?)
        .arg(supervisor::COMMAND)
        .env(supervisor::PARENT, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("starting the supervisor")
}

/// Waits until the operator is ready.
fn wait(paths: &Paths, mut supervisor: Option<Child>) -> anyhow::Result<()> {
    let deadline = Instant::now() + UP_WITHIN;
    while operator(paths).is_none() {
        let ended = supervisor.as_mut().map(Child::try_wait).transpose()?.flatten();
        let log = || fs::read_to_string(paths.supervisor_log()).unwrap_or_default();
        if let Some(status) = ended {
            bail!("the supervisor exited before it was ready ({status}):\n{}", log().trim_end());
        }
        if supervisor.is_none() && paths.plane.running()?.is_none() {
            bail!("the supervisor exited before it was ready:\n{}", log().trim_end());
        }
        if Instant::now() > deadline {
            bail!("not ready after {UP_WITHIN:?}; see the logs in {FOLDER}/plane/logs/, stop it with `make down`");
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Returns the operator's process once it is ready.
fn operator(paths: &Paths) -> Option<ProcessState> {
    serde_json::from_slice(&fs::read(paths.operator()).ok()?).ok()
}

/// Stops the supervisor; its children end with it. The lock shows that a supervisor is running, and
/// process ID and start time show that it is this process.
fn end(paths: &Paths, state: &PlaneState) -> anyhow::Result<()> {
    let supervisor = state.supervisor;
    if !supervisor.is_alive() {
        bail!("{FOLDER}/ is locked, but process {} named in it does not hold the lock", supervisor.pid);
    }
    let mut everyone = vec![supervisor];
    everyone.extend(state.components.values().filter_map(|component| component.process));
    everyone.extend(operator(paths));
    let pid = i32::try_from(supervisor.pid).ok().and_then(Pid::from_raw).context("invalid process ID")?;
    kill_process(pid, Signal::TERM).with_context(|| format!("stopping process {}", supervisor.pid))?;
    let deadline = Instant::now() + DOWN_WITHIN;
    while let Some(left) = everyone.iter().find(|process| process.is_alive()) {
        if Instant::now() > deadline {
            bail!("process {} did not exit within {DOWN_WITHIN:?}", left.pid);
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Programs are hard links: a different inode means a different build.
fn is_older_build(paths: &Paths) -> bool {
    let file = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    let this = std::env::current_exe().ok().and_then(|path| file(&path));
    this.is_some() && this != file(&paths.bin().join("perennial"))
}

fn forget(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

const MANIFEST: &str = "\
apiVersion: v1
kind: Node
metadata:
  name: worker-1
  labels:
    kubernetes.io/hostname: worker-1
    kubernetes.io/os: linux
    kubernetes.io/arch: amd64
spec:
  providerID: local://worker-1
";

fn print_usage(paths: &Paths) {
    let (kubeconfig, bin) = (paths.plane.kubeconfig(), paths.bin());
    println!(
        "
To use kubectl and perennial with this cluster (or source {FOLDER}/env):

  export KUBECONFIG={} PATH={}:$PATH

Label a node, delete it, and look at its record:

  kubectl create -f {FOLDER}/worker-1.yaml
  kubectl label node worker-1 team=ml disk=nvme
  kubectl delete node worker-1
  kubectl get configmap node-worker-1 -n perennial-system -o yaml

Create it again without labels, and see them restored:

  kubectl create -f {FOLDER}/worker-1.yaml
  kubectl get nodes --show-labels

See also: `perennial show worker-1`, `perennial records`, `kubectl get events`, and the log {FOLDER}/plane/logs/perennial.log",
        kubeconfig.display(),
        bin.display(),
    );
}
