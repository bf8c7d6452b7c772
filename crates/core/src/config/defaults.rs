//! The lists of keys that Perennial knows: what is not kept, what is protected, what is never given back.
//!
//! A key is in [`DROP`] when a program writes it by itself and would write it again, possibly differently. Keys that an
//! admin sets under such a domain stay out of it: NVIDIA's `mig.config`, `device-plugin.config`, `gpu.workload.config`
//! and `gpu.deploy.*`, Amazon's `k8s.amazonaws.com/eniConfig`, `node.kubernetes.io/exclude-from-external-load-balancers`.

/// Label patterns that are not kept unless `keeper.drop` is changed.
pub const DROP: &[&str] = &[
    // The kubelet and the cloud controller manager.
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/*",
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
    // Provisioning and upgrades. The plan's hash of a former machine would make a fresh one skip its upgrade; who writes
    // `disabled` there by hand takes it out of this list.
    "karpenter.sh/*",
    "karpenter.k8s.aws/*",
    "karpenter.azure.com/*",
    "karpenter.k8s.gcp/*",
    "node.cluster.x-k8s.io/*",
    "plan.upgrade.cattle.io/*",
    // The clouds' own domains.
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
    // Topology that the kubelet writes for CSI drivers.
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

/// Keys that go only to the same machine (G4) unless `keeper.protected` is changed.
pub const PROTECTED: &[&str] =
    &["node-restriction.kubernetes.io/*", "*.node-restriction.kubernetes.io/*", "node-role.kubernetes.io/*"];

/// Our own keys, of any kind, are never kept, whatever the settings.
pub const OWN_DOMAIN: &str = "perennial.dev/";

/// Annotations that describe one machine or one object and are never kept, also not by `annotations: ["*"]`.
pub const MACHINE_ANNOTATIONS: &[&str] = &[
    "perennial.dev/*",
    "alpha.kubernetes.io/provided-node-ip",
    "csi.volume.kubernetes.io/nodeid",
    "kubeadm.alpha.kubernetes.io/*",
    "kubectl.kubernetes.io/last-applied-configuration",
    "node.alpha.kubernetes.io/ttl",
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

/// Taints that say "not ready yet", "being removed" or "unhealthy": whoever set them takes them away, so a restored
/// one would stay for ever. Never kept, never given back.
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

#[cfg(test)]
mod tests {
    use super::super::pattern::{Pattern, Patterns};
    use super::*;
    use rstest::rstest;

    #[test]
    fn every_pattern_of_the_lists_is_valid_and_canonical() {
        for text in [DROP, PROTECTED, MACHINE_ANNOTATIONS, STARTUP_TAINTS].concat() {
            assert_eq!(Pattern::parse(text).map(|pattern| pattern.to_string()), Ok(text.to_owned()));
        }
    }

    #[rstest]
    #[case("kubernetes.io/hostname")]
    #[case("topology.kubernetes.io/zone")]
    #[case("node.kubernetes.io/instance-type")]
    #[case("feature.node.kubernetes.io/cpu-model.id")]
    #[case("nvidia.com/gpu.product")]
    #[case("karpenter.sh/capacity-type")]
    #[case("cloud.google.com/gke-nodepool")]
    #[case("topology.gke.io/zone")]
    #[case("kubernetes.azure.com/agentpool")]
    fn what_programs_write_is_dropped(#[case] key: &str) {
        assert!(Patterns::of(DROP).matches(key));
    }

    #[rstest]
    #[case("disk")]
    #[case("example.com/rack")]
    #[case("topology.example.com/rack")]
    #[case("nvidia.com/mig.config")]
    #[case("nvidia.com/device-plugin.config")]
    #[case("nvidia.com/gpu.deploy.operands")]
    #[case("node-role.kubernetes.io/worker")]
    #[case("node.kubernetes.io/exclude-from-external-load-balancers")]
    #[case("k8s.amazonaws.com/eniConfig")]
    fn what_people_write_is_not_dropped(#[case] key: &str) {
        assert!(!Patterns::of(DROP).matches(key));
    }

    #[rstest]
    #[case("node.cilium.io/agent-not-ready", true)]
    #[case("node.kubernetes.io/not-ready", true)]
    #[case("fsx.csi.aws.com/agent-not-ready", true)]
    #[case("nvidia.com/gpu", false)]
    #[case("dedicated", false)]
    fn startup_taints_are_known(#[case] key: &str, #[case] expected: bool) {
        assert_eq!(Patterns::of(STARTUP_TAINTS).matches(key), expected);
    }
}
