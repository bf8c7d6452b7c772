//! Control planes for tests. A plane belongs to one test at a time: the operator watches all nodes of a cluster, so two
//! operators of two tests would each keep the other's nodes.
//!
//! A plane that a test has given back serves the next one, which saves most of the time of a start. One on which a test
//! failed is not used again: its folder stays for whoever looks into it.

use std::{
    fmt::Write as _,
    ops::Deref,
    sync::{Mutex, PoisonError},
    thread,
};

use localplane::{Builder, Plane};

use crate::audit::AuditLog;

static FREE: Mutex<Vec<Plane>> = Mutex::new(Vec::new());

/// A plane, until it is dropped.
#[derive(Debug)]
pub(crate) struct Borrowed {
    plane: Option<Plane>,
    /// It has controllers, and so remnants of a test that live on, or settings of its own: nobody else gets it.
    own: bool,
    pub(crate) audit: Option<AuditLog>,
}

impl Borrowed {
    /// One that is free, or a new one.
    pub(crate) fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let plane = free.unwrap_or_else(|| Plane::builder().start().unwrap_or_else(|error| fail(&error)));
        Self { plane: Some(plane), own: false, audit: None }
    }

    /// A new one with scheduler, controller manager and kwok.
    pub(crate) fn whole() -> Self {
        Self::own(Plane::builder().everything(), None)
    }

    /// A new one, as a test wants it.
    pub(crate) fn own(builder: Builder, audit: Option<AuditLog>) -> Self {
        let plane = builder.start().unwrap_or_else(|error| fail(&error));
        Self { plane: Some(plane), own: true, audit }
    }
}

impl Deref for Borrowed {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        self.plane.as_ref().expect("a plane is there until it is dropped")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(plane) = self.plane.take() else { return };
        if self.own {
            return;
        }
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
