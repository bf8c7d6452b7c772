//! Pool of control planes. A plane belongs to one test at a time: the operator watches all nodes of
//! a cluster, so the operators of two tests would record each other's nodes.
//!
//! A plane that a test has returned is used by the next test, which saves most of the start time.
//! The plane of a failed test is not reused; its folder stays for inspection.

use std::{
    fmt::Write as _,
    ops::Deref,
    sync::{LazyLock, Mutex, PoisonError},
    thread,
};

use localplane::{Builder, Plane, Program};

use crate::audit_log::AuditLog;

static FREE: Mutex<Vec<Plane>> = Mutex::new(Vec::new());
static SHARED: LazyLock<Plane> = LazyLock::new(everything);

/// A plane on loan to a test. Returned on drop.
#[derive(Debug)]
pub(crate) enum PlaneLoan {
    /// Returned to the pool on drop.
    Returned(Option<Plane>),
    /// Ended on drop. Its controllers keep objects of the test alive, or it has special settings.
    Own(Plane, Option<AuditLog>),
    /// One plane for all tests of this process that use only their own namespace and nodes.
    Shared(&'static Plane),
}

impl PlaneLoan {
    /// Takes a free plane from the pool or starts one.
    pub(crate) fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let plane = free.unwrap_or_else(|| Plane::builder().start().unwrap_or_else(|error| fail(&error)));
        Self::Returned(Some(plane))
    }

    /// Starts a plane with scheduler, controller manager and kwok.
    pub(crate) fn full() -> Self {
        Self::Own(everything(), None)
    }

    /// Starts a plane with these settings.
    pub(crate) fn own(builder: Builder, audit: Option<AuditLog>) -> Self {
        Self::Own(builder.start().unwrap_or_else(|error| fail(&error)), audit)
    }

    pub(crate) fn audit(&self) -> Option<&AuditLog> {
        match self {
            Self::Own(_, audit) => audit.as_ref(),
            Self::Returned(_) | Self::Shared(_) => None,
        }
    }

    /// Returns the shared plane.
    pub(crate) fn shared() -> Self {
        Self::Shared(&SHARED)
    }
}

/// Starts a plane where kwok acts as the kubelet of annotated nodes only. The test acts as the
/// kubelet of all others.
fn everything() -> Plane {
    let kwok = ["--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"];
    Plane::builder().everything().args(Program::Kwok, kwok).start().unwrap_or_else(|error| fail(&error))
}

impl Deref for PlaneLoan {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        match self {
            Self::Returned(plane) => plane.as_ref().expect("a plane is there until it is dropped"),
            Self::Own(plane, _) => plane,
            Self::Shared(plane) => plane,
        }
    }
}

impl Drop for PlaneLoan {
    fn drop(&mut self) {
        let Self::Returned(plane) = self else { return };
        let Some(plane) = plane.take() else { return };
        if !thread::panicking() && plane.dead().is_empty() && plane.components().iter().all(|c| plane.pid(*c).is_some())
        {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(plane);
        }
    }
}

fn fail(error: &dyn std::error::Error) -> ! {
    let mut text = format!("no control plane: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    panic!("{text}")
}
