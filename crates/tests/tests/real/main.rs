//! Perennial with real nodes: a kubelet and containerd in namespaces of their own.
//!
//! Counted as skipped where the machine cannot run them, or where their programs are not cached.
//! `FULL=1` runs the long forms.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod chart;
mod image;
mod lifecycle;
mod manifests;
mod pods;
mod registration;
