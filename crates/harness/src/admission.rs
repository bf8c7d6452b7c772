//! Waiting until the API server calls an operator's webhooks.

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, PostParams};

use crate::{Operator, OperatorBuilder, TestCluster, Webhooks, eventually};

/// Name of a node that Perennial ignores: requests about it change nothing.
const PROBE: &str = "probe-of-admission";

impl TestCluster {
    /// Starts an operator with the default settings and waits until it is ready. With webhooks on,
    /// also waits until the API server calls it.
    pub async fn start(&self, webhooks: Webhooks) -> Operator {
        self.start_with(webhooks, |builder| builder).await
    }

    /// Like [`TestCluster::start`], with further settings.
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

    /// Waits until the API server sends this operator reviews of node creates and deletes.
    pub async fn wait_for_admission(&self, operator: &Operator) {
        let asked = |webhook: &str| {
            operator
                .metrics()
                .sum("controller_runtime_webhook_requests_total", &[("webhook", webhook), ("code", "200")])
        };
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let node: Node = self.node(PROBE).annotation("perennial.dev/ignore", "true").into_node();
        eventually("the API server calls the webhook of creates", async || {
            self.nodes().create(&dry, &node).await.map_err(|error| error.to_string())?;
            if asked("mutate/nodes") > 0.0 { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        self.nodes().create(&PostParams::default(), &node).await.expect("creating the probe");
        eventually("the API server calls the webhook of deletes", async || {
            self.nodes().delete(PROBE, &DeleteParams::default().dry_run()).await.map_err(|error| error.to_string())?;
            if asked("validate/nodes") > 0.0 { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        self.delete_node(PROBE).await;
    }
}
