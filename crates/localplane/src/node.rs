//! Real nodes: a kubelet and containerd in separate namespaces.
//!
//! Every node has its own mount, network, process and host name namespaces, held by its process 1.
//! The networks of the nodes meet in one more network namespace. Nothing is added to the network
//! or to the mounts of this machine; the API server reaches nodes and pods through a proxy in this
//! process ([`forward`]), and they reach it the same way.
//!
//! # Guarantees
//! - The end of process 1 ends all processes of a node, and its mounts and links with them. It ends
//!   with this process, however that ends.
//! - Cgroups are removed by a process that waits for the end of this one ([`cgroups`]).

mod address;
mod cgroups;
mod config;
mod forward;
mod pause_image;
mod requirements;

use std::path::{Path, PathBuf};

pub(crate) use self::{
    address::{API_SERVICE, GATEWAY, NodeAddress},
    cgroups::Cgroups,
    config::NodeConfig,
    forward::{Forward, NetworkNamespace},
    pause_image::PAUSE_IMAGE,
    requirements::Snapshotter,
};

/// Maximum number of real nodes of a plane.
pub(crate) const MAX_NODES: usize = 20;

/// Script of the process that holds the network between the nodes.
pub(crate) const NETWORK_SCRIPT: &str = include_str!("node/network.sh");
/// Script of process 1 of a node.
pub(crate) const INIT_SCRIPT: &str = include_str!("node/init.sh");
/// Script that connects a node to the network.
pub(crate) const CONNECT_SCRIPT: &str = include_str!("node/connect.sh");

/// A reason why this machine cannot run real nodes.
#[derive(Debug, thiserror::Error)]
#[error("cannot run real nodes: {0}")]
pub struct Unsupported(pub(crate) String);

/// Reports whether this machine can run real nodes, with the reason if not. Nothing is downloaded
/// or built.
pub fn real_nodes_supported() -> Result<(), Unsupported> {
    let folder = std::env::temp_dir();
    requirements::check(&folder).map(|_| ())
}

/// Checks the machine and returns how containerd can store images in this folder.
pub(crate) fn check(folder: &Path) -> Result<Snapshotter, Unsupported> {
    requirements::check(folder)
}

/// Reports whether this machine can run kube-proxy for real nodes, with the reason if not.
pub fn kube_proxy_supported() -> Result<(), Unsupported> {
    requirements::check_kube_proxy(1)
}

/// Checks whether this machine can run kube-proxy for this number of real nodes.
pub(crate) fn check_kube_proxy(real_nodes: usize) -> Result<(), Unsupported> {
    requirements::check_kube_proxy(real_nodes)
}

/// Returns the OCI archive of the image that holds the namespaces of a pod.
pub(crate) fn pause_image() -> Result<Vec<u8>, Unsupported> {
    pause_image::archive()
}

/// Files of one node, below the folder of its plane.
#[derive(Debug, Clone)]
pub(crate) struct NodeFolder {
    path: PathBuf,
}

impl NodeFolder {
    pub(crate) fn new(plane: &Path, number: usize) -> Self {
        Self { path: plane.join("nodes").join(node_name(number)) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Socket of containerd.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("containerd.sock")
    }

    /// File that exists once the namespaces are set up.
    pub(crate) fn ready_file(&self) -> PathBuf {
        self.path.join("ready")
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Returns the name of a real node.
pub(crate) fn node_name(number: usize) -> String {
    format!("real-{number}")
}
