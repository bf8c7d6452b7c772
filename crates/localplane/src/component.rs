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
    /// Network namespace that connects the real nodes.
    Network,
    /// Process 1 of a real node, which holds its namespaces. Numbered from 0, like the following.
    Node(usize),
    /// Container runtime of a real node.
    Containerd(usize),
    /// Kubelet of a real node.
    Kubelet(usize),
    /// kube-proxy in the network that connects the real nodes.
    KubeProxy,
}

impl Component {
    /// Returns the program; `None` for processes that only hold namespaces.
    pub(crate) fn program(self) -> Option<Program> {
        Some(match self {
            Self::Etcd => Program::Etcd,
            Self::ApiServer(_) => Program::KubeApiserver,
            Self::ControllerManager => Program::KubeControllerManager,
            Self::Scheduler => Program::KubeScheduler,
            Self::Kwok => Program::Kwok,
            Self::Containerd(_) => Program::Containerd,
            Self::Kubelet(_) => Program::Kubelet,
            Self::KubeProxy => Program::KubeProxy,
            Self::Network | Self::Node(_) => return None,
        })
    }

    /// Reports whether the component belongs to the real nodes. Those have no port on this machine.
    pub(crate) fn is_of_node(self) -> bool {
        matches!(self, Self::Network | Self::Node(_) | Self::Containerd(_) | Self::Kubelet(_) | Self::KubeProxy)
    }
}

/// Writes `etcd`, `kube-apiserver-0`, `kube-controller-manager`, `kube-scheduler`, `kwok`,
/// `network`, `real-0`, `containerd-0`, `kubelet-0` or `kube-proxy`; also the log file names.
impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Etcd => f.write_str("etcd"),
            Self::ApiServer(number) => write!(f, "kube-apiserver-{number}"),
            Self::ControllerManager => f.write_str("kube-controller-manager"),
            Self::Scheduler => f.write_str("kube-scheduler"),
            Self::Kwok => f.write_str("kwok"),
            Self::Network => f.write_str("network"),
            Self::Node(number) => write!(f, "real-{number}"),
            Self::Containerd(number) => write!(f, "containerd-{number}"),
            Self::Kubelet(number) => write!(f, "kubelet-{number}"),
            Self::KubeProxy => f.write_str("kube-proxy"),
        }
    }
}

/// A string that is not a component name.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "unknown component {0:?}: expected etcd, kube-apiserver-N, kube-controller-manager, kube-scheduler, kwok, \
     network, real-N, containerd-N, kubelet-N or kube-proxy"
)]
pub struct UnknownComponent(String);

impl FromStr for Component {
    type Err = UnknownComponent;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "etcd" => Ok(Self::Etcd),
            "kube-controller-manager" => Ok(Self::ControllerManager),
            "kube-scheduler" => Ok(Self::Scheduler),
            "kwok" => Ok(Self::Kwok),
            "network" => Ok(Self::Network),
            "kube-proxy" => Ok(Self::KubeProxy),
            _ => text
                .rsplit_once('-')
                .and_then(|(name, number)| {
                    let number = number.parse().ok()?;
                    match name {
                        "kube-apiserver" => Some(Self::ApiServer(number)),
                        "real" => Some(Self::Node(number)),
                        "containerd" => Some(Self::Containerd(number)),
                        "kubelet" => Some(Self::Kubelet(number)),
                        _ => None,
                    }
                })
                .ok_or_else(|| UnknownComponent(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_names_round_trip() {
        use Component::{
            ApiServer, Containerd, ControllerManager, Etcd, KubeProxy, Kubelet, Kwok, Network, Node, Scheduler,
        };
        let plane = [Etcd, ApiServer(0), ApiServer(12), ControllerManager, Scheduler, Kwok];
        for component in plane.into_iter().chain([Network, Node(0), Containerd(1), Kubelet(12), KubeProxy]) {
            assert_eq!(component.to_string().parse::<Component>().unwrap(), component);
        }
        assert!("kube-apiserver-x".parse::<Component>().is_err());
    }
}
