//! A control plane: a folder, and processes that live as long as the [`Plane`] that started them.

mod commands;
mod error;
mod faults;
mod folder;
mod nodes;
mod ready;
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
    folder::{ComponentState, PlaneFolder, ProcessState, State},
    spec::Builder,
};
pub(crate) use self::{folder::tail, spec::Spec};
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
/// - A plane in a temporary folder is removed when it is dropped, except after a panic or with `LOCALPLANE_KEEP` set:
///   then it says where the logs are. One that was never dropped (in a `static`) is removed by the next plane that starts.
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
    /// Held as long as we live: it tells other processes that the plane runs.
    lock: File,
}

/// What changes while a plane runs.
#[derive(Debug, Default)]
struct Inner {
    ports: BTreeMap<Component, Port>,
    running: BTreeMap<Component, Process>,
    ready: bool,
}

impl Inner {
    fn port(&self, component: Component) -> Option<u16> {
        self.ports.get(&component).map(Port::number)
    }
}

impl Plane {
    /// A plane to be.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// One plane for the whole process (etcd and one API server), started by whoever asks first. For test binaries.
    pub fn shared() -> Result<&'static Self, &'static PlaneError> {
        static SHARED: OnceLock<Result<Plane, PlaneError>> = OnceLock::new();
        SHARED.get_or_init(|| Self::builder().start()).as_ref()
    }

    /// The plane's folder.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The folder with all that can be asked of it.
    pub fn folder(&self) -> &PlaneFolder {
        &self.folder
    }

    /// The admin's kubeconfig, a file.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.folder.kubeconfig()
    }

    /// The text of a kubeconfig for anyone: `kubeconfig_for("system:node:n1", &["system:nodes"])` is a kubelet.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<String, PlaneError> {
        self.folder.kubeconfig_at(&self.url(0), &Identity::new(user, groups))
    }

    /// The same for the API server with this number.
    pub fn kubeconfig_for_server(&self, number: usize, user: &str, groups: &[&str]) -> Result<String, PlaneError> {
        self.folder.kubeconfig_at(&self.url(number), &Identity::new(user, groups))
    }

    /// The text of a kubeconfig for a service account that exists.
    pub fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> Result<String, PlaneError> {
        self.folder.kubeconfig_for_service_account(namespace, name)
    }

    /// The address of an API server: `https://127.0.0.1:PORT`. Port 0, where nobody serves, for one that is not there.
    pub fn url(&self, number: usize) -> String {
        let port = self.inner().port(Component::ApiServer(number)).unwrap_or_default();
        format!("https://127.0.0.1:{port}")
    }

    /// How many API servers there are.
    pub fn apiservers(&self) -> usize {
        self.spec.api_servers
    }

    /// `kubectl` as the admin.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.programs.path(Program::Kubectl).unwrap_or(Path::new("kubectl")));
        command.env("KUBECONFIG", self.kubeconfig_path());
        command
    }

    /// The process of a component; `None` if it does not run.
    pub fn pid(&self, component: Component) -> Option<u32> {
        self.inner().running.get(&component).map(Process::pid)
    }

    /// The port that a component serves on; `None` if there is no such component.
    pub fn port(&self, component: Component) -> Option<u16> {
        self.inner().port(component)
    }

    /// The log of a component; restarts append to it.
    pub fn log_path(&self, component: Component) -> PathBuf {
        self.folder.log(component)
    }

    /// The components of this plane, whether they run now or not.
    pub fn components(&self) -> Vec<Component> {
        self.spec.components()
    }

    /// Whether the folder is still the one that we made: not removed, nor removed and made again by others.
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
        // SIGKILL: nobody will miss what these processes still wanted to do, and dropping is quick.
        self.inner().running.clear();
        if !self.temporary {
            return;
        }
        if thread::panicking() || std::env::var_os(scratch::KEEP_ENV).is_some_and(|value| !value.is_empty()) {
            scratch::keep(self.dir());
            eprintln!("localplane: the plane's folder is kept; logs are in {}", self.folder.logs().display());
        } else {
            let _ = fs::remove_dir_all(self.dir());
        }
    }
}
