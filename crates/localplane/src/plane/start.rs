//! Starts a plane: folder, certificates, ports, processes.

use std::{collections::btree_map::Entry, fs, path::Path};

use super::{
    Builder, ComponentState, Inner, Plane, PlaneError, PlaneFolder, PlaneState, ProcessState, Spec,
    commands::{CONTROLLER_MANAGER, CommandContext, SCHEDULER, kubeconfig_file},
    real_nodes::{RealNodes, egress_selector, ensure_kubelet_client},
};
use crate::{
    component::Component,
    node::{MAX_NODES, check_kube_proxy, real_nodes_supported},
    pki::{Identity, Pki, write_private},
    ports::Port,
    process::Process,
    scratch,
    versions::Kubernetes,
};

/// Maximum number of starts if other processes take the chosen ports.
const PORT_ATTEMPTS: usize = 4;

impl Plane {
    /// Starts the plane that is described in its folder.
    pub(crate) fn from_spec(spec: Spec, dir: &Path) -> Result<Self, PlaneError> {
        let kubernetes = spec.kubernetes.parse()?;
        let builder = Self::builder().kubernetes(kubernetes).dir(dir);
        Self::start(Builder { spec, ..builder })
    }

    pub(super) fn start(builder: Builder) -> Result<Self, PlaneError> {
        let Builder { kubernetes, mut spec, dir, sources } = builder;
        let kubernetes = kubernetes.map_or_else(Kubernetes::from_env, Ok)?;
        kubernetes.minor().clone_into(&mut spec.kubernetes);
        if spec.api_servers == 0 {
            return Err(PlaneError::NoApiServer);
        }
        if spec.real_nodes > MAX_NODES {
            return Err(PlaneError::TooManyNodes(spec.real_nodes));
        }
        if spec.real_nodes > 0 {
            // Programs are built only for a machine that can run them.
            real_nodes_supported()?;
        }
        if spec.kube_proxy {
            check_kube_proxy(spec.real_nodes)?;
        }
        let programs = sources.find(kubernetes, &spec.programs())?;

        let temporary = dir.is_none();
        let (folder, lock) = if let Some(dir) = dir {
            fs::create_dir_all(&dir).map_err(PlaneError::file("create", &dir))?;
            let folder = PlaneFolder::at(dir);
            let lock = folder.try_lock()?.ok_or_else(|| already_running(&folder))?;
            (folder, lock)
        } else {
            let home = std::env::temp_dir();
            let (path, lock) = scratch::plane_folder().map_err(PlaneError::file("create a folder in", home))?;
            (PlaneFolder::at(path), lock)
        };
        fs::create_dir_all(folder.logs()).map_err(PlaneError::file("create", folder.logs()))?;
        folder.write_spec(&spec)?;
        // Planes are often started inside a repository.
        let ignore = folder.path().join(".gitignore");
        fs::write(&ignore, "*\n").map_err(PlaneError::file("write", ignore))?;
        if spec.kwok {
            let path = folder.kwok_config();
            fs::write(&path, include_str!("kwok.yaml")).map_err(PlaneError::file("write", path))?;
        }
        let pki = Pki::ensure(folder.pki_folder())?;
        let plane = Self { folder, spec, pki, programs, inner: Inner::default().into(), temporary, lock };
        if plane.spec.real_nodes > 0 {
            plane.inner().real_nodes = Some(RealNodes::prepare(plane.dir())?);
            ensure_kubelet_client(&plane.pki)?;
            let path = plane.folder.egress_config();
            let text = egress_selector(&plane.folder.egress_socket());
            fs::write(&path, text).map_err(PlaneError::file("write", path))?;
        }

        plane.reserve_former_ports()?;
        for attempt in 1.. {
            plane.reserve_ports()?;
            match plane.bring_up() {
                Err(error) if error.is_port_conflict() && attempt < PORT_ATTEMPTS => {
                    plane.stop();
                    plane.inner().ports.clear();
                }
                result => {
                    result?;
                    break;
                }
            }
        }
        if plane.spec.nodes > 0 {
            plane.create_nodes(plane.spec.nodes)?;
        }
        plane.mark_ready()?;
        Ok(plane)
    }

    /// Starts all stopped components after [`Plane::stop`], with the same data and ports, and waits
    /// until they are ready. Running components are not restarted.
    pub fn start_again(&self) -> Result<(), PlaneError> {
        self.bring_up()?;
        self.mark_ready()
    }

    fn bring_up(&self) -> Result<(), PlaneError> {
        self.write_kubeconfigs()?;
        let (of_nodes, components): (Vec<_>, Vec<_>) =
            self.components().into_iter().partition(|component| component.is_of_node());
        // The first API server creates the default objects. Starting the others at the same time
        // causes conflicts.
        let (first, rest) = components.split_at(components.len().min(2));
        for component in first {
            self.launch(*component, &[])?;
            // Stored before the component is ready, so that `down` can find the process.
            self.write_state()?;
            self.wait_component(*component)?;
        }
        for component in rest {
            self.launch(*component, &[])?;
        }
        self.write_state()?;
        for component in rest {
            self.wait_component(*component)?;
        }
        self.wait_default_objects()?;
        // In this order: each one needs those before it.
        for component in of_nodes {
            self.launch(component, &[])?;
            self.write_state()?;
            self.wait_component(component)?;
        }
        Ok(())
    }

    fn mark_ready(&self) -> Result<(), PlaneError> {
        self.inner().ready = true;
        self.write_state()
    }

    /// Starts a component unless it is running, with `extra_args` after all others. Does not wait.
    pub(super) fn launch(&self, component: Component, extra_args: &[String]) -> Result<(), PlaneError> {
        let mut inner = self.inner();
        if inner.running.get_mut(&component).is_some_and(|process| process.ended().is_none()) {
            return Ok(());
        }
        if component.is_of_node() {
            drop(inner);
            return self.launch_of_node(component, extra_args);
        }
        let port = inner.port(component).ok_or(PlaneError::NoComponent(component))?;
        let etcd_port = inner.port(Component::Etcd).ok_or(PlaneError::NoComponent(Component::Etcd))?;
        let etcd_url = format!("https://127.0.0.1:{etcd_port}");
        let context = CommandContext { folder: &self.folder, pki: &self.pki, spec: &self.spec, etcd_url: &etcd_url };
        let program = component
            .program()
            .and_then(|program| self.programs.path(program))
            .ok_or(PlaneError::NoComponent(component))?;
        let mut args = context.args(component, port);
        args.extend_from_slice(extra_args);
        let process = Process::start(program, &args, &self.folder.log(component))
            .map_err(|source| PlaneError::Start { component, source })?;
        inner.running.insert(component, process);
        Ok(())
    }

    /// Reserves the ports of the previous run if they are still free, so that existing kubeconfigs
    /// stay valid.
    fn reserve_former_ports(&self) -> Result<(), PlaneError> {
        let former = self.folder.state()?.map(|state| state.components).unwrap_or_default();
        let mut inner = self.inner();
        for component in self.components().into_iter().filter(|component| !component.is_of_node()) {
            if let Some(port) = former.get(&component.to_string()).and_then(|state| Port::this(state.port)) {
                inner.ports.insert(component, port);
            }
        }
        Ok(())
    }

    fn reserve_ports(&self) -> Result<(), PlaneError> {
        let mut inner = self.inner();
        for component in self.components().into_iter().filter(|component| !component.is_of_node()) {
            if let Entry::Vacant(place) = inner.ports.entry(component) {
                place.insert(Port::any().map_err(|source| PlaneError::Port { component, source })?);
            }
        }
        Ok(())
    }

    fn write_kubeconfigs(&self) -> Result<(), PlaneError> {
        let url = self.url(0);
        let wanted = [
            (self.folder.kubeconfig(), Identity::admin(), true),
            (
                self.pki.path(&kubeconfig_file(Component::ControllerManager)),
                Identity::new(CONTROLLER_MANAGER, &[]),
                self.spec.controller_manager,
            ),
            (self.pki.path(&kubeconfig_file(Component::Scheduler)), Identity::new(SCHEDULER, &[]), self.spec.scheduler),
            // kwok acts as every kubelet at once, so the identity of a single node is not
            // sufficient.
            (
                self.pki.path(&kubeconfig_file(Component::Kwok)),
                Identity::new("kwok", &["system:masters"]),
                self.spec.kwok,
            ),
        ];
        for (path, identity, wanted) in wanted {
            // A valid kubeconfig is not replaced, because other processes may use it.
            let current = || fs::read_to_string(&path).is_ok_and(|text| text.contains(&format!("server: {url}\n")));
            if wanted && !current() {
                let text = self.folder.kubeconfig_at(&url, &identity)?;
                write_private(&path, &text).map_err(PlaneError::file("write", path))?;
            }
        }
        Ok(())
    }

    /// Writes the state for other processes.
    pub(super) fn write_state(&self) -> Result<(), PlaneError> {
        let state = {
            let mut inner = self.inner();
            let Inner { ports, running, ready, .. } = &mut *inner;
            let components = self.components().into_iter().map(|component| {
                let process = running
                    .get_mut(&component)
                    .and_then(|process| process.ended().is_none().then(|| ProcessState::of(process.pid())));
                let port = ports.get(&component).map(Port::number).unwrap_or_default();
                (component.to_string(), ComponentState { port, process })
            });
            PlaneState {
                ready: *ready,
                kubernetes: self.spec.kubernetes.clone(),
                supervisor: ProcessState::of(std::process::id()),
                components: components.collect(),
                urls: Vec::new(),
            }
        };
        let urls = (0..self.spec.api_servers).map(|number| self.url(number)).collect();
        self.folder.write_state(&PlaneState { urls, ..state })
    }
}

fn already_running(folder: &PlaneFolder) -> PlaneError {
    let supervisor = folder.state().ok().flatten().map(|state| state.supervisor.pid);
    PlaneError::AlreadyRunning { dir: folder.path().to_owned(), supervisor }
}
