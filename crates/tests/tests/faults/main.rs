//! Faults between Perennial and a real Kubernetes, one at a time.
//!
//! Each test has an expected final state ([`scenario`]) and compares it with the API server after
//! the fault. Operators have the permissions of the shipped manifests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod control_plane;
mod crashes;
mod etcd_restore;
mod lasting;
mod load;
mod network;
mod ports;
mod scenario;
mod stale_caches;

use perennial_harness::TestCluster;

/// Returns a cluster whose operators have the shipped permissions.
async fn shipped() -> TestCluster {
    TestCluster::new().await.with_shipped_roles().await
}
