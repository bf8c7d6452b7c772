//! The one place where versions are pinned: which Kubernetes, with which etcd, and which kwok.
//!
//! Raising a version means: change it here, change the `go.mod` of its folder under `modules/`, run `go mod tidy` there.

use std::{fmt, str::FromStr};

use crate::programs::{Module, ModuleFile};

/// Which Kubernetes a plane runs, when [`Plane::builder`](crate::Plane::builder) does not say it.
pub const KUBERNETES_ENV: &str = "LOCALPLANE_KUBERNETES";

/// The fake kubelet that all Kubernetes versions share.
pub const KWOK: &str = "v0.8.0";

/// A Kubernetes minor that localplane can run, with everything that is pinned for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Kubernetes {
    /// The older minor, for tests that ask whether we still work there.
    V1_34,
    /// The default.
    #[default]
    V1_36,
}

/// A minor that is not pinned here.
#[derive(Debug, Clone, thiserror::Error)]
#[error("Kubernetes {0:?} is not one that localplane knows: it has {known}", known = known())]
pub struct UnknownKubernetes(String);

impl Kubernetes {
    /// Every minor that is pinned, newest first.
    pub const ALL: [Self; 2] = [Self::V1_36, Self::V1_34];

    /// What `LOCALPLANE_KUBERNETES` says, or the default.
    pub fn from_env() -> Result<Self, UnknownKubernetes> {
        match std::env::var(KUBERNETES_ENV) {
            Ok(text) if !text.is_empty() => text.parse(),
            _ => Ok(Self::default()),
        }
    }

    /// `1.36`
    pub fn minor(self) -> &'static str {
        match self {
            Self::V1_34 => "1.34",
            Self::V1_36 => "1.36",
        }
    }

    /// `v1.36.3`
    pub fn version(self) -> &'static str {
        match self {
            Self::V1_34 => "v1.34.4",
            Self::V1_36 => "v1.36.3",
        }
    }

    /// The etcd that this release is tested with by its own developers.
    pub fn etcd(self) -> &'static str {
        match self {
            Self::V1_34 => "v3.6.4",
            Self::V1_36 => "v3.6.8",
        }
    }

    pub(crate) fn module(self) -> Module {
        match self {
            Self::V1_34 => Module { files: KUBERNETES_1_34 },
            Self::V1_36 => Module { files: KUBERNETES_1_36 },
        }
    }
}

impl FromStr for Kubernetes {
    type Err = UnknownKubernetes;

    /// Takes `1.36`, `v1.36` and the full `v1.36.3`.
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

fn known() -> String {
    Kubernetes::ALL.map(|k| format!("{} ({})", k.minor(), k.version())).join(" and ")
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

pub(crate) const KWOK_MODULE: Module =
    Module { files: &[module_file!("kwok", "go.mod"), module_file!("kwok", "go.sum")] };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minor_is_understood_however_it_is_written() {
        for text in ["1.34", "v1.34", "v1.34.4", "1.34.4", " 1.34 "] {
            assert_eq!(text.parse::<Kubernetes>().unwrap(), Kubernetes::V1_34, "{text}");
        }
    }

    #[test]
    fn an_unknown_minor_is_refused_with_those_that_are_known() {
        let error = "1.12".parse::<Kubernetes>().unwrap_err().to_string();
        assert!(error.contains("1.12") && error.contains("1.36 (v1.36.3)") && error.contains("1.34"), "{error}");
    }

    /// The version is written here and in `go.mod`; this is what keeps the two together.
    #[test]
    fn the_modules_build_the_versions_that_are_pinned_here() {
        for kubernetes in Kubernetes::ALL {
            let go_mod = kubernetes.module().files[0].text;
            assert!(go_mod.contains(&format!("k8s.io/kubernetes {}", kubernetes.version())), "{kubernetes}");
            assert!(go_mod.contains(&format!("go.etcd.io/etcd/server/v3 {}", kubernetes.etcd())), "{kubernetes}");
        }
        assert!(KWOK_MODULE.files[0].text.contains(&format!("sigs.k8s.io/kwok {KWOK}")));
    }
}
