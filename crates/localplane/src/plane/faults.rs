//! Faults for reliability tests: stop, kill, restart and pause components, compact etcd.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::json;

use super::{Plane, PlaneError};
use crate::{api::Api, component::Component, pki::Credentials, process::Process};

/// Maximum time for a component to shut down gracefully.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A copy of etcd's data, made by [`Plane::backup`].
#[derive(Debug)]
pub struct Backup {
    path: PathBuf,
}

impl Plane {
    /// Copies the data of etcd, which is stopped for the time of the copy.
    pub fn backup(&self) -> Result<Backup, PlaneError> {
        let path = self.dir().join("etcd-backup");
        self.kill(Component::Etcd)?;
        replace_folder(&self.folder().etcd_data(), &path)?;
        self.restart(Component::Etcd)?;
        Ok(Backup { path })
    }

    /// Brings etcd back to a backup, as after a disaster: resource versions go back, and whatever
    /// was written since is gone. The API servers are restarted, since their caches belong to the
    /// history that is gone.
    pub fn restore(&self, backup: &Backup) -> Result<(), PlaneError> {
        let servers: Vec<Component> =
            self.components().into_iter().filter(|component| matches!(component, Component::ApiServer(_))).collect();
        for server in &servers {
            self.kill(*server)?;
        }
        self.kill(Component::Etcd)?;
        replace_folder(&backup.path, &self.folder().etcd_data())?;
        self.restart(Component::Etcd)?;
        servers.iter().try_for_each(|server| self.restart(*server))
    }

    /// Stops all components gracefully. Data, ports and kubeconfigs stay; [`Plane::start_again`]
    /// starts them again.
    pub fn stop(&self) {
        let mut running: Vec<_> = {
            let mut inner = self.inner();
            inner.ready = false;
            inner.stop_forward();
            std::mem::take(&mut inner.running).into_iter().collect()
        };
        // Stop clients before servers, and etcd last.
        running.sort_by_key(|(component, _)| std::cmp::Reverse(*component));
        for (component, process) in &mut running {
            match component {
                Component::Etcd => process.terminate(SHUTDOWN_TIMEOUT),
                // A graceful shutdown of an API server waits for its watches; its state is in etcd.
                _ => process.kill(),
            }
        }
        // An error is ignored: readers check the lock, which is authoritative.
        let _ = self.write_state();
    }

    /// Kills a component with SIGKILL and waits for its end. Only [`Plane::restart`] starts it
    /// again.
    pub fn kill(&self, component: Component) -> Result<(), PlaneError> {
        self.with_process(component, |process| {
            process.kill();
            Ok(())
        })?;
        self.inner().running.remove(&component);
        self.write_state()
    }

    /// Kills a component if it is running, starts it on the same port and waits until it is
    /// healthy.
    pub fn restart(&self, component: Component) -> Result<(), PlaneError> {
        self.restart_with(component, &[])
    }

    /// Like [`Plane::restart`], with additional arguments for this start. They come last, so they
    /// take precedence.
    pub fn restart_with(&self, component: Component, args: &[String]) -> Result<(), PlaneError> {
        if let Some(mut process) = self.inner().running.remove(&component) {
            process.kill();
        }
        self.launch(component, args)?;
        self.write_state()?;
        self.wait_component(component)
    }

    /// Sends SIGSTOP: the component keeps its connections and locks but does not answer.
    pub fn pause(&self, component: Component) -> Result<(), PlaneError> {
        self.signal(component, Signal::STOP)
    }

    /// Sends SIGCONT after [`Plane::pause`].
    pub fn resume(&self, component: Component) -> Result<(), PlaneError> {
        self.signal(component, Signal::CONT)
    }

    /// Compacts etcd to the newest revision: watches from older revisions fail.
    pub fn compact(&self) -> Result<(), PlaneError> {
        let port = self.port(Component::Etcd).ok_or(PlaneError::NoComponent(Component::Etcd))?;
        let credentials =
            Credentials { certificate: self.pki.read("etcd-client.crt")?, key: self.pki.read("etcd-client.key")? };
        let etcd = Api::new(format!("https://127.0.0.1:{port}"), &self.pki.read("etcd-ca.crt")?, &credentials)?;
        // Every response contains the newest revision. This request reads the key that is one zero
        // byte.
        let newest = etcd.post("/v3/kv/range", &json!({"key": "AA=="}))?["header"]["revision"].clone();
        etcd.post("/v3/kv/compaction", &json!({"revision": newest, "physical": true}))?;
        Ok(())
    }

    /// Returns components that exited without being stopped.
    pub fn dead(&self) -> Vec<(Component, ExitStatus)> {
        let mut inner = self.inner();
        inner.running.iter_mut().filter_map(|(component, process)| Some((*component, process.ended()?))).collect()
    }

    fn signal(&self, component: Component, signal: Signal) -> Result<(), PlaneError> {
        self.with_process(component, |process| {
            process.signal(signal).map_err(|source| PlaneError::Signal { component, source })
        })
    }

    fn with_process(
        &self,
        component: Component,
        act: impl FnOnce(&mut Process) -> Result<(), PlaneError>,
    ) -> Result<(), PlaneError> {
        let mut inner = self.inner();
        inner.running.get_mut(&component).map_or(Err(PlaneError::NoComponent(component)), act)
    }
}

/// Makes `to` a copy of `from`, which contains files and folders only.
fn replace_folder(from: &Path, to: &Path) -> Result<(), PlaneError> {
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(PlaneError::file("removing", to)(error)),
        _ => {}
    }
    copy_folder(from, to).map_err(PlaneError::file("copying", from))
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
