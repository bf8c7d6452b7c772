//! The words in which Perennial's tests on a real control plane are written.
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
//! A [`TestCluster`] is a test's own: nobody else's nodes, operators or requests are on it. Nothing that is started
//! here outlives the test process. When a test fails, the logs of its operators are in its output, and the control
//! plane's folder stays.
//!
//! # Habits
//! No sleep waits for something to happen: [`eventually`] asks until it has. That something does *not* happen is shown
//! with a fence: something that the operator does afterwards, seen. No assertion is about how long something took.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "whatever fails here fails the test, and says where"
)]

mod admission;
mod audit;
mod balancer;
mod browser;
mod cluster;
mod command;
mod events;
mod eventually;
mod helm;
pub mod install;
mod kubelet;
mod mass;
mod nodes;
mod pages;
mod planes;
mod policies;
mod program;
mod proxy;
mod records;
mod requests;
mod running;
mod samples;
mod tools;
mod wire;
mod workloads;

pub use audit::{Asked, verbs};
pub use balancer::{Balancer, handshake};
pub use browser::{Chromium, Page};
pub use cluster::TestCluster;
pub use command::{Answer, Background, Drained, perennial};
pub use eventually::{eventually, eventually_within};
pub use helm::chart;
pub use kubelet::Kubelet;
pub use mass::{node_count, node_count_or, ten_labels};
pub use nodes::{Labels, NodeBuilder, labels};
pub use pages::assert_page_names_tests;
pub use policies::keep_policy;
pub use program::program_under_test;
pub use proxy::{Dies, Fault, FaultProxy};
pub use records::record_name;
pub use requests::Requests;
pub use running::{Operator, OperatorBuilder, Webhooks, cpu_of, free_port, peak_memory_of};
pub use samples::Samples;
pub use tools::{Helm, Prometheus, axe, krew, schemas_of_others};
pub use wire::Wire;
pub use workloads::{Placed, WorkloadBuilder};
