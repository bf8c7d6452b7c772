//! Admission, as the API server asks for it.

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, PostParams};

use crate::{Operator, OperatorBuilder, TestCluster, Webhooks, eventually};

/// A node that Perennial leaves alone: asking about it changes nothing.
const PROBE: &str = "probe-of-admission";

impl TestCluster {
    /// An operator with the defaults, in one of both modes, that is ready and, with webhooks on, really asked.
    pub async fn start(&self, webhooks: Webhooks) -> Operator {
        self.start_with(webhooks, |builder| builder).await
    }

    /// The same with settings of its own.
    pub async fn start_with(
        &self,
        webhooks: Webhooks,
        settings: impl FnOnce(OperatorBuilder) -> OperatorBuilder,
    ) -> Operator {
        let operator = settings(self.operator().webhooks(webhooks)).start().await;
        if webhooks == Webhooks::On {
            self.wait_for_admission(&operator).await;
        }
        operator
    }

    /// Until the API server asks this operator about creates and deletes of nodes.
    pub async fn wait_for_admission(&self, operator: &Operator) {
        let asked = |webhook: &str| {
            operator
                .metrics()
                .sum("controller_runtime_webhook_requests_total", &[("webhook", webhook), ("code", "200")])
        };
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let node: Node = self.node(PROBE).annotation("perennial.dev/ignore", "true").into_node();
        eventually("the API server asks about creates", async || {
            self.nodes().create(&dry, &node).await.map_err(|error| error.to_string())?;
            if asked("mutate/nodes") > 0.0 { Ok(()) } else { Err("it does not".to_owned()) }
        })
        .await;
        self.nodes().create(&PostParams::default(), &node).await.expect("creating the probe");
        eventually("the API server asks about deletes", async || {
            self.nodes().delete(PROBE, &DeleteParams::default().dry_run()).await.map_err(|error| error.to_string())?;
            if asked("validate/nodes") > 0.0 { Ok(()) } else { Err("it does not".to_owned()) }
        })
        .await;
        self.delete_node(PROBE).await;
    }
}
