//! A control plane: a folder, and processes that end when their [`Plane`] is dropped.

mod commands;
mod error;
mod faults;
mod folder;
mod nodes;
mod ready;
mod real_nodes;
mod spec;
mod start;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};

pub use self::{
    error::PlaneError,
    faults::Backup,
    folder::{ComponentState, PlaneFolder, PlaneState, ProcessState},
    spec::Builder,
};
pub(crate) use self::{folder::tail, real_nodes::check as check_real_nodes, spec::Spec};
use crate::{
    component::Component,
    pki::{Identity, Pki},
    ports::Port,
    process::Process,
    programs::{Program, Programs},
    scratch,
};

/// A running control plane.
///
/// # Guarantees
/// - Its processes end with it: when it is dropped, when this process panics, exits or is killed.
/// - A temporary folder is removed on drop, except after a panic or with `LOCALPLANE_KEEP` set;
///   then the path of the logs is printed. A plane that was never dropped (in a `static`) is
///   removed by the next plane that starts.
///
/// All methods take `&self`: a plane can be shared between threads.
#[derive(Debug)]
pub struct Plane {
    folder: PlaneFolder,
    spec: Spec,
    pki: Pki,
    programs: Programs,
    inner: Mutex<Inner>,
    temporary: bool,
    /// LoadedRecord while the plane exists, so that other processes can see that it is running.
    lock: File,
}

/// Mutable state of a running plane.
#[derive(Debug, Default)]
struct Inner {
    ports: BTreeMap<Component, Port>,
    running: BTreeMap<Component, Process>,
    ready: bool,
    /// Only with real nodes.
    real_nodes: Option<real_nodes::RealNodes>,
}

impl Inner {
    fn port(&self, component: Component) -> Option<u16> {
        self.ports.get(&component).map(Port::number)
    }
}

impl Plane {
    /// Returns a builder with default settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Returns one plane (etcd and one API server) for the whole process, started by the first
    /// call. For test binaries.
    pub fn shared() -> Result<&'static Self, &'static PlaneError> {
        static SHARED: OnceLock<Result<Plane, PlaneError>> = OnceLock::new();
        SHARED.get_or_init(|| Self::builder().start()).as_ref()
    }

    /// Returns the path of the plane's folder.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the plane's folder.
    pub fn folder(&self) -> &PlaneFolder {
        &self.folder
    }

    /// Returns the path of the admin's kubeconfig.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.folder.kubeconfig()
    }

    /// Returns a kubeconfig for any identity: `kubeconfig_for("system:node:n1", &["system:nodes"])`
    /// is a kubelet.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<String, PlaneError> {
        self.folder.kubeconfig_at(&self.url(0), &Identity::new(user, groups))
    }

    /// Like [`Plane::kubeconfig_for`], for the API server with this number.
    pub fn kubeconfig_for_server(&self, number: usize, user: &str, groups: &[&str]) -> Result<String, PlaneError> {
        self.folder.kubeconfig_at(&self.url(number), &Identity::new(user, groups))
    }

    /// Returns a kubeconfig for an existing service account.
    pub fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> Result<String, PlaneError> {
        self.folder.kubeconfig_for_service_account(namespace, name)
    }

    /// Returns the address of an API server: `https://127.0.0.1:PORT`. The port is 0 if there is no
    /// such API server.
    pub fn url(&self, number: usize) -> String {
        let port = self.inner().port(Component::ApiServer(number)).unwrap_or_default();
        format!("https://127.0.0.1:{port}")
    }

    /// Returns the number of API servers.
    pub fn apiservers(&self) -> usize {
        self.spec.api_servers
    }

    /// Returns a `kubectl` command with the admin's kubeconfig.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.programs.path(Program::Kubectl).unwrap_or(Path::new("kubectl")));
        command.env("KUBECONFIG", self.kubeconfig_path());
        command
    }

    /// Returns the process id of a component; `None` if it is not running.
    pub fn pid(&self, component: Component) -> Option<u32> {
        self.inner().running.get(&component).map(Process::pid)
    }

    /// Returns the port of a component; `None` if there is no such component.
    pub fn port(&self, component: Component) -> Option<u16> {
        self.inner().port(component)
    }

    /// Returns the path of a component's log. Restarts append to it.
    pub fn log_path(&self, component: Component) -> PathBuf {
        self.folder.log(component)
    }

    /// Returns the components of this plane, running or not.
    pub fn components(&self) -> Vec<Component> {
        self.spec.components()
    }

    /// Reports whether the folder is still the one that this plane created, and was not removed or
    /// created again.
    pub fn is_in_place(&self) -> bool {
        let there = fs::metadata(self.dir().join(scratch::LOCK)).map(|file| (file.dev(), file.ino()));
        let held = self.lock.metadata().map(|file| (file.dev(), file.ino()));
        matches!((there, held), (Ok(there), Ok(held)) if there == held)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        // Dropping a process sends SIGKILL, which is fast; the data is not needed any more.
        {
            let mut inner = self.inner();
            inner.running.clear();
            // After the processes: the cgroups can be removed only when they are empty.
            inner.real_nodes = None;
        }
        if !self.temporary {
            return;
        }
        if thread::panicking() || std::env::var_os(scratch::KEEP_ENV).is_some_and(|value| !value.is_empty()) {
            scratch::keep(self.dir());
            eprintln!("localplane: kept the folder of the plane; see the logs in {}", self.folder.logs().display());
        } else {
            let _ = fs::remove_dir_all(self.dir());
        }
    }
}
