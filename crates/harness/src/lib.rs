//! Vocabulary of the tests and tools that run Perennial on a real control plane.
//!
//! ```no_run
//! # use perennial_harness::TestCluster;
//! # async fn example() {
//! let cluster = TestCluster::new().await;
//! let _operator = cluster.operator().start().await;
//! cluster.node("n1").label("team", "ml").create().await;
//! cluster.wait_for_record("n1", [("team", "ml")]).await;
//!
//! cluster.delete_node("n1").await;
//! cluster.node("n1").create().await;
//!
//! cluster.wait_for_labels("n1", [("team", "ml")]).await;
//! # }
//! ```
//!
//! # Guarantees
//! A [`TestCluster`] belongs to one test: it has no nodes, operators or requests of other tests.
//! Nothing that is started here outlives the test process. If a test fails, the logs of its
//! operators are printed and the folder of the control plane stays.
//!
//! # Conventions
//! - Never sleep to wait for an effect: poll with [`eventually`].
//! - Show that something does *not* happen with a fence: a later change whose effect is visible.
//! - Never assert how long something takes.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a failure here fails the test and names the location"
)]

mod admission;
mod audit_log;
mod binaries;
mod chromium;
mod cluster;
mod commands;
mod documented_tests;
mod events;
mod eventually;
mod external_programs;
mod helm;
pub mod install;
mod kubelet;
mod load_balancer;
mod many_nodes;
mod metrics;
mod nodes;
mod operator;
mod plane_pool;
mod policies;
mod ports;
mod proxy;
mod real_nodes;
mod records;
mod registry;
mod request_counts;
mod shipped_roles;
mod wire;
mod workloads;

pub use audit_log::{ApiRequest, verbs};
pub use binaries::program_under_test;
pub use chromium::{Chromium, Page};
pub use cluster::TestCluster;
pub use commands::{BackgroundCommand, CommandCost, CommandOutput, perennial};
pub use documented_tests::assert_page_lists_tests;
pub use eventually::{eventually, eventually_within};
pub use external_programs::{Helm, Prometheus, actionlint, axe, krew, skip, third_party_crds};
pub use helm::chart;
pub use kubelet::Kubelet;
pub use load_balancer::{LoadBalancer, handshake};
pub use many_nodes::{node_count, node_count_or, ten_labels};
pub use metrics::Metrics;
pub use nodes::{Labels, NodeBuilder, labels};
pub use operator::{Operator, OperatorBuilder, Webhooks, cpu_of, peak_memory_of};
pub use policies::keep_policy;
pub use ports::free_port;
pub use proxy::{CrashPoint, Fault, FaultProxy};
pub use real_nodes::is_full_run;
pub use records::record_name;
pub use registry::Registry;
pub use request_counts::Requests;
pub use wire::Wire;
pub use workloads::{PodCounts, WorkloadBuilder};
