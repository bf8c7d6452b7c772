//! The programs of a plane and their sources.
//!
//! Each program comes from the first source that has it: a folder that the user names, the cache, a
//! download of the official release (SHA-256 checked), a build from Go modules. Downloads and
//! builds hold a file lock, so that two processes share one result. This module never starts a
//! plane and never writes outside the cache.

mod cache;
mod download;
mod error;
mod go;
mod progress;
mod reachability;
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
    /// Every program, in the order in which a plane starts them.
    pub const ALL: [Self; 6] =
        [Self::Etcd, Self::KubeApiserver, Self::KubeControllerManager, Self::KubeScheduler, Self::Kubectl, Self::Kwok];

    /// Returns the file name, which is the same in every source.
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

    /// Returns the Go package from which the program is built.
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

    /// Returns the name of the folder in the cache.
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

    /// Returns linker flags that set the version, so that built programs report it like official
    /// ones.
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

/// A small Go module that pins a bundle. Its files are embedded in the binary, so that a build
/// works from anywhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    pub(crate) files: &'static [ModuleFile],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ModuleFile {
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
}

/// Paths of the programs that were found.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    paths: BTreeMap<Program, PathBuf>,
}

impl Programs {
    /// Returns the path of a program; `None` if it was not requested.
    pub fn path(&self, program: Program) -> Option<&Path> {
        self.paths.get(&program).map(PathBuf::as_path)
    }

    /// Iterates over all programs that were found.
    pub fn iter(&self) -> impl Iterator<Item = (Program, &Path)> {
        self.paths.iter().map(|(program, path)| (*program, path.as_path()))
    }
}
