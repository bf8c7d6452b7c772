//! Programs and files that tests need besides Kubernetes. They are built or downloaded once,
//! cached, and shared by all builds.
//!
//! The cache is `$PERENNIAL_TOOLS`, `$XDG_CACHE_HOME/perennial-tools` or
//! `~/.cache/perennial-tools`. Each entry is a folder that appears when it is complete.

use std::{
    env, fs,
    fs::File,
    io::Write as _,
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
    built.inspect_err(|why| skip("needs krew, which Go builds", why)).ok()
}

/// Returns the path of actionlint, which checks GitHub workflows. `None`, with a message, if Go
/// cannot build it.
pub fn actionlint() -> Option<PathBuf> {
    let (module, version) = ("github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12");
    let built = go_install(&format!("actionlint-{version}"), "actionlint", module, version);
    built.inspect_err(|why| skip("needs actionlint, which Go builds", why)).ok()
}

/// Returns the path of a small OCI registry that keeps everything in memory. `None`, with a message,
/// if Go cannot build it.
pub(crate) fn oci_registry() -> Option<PathBuf> {
    let (module, version) = ("github.com/google/go-containerregistry/cmd/registry", "v0.22.1");
    let built = go_install(&format!("registry-{version}"), "registry", module, version);
    built.inspect_err(|why| skip("needs an OCI registry, which Go builds", why)).ok()
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
    found.inspect_err(|why| skip("needs CRDs of others, which Go fetches", why)).ok()
}

/// Downloads the source of a Go module.
fn module(module: &str, version: &str) -> Result<PathBuf, String> {
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", &format!("{module}@{version}")]).current_dir(env::temp_dir());
    let output = go.stdin(Stdio::null()).output().map_err(|error| format!("go mod download: {error}"))?;
    let module_info: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let source = module_info["Dir"].as_str().map(PathBuf::from);
    source.ok_or_else(|| format!("go mod download {module}: {}", module_info["Error"]))
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
                skip("needs Prometheus, on the path or from Debian's packages", &why);
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
            skip("checks accessibility with axe-core, which npm fetches", &why);
            None
        }
    }
}

/// Chromium, and the libraries that it needs besides those of the system.
#[derive(Debug, Clone)]
pub(crate) struct Browser {
    pub(crate) program: PathBuf,
    pub(crate) libraries: Option<PathBuf>,
    /// Folder of the fontconfig file, unless fonts are those of the system.
    pub(crate) fonts: Option<PathBuf>,
}

/// Unpacks the files of the npm package: `npm` implies `node`, which decompresses Brotli.
const UNPACK_CHROMIUM: &str = r#"
    set -e
    tar -xzf sparticuz-chromium-*.tgz
    for name in chromium al2023.tar fonts.tar; do
        node -e 'const [, from, to] = process.argv; require("fs").createReadStream(from)
            .pipe(require("zlib").createBrotliDecompress()).pipe(require("fs").createWriteStream(to))' \
            "package/bin/$name.br" "$name"
    done
    tar -xf al2023.tar && tar -xf fonts.tar && chmod +x chromium
    echo '<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>' > fonts.conf
    rm -rf package *.tgz *.tar
"#;

/// Finds Chromium on the PATH or brings the npm package `@sparticuz/chromium`, which contains it
/// with its libraries, into the cache. `None`, with a message, if neither works.
pub(crate) fn chromium() -> Option<Browser> {
    const VERSION: &str = "147.0.0";
    if let Some(program) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(on_path) {
        return Some(Browser { program, libraries: None, fonts: None });
    }
    let fetched = provide(&format!("chromium-{VERSION}"), "chromium", |folder| {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", &format!("@sparticuz/chromium@{VERSION}")]).current_dir(folder);
        run(npm, "npm pack @sparticuz/chromium")?;
        let mut unpack = Command::new("sh");
        unpack.args(["-c", UNPACK_CHROMIUM]).current_dir(folder);
        run(unpack, "unpacking Chromium")
    });
    match fetched {
        Ok(program) => {
            let (libraries, fonts) = (program.with_file_name("lib"), program.parent().map(Path::to_owned));
            Some(Browser { libraries: Some(libraries), fonts, program })
        }
        Err(why) => {
            skip("needs Chromium, on the path or from npm", &why);
            None
        }
    }
}

/// Notes that a test, or a part of it, is skipped. `make test` counts the reasons at its end.
pub fn skip(reason: &str, why: &str) {
    eprintln!("SKIPPED: {reason}: {why}");
    let Some(file) = env::var_os("SKIPPED_TESTS") else { return };
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let written = File::options().create(true).append(true).open(file);
    let written = written.and_then(|mut file| file.write_all(format!("{test}\t{reason}\n").as_bytes()));
    written.expect("SKIPPED_TESTS: the file is written");
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
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{what}: {}", stderr.lines().rev().take(3).collect::<Vec<_>>().join("; ")))
}
