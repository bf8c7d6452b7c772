//! Pinned versions of Kubernetes, etcd, kwok and the programs of a real node.
//!
//! To raise a version, change it here and in the `go.mod` of its folder in `modules/`, and run
//! `go mod tidy` there.

use std::{fmt, str::FromStr};

use crate::programs::{Module, ModuleFile};

/// Kubernetes version of a plane if [`Plane::builder`](crate::Plane::builder) does not set one.
pub const KUBERNETES_ENV: &str = "LOCALPLANE_KUBERNETES";

/// Version of kwok, the fake kubelet, for all Kubernetes versions.
pub const KWOK: &str = "v0.8.0";

/// Version of containerd, for all Kubernetes versions.
pub const CONTAINERD: &str = "v2.4.2";

/// Version of the Go module of runc, for all Kubernetes versions, and the name of its folder in the
/// cache. On Debian the program in that folder is the one of the distribution, which is older
/// (1.1.5 in Debian 12).
pub const RUNC: &str = "v1.5.2";

/// Version of the CNI plugins, for all Kubernetes versions.
pub const CNI_PLUGINS: &str = "v1.9.1";

/// A Kubernetes minor version that localplane can run, with the versions pinned for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Kubernetes {
    /// The oldest version with everything that Perennial uses, for compatibility tests.
    V1_30,
    /// A version whose API server refuses streaming lists (WatchList) by default.
    V1_33,
    V1_34,
    /// The default.
    #[default]
    V1_36,
}

/// A Kubernetes version that is not supported.
#[derive(Debug, Clone, thiserror::Error)]
#[error("unsupported Kubernetes version {0:?}: expected {supported}", supported = supported())]
pub struct UnknownKubernetes(String);

impl Kubernetes {
    /// Every supported version, newest first.
    pub const ALL: [Self; 4] = [Self::V1_36, Self::V1_34, Self::V1_33, Self::V1_30];

    /// Returns the version in `LOCALPLANE_KUBERNETES`, or the default.
    pub fn from_env() -> Result<Self, UnknownKubernetes> {
        match std::env::var(KUBERNETES_ENV) {
            Ok(text) if !text.is_empty() => text.parse(),
            _ => Ok(Self::default()),
        }
    }

    /// `1.36`
    pub fn minor(self) -> &'static str {
        match self {
            Self::V1_30 => "1.30",
            Self::V1_33 => "1.33",
            Self::V1_34 => "1.34",
            Self::V1_36 => "1.36",
        }
    }

    /// `v1.36.3`
    pub fn version(self) -> &'static str {
        match self {
            Self::V1_30 => "v1.30.14",
            Self::V1_33 => "v1.33.13",
            Self::V1_34 => "v1.34.4",
            Self::V1_36 => "v1.36.3",
        }
    }

    /// Returns the etcd version that this Kubernetes release is tested with upstream.
    pub fn etcd(self) -> &'static str {
        match self {
            Self::V1_30 => "v3.5.10",
            Self::V1_33 => "v3.5.21",
            Self::V1_34 => "v3.6.4",
            Self::V1_36 => "v3.6.8",
        }
    }

    pub(crate) fn module(self) -> Module {
        match self {
            Self::V1_30 => Module { files: KUBERNETES_1_30 },
            Self::V1_33 => Module { files: KUBERNETES_1_33 },
            Self::V1_34 => Module { files: KUBERNETES_1_34 },
            Self::V1_36 => Module { files: KUBERNETES_1_36 },
        }
    }
}

impl FromStr for Kubernetes {
    type Err = UnknownKubernetes;

    /// Parses `1.36`, `v1.36` and the full `v1.36.3`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().trim_start_matches('v');
        Self::ALL
            .into_iter()
            .find(|k| wanted == k.minor() || wanted == k.version().trim_start_matches('v'))
            .ok_or_else(|| UnknownKubernetes(text.to_owned()))
    }
}

impl fmt::Display for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.minor())
    }
}

fn supported() -> String {
    Kubernetes::ALL.map(|k| format!("{} ({})", k.minor(), k.version())).join(" or ")
}

macro_rules! module_file {
    ($module:literal, $path:literal) => {
        ModuleFile { path: $path, text: include_str!(concat!("../modules/", $module, "/", $path)) }
    };
}

const KUBERNETES_1_36: &[ModuleFile] = &[
    module_file!("kubernetes-1.36", "go.mod"),
    module_file!("kubernetes-1.36", "go.sum"),
    module_file!("kubernetes-1.36", "cmd/etcd/main.go"),
];

const KUBERNETES_1_34: &[ModuleFile] = &[
    module_file!("kubernetes-1.34", "go.mod"),
    module_file!("kubernetes-1.34", "go.sum"),
    module_file!("kubernetes-1.34", "cmd/etcd/main.go"),
];

const KUBERNETES_1_33: &[ModuleFile] = &[
    module_file!("kubernetes-1.33", "go.mod"),
    module_file!("kubernetes-1.33", "go.sum"),
    module_file!("kubernetes-1.33", "cmd/etcd/main.go"),
];

const KUBERNETES_1_30: &[ModuleFile] = &[
    module_file!("kubernetes-1.30", "go.mod"),
    module_file!("kubernetes-1.30", "go.sum"),
    module_file!("kubernetes-1.30", "cmd/etcd/main.go"),
];

pub(crate) const KWOK_MODULE: Module =
    Module { files: &[module_file!("kwok", "go.mod"), module_file!("kwok", "go.sum")] };

pub(crate) const CONTAINERD_MODULE: Module =
    Module { files: &[module_file!("containerd", "go.mod"), module_file!("containerd", "go.sum")] };

pub(crate) const RUNC_MODULE: Module =
    Module { files: &[module_file!("runc", "go.mod"), module_file!("runc", "go.sum")] };

pub(crate) const CNI_PLUGINS_MODULE: Module =
    Module { files: &[module_file!("cni-plugins", "go.mod"), module_file!("cni-plugins", "go.sum")] };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_parsed_in_every_notation() {
        for text in ["1.34", "v1.34", "v1.34.4", "1.34.4", " 1.34 "] {
            assert_eq!(text.parse::<Kubernetes>().unwrap(), Kubernetes::V1_34, "{text}");
        }
    }

    #[test]
    fn an_unsupported_version_is_rejected_with_the_supported_ones() {
        let error = "1.12".parse::<Kubernetes>().unwrap_err().to_string();
        assert!(error.contains("1.12") && error.contains("1.36 (v1.36.3)") && error.contains("1.34"), "{error}");
    }

    /// Each version is stored here and in `go.mod`; this test compares them.
    #[test]
    fn the_modules_build_the_versions_that_are_pinned_here() {
        for kubernetes in Kubernetes::ALL {
            let go_mod = kubernetes.module().files[0].text;
            assert!(go_mod.contains(&format!("k8s.io/kubernetes {}", kubernetes.version())), "{kubernetes}");
            assert!(go_mod.contains(&format!("go.etcd.io/etcd/server/v3 {}", kubernetes.etcd())), "{kubernetes}");
        }
        let others = [
            (KWOK_MODULE, format!("sigs.k8s.io/kwok {KWOK}")),
            (CONTAINERD_MODULE, format!("github.com/containerd/containerd/v2 {CONTAINERD}")),
            (RUNC_MODULE, format!("github.com/opencontainers/runc {RUNC}")),
            (CNI_PLUGINS_MODULE, format!("github.com/containernetworking/plugins {CNI_PLUGINS}")),
        ];
        for (module, pinned) in others {
            assert!(module.files[0].text.contains(&pinned), "{pinned}");
        }
    }
}
