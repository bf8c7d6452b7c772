//! Installs Perennial on a local plane as on any cluster: namespace, service account with the
//! deployed permissions, and a binary. The binary is the calling program under another name, so it
//! is always the current build.

use std::{
    ffi::OsStr,
    fs, io,
    net::TcpStream,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use localplane::{PlaneFolder, Process};

use crate::ports::free_port;

/// Names under which the calling program acts as the operator and as its command line.
const PROGRAM: &str = "perennial";
const PLUGIN: &str = "kubectl-perennial";
const PERMISSIONS: &str = include_str!("../../../deploy/permissions.yaml");
const CRDS: &str = include_str!("../../../deploy/crds.yaml");
const NAMESPACE: &str = "perennial-system";
const ACCOUNT: &str = "perennial";
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the operator and returns its exit code, if this process was started by one of its names.
pub fn called_as_operator() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    let name = Path::new(&name).file_name();
    [PROGRAM, PLUGIN].into_iter().any(|known| name == Some(OsStr::new(known))).then(perennial::cli::main)
}

/// Locations of an installation.
#[derive(Debug, Clone)]
pub struct Installed {
    plane: PlaneFolder,
    /// Folder with `perennial` and `kubectl`.
    pub bin: PathBuf,
    kubeconfig: PathBuf,
    pub log: PathBuf,
}

impl Installed {
    /// Links the programs into `bin` and applies namespace, account, permissions and CRDs.
    /// Idempotent.
    pub fn new(plane: &PlaneFolder, bin: PathBuf, kubectl: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(&bin).with_context(|| format!("creating {}", bin.display()))?;
        let this = std::env::current_exe().context("finding the path of this program")?;
        place(&this, &bin.join(PROGRAM))?;
        place(&this, &bin.join(PLUGIN))?;
        place(kubectl, &bin.join("kubectl"))?;

        let permissions = plane.path().join("installed.yaml");
        let manifests = format!("{PERMISSIONS}---\n{CRDS}");
        fs::write(&permissions, manifests).with_context(|| format!("writing {}", permissions.display()))?;
        let applied = Command::new(kubectl)
            .args(["apply", "--filename"])
            .arg(&permissions)
            .env("KUBECONFIG", plane.kubeconfig())
            .stdin(Stdio::null())
            .output()
            .context("running kubectl")?;
        if !applied.status.success() {
            bail!("applying the permissions and CRDs failed: {}", String::from_utf8_lossy(&applied.stderr).trim());
        }
        write_env(plane, &bin)?;
        let kubeconfig = plane.path().join("perennial.kubeconfig");
        Ok(Self { plane: plane.clone(), bin, kubeconfig, log: plane.logs().join("perennial.log") })
    }

    /// Starts the operator and waits until it is ready. It never outlives this process.
    ///
    /// The Lease of a killed replica expires after 2 s instead of 15 s, so that a demo does not
    /// stall.
    pub fn start(&self, webhooks: bool) -> anyhow::Result<Process> {
        let account = self.plane.kubeconfig_for_service_account(NAMESPACE, ACCOUNT)?;
        write_private(&self.kubeconfig, &account).with_context(|| format!("writing {}", self.kubeconfig.display()))?;
        let from = fs::metadata(&self.log).map_or(0, |log| log.len());
        let kubeconfig = self.kubeconfig.display().to_string();
        let mut args = vec!["run".to_owned(), "--kubeconfig".to_owned(), kubeconfig];
        let mut settings = vec![
            "logging.format=text".to_owned(),
            "metrics.port=0".to_owned(),
            "controller.leaderElection.leaseDuration=2s".to_owned(),
        ];
        if webhooks {
            let port = free_port();
            settings.extend([format!("webhook.port={port}"), format!("webhook.url=https://127.0.0.1:{port}")]);
        } else {
            settings.push("webhook.enabled=false".to_owned());
        }
        args.extend(settings.into_iter().map(|setting| format!("--set={setting}")));
        let mut process = Process::start(&self.bin.join(PROGRAM), &args, &self.log).context("starting perennial")?;

        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready(from) {
            if let Some(status) = process.ended() {
                bail!("perennial exited ({status}):\n{}", self.log_tail(5));
            }
            if Instant::now() > deadline {
                bail!("perennial was not ready within {PATIENCE:?}:\n{}", self.log_tail(5));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(process)
    }

    /// Checks `/readyz` of the operator whose log begins at byte `from`. The port is read from the
    /// log.
    fn is_ready(&self, from: u64) -> bool {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let port = usize::try_from(from).ok().and_then(|from| log.get(from..)).and_then(port);
        port.and_then(|port| get(port, "/readyz").ok()).is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    pub fn log_tail(&self, count: usize) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

/// Writes a file beside `bin/` that sets `PATH` and `KUBECONFIG` in a shell.
fn write_env(plane: &PlaneFolder, bin: &Path) -> anyhow::Result<()> {
    let path = bin.with_file_name("env");
    let text = format!("export KUBECONFIG='{}' PATH='{}':\"$PATH\"\n", plane.kubeconfig().display(), bin.display());
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

fn port(log: &str) -> Option<u16> {
    let line = log.lines().find(|line| line.contains("serving /metrics"))?;
    let address = line.split_once("address=")?.1.split_whitespace().next()?;
    address.rsplit_once(':')?.1.parse().ok()
}

fn get(port: u16, path: &str) -> io::Result<String> {
    use io::{Read as _, Write as _};
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Creates a hard link where possible: it keeps the old program when a new one is built.
fn place(program: &Path, at: &Path) -> anyhow::Result<()> {
    let program = fs::canonicalize(program).with_context(|| format!("finding {}", program.display()))?;
    match fs::remove_file(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context("replacing a program"),
        _ => {}
    }
    fs::hard_link(&program, at)
        .or_else(|_| symlink(&program, at))
        .with_context(|| format!("linking {} to {}", at.display(), program.display()))
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_the_log() {
        let log = "INFO starting\nINFO serving /metrics and probes address=[::]:43121 role=all\nINFO ready\n";
        assert_eq!(port(log), Some(43121));
        assert_eq!(port("INFO starting\n"), None);
    }
}
