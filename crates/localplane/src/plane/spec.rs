//! The specification of a plane: the builder, and the form stored in `spec.json`.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{Plane, PlaneError};
use crate::{
    component::Component,
    programs::{Program, Sources},
    versions::Kubernetes,
};

/// Components of a plane and their settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "one for each component")]
pub(crate) struct Spec {
    pub(crate) kubernetes: String,
    pub(crate) api_servers: usize,
    pub(crate) controller_manager: bool,
    pub(crate) scheduler: bool,
    pub(crate) kwok: bool,
    pub(crate) nodes: usize,
    #[serde(default)]
    pub(crate) real_nodes: usize,
    /// ClusterIPs work: kube-proxy runs in the network of the real nodes.
    #[serde(default)]
    pub(crate) kube_proxy: bool,
    /// Additional arguments by program name.
    #[serde(default)]
    pub(crate) args: BTreeMap<String, Vec<String>>,
}

impl Spec {
    pub(crate) fn components(&self) -> Vec<Component> {
        let mut components = vec![Component::Etcd];
        components.extend((0..self.api_servers).map(Component::ApiServer));
        let rest = [
            (self.controller_manager, Component::ControllerManager),
            (self.scheduler, Component::Scheduler),
            (self.kwok, Component::Kwok),
        ];
        components.extend(rest.into_iter().filter(|(wanted, _)| *wanted).map(|(_, component)| component));
        if self.real_nodes > 0 {
            components.push(Component::Network);
        }
        for number in 0..self.real_nodes {
            components.extend([Component::Node(number), Component::Containerd(number), Component::Kubelet(number)]);
        }
        if self.kube_proxy {
            components.push(Component::KubeProxy);
        }
        components
    }

    pub(crate) fn programs(&self) -> Vec<Program> {
        let mut programs: Vec<_> = self.components().into_iter().filter_map(Component::program).collect();
        programs.push(Program::Kubectl);
        if self.real_nodes > 0 {
            programs.extend(Program::NODE);
        }
        programs.sort();
        programs.dedup();
        programs
    }
}

/// Builder of a plane. Default: the default Kubernetes version, etcd and one API server, in a
/// temporary folder.
#[derive(Debug, Clone)]
pub struct Builder {
    pub(super) kubernetes: Option<Kubernetes>,
    pub(super) spec: Spec,
    pub(super) dir: Option<PathBuf>,
    pub(super) sources: Sources,
}

impl Builder {
    pub(super) fn new() -> Self {
        let spec = Spec {
            kubernetes: String::new(),
            api_servers: 1,
            controller_manager: false,
            scheduler: false,
            kwok: false,
            nodes: 0,
            real_nodes: 0,
            kube_proxy: false,
            args: BTreeMap::new(),
        };
        Self { kubernetes: None, spec, dir: None, sources: Sources::from_env() }
    }

    /// Sets the Kubernetes version. Default: `LOCALPLANE_KUBERNETES`, or the newest.
    #[must_use]
    pub fn kubernetes(mut self, kubernetes: Kubernetes) -> Self {
        self.kubernetes = Some(kubernetes);
        self
    }

    /// Sets a persistent folder. Existing data in it is used. Default: a temporary folder that is
    /// removed on drop.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Sets the number of API servers, which share one etcd.
    #[must_use]
    pub fn apiservers(mut self, count: usize) -> Self {
        self.spec.api_servers = count;
        self
    }

    #[must_use]
    pub fn controller_manager(mut self, run: bool) -> Self {
        self.spec.controller_manager = run;
        self
    }

    #[must_use]
    pub fn scheduler(mut self, run: bool) -> Self {
        self.spec.scheduler = run;
        self
    }

    /// Runs kwok, which simulates the kubelet of every node: nodes become Ready and their pods run.
    #[must_use]
    pub fn kwok(mut self, run: bool) -> Self {
        self.spec.kwok = run;
        self
    }

    /// Runs scheduler, controller manager and kwok.
    #[must_use]
    pub fn everything(self) -> Self {
        self.controller_manager(true).scheduler(true).kwok(true)
    }

    /// Sets the number of fake nodes (`node-0`, `node-1`, …) to create at the start. They become
    /// Ready if kwok runs.
    #[must_use]
    pub fn nodes(mut self, count: usize) -> Self {
        self.spec.nodes = count;
        self
    }

    /// Sets the number of real nodes (`real-0`, `real-1`, …), each with a kubelet and containerd in
    /// namespaces of its own. Needs root; see
    /// [`real_nodes_supported`](crate::real_nodes_supported).
    #[must_use]
    pub fn real_nodes(mut self, count: usize) -> Self {
        self.spec.real_nodes = count;
        self
    }

    /// Runs kube-proxy (nftables) for the real nodes, so that ClusterIPs work. The API server calls
    /// webhooks at their ClusterIP.
    #[must_use]
    pub fn kube_proxy(mut self, run: bool) -> Self {
        self.spec.kube_proxy = run;
        self
    }

    /// Adds arguments to a program. They come last, so they take precedence.
    #[must_use]
    pub fn args(mut self, program: Program, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let all = self.spec.args.entry(program.file_name().to_owned()).or_default();
        all.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the sources of the programs. Default: [`Sources::from_env`].
    #[must_use]
    pub fn sources(mut self, sources: Sources) -> Self {
        self.sources = sources;
        self
    }

    /// Obtains the programs, starts all components and returns when the API server is ready and the
    /// default objects exist.
    pub fn start(self) -> Result<Plane, PlaneError> {
        Plane::start(self)
    }
}
