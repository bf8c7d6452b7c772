//! Keys that are never kept. No setting changes that.

use std::sync::LazyLock;

use super::super::pattern::Patterns;

/// Perennial's own domain. Labels, annotations and taints in it are never kept.
pub const OWN_DOMAIN: &str = "perennial.dev/";

/// Labels by which other controllers report the health of one machine, or are asked to act on it.
/// On the next machine they would start or stop something there. Never kept, not even by `keep:
/// ["*"]` without `drop`.
pub const ACTION_LABELS: &[&str] = &["nvidia.com/gpu.deploy.*", "aws-node-termination-handler/*", "*node-problem*"];
/// A label that administrators set: no operands of the GPU operator on this node.
const NO_OPERANDS: &str = "nvidia.com/gpu.deploy.operands";

/// Returns whether a label is one of [`ACTION_LABELS`].
pub fn is_action_label(key: &str) -> bool {
    static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| Patterns::of(ACTION_LABELS));
    key != NO_OPERANDS && PATTERNS.matches(key)
}

/// Annotations that describe one machine or one Node object, and obsolete ones whose value the API
/// server validates: an invalid one would prevent the create of the node. Never kept, not even by
/// `annotations: ["*"]`.
pub const MACHINE_ANNOTATIONS: &[&str] = &[
    "perennial.dev/*",
    "alpha.kubernetes.io/provided-node-ip",
    "csi.volume.kubernetes.io/nodeid",
    "kubeadm.alpha.kubernetes.io/*",
    "kubectl.kubernetes.io/last-applied-configuration",
    "node.alpha.kubernetes.io/ttl",
    "scheduler.alpha.kubernetes.io/preferAvoidPods",
    "scheduler.alpha.kubernetes.io/taints",
    "volumes.kubernetes.io/*",
    "nfd.node.kubernetes.io/*",
    "*.nfd.node.kubernetes.io/*",
    "flannel.alpha.coreos.com/*",
    "projectcalico.org/*",
    "network.cilium.io/*",
    "io.cilium.network.*",
    "k8s.ovn.org/*",
    "k3s.io/*",
    "cluster.x-k8s.io/*",
    "karpenter.sh/*",
    "karpenter.k8s.aws/*",
    "machine.openshift.io/*",
    "machineconfiguration.openshift.io/*",
];

/// Taints of nodes that start, are removed or are unhealthy. Never kept and never restored: the
/// program that sets such a taint also removes it, and would not remove a restored one.
pub const STARTUP_TAINTS: &[&str] = &[
    "perennial.dev/*",
    "node.kubernetes.io/*",
    "node.cloudprovider.kubernetes.io/*",
    "node.cilium.io/*",
    "ebs.csi.aws.com/agent-not-ready",
    "efs.csi.aws.com/agent-not-ready",
    "*/agent-not-ready",
    "karpenter.sh/*",
    "readiness.k8s.io/*",
    "node.cluster.x-k8s.io/*",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "ignore-taint.cluster-autoscaler.kubernetes.io/*",
    "startup-taint.cluster-autoscaler.kubernetes.io/*",
    "status-taint.cluster-autoscaler.kubernetes.io/*",
];
