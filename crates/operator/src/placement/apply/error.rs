//! Errors of the requests of placement.

use std::time::Duration;

use crate::runtime::{error_category::Category, reporter::CategorizedError, request::RequestFailure};

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    #[error("could not place pod {pod}")]
    Place { pod: String, source: RequestFailure },
    #[error("could not relabel pod {pod}")]
    Relabel { pod: String, source: RequestFailure },
    #[error("could not ungate pod {pod}")]
    Ungate { pod: String, source: RequestFailure },
    #[error("could not adopt pod {pod}")]
    Adopt { pod: String, source: RequestFailure },
    #[error("could not evict pod {pod}")]
    Evict { pod: String, source: RequestFailure },
    #[error("could not delete pod {pod}")]
    Delete { pod: String, source: RequestFailure },
    #[error("could not write the state of {workload}")]
    Save { workload: String, source: RequestFailure },
    #[error("could not list the pods of {workload}")]
    List { workload: String, source: RequestFailure },
    #[error("could not read {what}")]
    Read { what: String, source: RequestFailure },
    #[error("could not read {what}")]
    ReadVolume { what: String, source: RequestFailure },
}

impl PlacementError {
    pub fn failure(&self) -> &RequestFailure {
        match self {
            Self::Place { source, .. }
            | Self::Relabel { source, .. }
            | Self::Ungate { source, .. }
            | Self::Adopt { source, .. }
            | Self::Evict { source, .. }
            | Self::Delete { source, .. }
            | Self::Save { source, .. }
            | Self::List { source, .. }
            | Self::Read { source, .. }
            | Self::ReadVolume { source, .. } => source,
        }
    }
}

impl CategorizedError for PlacementError {
    fn category(&self) -> Category {
        self.failure().category()
    }

    fn retry_after(&self) -> Option<Duration> {
        self.failure().retry_after()
    }

    fn permission(&self) -> Option<&'static str> {
        Some(match self {
            Self::Place { .. } | Self::Relabel { .. } | Self::Ungate { .. } | Self::Adopt { .. } => "patch pods",
            Self::Evict { .. } => "create pods/eviction",
            Self::Delete { .. } => "delete pods",
            Self::Save { .. } => "patch deployments, replicasets and statefulsets",
            Self::List { .. } => "list pods",
            Self::ReadVolume { .. } => "get persistentvolumeclaims and persistentvolumes",
            Self::Read { .. } => {
                "get and list nodes, namespaces, deployments, statefulsets, replicasets, pods and poddisruptionbudgets"
            }
        })
    }
}
