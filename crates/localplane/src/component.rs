//! The components of a plane.

use std::{fmt, str::FromStr};

use crate::programs::Program;

/// One process of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    Etcd,
    /// Numbered from 0. All API servers share one etcd.
    ApiServer(usize),
    ControllerManager,
    Scheduler,
    Kwok,
}

impl Component {
    pub(crate) fn program(self) -> Program {
        match self {
            Self::Etcd => Program::Etcd,
            Self::ApiServer(_) => Program::KubeApiserver,
            Self::ControllerManager => Program::KubeControllerManager,
            Self::Scheduler => Program::KubeScheduler,
            Self::Kwok => Program::Kwok,
        }
    }
}

/// Writes `etcd`, `kube-apiserver-0`, `kube-controller-manager`, `kube-scheduler` or `kwok`; also
/// the log file names.
impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiServer(number) => write!(f, "{}-{number}", self.program()),
            _ => write!(f, "{}", self.program()),
        }
    }
}

/// A string that is not a component name.
#[derive(Debug, Clone, thiserror::Error)]
#[error("unknown component {0:?}: expected etcd, kube-apiserver-N, kube-controller-manager, kube-scheduler or kwok")]
pub struct UnknownComponent(String);

impl FromStr for Component {
    type Err = UnknownComponent;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "etcd" => Ok(Self::Etcd),
            "kube-controller-manager" => Ok(Self::ControllerManager),
            "kube-scheduler" => Ok(Self::Scheduler),
            "kwok" => Ok(Self::Kwok),
            _ => text
                .strip_prefix("kube-apiserver-")
                .and_then(|number| number.parse().ok())
                .map(Self::ApiServer)
                .ok_or_else(|| UnknownComponent(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_names_round_trip() {
        use Component::{ApiServer, ControllerManager, Etcd, Kwok, Scheduler};
        for component in [Etcd, ApiServer(0), ApiServer(12), ControllerManager, Scheduler, Kwok] {
            assert_eq!(component.to_string().parse::<Component>().unwrap(), component);
        }
        assert!("kube-apiserver-x".parse::<Component>().is_err());
    }
}
