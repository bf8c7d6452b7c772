//! The folder of a plane: where its files are, and what it says about itself to other processes.

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
    kubeconfig::{self, Proof},
    pki::{self, Credentials, Identity, Pki},
    process, scratch,
};

/// How much of a log is worth showing.
const TAIL_LINES: usize = 15;
const TAIL_BYTES: usize = 16 * 1024;

/// What a running plane says about itself in `plane.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// All parts are up and the default objects exist.
    pub ready: bool,
    pub kubernetes: String,
    /// The process that the plane lives and dies with.
    pub supervisor: ProcessState,
    /// By name; those that run now.
    pub components: BTreeMap<String, ComponentState>,
    /// The addresses of the API servers.
    pub urls: Vec<String>,
}

/// A process, named for good by its number and the time of its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    pub pid: u32,
    pub started: Option<u64>,
}

impl ProcessState {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Self {
        Self { pid, started: process::started(pid) }
    }

    /// Whether this very process is there.
    pub fn is_alive(&self) -> bool {
        process::is_alive(self.pid, self.started)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentState {
    pub port: u16,
    /// `None` while it is stopped.
    pub process: Option<ProcessState>,
}

/// The folder, whether or not something runs in it.
#[derive(Debug, Clone)]
pub struct PlaneFolder {
    path: PathBuf,
}

impl PlaneFolder {
    /// The plane in this folder. Nothing is read or written yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path: std::path::absolute(&path).unwrap_or(path) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The admin's kubeconfig.
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

    /// What the plane last said about itself; `None` if there never was one.
    pub fn state(&self) -> Result<Option<State>, PlaneError> {
        read_json(&self.state_file())
    }

    pub(crate) fn spec(&self) -> Result<Option<Spec>, PlaneError> {
        read_json(&self.spec_file())
    }

    pub(crate) fn write_state(&self, state: &State) -> Result<(), PlaneError> {
        write_json(&self.state_file(), state)
    }

    pub(crate) fn write_spec(&self, spec: &Spec) -> Result<(), PlaneError> {
        write_json(&self.spec_file(), spec)
    }

    /// Whether some process holds this plane, ready or not.
    pub fn is_running(&self) -> Result<bool, PlaneError> {
        Ok(self.path.join(scratch::LOCK).exists() && self.try_lock()?.is_none())
    }

    /// The state of a plane whose supervisor is alive.
    pub fn running(&self) -> Result<Option<State>, PlaneError> {
        if self.is_running()? { self.state() } else { Ok(None) }
    }

    /// Takes the lock that says "a plane runs here"; `None` if another process has it.
    pub(crate) fn try_lock(&self) -> Result<Option<File>, PlaneError> {
        let fail = |source| PlaneError::File { act: "locking", path: self.path.join(scratch::LOCK), source };
        let file = scratch::lock_file(&self.path).map_err(fail)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(fail(error)),
        }
    }

    /// The address of an API server of a plane that runs, or ran.
    pub fn url(&self, number: usize) -> Result<String, PlaneError> {
        let state = self.state()?.ok_or_else(|| PlaneError::NotRunning { dir: self.path.clone() })?;
        let url = state.urls.get(number).cloned();
        url.ok_or(PlaneError::NoComponent(Component::ApiServer(number)))
    }

    /// A client certificate for anyone, signed by the plane's authority.
    pub fn credentials(&self, identity: &Identity) -> Result<Credentials, PlaneError> {
        Ok(self.pki()?.client(identity)?)
    }

    /// A kubeconfig for anyone, by client certificate.
    pub fn kubeconfig_for(&self, identity: &Identity) -> Result<String, PlaneError> {
        self.kubeconfig_at(&self.url(0)?, identity)
    }

    pub(crate) fn kubeconfig_at(&self, url: &str, identity: &Identity) -> Result<String, PlaneError> {
        let pki = self.pki()?;
        let credentials = pki.client(identity)?;
        Ok(kubeconfig::render(url, &pki.ca()?, &identity.user, &Proof::Certificate(&credentials)))
    }

    /// A token for a service account that exists, from the API server.
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

    /// A kubeconfig for a service account that exists, by token.
    pub fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> Result<String, PlaneError> {
        let token = self.service_account_token(namespace, name)?;
        let user = format!("system:serviceaccount:{namespace}:{name}");
        Ok(kubeconfig::render(&self.url(0)?, &self.pki()?.ca()?, &user, &Proof::Token(&token)))
    }

    pub(crate) fn admin_api(&self, url: &str) -> Result<Api, PlaneError> {
        let pki = self.pki()?;
        Ok(Api::new(url.to_owned(), &pki.ca()?, &pki.client(&Identity::admin())?)?)
    }

    /// The end of a component's log.
    pub fn log_tail(&self, component: Component) -> String {
        tail(&self.log(component))
    }
}

/// The end of a file; empty if there is none.
pub(crate) fn tail(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    ending(&String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]))
}

/// The last lines of a log, or those from where its program panicked: a Go program says why before its stacks.
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
        Err(error) => Err(PlaneError::file("reading", path)(error)),
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), PlaneError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|source| PlaneError::State { path: path.to_owned(), source })?;
    pki::write_private(path, &text).map_err(PlaneError::file("writing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_shown_by_what_it_says_and_not_by_its_last_stack() {
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
