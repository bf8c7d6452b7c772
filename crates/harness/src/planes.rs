//! Control planes for tests. A plane belongs to one test at a time: the operator watches all nodes of a cluster, so two
//! operators of two tests would each keep the other's nodes.
//!
//! A plane that a test has given back serves the next one, which saves most of the time of a start. One on which a test
//! failed is not used again: its folder stays for whoever looks into it.

use std::{
    fmt::Write as _,
    ops::Deref,
    sync::{LazyLock, Mutex, PoisonError},
    thread,
};

use localplane::{Builder, Plane, Program};

use crate::audit::AuditLog;

static FREE: Mutex<Vec<Plane>> = Mutex::new(Vec::new());
static SHARED: LazyLock<Plane> = LazyLock::new(everything);

/// A plane, until it is dropped.
#[derive(Debug)]
pub(crate) enum Borrowed {
    /// Somebody else gets it afterwards.
    Returned(Option<Plane>),
    /// It has controllers, and so remnants of a test that live on, or settings of its own: nobody else gets it.
    Own(Plane, Option<AuditLog>),
    /// One for all tests of this process that keep to a namespace and to nodes of their own.
    Shared(&'static Plane),
}

impl Borrowed {
    /// One that is free, or a new one.
    pub(crate) fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let plane = free.unwrap_or_else(|| Plane::builder().start().unwrap_or_else(|error| fail(&error)));
        Self::Returned(Some(plane))
    }

    /// A new one with scheduler, controller manager and kwok.
    pub(crate) fn whole() -> Self {
        Self::Own(everything(), None)
    }

    /// A new one, as a test wants it.
    pub(crate) fn own(builder: Builder, audit: Option<AuditLog>) -> Self {
        Self::Own(builder.start().unwrap_or_else(|error| fail(&error)), audit)
    }

    pub(crate) fn audit(&self) -> Option<&AuditLog> {
        match self {
            Self::Own(_, audit) => audit.as_ref(),
            Self::Returned(_) | Self::Shared(_) => None,
        }
    }

    /// The one that all share.
    pub(crate) fn shared() -> Self {
        Self::Shared(&SHARED)
    }
}

/// kwok is the kubelet of the nodes that ask for it by annotation; others are the test's own.
fn everything() -> Plane {
    let kwok = ["--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"];
    Plane::builder().everything().args(Program::Kwok, kwok).start().unwrap_or_else(|error| fail(&error))
}

impl Deref for Borrowed {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        match self {
            Self::Returned(plane) => plane.as_ref().expect("a plane is there until it is dropped"),
            Self::Own(plane, _) => plane,
            Self::Shared(plane) => plane,
        }
    }
}

impl Drop for Borrowed {
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
