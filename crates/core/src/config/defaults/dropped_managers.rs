//! The default list of field managers whose labels are not kept.

/// Patterns of the field managers of controllers that write their labels again, unless
/// `keeper.dropManagers` replaces the list. A field manager is the name of the program, unless it
/// sets another one.
pub const DROPPED_MANAGERS: &[&str] = &[
    // Kubelets, also within the programs of distributions: k3s and MicroK8s.
    "kubelet",
    "k3s",
    "k3s-agent",
    "k3s-server",
    "kubelite",
    "virtual-kubelet*",
    // Copies `kubernetes.io/os` and `kubernetes.io/arch` to their beta names.
    "kube-controller-manager",
    // Cloud controllers.
    "cloud-controller-manager",
    "*-cloud-controller-manager",
    "gcp-controller-manager",
    "cloud-node-manager",
    "azure-cloud-node-manager",
    // Feature discovery.
    "nfd-*",
    "node-feature-discovery*",
    "gpu-feature-discovery",
    // GPU operators.
    "gpu-operator*",
    "*-gpu-operator*",
    "nvidia-*",
    // Provisioning, and drains before an interruption.
    "karpenter",
    "node-termination-handler",
    "*-node-termination-handler",
    "node-problem-detector",
];
