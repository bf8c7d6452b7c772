//! The programs that a plane is made of, and where they come from.
//!
//! In this order, for each program on its own: a folder that the user names, the cache, the official release by download
//! (SHA-256 checked), a build from Go modules. Whoever downloads or builds holds a file lock, so that two processes that
//! ask at the same time share one result. This module never starts a plane and never writes outside the cache.

mod cache;
mod download;
mod error;
mod go;
mod progress;
mod reach;
mod sources;

use std::{collections::BTreeMap, fmt, path::Path, path::PathBuf};

pub(crate) use self::progress::Progress;
pub use self::{
    download::Downloads,
    error::{Attempt, Unavailable},
    sources::{ASSETS_ENV, CACHE_ENV, NO_BUILD_ENV, NO_DOWNLOAD_ENV, Sources},
};
use crate::versions::{self, Kubernetes};

/// One executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Program {
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    Kubectl,
    Kwok,
}

impl Program {
    /// All of them, in the order in which a plane starts them.
    pub const ALL: [Self; 6] =
        [Self::Etcd, Self::KubeApiserver, Self::KubeControllerManager, Self::KubeScheduler, Self::Kubectl, Self::Kwok];

    /// The name of its file, in every source.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kwok => "kwok",
        }
    }

    /// The Go package that it is built from.
    fn package(self) -> &'static str {
        match self {
            Self::Etcd => "./cmd/etcd",
            Self::KubeApiserver => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::KubeControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::KubeScheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
        }
    }

    fn bundle(self, kubernetes: Kubernetes) -> Bundle {
        match self {
            Self::Kwok => Bundle::Kwok,
            _ => Bundle::Kubernetes(kubernetes),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file_name())
    }
}

/// Programs that share a version, a folder in the cache and a Go module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Bundle {
    Kubernetes(Kubernetes),
    Kwok,
}

impl Bundle {
    fn version(self) -> &'static str {
        match self {
            Self::Kubernetes(kubernetes) => kubernetes.version(),
            Self::Kwok => versions::KWOK,
        }
    }

    /// Its folder in the cache.
    fn folder(self) -> String {
        match self {
            Self::Kubernetes(_) => format!("kubernetes-{}", self.version()),
            Self::Kwok => format!("kwok-{}", self.version()),
        }
    }

    fn module(self) -> Module {
        match self {
            Self::Kubernetes(kubernetes) => kubernetes.module(),
            Self::Kwok => versions::KWOK_MODULE,
        }
    }

    /// What the linker writes into the programs, so that they say their version as the official ones do.
    fn ldflags(self) -> String {
        match self {
            Self::Kubernetes(kubernetes) => {
                let version = kubernetes.version();
                let minor = kubernetes.minor().trim_start_matches("1.");
                format!(
                    "-s -w -X k8s.io/component-base/version.gitVersion={version} \
                     -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor={minor}"
                )
            }
            Self::Kwok => "-s -w".to_owned(),
        }
    }
}

impl fmt::Display for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Kubernetes(_) => "Kubernetes",
            Self::Kwok => "kwok",
        };
        write!(f, "{name} {}", self.version())
    }
}

/// A small Go module that pins a bundle; its files travel inside the binary, so that a build works from anywhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    pub(crate) files: &'static [ModuleFile],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ModuleFile {
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
}

/// Programs that were found, each with its path.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    paths: BTreeMap<Program, PathBuf>,
}

impl Programs {
    /// Where this program is; `None` if it was not asked for.
    pub fn path(&self, program: Program) -> Option<&Path> {
        self.paths.get(&program).map(PathBuf::as_path)
    }

    /// Every program that was found.
    pub fn iter(&self) -> impl Iterator<Item = (Program, &Path)> {
        self.paths.iter().map(|(program, path)| (*program, path.as_path()))
    }
}
