//! Programs and files that tests need besides Kubernetes. They are built or downloaded once,
//! cached, and shared by all builds.
//!
//! The cache is `$PERENNIAL_TOOLS`, `$XDG_CACHE_HOME/perennial-tools` or
//! `~/.cache/perennial-tools`. Each entry is a folder that appears when it is complete.

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A major version of helm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helm {
    V3,
    V4,
}

impl Helm {
    fn module(self) -> (&'static str, &'static str) {
        match self {
            Self::V3 => ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
            Self::V4 => ("helm.sh/helm/v4/cmd/helm", "v4.3.1"),
        }
    }

    /// Returns the path of helm. The first call builds it with Go, which takes some minutes.
    pub fn program(self) -> PathBuf {
        let (module, version) = self.module();
        go_install(&format!("helm-{version}"), "helm", module, version).expect("helm: Go builds it")
    }
}

/// Returns the path of krew, the plugin manager of kubectl. `None`, with a message, if Go cannot
/// build it.
pub fn krew() -> Option<PathBuf> {
    let built = provide("krew-v0.4.4", "krew", |folder| {
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(folder.join("krew")).arg("./cmd/krew");
        go.env("CGO_ENABLED", "0").current_dir(module("sigs.k8s.io/krew", "v0.4.4")?);
        run(go, "krew is built by Go")
    });
    built.inspect_err(|why| eprintln!("SKIPPED: this needs krew, which Go builds: {why}")).ok()
}

fn go_install(name: &str, program: &str, module: &str, version: &str) -> Result<PathBuf, String> {
    provide(name, program, |folder| {
        eprintln!("building {module} {version}: this takes a few minutes, once");
        let mut go = Command::new("go");
        // Outside of any module, and for this machine even in a cross-compilation.
        go.args(["install", "-trimpath", "-ldflags", "-s -w", &format!("{module}@{version}")])
            .env("GOBIN", folder)
            .env("CGO_ENABLED", "0")
            .current_dir(env::temp_dir());
        run(go, &format!("{program} is built by Go"))
    })
}

/// Returns the CRDs of cert-manager and the Prometheus operator, whose objects the chart creates.
/// `None`, with a message, if Go cannot download them.
pub fn third_party_crds() -> Option<Vec<PathBuf>> {
    let certificates = ["certificates", "issuers"].map(|kind| format!("deploy/crds/cert-manager.io_{kind}.yaml"));
    let monitors = ["podmonitors", "prometheusrules", "servicemonitors"]
        .map(|kind| format!("example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"));
    let found =
        fetch_from_module("github.com/cert-manager/cert-manager", "v1.21.2", &certificates).and_then(|mut all| {
            all.extend(fetch_from_module("github.com/prometheus-operator/prometheus-operator", "v0.85.0", &monitors)?);
            Ok(all)
        });
    found.inspect_err(|why| eprintln!("SKIPPED: this needs CRDs of others, which Go fetches: {why}")).ok()
}

/// Downloads the source of a Go module.
fn module(module: &str, version: &str) -> Result<PathBuf, String> {
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", &format!("{module}@{version}")]).current_dir(env::temp_dir());
    let output = go.stdin(Stdio::null()).output().map_err(|error| format!("go mod download: {error}"))?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let source = said["Dir"].as_str().map(PathBuf::from);
    source.ok_or_else(|| format!("go mod download {module}: {}", said["Error"]))
}

/// Returns files of a Go module.
fn fetch_from_module(module: &str, version: &str, files: &[String]) -> Result<Vec<PathBuf>, String> {
    let short = module.rsplit('/').next().unwrap_or(module);
    let name = |path: &String| path.rsplit('/').next().unwrap_or(path).to_owned();
    let last = files.last().map(name).unwrap_or_default();
    let there = provide(&format!("{short}-crds-{version}"), &last, |folder| {
        let source = self::module(module, version)?;
        for file in files {
            let copied = fs::copy(source.join(file), folder.join(name(file)));
            copied.map_err(|error| format!("{file} of {module}: {error}"))?;
        }
        Ok(())
    })?;
    Ok(files.iter().map(|file| there.with_file_name(name(file))).collect())
}

/// Prometheus and promtool from the Debian package.
#[derive(Debug, Clone)]
pub struct Prometheus {
    pub server: PathBuf,
    pub promtool: PathBuf,
}

impl Prometheus {
    /// Finds both on the PATH or downloads the Debian package. `None`, with a message, if neither
    /// works.
    pub fn find() -> Option<Self> {
        if let (Some(server), Some(promtool)) = (on_path("prometheus"), on_path("promtool")) {
            return Some(Self { server, promtool });
        }
        let fetched = provide("prometheus", "usr/bin/promtool", |folder| {
            let mut update = Command::new("apt-get");
            update.args(["update", "--quiet"]);
            let mut download = Command::new("apt-get");
            download.args(["download", "--quiet", "prometheus"]).current_dir(folder);
            // The package lists may be present already, and only root can update them.
            run(download, "apt-get download prometheus").or_else(|_| {
                run(update, "apt-get update")?;
                let mut again = Command::new("apt-get");
                again.args(["download", "--quiet", "prometheus"]).current_dir(folder);
                run(again, "apt-get download prometheus")
            })?;
            let mut unpack = Command::new("sh");
            unpack.args(["-c", "dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb"]).current_dir(folder);
            run(unpack, "dpkg-deb")
        });
        match fetched {
            Ok(promtool) => Some(Self { server: promtool.with_file_name("prometheus"), promtool }),
            Err(why) => {
                eprintln!("SKIPPED: this needs Prometheus, on the path or from Debian's packages: {why}");
                None
            }
        }
    }
}

/// Returns the script of axe-core, which finds accessibility problems of a page. `None`, with a
/// message, if npm cannot download it.
pub fn axe() -> Option<String> {
    const VERSION: &str = "4.14.0";
    let fetched = provide(&format!("axe-core-{VERSION}"), "package/axe.min.js", |folder| {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", &format!("axe-core@{VERSION}")]).current_dir(folder);
        run(npm, "npm pack axe-core")?;
        let mut unpack = Command::new("sh");
        unpack.args(["-c", "tar -xzf axe-core-*.tgz && rm axe-core-*.tgz"]).current_dir(folder);
        run(unpack, "tar")
    });
    match fetched.and_then(|path| fs::read_to_string(path).map_err(|error| error.to_string())) {
        Ok(script) => Some(script),
        Err(why) => {
            eprintln!("SKIPPED: accessibility is checked with axe-core, which npm fetches: {why}");
            None
        }
    }
}

/// Finds a program on the PATH.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns a program of the cache. If it is missing, `make` creates it in an empty folder.
fn provide(name: &str, program: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let cache = cache();
    let folder = cache.join(name);
    let path = folder.join(program);
    if path.is_file() {
        return Ok(path);
    }
    let failed = |what: &str, error: std::io::Error| format!("{what} {}: {error}", folder.display());
    fs::create_dir_all(&cache).map_err(|error| failed("creating", error))?;
    let lock = File::options().create(true).append(true).open(cache.join(format!("{name}.lock")));
    let lock = lock.map_err(|error| failed("locking", error))?;
    lock.lock().map_err(|error| failed("locking", error))?;
    if path.is_file() {
        return Ok(path);
    }
    let partial = cache.join(format!("{name}.partial"));
    let _ = fs::remove_dir_all(&partial);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&partial).map_err(|error| failed("creating", error))?;
    make(&partial)?;
    fs::rename(&partial, &folder).map_err(|error| failed("creating", error))?;
    if path.is_file() { Ok(path) } else { Err(format!("{} was made without {program}", folder.display())) }
}

fn cache() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("PERENNIAL_TOOLS")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("perennial-tools")))
        .or_else(|| env::home_dir().map(|home| home.join(".cache/perennial-tools")))
        .unwrap_or_else(|| env::temp_dir().join("perennial-tools"))
}

fn run(mut command: Command, what: &str) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{what}: {}", said.lines().rev().take(3).collect::<Vec<_>>().join("; ")))
}
