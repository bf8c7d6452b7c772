//! What can go wrong with a plane, each named after the failed act.

use std::{error::Error, fmt, io, path::PathBuf, process::ExitStatus, time::Duration};

use crate::{api::ApiError, component::Component, pki::PkiError, programs::Unavailable, versions::UnknownKubernetes};

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
    #[error("a plane needs at least one API server")]
    NoApiServer,
    #[error("a plane runs in {dir} already{}", supervisor.map(|pid| format!(" (supervisor {pid})")).unwrap_or_default())]
    AlreadyRunning { dir: PathBuf, supervisor: Option<u32> },
    #[error("no plane runs in {dir}")]
    NotRunning { dir: PathBuf },
    #[error("{act} {path}", path = path.display())]
    File { act: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} cannot be read as what a plane wrote there", path = path.display())]
    State { path: PathBuf, source: serde_json::Error },
    #[error("finding a free port for {component}")]
    Port { component: Component, source: io::Error },
    #[error("this plane has no {0}")]
    NoComponent(Component),
    #[error("starting {component}")]
    Start { component: Component, source: io::Error },
    #[error("{component} ended while it was starting ({status}); the end of {log}:\n{tail}", log = log.display())]
    Died { component: Component, status: ExitStatus, log: PathBuf, tail: String },
    #[error("{component} was not ready within {patience:?}: {why}; the end of {log}:\n{tail}", log = log.display())]
    NotReady { component: Component, patience: Duration, why: String, log: PathBuf, tail: String },
    #[error("{what} did not appear within {patience:?}: {why}")]
    NotThere { what: String, patience: Duration, why: String },
    #[error("sending a signal to {component}")]
    Signal { component: Component, source: io::Error },
}

/// As a sentence with its causes: this is what a test shows that unwraps it, and logs in it should be readable.
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

    /// Somebody else was faster on one of our ports: new ports will do.
    pub(crate) fn is_taken_port(&self) -> bool {
        matches!(self, Self::Died { tail, .. } if tail.contains("address already in use"))
    }
}
