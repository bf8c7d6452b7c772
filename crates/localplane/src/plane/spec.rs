//! What a plane shall be: the builder, and the form in which it is kept beside the plane.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{Plane, PlaneError};
use crate::{
    component::Component,
    programs::{Program, Sources},
    versions::Kubernetes,
};

/// The parts of a plane and their settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    pub(crate) kubernetes: String,
    pub(crate) api_servers: usize,
    pub(crate) controller_manager: bool,
    pub(crate) scheduler: bool,
    pub(crate) kwok: bool,
    pub(crate) nodes: usize,
    /// More arguments, by the name of the program.
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
        components
    }

    pub(crate) fn programs(&self) -> Vec<Program> {
        let mut programs: Vec<_> = self.components().into_iter().map(Component::program).collect();
        programs.push(Program::Kubectl);
        programs.sort();
        programs.dedup();
        programs
    }
}

/// How a plane shall be. Without further words: the default Kubernetes, etcd and one API server, in a temporary folder.
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
            args: BTreeMap::new(),
        };
        Self { kubernetes: None, spec, dir: None, sources: Sources::from_env() }
    }

    /// Which Kubernetes; otherwise what `LOCALPLANE_KUBERNETES` says, or the default.
    #[must_use]
    pub fn kubernetes(mut self, kubernetes: Kubernetes) -> Self {
        self.kubernetes = Some(kubernetes);
        self
    }

    /// The plane's folder, which stays. If there is one already, its data is used. Without this: a temporary folder,
    /// removed when the plane is dropped.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// How many API servers share the etcd.
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

    /// kwok, which plays the kubelet of every node: nodes become Ready, pods on them run.
    #[must_use]
    pub fn kwok(mut self, run: bool) -> Self {
        self.spec.kwok = run;
        self
    }

    /// Scheduler, controller manager and kwok.
    #[must_use]
    pub fn everything(self) -> Self {
        self.controller_manager(true).scheduler(true).kwok(true)
    }

    /// So many nodes (`node-0`, `node-1`, …) exist when the plane has started; Ready if kwok runs.
    #[must_use]
    pub fn nodes(mut self, count: usize) -> Self {
        self.spec.nodes = count;
        self
    }

    /// More arguments for a program, after our own: the last one counts.
    #[must_use]
    pub fn args(mut self, program: Program, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let all = self.spec.args.entry(program.file_name().to_owned()).or_default();
        all.extend(args.into_iter().map(Into::into));
        self
    }

    /// Where the programs may come from; otherwise as the environment says.
    #[must_use]
    pub fn sources(mut self, sources: Sources) -> Self {
        self.sources = sources;
        self
    }

    /// Gets the programs, starts everything, and returns when the API answers and the default objects exist.
    pub fn start(self) -> Result<Plane, PlaneError> {
        Plane::start(self)
    }
}
