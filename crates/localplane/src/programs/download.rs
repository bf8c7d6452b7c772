//! Downloads official release binaries and checks their SHA-256.
//!
//! The expected checksums are part of this repository (`digests.txt`): a checksum from the host of
//! the download protects from a broken transfer, not from a host that was taken over. A file
//! without one is refused unless [`TRUST_ENV`] is set.

use std::{
    env, fs,
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sha2::{Digest, Sha256};

use super::{Program, Progress, reachability};
use crate::versions::{self, Kubernetes};

const KUBERNETES_ENV: &str = "LOCALPLANE_DOWNLOAD_BASE";
const ETCD_ENV: &str = "LOCALPLANE_ETCD_DOWNLOAD_BASE";
const KWOK_ENV: &str = "LOCALPLANE_KWOK_DOWNLOAD_BASE";
/// If set, files whose checksum is not part of this repository are checked against the one that
/// their host publishes.
pub const TRUST_ENV: &str = "LOCALPLANE_TRUST_PUBLISHED_CHECKSUMS";
/// Checksums of release files, one per line: the SHA-256, and the end of the address.
const DIGESTS: &str = include_str!("digests.txt");
pub(super) const ENVS: [&str; 3] = [KUBERNETES_ENV, ETCD_ENV, KWOK_ENV];

/// Base addresses of the downloads. Mirrors must have the same layout.
#[derive(Debug, Clone)]
pub struct Downloads {
    /// `{base}/{version}/bin/{os}/{arch}/{program}`, with `.sha256` beside it.
    pub kubernetes: String,
    /// `{base}/{version}/etcd-{version}-{os}-{arch}.tar.gz`, with `SHA256SUMS` beside it.
    pub etcd: String,
    /// `{base}/{version}/kwok-{os}-{arch}`, with `.sha256` beside it (kwok publishes none; GitHub's
    /// API provides it).
    pub kwok: String,
    /// True if the checksums that the hosts publish are trusted: see [`TRUST_ENV`].
    pub trust_published: bool,
}

const OFFICIAL_KWOK: &str = "https://github.com/kubernetes-sigs/kwok/releases/download";
/// kwok's releases have no checksum files. GitHub's API returns the SHA-256 of each file of a
/// release.
const OFFICIAL_KWOK_DIGESTS: &str = "https://api.github.com/repos/kubernetes-sigs/kwok/releases/tags";

impl Default for Downloads {
    fn default() -> Self {
        Self {
            kubernetes: "https://dl.k8s.io".to_owned(),
            etcd: "https://github.com/etcd-io/etcd/releases/download".to_owned(),
            kwok: OFFICIAL_KWOK.to_owned(),
            trust_published: false,
        }
    }
}

/// Why a download failed. Nothing was stored; the caller tries the next source.
#[derive(Debug, thiserror::Error)]
pub(super) enum DownloadError {
    #[error("no official release of {0} for {os} on {arch}", os = env::consts::OS, arch = env::consts::ARCH)]
    NoRelease(Program),
    #[error("{0}")]
    Unreachable(String),
    #[error("{url}: {source}")]
    Request { url: String, source: Box<ureq::Error> },
    #[error("{url}: the transfer was interrupted after {got} bytes{}: {source}", expected.map(|n| format!(" of {n}")).unwrap_or_default())]
    Cut { url: String, got: u64, expected: Option<u64>, source: io::Error },
    #[error("{url}: its SHA-256 is not known here; set {TRUST_ENV}=1 to trust the one that the host publishes")]
    Unpinned { url: String },
    #[error("{url} contains no SHA-256 for {file}")]
    NoChecksum { url: String, file: String },
    #[error("{url}: checksum mismatch: SHA-256 is {got}, expected {expected}")]
    WrongChecksum { url: String, got: String, expected: String },
    #[error("cannot unpack {file}: {reason}")]
    Unpack { file: String, reason: String },
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Download of one program.
#[derive(Debug)]
struct Release {
    url: String,
    checksum_url: String,
    /// Path inside the archive, if the download is an archive.
    member: Option<String>,
}

impl Downloads {
    /// Returns the addresses set in the environment, or the official ones.
    pub fn from_env() -> Self {
        let or = |name, default| env::var(name).ok().filter(|v| !v.is_empty()).unwrap_or(default);
        let official = Self::default();
        Self {
            kubernetes: or(KUBERNETES_ENV, official.kubernetes),
            etcd: or(ETCD_ENV, official.etcd),
            kwok: or(KWOK_ENV, official.kwok),
            trust_published: env::var_os(TRUST_ENV).is_some_and(|value| !value.is_empty()),
        }
    }

    /// Checks which hosts are reachable, for all programs at once.
    pub(super) fn probe(&self, programs: &[Program]) {
        let mut bases: Vec<_> = programs.iter().map(|program| self.base(*program)).collect();
        bases.sort_unstable();
        bases.dedup();
        reachability::probe(bases.iter().copied());
        let mut errors: Vec<_> = bases.into_iter().filter_map(reachability::unreachable).collect();
        errors.dedup();
        for error in errors {
            Progress::note(&format!("cannot download: {error}"));
        }
    }

    /// Returns the base address of a program.
    pub(super) fn base(&self, program: Program) -> &str {
        match program {
            Program::Etcd => &self.etcd,
            Program::Kwok => &self.kwok,
            _ => &self.kubernetes,
        }
    }

    /// Downloads one program into `folder` and returns the checked file.
    pub(super) fn get(
        &self,
        program: Program,
        kubernetes: Kubernetes,
        folder: &Path,
    ) -> Result<PathBuf, DownloadError> {
        let release = self.release(program, kubernetes)?;
        if let Some(reason) = reachability::unreachable(self.base(program)) {
            return Err(DownloadError::Unreachable(reason));
        }
        let pinned = pinned_checksum(DIGESTS, &release.url);
        if pinned.is_none() && !self.trust_published {
            return Err(DownloadError::Unpinned { url: release.url });
        }
        let step = Progress::start(format!("downloading {program}"));
        let result = transfer(program, &release, pinned, folder, &step);
        match &result {
            Ok(_) => step.finish(),
            Err(error) => step.fail(&error.to_string()),
        }
        if let Err(DownloadError::Request { source, .. }) = &result
            && !matches!(**source, ureq::Error::StatusCode(_))
        {
            reachability::mark_unreachable(self.base(program), &source.to_string());
        }
        result
    }

    fn release(&self, program: Program, kubernetes: Kubernetes) -> Result<Release, DownloadError> {
        let (os, arch) = platform().ok_or(DownloadError::NoRelease(program))?;
        let base = self.base(program).trim_end_matches('/');
        Ok(match program {
            Program::Kwok => {
                let release = plain(format!("{base}/{}/kwok-{os}-{arch}", versions::KWOK));
                match base {
                    OFFICIAL_KWOK => {
                        Release { checksum_url: format!("{OFFICIAL_KWOK_DIGESTS}/{}", versions::KWOK), ..release }
                    }
                    _ => release,
                }
            }
            // For macOS, etcd is released as .zip and the Kubernetes servers are not released.
            _ if os != "linux" && program != Program::Kubectl => return Err(DownloadError::NoRelease(program)),
            Program::Etcd => {
                let version = kubernetes.etcd();
                let name = format!("etcd-{version}-{os}-{arch}");
                Release {
                    url: format!("{base}/{version}/{name}.tar.gz"),
                    checksum_url: format!("{base}/{version}/SHA256SUMS"),
                    member: Some(format!("{name}/etcd")),
                }
            }
            _ => plain(format!("{base}/{}/bin/{os}/{arch}/{program}", kubernetes.version())),
        })
    }
}

fn plain(url: String) -> Release {
    Release { checksum_url: format!("{url}.sha256"), url, member: None }
}

fn platform() -> Option<(&'static str, &'static str)> {
    let os = match env::consts::OS {
        "linux" => "linux",
        "macos" => "darwin",
        _ => return None,
    };
    let arch = match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "s390x" => "s390x",
        _ => return None,
    };
    Some((os, arch))
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_resolve(Some(Duration::from_secs(5)))
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .timeout_per_read(Some(Duration::from_secs(30)))
        .build()
        .new_agent()
}

fn transfer(
    program: Program,
    release: &Release,
    pinned: Option<String>,
    folder: &Path,
    step: &Progress,
) -> Result<PathBuf, DownloadError> {
    let agent = agent();
    let file_name = release.url.rsplit('/').next().unwrap_or_default();
    let request = |url: &str| {
        agent.get(url).call().map_err(|source| DownloadError::Request { url: url.to_owned(), source: Box::new(source) })
    };

    // The checksum first: it is small, and without it the download is useless.
    let published = || {
        let url = release.checksum_url.clone();
        let sums = request(&url)?.body_mut().read_to_string();
        let sums = sums.map_err(|source| DownloadError::Request { url: url.clone(), source: Box::new(source) })?;
        published_checksum(&sums, file_name).ok_or(DownloadError::NoChecksum { url, file: file_name.to_owned() })
    };
    let expected = pinned.map_or_else(published, Ok)?;

    let response = request(&release.url)?;
    let length = response.body().content_length();
    if let Some(length) = length {
        step.expect_bytes(length);
    }
    let path = folder.join(format!("{file_name}.download"));
    let got = save(&release.url, response.into_body().into_reader(), length, &path, step)?;
    if got != expected {
        return Err(DownloadError::WrongChecksum { url: release.url.clone(), got, expected });
    }
    match &release.member {
        None => Ok(path),
        Some(member) => unpack(program, &path, member, folder),
    }
}

/// Writes the body to a file and returns its SHA-256.
fn save(
    url: &str,
    mut body: impl Read,
    expected: Option<u64>,
    path: &Path,
    step: &Progress,
) -> Result<String, DownloadError> {
    let write_error = |source| DownloadError::Write { path: path.to_owned(), source };
    let mut file = File::create(path).map_err(write_error)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 * 1024];
    let mut got = 0;
    loop {
        let cut = |source| DownloadError::Cut { url: url.to_owned(), got, expected, source };
        let read = body.read(&mut buffer).map_err(cut)?;
        if read == 0 {
            if expected.is_some_and(|expected| got < expected) {
                return Err(cut(io::ErrorKind::UnexpectedEof.into()));
            }
            break;
        }
        file.write_all(&buffer[..read]).map_err(write_error)?;
        hash.update(&buffer[..read]);
        got += read as u64;
        step.advance(read as u64);
    }
    Ok(hex(&hash.finalize()))
}

/// Returns the checksum of the file with this address from a list like [`DIGESTS`].
fn pinned_checksum(digests: &str, url: &str) -> Option<String> {
    let lines = digests.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once("  ")).find(|(_, file)| url.ends_with(file)).map(|(sum, _)| sum.to_owned())
}

/// Returns the checksum of `file` from a `.sha256` file, a list (`sum  file` per line), or GitHub's
/// JSON of a release.
fn published_checksum(text: &str, file: &str) -> Option<String> {
    if let Ok(release) = serde_json::from_str::<serde_json::Value>(text) {
        let asset = release["assets"].as_array()?.iter().find(|asset| asset["name"] == file)?;
        let digest = asset["digest"].as_str()?.strip_prefix("sha256:")?;
        return published_checksum(digest, file);
    }
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let sum = words.next()?;
        let of_this = words.next().is_none_or(|name| name.trim_start_matches(['*', '.', '/']) == file);
        (of_this && sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit())).then(|| sum.to_ascii_lowercase())
    })
}

fn unpack(program: Program, archive: &Path, member: &str, folder: &Path) -> Result<PathBuf, DownloadError> {
    let fail = |reason: String| DownloadError::Unpack { file: archive.display().to_string(), reason };
    let output = Command::new("tar")
        .args(["-xzf"])
        .arg(archive)
        .args(["--strip-components=1", "-C"])
        .arg(folder)
        .arg(member)
        .output()
        .map_err(|e| fail(format!("cannot start tar: {e}")))?;
    let _ = fs::remove_file(archive);
    if output.status.success() {
        Ok(folder.join(program.file_name()))
    } else {
        Err(fail(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_parsed_from_a_file_and_from_a_list() {
        let sum = "a".repeat(64);
        assert_eq!(published_checksum(&format!("{sum}\n"), "kubectl").as_deref(), Some(sum.as_str()));
        let list = format!("{}  other.tar.gz\n{sum}  etcd.tar.gz\n", "b".repeat(64));
        assert_eq!(published_checksum(&list, "etcd.tar.gz").as_deref(), Some(sum.as_str()));
    }

    #[test]
    fn a_checksum_is_parsed_from_the_json_of_a_release() {
        let sum = "c".repeat(64);
        let text = format!(
            r#"{{"assets":[{{"name":"x","digest":"sha256:00"}},{{"name":"kwok-linux-amd64","digest":"sha256:{sum}"}}]}}"#
        );
        assert_eq!(published_checksum(&text, "kwok-linux-amd64"), Some(sum));
        assert_eq!(published_checksum(&text, "kwok-linux-arm64"), None);
    }

    #[test]
    fn a_pinned_checksum_is_found_by_the_end_of_the_address() {
        let (sum, other) = ("a".repeat(64), "b".repeat(64));
        let digests =
            format!("# comment\n{other}  /v1.2.3/bin/linux/amd64/kubelet\n{sum}  /v1.2.3/bin/linux/amd64/kubectl\n");
        let pinned = |url: &str| pinned_checksum(&digests, url);

        assert_eq!(pinned("https://dl.k8s.io/v1.2.3/bin/linux/amd64/kubectl"), Some(sum.clone()));
        assert_eq!(pinned("http://mirror/x/v1.2.3/bin/linux/amd64/kubectl"), Some(sum), "a mirror has the same files");
        assert_eq!(pinned("https://dl.k8s.io/v1.2.4/bin/linux/amd64/kubectl"), None);
    }

    #[test]
    fn every_pinned_checksum_is_well_formed() {
        for line in DIGESTS.lines().filter(|line| !line.starts_with('#')) {
            let (sum, file) = line.split_once("  ").expect(line);
            assert!(sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit()) && file.starts_with('/'), "{line}");
        }
    }

    #[test]
    fn text_without_a_checksum_is_rejected() {
        for text in ["", "<html>not found</html>", &"g".repeat(64), &format!("{}  another-file", "a".repeat(64))] {
            assert_eq!(published_checksum(text, "kubectl"), None, "{text}");
        }
    }
}
