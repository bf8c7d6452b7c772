//! Errors of the requests of the keeper.

use std::time::Duration;

use perennial_core::keeper::record::TooLarge;

use crate::{
    keeper::record_keys::{CannotSign, KeysError},
    runtime::{error_category::Category, pages::Recovery, reporter::CategorizedError, request::RequestFailure},
};

/// A request that failed, or was not sent.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("could not read node {node}")]
    ReadNode { node: String, source: RequestFailure },
    #[error("could not patch node {node}")]
    PatchNode { node: String, source: RequestFailure },
    #[error("could not read record {record}")]
    ReadRecord { record: String, source: RequestFailure },
    #[error("could not write record {record}")]
    WriteRecord { record: String, source: RequestFailure },
    #[error("could not delete record {record}")]
    DeleteRecord { record: String, source: RequestFailure },
    #[error("could not list {what}")]
    List { what: &'static str, source: RequestFailure },
    #[error("could not write record {record}")]
    TooLarge { record: String, source: TooLarge },
    #[error("could not sign record {record}; it was not written")]
    Sign { record: String, source: CannotSign },
    #[error("could not verify record {record}")]
    Keys { record: String, source: KeysError },
    #[error("record {record} was moved or deleted, and the watch has not delivered that yet")]
    Moved { record: String },
}

impl KeeperError {
    /// Returns the failed request. `None` if none was sent.
    fn failure(&self) -> Option<&RequestFailure> {
        match self {
            Self::ReadNode { source, .. }
            | Self::PatchNode { source, .. }
            | Self::ReadRecord { source, .. }
            | Self::WriteRecord { source, .. }
            | Self::DeleteRecord { source, .. }
            | Self::List { source, .. } => Some(source),
            Self::TooLarge { .. } | Self::Sign { .. } | Self::Keys { .. } | Self::Moved { .. } => None,
        }
    }

    /// Whether the API server answered that it did not execute the request.
    pub fn is_rejection(&self) -> bool {
        matches!(self.category(), Category::Conflict | Category::Forbidden | Category::Refused | Category::Throttled)
    }

    /// Whether a record is too large to be written.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge { .. })
    }

    /// Whether a record could not be written, for a reason other than that it has changed.
    pub fn is_failed_write(&self) -> bool {
        let is_write = matches!(self, Self::WriteRecord { .. } | Self::TooLarge { .. } | Self::Sign { .. });
        is_write && self.category() != Category::Conflict
    }

    /// Returns how a list recovers from this failure of a page.
    pub fn recovery(&self) -> Recovery {
        self.failure().map_or(Recovery::Fail, RequestFailure::recovery)
    }
}

impl CategorizedError for KeeperError {
    fn category(&self) -> Category {
        match self {
            // The keys may be readable in the next attempt.
            Self::Keys { .. } => Category::Server,
            Self::Moved { .. } => Category::Conflict,
            _ => self.failure().map_or(Category::Refused, RequestFailure::category),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        self.failure()?.retry_after()
    }

    fn permission(&self) -> Option<&'static str> {
        match self {
            Self::ReadNode { .. } => Some("get nodes"),
            Self::PatchNode { .. } => Some("patch nodes"),
            Self::ReadRecord { .. } => Some("get configmaps in Perennial's namespace"),
            Self::WriteRecord { .. } => Some("create and update configmaps in Perennial's namespace"),
            Self::DeleteRecord { .. } => Some("delete configmaps in Perennial's namespace"),
            Self::List { .. } => Some("list nodes, and configmaps in Perennial's namespace"),
            Self::TooLarge { .. } | Self::Sign { .. } | Self::Keys { .. } | Self::Moved { .. } => None,
        }
    }
}
