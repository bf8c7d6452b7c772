//! Errors of a plane.

use std::{error::Error, fmt, io, path::PathBuf, process::ExitStatus, time::Duration};

use crate::{
    api::ApiError, component::Component, node::Unsupported, pki::PkiError, programs::Unavailable,
    versions::UnknownKubernetes,
};

#[derive(thiserror::Error)]
pub enum PlaneError {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error(transparent)]
    Kubernetes(#[from] UnknownKubernetes),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    RealNodes(#[from] Unsupported),
    #[error("a plane has at most {max} real nodes, not {0}", max = crate::node::MAX_NODES)]
    TooManyNodes(usize),
    #[error("cannot load {archive} into {node}: {reason}", archive = archive.display())]
    Image { archive: PathBuf, node: String, reason: String },
    #[error("a plane needs at least one API server")]
    NoApiServer,
    #[error("a plane is already running in {dir}{}", supervisor.map(|pid| format!(" (supervisor {pid})")).unwrap_or_default())]
    AlreadyRunning { dir: PathBuf, supervisor: Option<u32> },
    #[error("no plane is running in {dir}")]
    NotRunning { dir: PathBuf },
    #[error("cannot {act} {path}", path = path.display())]
    File { act: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot parse {path}", path = path.display())]
    State { path: PathBuf, source: serde_json::Error },
    #[error("cannot find a free port for {component}")]
    Port { component: Component, source: io::Error },
    #[error("this plane has no {0}")]
    NoComponent(Component),
    #[error("cannot start {component}")]
    Start { component: Component, source: io::Error },
    #[error("{component} exited during startup ({status}); end of {log}:\n{tail}", log = log.display())]
    Exited { component: Component, status: ExitStatus, log: PathBuf, tail: String },
    #[error("{component} was not ready within {timeout:?}: {reason}; end of {log}:\n{tail}", log = log.display())]
    NotReady { component: Component, timeout: Duration, reason: String, log: PathBuf, tail: String },
    #[error("timed out after {timeout:?} waiting for {what}: {reason}")]
    TimedOut { what: String, timeout: Duration, reason: String },
    #[error("cannot send a signal to {component}")]
    Signal { component: Component, source: io::Error },
}

/// Formats the error with its causes. Tests that unwrap a result print this, so logs in it must
/// stay readable.
impl fmt::Debug for PlaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut source = self.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl PlaneError {
    pub(crate) fn file(act: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { act, path, source }
    }

    /// Reports whether another process took one of the ports. A retry with new ports helps.
    pub(crate) fn is_port_conflict(&self) -> bool {
        matches!(self, Self::Exited { tail, .. } if tail.contains("address already in use"))
    }
}
