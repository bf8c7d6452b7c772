//! The folder of a plane: paths of its files, and the state that other processes can read.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{PlaneError, spec::Spec};
use crate::{
    api::Api,
    component::Component,
    kubeconfig::{self, Authentication},
    pki::{self, Credentials, Identity, Pki},
    process, scratch,
};

/// Limits for the part of a log that is shown in errors.
const TAIL_LINES: usize = 15;
const TAIL_BYTES: usize = 16 * 1024;

/// State of a running plane, stored in `plane.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaneState {
    /// All components are running and the default objects exist.
    pub ready: bool,
    pub kubernetes: String,
    /// Process that owns the plane. The plane ends with it.
    pub supervisor: ProcessState,
    /// Components by name.
    pub components: BTreeMap<String, ComponentState>,
    /// Addresses of the API servers.
    pub urls: Vec<String>,
}

/// A process, identified uniquely by its id and start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    pub pid: u32,
    pub started: Option<u64>,
}

impl ProcessState {
    /// Returns the process that has this id now.
    pub fn of(pid: u32) -> Self {
        Self { pid, started: process::started(pid) }
    }

    /// Reports whether exactly this process exists.
    pub fn is_alive(&self) -> bool {
        process::is_alive(self.pid, self.started)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentState {
    /// Port on loopback; 0 for the processes of real nodes.
    pub port: u16,
    /// `None` if it is stopped.
    pub process: Option<ProcessState>,
}

/// The folder of a plane, running or not.
#[derive(Debug, Clone)]
pub struct PlaneFolder {
    path: PathBuf,
}

impl PlaneFolder {
    /// Returns the plane folder at this path, without reading or writing it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path: std::path::absolute(&path).unwrap_or(path) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    pub fn log(&self, component: Component) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }

    pub(crate) fn etcd_data(&self) -> PathBuf {
        self.path.join("etcd")
    }

    pub(crate) fn kwok_config(&self) -> PathBuf {
        self.path.join("kwok.yaml")
    }

    pub(crate) fn pki_folder(&self) -> PathBuf {
        self.path.join("pki")
    }

    fn pki(&self) -> Result<Pki, PlaneError> {
        Ok(Pki::ensure(self.pki_folder())?)
    }

    fn state_file(&self) -> PathBuf {
        self.path.join("plane.json")
    }

    fn spec_file(&self) -> PathBuf {
        self.path.join("spec.json")
    }

    /// Returns the last stored state; `None` if no plane ever ran here.
    pub fn state(&self) -> Result<Option<PlaneState>, PlaneError> {
        read_json(&self.state_file())
    }

    pub(crate) fn spec(&self) -> Result<Option<Spec>, PlaneError> {
        read_json(&self.spec_file())
    }

    pub(crate) fn write_state(&self, state: &PlaneState) -> Result<(), PlaneError> {
        write_json(&self.state_file(), state)
    }

    pub(crate) fn write_spec(&self, spec: &Spec) -> Result<(), PlaneError> {
        write_json(&self.spec_file(), spec)
    }

    /// Reports whether a process owns this plane, ready or not.
    pub fn is_running(&self) -> Result<bool, PlaneError> {
        Ok(self.path.join(scratch::LOCK).exists() && self.try_lock()?.is_none())
    }

    /// Returns the state if a process owns this plane.
    pub fn running(&self) -> Result<Option<PlaneState>, PlaneError> {
        if self.is_running()? { self.state() } else { Ok(None) }
    }

    /// Takes the lock of a running plane; `None` if another process holds it.
    pub(crate) fn try_lock(&self) -> Result<Option<File>, PlaneError> {
        let fail = |source| PlaneError::File { act: "lock", path: self.path.join(scratch::LOCK), source };
        let file = scratch::lock_file(&self.path).map_err(fail)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(fail(error)),
        }
    }

    /// Returns the address of an API server of a running or stopped plane.
    pub fn url(&self, number: usize) -> Result<String, PlaneError> {
        let state = self.state()?.ok_or_else(|| PlaneError::NotRunning { dir: self.path.clone() })?;
        let url = state.urls.get(number).cloned();
        url.ok_or(PlaneError::NoComponent(Component::ApiServer(number)))
    }

    /// Issues a client certificate for any identity, signed by the plane's CA.
    pub fn credentials(&self, identity: &Identity) -> Result<Credentials, PlaneError> {
        Ok(self.pki()?.client(identity)?)
    }

    /// Returns a kubeconfig for any identity, with a client certificate.
    pub fn kubeconfig_for(&self, identity: &Identity) -> Result<String, PlaneError> {
        self.kubeconfig_at(&self.url(0)?, identity)
    }

    pub(crate) fn kubeconfig_at(&self, url: &str, identity: &Identity) -> Result<String, PlaneError> {
        let pki = self.pki()?;
        let credentials = pki.client(identity)?;
        Ok(kubeconfig::render(url, &pki.ca()?, &identity.user, &Authentication::Certificate(&credentials)))
    }

    /// Requests a token for an existing service account.
    pub fn service_account_token(&self, namespace: &str, name: &str) -> Result<String, PlaneError> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": { "expirationSeconds": 7 * 24 * 3600 },
        });
        let answer = self.admin_api(&self.url(0)?)?.post(&path, &request)?;
        Ok(answer["status"]["token"].as_str().unwrap_or_default().to_owned())
    }

    /// Returns a kubeconfig for an existing service account, with a token.
    pub fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> Result<String, PlaneError> {
        let token = self.service_account_token(namespace, name)?;
        let user = format!("system:serviceaccount:{namespace}:{name}");
        Ok(kubeconfig::render(&self.url(0)?, &self.pki()?.ca()?, &user, &Authentication::Token(&token)))
    }

    pub(crate) fn admin_api(&self, url: &str) -> Result<Api, PlaneError> {
        let pki = self.pki()?;
        Ok(Api::new(url.to_owned(), &pki.ca()?, &pki.client(&Identity::admin())?)?)
    }

    /// Returns the end of a component's log.
    pub fn log_tail(&self, component: Component) -> String {
        tail(&self.log(component))
    }
}

/// Returns the end of a file; empty if the file does not exist.
pub(crate) fn tail(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    ending(&String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]))
}

/// Returns the last lines of a log, or the lines from a panic on: Go prints the reason before the
/// stacks.
fn ending(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    let last = lines.len().saturating_sub(TAIL_LINES);
    let from = lines.iter().rposition(|line| line.starts_with("panic: ")).map_or(last, |panic| panic.min(last));
    lines[from..lines.len().min(from + TAIL_LINES)].join("\n")
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, PlaneError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| PlaneError::State { path: path.to_owned(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(PlaneError::file("read", path)(error)),
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), PlaneError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|source| PlaneError::State { path: path.to_owned(), source })?;
    pki::write_private(path, &text).map_err(PlaneError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_panic_is_shown_instead_of_its_last_stack() {
        let stack = "frame\n".repeat(40);

        let shown = ending(&format!("starting\npanic: no space left on device\n\n{stack}"));

        assert!(shown.starts_with("panic: no space left on device\n"), "{shown}");
        assert_eq!(shown.lines().count(), TAIL_LINES);
    }

    #[test]
    fn without_a_panic_the_last_lines_are_shown() {
        let shown = ending(&("line\n".repeat(40) + "last"));

        assert!(shown.ends_with("line\nlast"), "{shown}");
        assert_eq!(shown.lines().count(), TAIL_LINES);
        assert_eq!(ending(""), "");
    }
}
