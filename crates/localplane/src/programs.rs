//! The programs of a plane and their sources.
//!
//! Each program comes from the first source that has it: a folder that the user names, the cache, a
//! download of the official release (by a SHA-256 of this repository), a Debian package (runc), a
//! build from Go modules. Downloads and builds hold a file lock, so that two processes share one
//! result. This module never starts a plane and never writes outside the cache.

mod cache;
mod debian;
mod download;
mod error;
mod go;
mod progress;
mod reachability;
mod sources;

use std::{collections::BTreeMap, fmt, path::Path, path::PathBuf};

pub(crate) use self::progress::Progress;
pub use self::{
    download::{Downloads, TRUST_ENV},
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
    Kubelet,
    KubeProxy,
    Containerd,
    ContainerdShim,
    Ctr,
    Runc,
    CniBridge,
    CniHostLocal,
    CniLoopback,
}

impl Program {
    /// Every program of a control plane, in the order in which a plane starts them.
    pub const ALL: [Self; 6] =
        [Self::Etcd, Self::KubeApiserver, Self::KubeControllerManager, Self::KubeScheduler, Self::Kubectl, Self::Kwok];

    /// Every program of a real node.
    pub const NODE: [Self; 8] = [
        Self::Kubelet,
        Self::Containerd,
        Self::ContainerdShim,
        Self::Ctr,
        Self::Runc,
        Self::CniBridge,
        Self::CniHostLocal,
        Self::CniLoopback,
    ];

    /// Returns the file name, which is the same in every source.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kwok => "kwok",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::Runc => "runc",
            Self::CniBridge => "bridge",
            Self::CniHostLocal => "host-local",
            Self::CniLoopback => "loopback",
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
            Self::Kubelet => "k8s.io/kubernetes/cmd/kubelet",
            Self::KubeProxy => "k8s.io/kubernetes/cmd/kube-proxy",
            Self::Containerd => "github.com/containerd/containerd/v2/cmd/containerd",
            Self::ContainerdShim => "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            Self::Ctr => "github.com/containerd/containerd/v2/cmd/ctr",
            Self::Runc => "github.com/opencontainers/runc",
            Self::CniBridge => "github.com/containernetworking/plugins/plugins/main/bridge",
            Self::CniHostLocal => "github.com/containernetworking/plugins/plugins/ipam/host-local",
            Self::CniLoopback => "github.com/containernetworking/plugins/plugins/main/loopback",
        }
    }

    fn bundle(self, kubernetes: Kubernetes) -> Bundle {
        match self {
            Self::Kwok => Bundle::Kwok,
            Self::Containerd | Self::ContainerdShim | Self::Ctr => Bundle::Containerd,
            Self::Runc => Bundle::Runc,
            Self::CniBridge | Self::CniHostLocal | Self::CniLoopback => Bundle::CniPlugins,
            Self::Etcd
            | Self::KubeApiserver
            | Self::KubeControllerManager
            | Self::KubeScheduler
            | Self::Kubectl
            | Self::Kubelet
            | Self::KubeProxy => Bundle::Kubernetes(kubernetes),
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
    Containerd,
    Runc,
    CniPlugins,
}

impl Bundle {
    /// Returns every bundle for a Kubernetes version.
    fn all(kubernetes: Kubernetes) -> [Self; 5] {
        [Self::Kubernetes(kubernetes), Self::Kwok, Self::CniPlugins, Self::Runc, Self::Containerd]
    }

    fn version(self) -> &'static str {
        match self {
            Self::Kubernetes(kubernetes) => kubernetes.version(),
            Self::Kwok => versions::KWOK,
            Self::Containerd => versions::CONTAINERD,
            Self::Runc => versions::RUNC,
            Self::CniPlugins => versions::CNI_PLUGINS,
        }
    }

    /// Returns the name of the folder in the cache.
    fn folder(self) -> String {
        let name = match self {
            Self::Kubernetes(_) => "kubernetes",
            Self::Kwok => "kwok",
            Self::Containerd => "containerd",
            Self::Runc => "runc",
            Self::CniPlugins => "cni-plugins",
        };
        format!("{name}-{}", self.version())
    }

    fn module(self) -> Module {
        match self {
            Self::Kubernetes(kubernetes) => kubernetes.module(),
            Self::Kwok => versions::KWOK_MODULE,
            Self::Containerd => versions::CONTAINERD_MODULE,
            Self::Runc => versions::RUNC_MODULE,
            Self::CniPlugins => versions::CNI_PLUGINS_MODULE,
        }
    }

    /// Reports whether official releases are downloaded. The others are archives of many programs
    /// and are built.
    fn is_downloaded(self) -> bool {
        matches!(self, Self::Kubernetes(_) | Self::Kwok)
    }

    /// Reports whether the build needs a C compiler: runc enters namespaces in C.
    fn needs_cgo(self) -> bool {
        self == Self::Runc
    }

    /// Returns build tags. For containerd they leave out snapshotters that need C libraries.
    fn tags(self) -> &'static str {
        match self {
            Self::Containerd => "no_btrfs no_devmapper no_zfs no_aufs",
            // Pods run with a seccomp profile. Needs the headers of libseccomp.
            Self::Runc => "seccomp",
            _ => "",
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
            Self::Containerd => {
                format!("-s -w -X github.com/containerd/containerd/v2/version.Version={}", self.version())
            }
            Self::Kwok | Self::Runc | Self::CniPlugins => "-s -w".to_owned(),
        }
    }
}

impl fmt::Display for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Kubernetes(_) => "Kubernetes",
            Self::Kwok => "kwok",
            Self::Containerd => "containerd",
            Self::Runc => "runc",
            Self::CniPlugins => "CNI plugins",
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
