//! Checks whether this machine can run real nodes. All checks run in separate namespaces.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{Unsupported, cgroups::Cgroups};

/// Programs of the system that set up namespaces.
const TOOLS: [&str; 6] = ["unshare", "nsenter", "mount", "ip", "find", "sleep"];

/// Sets up what a node needs: mounts, an overlay on `/var`, a bridge and a link.
const PROBE: &str = r#"
mount --make-rshared /
mount -t tmpfs tmpfs "$1"
mkdir "$1/var" "$1/work"
mount -t overlay -o lowerdir=/var,upperdir="$1/var",workdir="$1/work" overlay /var
ip link add nodes type bridge
ip link add node type veth peer name eth0
"#;

/// Mounts an overlay with this folder as the upper part.
const OVERLAY: &str = r#"
mkdir "$1/lower" "$1/upper" "$1/work"
mount -t overlay -o lowerdir="$1/lower",upperdir="$1/upper",workdir="$1/work" overlay "$1/lower"
"#;

/// Snapshotter of containerd: the storage of image layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Snapshotter {
    Overlayfs,
    /// Copies each layer: slower, works on every file system.
    Native,
}

impl Snapshotter {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overlayfs => "overlayfs",
            Self::Native => "native",
        }
    }
}

/// Checks the machine. `folder` is where the files of the nodes will be.
pub(super) fn check(folder: &Path) -> Result<Snapshotter, Unsupported> {
    let unsupported = |reason: String| Err(Unsupported(reason));
    if env::consts::OS != "linux" || env::consts::ARCH != "x86_64" {
        return unsupported(format!("needs Linux on x86_64, this is {} on {}", env::consts::OS, env::consts::ARCH));
    }
    if !rustix::process::geteuid().is_root() {
        return unsupported("needs root: namespaces, mounts and cgroups are created".to_owned());
    }
    let missing: Vec<_> = TOOLS.into_iter().filter(|tool| !is_in_path(tool)).collect();
    if !missing.is_empty() {
        return unsupported(format!("{} not found in PATH (util-linux, iproute2, findutils)", missing.join(", ")));
    }
    // Removed on drop.
    let _cgroups = Cgroups::create().map_err(|error| Unsupported(format!("no cgroup can be created: {error}")))?;
    let scratch = Scratch::create(folder)
        .map_err(|error| Unsupported(format!("cannot create a folder in {}: {error}", folder.display())))?;
    run_isolated(PROBE, &scratch.0).map_err(|error| Unsupported(format!("namespaces cannot be set up: {error}")))?;
    Ok(match run_isolated(OVERLAY, &scratch.0) {
        Ok(()) => Snapshotter::Overlayfs,
        Err(_) => Snapshotter::Native,
    })
}

/// Checks the machine for kube-proxy, which sets its rules with `nft`.
pub(super) fn check_kube_proxy(real_nodes: usize) -> Result<(), Unsupported> {
    if real_nodes == 0 {
        return Err(Unsupported("kube-proxy needs at least one real node".to_owned()));
    }
    if !is_in_path("nft") {
        return Err(Unsupported("kube-proxy needs nft, which is not in PATH (nftables)".to_owned()));
    }
    let listed = Command::new("unshare").args(["--net", "--", "nft", "list", "ruleset"]).stdin(Stdio::null()).output();
    match listed {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(Unsupported(format!("kube-proxy needs nftables in the kernel: {}", errors.trim())))
        }
        Err(error) => Err(Unsupported(format!("cannot run nft: {error}"))),
    }
}

fn is_in_path(tool: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join(tool).is_file())
}

/// Runs a script in new namespaces and returns the end of its errors.
fn run_isolated(script: &str, folder: &Path) -> Result<(), String> {
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .args(["sh", "-ec", script, "sh"])
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given").to_owned())
}

/// A folder that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn create(home: &Path) -> std::io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = home.join(format!(".node-check-{}-{number}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
