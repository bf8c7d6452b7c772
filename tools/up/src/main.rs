//! `make up` and `make down`: a local Kubernetes with Perennial on it that stays until it is told to go.

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

/// Everything is in here; `.gitignore` knows it.
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
        Some(supervisor::COMMAND) => Place::new().and_then(|place| supervisor::run(&place)),
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

/// Where things are.
#[derive(Debug)]
struct Place {
    folder: PathBuf,
    plane: PlaneFolder,
}

impl Place {
    fn new() -> anyhow::Result<Self> {
        let folder = std::path::absolute(FOLDER).context("finding the current folder")?;
        Ok(Self { plane: PlaneFolder::at(folder.join("plane")), folder })
    }

    fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// The number of the operator's process, written when it is ready.
    fn operator(&self) -> PathBuf {
        self.folder.join("perennial.pid")
    }

    fn supervisor_log(&self) -> PathBuf {
        self.folder.join("supervisor.log")
    }
}

fn start() -> anyhow::Result<()> {
    let place = Place::new()?;
    let began = Instant::now();
    if let Some(state) = place.plane.running()? {
        wait(&place, None)?;
        println!("Kubernetes {} and Perennial run already.", state.kubernetes);
        if is_older_build(&place) {
            println!("This Perennial is of an earlier build: `make down` and `make up` start the current one.");
        }
    } else {
        let kubernetes = Kubernetes::from_env()?;
        // Here and not in the supervisor: this is where a person sees the progress.
        Sources::from_env().find(kubernetes, &Program::ALL)?;
        fs::create_dir_all(&place.folder).with_context(|| format!("creating {}", place.folder.display()))?;
        forget(&place.operator())?;
        println!("Starting Kubernetes {} and Perennial …", kubernetes.version());
        wait(&place, Some(detach(&place)?))?;
        println!("They run after {:.1} s, and until `make down`.", began.elapsed().as_secs_f64());
    }
    let manifest = place.folder.join("worker-1.yaml");
    fs::write(&manifest, MANIFEST).with_context(|| format!("writing {}", manifest.display()))?;
    print_what_to_try(&place);
    Ok(())
}

fn stop() -> anyhow::Result<()> {
    let place = Place::new()?;
    let running = place.plane.running()?;
    match &running {
        Some(state) => end(&place, state)?,
        None => println!("Nothing runs."),
    }
    match fs::remove_dir_all(&place.folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", place.folder.display()));
        }
        _ => {}
    }
    if running.is_some() {
        println!("Kubernetes and Perennial have ended, and {FOLDER}/ is removed.");
    }
    Ok(())
}

/// Starts ourselves again as the supervisor, in a process group of its own: a Ctrl-C here is not for it.
fn detach(place: &Place) -> anyhow::Result<Child> {
    let log = File::create(place.supervisor_log()).context("creating the supervisor's log")?;
    Command::new(std::env::current_exe().context("finding our own program")?)
        .arg(supervisor::COMMAND)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("starting the supervisor")
}

/// Until plane and operator are of use.
fn wait(place: &Place, mut supervisor: Option<Child>) -> anyhow::Result<()> {
    let deadline = Instant::now() + UP_WITHIN;
    while operator(place).is_none() {
        let ended = supervisor.as_mut().map(Child::try_wait).transpose()?.flatten();
        let log = || fs::read_to_string(place.supervisor_log()).unwrap_or_default();
        if let Some(status) = ended {
            bail!("it did not start ({status}):\n{}", log().trim_end());
        }
        if supervisor.is_none() && place.plane.running()?.is_none() {
            bail!("it ended while we waited for it:\n{}", log().trim_end());
        }
        if Instant::now() > deadline {
            bail!("it is not ready after {UP_WITHIN:?}; `make down` ends it, logs are in {FOLDER}/plane/logs/");
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// The operator's process, once it was ready.
fn operator(place: &Place) -> Option<ProcessState> {
    serde_json::from_slice(&fs::read(place.operator()).ok()?).ok()
}

/// The lock said that a supervisor lives; the number and the time of its start say that it is this process. Its children
/// end with it.
fn end(place: &Place, state: &PlaneState) -> anyhow::Result<()> {
    let supervisor = state.supervisor;
    if !supervisor.is_alive() {
        bail!("{FOLDER}/ is locked, but not by the process {} that it names", supervisor.pid);
    }
    let mut everyone = vec![supervisor];
    everyone.extend(state.components.values().filter_map(|component| component.process));
    everyone.extend(operator(place));
    let pid = i32::try_from(supervisor.pid).ok().and_then(Pid::from_raw).context("not a process number")?;
    kill_process(pid, Signal::TERM).with_context(|| format!("ending process {}", supervisor.pid))?;
    let deadline = Instant::now() + DOWN_WITHIN;
    while let Some(left) = everyone.iter().find(|process| process.is_alive()) {
        if Instant::now() > deadline {
            bail!("process {} did not end within {DOWN_WITHIN:?}", left.pid);
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Programs are put in place as hard links: another file means another build.
fn is_older_build(place: &Place) -> bool {
    let file = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    let this = std::env::current_exe().ok().and_then(|path| file(&path));
    this.is_some() && this != file(&place.bin().join("perennial"))
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

fn print_what_to_try(place: &Place) {
    let (kubeconfig, bin) = (place.plane.kubeconfig(), place.bin());
    println!(
        "
kubectl and perennial for this cluster, in your shell (`. {FOLDER}/env` does the same):

  export KUBECONFIG={} PATH={}:$PATH

Label a node, delete it, and see what is kept of it:

  kubectl create -f {FOLDER}/worker-1.yaml
  kubectl label node worker-1 team=ml disk=nvme
  kubectl delete node worker-1
  kubectl get configmap node-worker-1 -n perennial-system -o yaml

Let it come back, bare, and see its labels:

  kubectl create -f {FOLDER}/worker-1.yaml
  kubectl get nodes --show-labels

More: `perennial show worker-1`, `perennial records`, `kubectl get events`; {FOLDER}/plane/logs/perennial.log",
        kubeconfig.display(),
        bin.display(),
    );
}
