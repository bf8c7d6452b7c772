//! Sources of programs: their order, and the error if none has a program.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use localplane::{
    Kubernetes, Program, Sources,
    programs::{Downloads, Unavailable},
};

use crate::support::{Folder, Reply, Server, localplane, sha256, succeed, text};

const K: Kubernetes = Kubernetes::V1_36;

fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn kubernetes_path(program: &str) -> String {
    format!("/{}/bin/linux/{}/{program}", K.version(), arch())
}

/// Returns sources with only a cache and this server.
fn only(cache: &Folder, server: &str) -> Sources {
    let (kubernetes, etcd, kwok) = (server.into(), server.into(), server.into());
    let downloads = Downloads { kubernetes, etcd, kwok, trust_published: true };
    Sources::from_env().without_folders().cache(cache.path()).downloads(Some(downloads)).build(false)
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Returns the names of all files in the cache, except locks.
fn cached(cache: &Folder) -> Vec<String> {
    let mut found = Vec::new();
    for folder in fs::read_dir(cache.path()).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        found.extend(
            fs::read_dir(folder.path()).unwrap().flatten().map(|file| text(file.file_name().as_encoded_bytes())),
        );
    }
    found.sort();
    found
}

#[test]
fn a_release_is_downloaded_once_and_is_executable() {
    let cache = Folder::new("good");
    let body = vec![42; 300_000];
    let server = Server::start([
        (kubernetes_path("kubectl"), Reply::Body(body.clone())),
        (kubernetes_path("kubectl.sha256"), Reply::Body(sha256(&body).into_bytes())),
    ]);
    let sources = only(&cache, &server.url);

    let first = sources.find(K, &[Program::Kubectl]).unwrap();
    let again = sources.find(K, &[Program::Kubectl]).unwrap();

    let path = first.path(Program::Kubectl).unwrap();
    assert_eq!(fs::read(path).unwrap(), body);
    assert_eq!(mode(path), 0o755);
    assert_eq!(again.path(Program::Kubectl), Some(path));
    assert_eq!(server.requests().len(), 2, "the checksum and the file, once each: {:?}", server.requests());
    assert_eq!(cached(&cache), ["kubectl"], "no incomplete files are left");
}

#[test]
fn a_release_whose_checksum_only_its_host_knows_is_refused() {
    let cache = Folder::new("unpinned");
    let body = b"anything".to_vec();
    let server = Server::start([
        (kubernetes_path("kubectl"), Reply::Body(body.clone())),
        (kubernetes_path("kubectl.sha256"), Reply::Body(sha256(&body).into_bytes())),
    ]);
    let downloads = Downloads { kubernetes: server.url.clone(), ..Downloads::default() };

    let error = only(&cache, &server.url).downloads(Some(downloads)).find(K, &[Program::Kubectl]).unwrap_err();

    assert!(error.to_string().contains("LOCALPLANE_TRUST_PUBLISHED_CHECKSUMS"), "{error}");
    assert!(server.requests().is_empty(), "{:?}", server.requests());
    assert!(cached(&cache).is_empty());
}

#[test]
fn etcd_is_extracted_from_its_archive() {
    let cache = Folder::new("etcd");
    let work = Folder::new("etcd-archive");
    let name = format!("etcd-{}-linux-{}", K.etcd(), arch());
    work.script(&format!("{name}/etcd"), "echo I am etcd");
    succeed(Command::new("tar").arg("-czf").arg(work.join("a.tar.gz")).arg("-C").arg(work.path()).arg(&name));
    let archive = fs::read(work.join("a.tar.gz")).unwrap();
    let sums = format!("{}  other.tar.gz\n{}  {name}.tar.gz\n", "0".repeat(64), sha256(&archive));
    let server = Server::start([
        (format!("/{}/{name}.tar.gz", K.etcd()), Reply::Body(archive)),
        (format!("/{}/SHA256SUMS", K.etcd()), Reply::Body(sums.into_bytes())),
    ]);

    let found = only(&cache, &server.url).find(K, &[Program::Etcd]).unwrap();

    assert_eq!(succeed(&mut Command::new(found.path(Program::Etcd).unwrap())), "I am etcd\n");
    assert_eq!(cached(&cache), ["etcd"]);
}

fn failure(cache: &Folder, server: &str) -> Unavailable {
    let error = only(cache, server).find(K, &[Program::Kubectl]).unwrap_err();
    assert_eq!(cached(cache), [""; 0], "a failed download leaves no files");
    error
}

#[test]
fn a_wrong_checksum_is_rejected() {
    let cache = Folder::new("wrong");
    let server = Server::start([
        (kubernetes_path("kubectl"), Reply::Body(b"tampered".to_vec())),
        (kubernetes_path("kubectl.sha256"), Reply::Body(sha256(b"genuine").into_bytes())),
    ]);

    let error = failure(&cache, &server.url).to_string();

    let expected = format!("checksum mismatch: SHA-256 is {}, expected {}", sha256(b"tampered"), sha256(b"genuine"));
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn a_release_without_a_checksum_is_rejected() {
    let cache = Folder::new("none");
    let server = Server::start([
        (kubernetes_path("kubectl"), Reply::Body(b"whatever".to_vec())),
        (kubernetes_path("kubectl.sha256"), Reply::Body(b"<html>hello</html>".to_vec())),
    ]);

    let error = failure(&cache, &server.url).to_string();

    assert!(error.contains("contains no SHA-256 for kubectl"), "{error}");
}

#[test]
fn an_interrupted_transfer_is_rejected() {
    let cache = Folder::new("cut");
    let body = vec![7; 100_000];
    let server = Server::start([
        (kubernetes_path("kubectl"), Reply::Cut(body.clone(), 60_000)),
        (kubernetes_path("kubectl.sha256"), Reply::Body(sha256(&body).into_bytes())),
    ]);

    let error = failure(&cache, &server.url).to_string();

    assert!(error.contains("interrupted after 60000 bytes of 100000"), "{error}");
}

#[test]
fn an_unreachable_host_is_not_tried_again() {
    let cache = Folder::new("refused");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let base = format!("http://127.0.0.1:{port}");
    let error = failure(&cache, &base).to_string();
    assert!(error.contains(&format!("127.0.0.1:{port} cannot be reached")), "{error}");

    // Not even after the host became reachable.
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    failure(&cache, &base);
    assert!(listener.accept().is_err(), "the host was tried again");
}

#[test]
fn unreachable_hosts_cost_less_than_two_seconds_in_total() {
    let cache = Folder::new("silent");
    // Addresses for documentation (RFC 5737) and a name that cannot exist (RFC 6761).
    let downloads = Downloads {
        kubernetes: "https://192.0.2.1".into(),
        etcd: "https://198.51.100.1".into(),
        kwok: "https://kwok.invalid".into(),
        trust_published: true,
    };
    let sources = Sources::from_env().without_folders().cache(cache.path()).downloads(Some(downloads)).build(false);

    let began = Instant::now();
    sources.find(K, &Program::ALL).unwrap_err();

    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn a_named_folder_provides_the_programs_that_it_contains() {
    let cache = Folder::new("named-cache");
    let assets = Folder::new("named");
    let kubectl = fs::canonicalize(assets.script("kubectl", "true")).unwrap();
    fs::write(assets.join("etcd"), "not executable").unwrap();
    let body = b"from the server".to_vec();
    let server = Server::start([
        (kubernetes_path("kube-scheduler"), Reply::Body(body.clone())),
        (kubernetes_path("kube-scheduler.sha256"), Reply::Body(sha256(&body).into_bytes())),
    ]);
    let sources = only(&cache, &server.url).folder(assets.path());

    let found = sources.find(K, &[Program::Kubectl, Program::KubeScheduler]).unwrap();
    let error = sources.find(K, &[Program::Etcd]).unwrap_err().to_string();

    assert_eq!(found.path(Program::Kubectl), Some(kubectl.as_path()));
    assert_eq!(fs::read(found.path(Program::KubeScheduler).unwrap()).unwrap(), body);
    assert!(error.contains(&format!("folder {}: contains no executable etcd", assets.path().display())), "{error}");
}

#[test]
fn the_assets_variable_of_envtest_is_sufficient() {
    let cache = Folder::new("envtest-cache");
    let assets = Folder::new("envtest");
    for program in Program::ALL {
        assets.script(program.file_name(), "true");
    }

    let printed = succeed(
        localplane()
            .arg("fetch")
            .env_remove("LOCALPLANE_KUBERNETES")
            .env_remove("LOCALPLANE_ASSETS")
            .env("KUBEBUILDER_ASSETS", assets.path())
            .env("LOCALPLANE_CACHE", cache.path())
            .env("LOCALPLANE_NO_DOWNLOAD", "1")
            .env("LOCALPLANE_NO_BUILD", "1"),
    );

    assert_eq!(printed.lines().count(), Program::ALL.len(), "{printed}");
    let root = fs::canonicalize(assets.path()).unwrap();
    assert!(printed.lines().all(|line| Path::new(line).starts_with(&root)), "{printed}");
}

/// Returns `localplane fetch` with an empty cache, no network and this `go`.
fn fetch(cache: &Folder, go: &Path) -> Command {
    let mut command = localplane();
    command
        .arg("fetch")
        .env_remove("LOCALPLANE_KUBERNETES")
        .env_remove("LOCALPLANE_ASSETS")
        .env_remove("KUBEBUILDER_ASSETS")
        .env("LOCALPLANE_CACHE", cache.path())
        .env("LOCALPLANE_NO_DOWNLOAD", "1")
        .env("LOCALPLANE_GO", go);
    command
}

#[test]
fn the_error_lists_every_source_and_what_to_install() {
    let cache = Folder::new("nothing");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = fetch(&cache, Path::new("/nowhere/go"))
        .env("LOCALPLANE_ASSETS", "/nowhere/assets")
        .env_remove("LOCALPLANE_NO_DOWNLOAD")
        .env("LOCALPLANE_DOWNLOAD_BASE", format!("http://127.0.0.1:{port}"))
        .env("LOCALPLANE_ETCD_DOWNLOAD_BASE", format!("http://127.0.0.1:{port}"))
        .env("LOCALPLANE_KWOK_DOWNLOAD_BASE", format!("http://127.0.0.1:{port}"))
        .output()
        .unwrap();

    let error = text(&output.stderr);
    assert!(!output.status.success());
    for expected in [
        "cannot find etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl (Kubernetes v1.36.3)",
        "1. folder /nowhere/assets: no such folder",
        &format!("2. cache {}/kubernetes-v1.36.3: contains no etcd", cache.path().display()),
        &format!("3. download from http://127.0.0.1:{port}: 127.0.0.1:{port} cannot be reached"),
        "4. build from Go modules: go not found (searched /nowhere/go)",
        "install Go 1.26 or newer",
        "LOCALPLANE_DOWNLOAD_BASE",
        "LOCALPLANE_ASSETS",
    ] {
        assert!(error.contains(expected), "{expected:?} is not in:\n{error}");
    }
}

#[test]
fn a_failed_build_shows_the_compiler_output() {
    let cache = Folder::new("broken");
    let bin = Folder::new("broken-go");
    let go = bin.script("go", "echo 'go: downloading something'; echo 'undefined: frobnicate' >&2; exit 3");

    let output = fetch(&cache, &go).output().unwrap();

    let error = text(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("build from Go modules: go build failed") && error.contains("undefined: frobnicate"),
        "{error}"
    );
    assert_eq!(cached(&cache), [""; 0]);
}

/// Returns a `go` that creates scripts instead of programs. It waits for the file `release` if the
/// file `wait` exists.
fn fake_go(bin: &Folder) -> std::path::PathBuf {
    bin.script(
        "go",
        &format!(
            r#"cd_log={log}; echo build >> "$cd_log"
test -s go.mod && test -s go.sum || exit 9
while [ -e {wait} ] && [ ! -e {release} ]; do sleep 0.02; done
out=; previous=
for argument; do
  if [ "$previous" = -o ]; then out=$argument; fi
  previous=$argument
  case $argument in
    */cmd/*) printf '#!/bin/sh\n' > "$out/${{argument##*/}}";;
  esac
done"#,
            log = bin.join("log").display(),
            wait = bin.join("wait").display(),
            release = bin.join("release").display(),
        ),
    )
}

#[test]
fn two_concurrent_processes_share_one_build() {
    let cache = Folder::new("once");
    let bin = Folder::new("once-go");
    let go = fake_go(&bin);
    fs::write(bin.join("wait"), "").unwrap();

    let start = || fetch(&cache, &go).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = start();
    let mut lines = BufReader::new(first.stderr.take().unwrap()).lines();
    let building = lines.by_ref().map_while(Result::ok).find(|line| line.contains("building etcd"));
    assert!(building.is_some(), "the first process builds");
    let mut second = start();
    let mut other_lines = BufReader::new(second.stderr.take().unwrap()).lines();
    let waiting = other_lines.by_ref().map_while(Result::ok).find(|line| line.contains("waiting for another process"));
    assert!(waiting.is_some(), "the second process waits");
    fs::write(bin.join("release"), "").unwrap();
    lines.for_each(drop);
    other_lines.for_each(drop);
    let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());

    assert!(first.status.success() && second.status.success());
    assert_eq!(text(&first.stdout), text(&second.stdout));
    assert_eq!(text(&first.stdout).lines().count(), Program::ALL.len());
    let builds = fs::read_to_string(bin.join("log")).unwrap();
    assert_eq!(builds.lines().count(), 2, "one for Kubernetes and one for kwok");
}

#[test]
fn incomplete_files_of_a_killed_build_are_removed() {
    let cache = Folder::new("killed");
    let bin = Folder::new("killed-go");
    let go = fake_go(&bin);
    fs::create_dir_all(cache.join("kubernetes-v1.36.3/.partial")).unwrap();
    fs::write(cache.join("kubernetes-v1.36.3/.partial/etcd"), "half an etcd").unwrap();

    succeed(&mut fetch(&cache, &go));

    assert_eq!(fs::read_to_string(cache.join("kubernetes-v1.36.3/etcd")).unwrap(), "#!/bin/sh\n");
    assert!(!cache.join("kubernetes-v1.36.3/.partial").exists());
}
