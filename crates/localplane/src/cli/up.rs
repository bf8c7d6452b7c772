//! `localplane up`: starts a supervisor in the background and waits until the plane is ready.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;

use super::{PlaneArgs, ProgramArgs};
use crate::{
    plane::{PlaneFolder, Spec, tail},
    programs::{Program, Progress},
};

const POLL: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "command line flags")]
pub(super) struct Up {
    #[command(flatten)]
    plane: PlaneArgs,
    #[command(flatten)]
    selection: ProgramArgs,
    /// Number of fake nodes to create: node-0, node-1, …
    #[arg(long, value_name = "N", default_value_t = 0)]
    nodes: usize,
    /// Number of real nodes (real-0, real-1, …) with kubelet, containerd and pods; needs root
    #[arg(long, value_name = "N", default_value_t = 0)]
    real_nodes: usize,
    /// Run kube-proxy for the real nodes, so that ClusterIPs work; needs nft
    #[arg(long, requires = "real_nodes")]
    kube_proxy: bool,
    /// Number of API servers, which share one etcd
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    apiservers: u8,
    /// Do not start the scheduler
    #[arg(long)]
    no_scheduler: bool,
    /// Do not start the controller manager
    #[arg(long)]
    no_controller_manager: bool,
    /// Do not start kwok: nodes do not become Ready and pods do not run
    #[arg(long)]
    no_kwok: bool,
    /// Additional argument of kube-apiserver (repeatable), for example --apiserver-arg=--v=4
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    apiserver_arg: Vec<String>,
    /// Print only the path of the kubeconfig
    #[arg(long, short)]
    quiet: bool,
}

impl Up {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.plane.folder();
        if folder.is_running()? {
            eprintln!("localplane: a plane is already running in {}", folder.path().display());
            wait(&folder, None)?;
            self.report(&folder);
            return Ok(ExitCode::SUCCESS);
        }
        let spec = self.spec();
        if spec.real_nodes > 0 {
            crate::plane::check_real_nodes(folder.path())?;
        }
        if spec.kube_proxy {
            crate::node::check_kube_proxy(spec.real_nodes)?;
        }
        // Done here and not in the supervisor, so that progress is shown on the terminal.
        let programs = self.selection.sources().find(self.selection.kubernetes, &spec.programs())?;

        fs::create_dir_all(folder.logs()).with_context(|| format!("cannot create {}", folder.logs().display()))?;
        folder.write_spec(&spec)?;
        let step = Progress::start(format!("starting Kubernetes {}", self.selection.kubernetes.version()));
        // Passed as a search path, so that the supervisor uses exactly these programs.
        let mut assets: Vec<_> = programs.iter().filter_map(|(_, path)| path.parent()).collect();
        assets.sort_unstable();
        assets.dedup();
        let supervisor = detach(&folder, &std::env::join_paths(assets)?)?;
        match wait(&folder, Some(supervisor)) {
            Ok(()) => step.finish(),
            Err(error) => {
                step.fail("failed");
                return Err(error);
            }
        }
        self.report(&folder);
        Ok(ExitCode::SUCCESS)
    }

    fn spec(&self) -> Spec {
        let mut args = std::collections::BTreeMap::new();
        if !self.apiserver_arg.is_empty() {
            args.insert(Program::KubeApiserver.file_name().to_owned(), self.apiserver_arg.clone());
        }
        Spec {
            kubernetes: self.selection.kubernetes.minor().to_owned(),
            api_servers: self.apiservers.into(),
            controller_manager: !self.no_controller_manager,
            scheduler: !self.no_scheduler,
            kwok: !self.no_kwok,
            nodes: self.nodes,
            real_nodes: self.real_nodes,
            kube_proxy: self.kube_proxy,
            args,
        }
    }

    fn report(&self, folder: &PlaneFolder) {
        let kubeconfig = folder.kubeconfig();
        if self.quiet {
            println!("{}", kubeconfig.display());
        } else {
            println!("export KUBECONFIG={}", kubeconfig.display());
        }
    }
}

/// Starts this program as the supervisor, in its own process group so that Ctrl-C does not reach
/// it.
fn detach(folder: &PlaneFolder, assets: &std::ffi::OsStr) -> anyhow::Result<Child> {
    let path = supervisor_log(folder);
    let log = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    Command::new(std::env::current_exe().context("cannot determine the path of this program")?)
        .arg("supervise")
        .arg("--dir")
        .arg(folder.path())
        .env(crate::programs::ASSETS_ENV, assets)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("cannot start the supervisor")
}

/// Waits until the plane is ready. `ours` is the supervisor that this process started; another `up`
/// may have started one before it.
fn wait(folder: &PlaneFolder, mut ours: Option<Child>) -> anyhow::Result<()> {
    // The supervisor has a deadline for each component; this one covers a supervisor that hangs.
    let deadline = Instant::now() + Duration::from_mins(5);
    loop {
        if let Some(supervisor) = &mut ours
            && let Some(status) = supervisor.try_wait()?
        {
            if !folder.is_running()? {
                bail!("the plane did not start ({status}):\n{}", tail(&supervisor_log(folder)));
            }
            ours = None;
        }
        // Ignore a state file of an earlier supervisor.
        if folder.state()?.is_some_and(|state| state.ready && state.supervisor.is_alive()) {
            return Ok(());
        }
        if ours.is_none() && !folder.is_running()? {
            bail!("the plane exited during startup:\n{}", tail(&supervisor_log(folder)));
        }
        if Instant::now() > deadline {
            if let Some(mut supervisor) = ours {
                supervisor.kill()?;
                supervisor.wait()?;
            }
            bail!("the plane was not ready after 5 minutes; see the logs in {}", folder.logs().display());
        }
        thread::sleep(POLL);
    }
}

fn supervisor_log(folder: &PlaneFolder) -> PathBuf {
    folder.logs().join("supervisor.log")
}
