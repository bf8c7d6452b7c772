//! A real Kubernetes control plane on this machine, as child processes.
//!
//! ```no_run
//! use localplane::{Component, Plane};
//!
//! # fn main() -> Result<(), localplane::PlaneError> {
//! let plane = Plane::builder().apiservers(2).start()?;
//! plane.kubectl().args(["get", "namespaces"]).status().ok();
//! plane.kill(Component::ApiServer(1))?;
//! plane.restart(Component::ApiServer(1))?;
//! # Ok(())
//! # }
//! ```
//!
//! The programs come from a folder that the user names, the cache, a download, or a build from Go
//! modules: see [`programs`]. Child processes never outlive the process that started them.

mod api;
pub mod cli;
mod component;
mod der;
mod kubeconfig;
mod node;
mod pki;
mod plane;
mod ports;
mod process;
pub mod programs;
mod scratch;
mod versions;

pub use api::ApiError;
pub use component::{Component, UnknownComponent};
pub use node::{Unsupported, kube_proxy_supported, real_nodes_supported};
pub use pki::{Credentials, Identity, PkiError};
pub use plane::{Backup, Builder, ComponentState, Plane, PlaneError, PlaneFolder, PlaneState, ProcessState};
pub use process::Process;
pub use programs::{Program, Sources, Unavailable};
pub use versions::{CNI_PLUGINS, CONTAINERD, KUBERNETES_ENV, KWOK, Kubernetes, RUNC, UnknownKubernetes};
