//! The default list of dropped labels: labels that programs write themselves.

/// Patterns of the labels that are not kept, unless `keeper.drop` replaces the list.
///
/// A key is listed if it is a fact about a machine, which would be wrong on another one, or if a
/// program writes it with a field manager that `keeper.dropManagers` cannot recognize.
/// `beta.kubernetes.io/os` and the like are not listed: where the kubelet writes them, its field
/// manager is recognized, and what people wrote is kept.
/// Keys that an administrator sets in such a domain are not listed: NVIDIA's `mig.config`,
/// `device-plugin.config`, `gpu.workload.config` and `gpu.deploy.operands`, Amazon's
/// `k8s.amazonaws.com/eniConfig`, `node.kubernetes.io/exclude-from-external-load-balancers`.
pub const DROPPED_LABELS: &[&str] = &[
    // The kubelet and the cloud controller manager.
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/*",
    "failure-domain.beta.kubernetes.io/*",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "node.openshift.io/os_id",
    // Feature discovery: NFD and its profiles, NVIDIA, AMD, Intel, KubeVirt.
    "feature.node.kubernetes.io/*",
    "*.feature.node.kubernetes.io/*",
    "profile.node.kubernetes.io/*",
    "*.profile.node.kubernetes.io/*",
    "nvidia.com/gfd.timestamp",
    "nvidia.com/cuda.*",
    "nvidia.com/gpu.clique",
    "nvidia.com/gpu.compute.*",
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.family",
    "nvidia.com/gpu.machine",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.mode",
    "nvidia.com/gpu.present",
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.replicas",
    "nvidia.com/gpu.sharing-strategy",
    "nvidia.com/gpu-driver-upgrade-state",
    "nvidia.com/mig-*",
    "nvidia.com/mig.capable",
    "nvidia.com/mig.config.state",
    "nvidia.com/mig.strategy",
    "nvidia.com/mps.capable",
    "nvidia.com/vgpu.*",
    "amd.com/gpu.*",
    "beta.amd.com/gpu.*",
    "gpu.intel.com/*",
    "kubevirt.io/schedulable",
    "*.node.kubevirt.io/*",
    // Provisioning and upgrades. With the plan hash of an earlier machine, a new one would skip its
    // upgrade. To keep a `disabled` that was set by hand, remove this pattern.
    "karpenter.sh/*",
    "karpenter.k8s.aws/*",
    "karpenter.azure.com/*",
    "karpenter.k8s.gcp/*",
    "node.cluster.x-k8s.io/*",
    "plan.upgrade.cattle.io/*",
    // Domains of cloud providers.
    "k8s.io/cloud-provider-aws",
    "eks.amazonaws.com/*",
    "vpc.amazonaws.com/*",
    "topology.k8s.aws/*",
    "alpha.eksctl.io/*",
    "cloud.google.com/*",
    "*.gke.io/*",
    "kubernetes.azure.com/*",
    "instance.hetzner.cloud/*",
    "doks.digitalocean.com/*",
    "lke.linode.com/*",
    // Topology labels that the kubelet writes for CSI drivers.
    "topology.ebs.csi.aws.com/*",
    "topology.disk.csi.azure.com/*",
    "topology.cinder.csi.openstack.org/*",
    "topology.csi.vmware.com/*",
    "topology.rbd.csi.ceph.com/*",
    "topology.cephfs.csi.ceph.com/*",
    "topology.hostpath.csi/*",
    "topology.topolvm.io/*",
    "csi.hetzner.cloud/*",
];
