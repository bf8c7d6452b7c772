//! Built-in lists of keys: those that are not kept by default, are protected by default, or are
//! never kept.

mod dropped_labels;
mod dropped_managers;
mod never_kept;
mod protected_keys;

pub use dropped_labels::DROPPED_LABELS;
pub use dropped_managers::DROPPED_MANAGERS;
pub use never_kept::{ACTION_LABELS, MACHINE_ANNOTATIONS, OWN_DOMAIN, STARTUP_TAINTS, is_action_label};
pub use protected_keys::{PROTECTED_KEYS, RESERVED_DOMAINS};

#[cfg(test)]
mod tests {
    use super::super::pattern::{Pattern, Patterns};
    use super::*;
    use rstest::rstest;

    #[test]
    fn every_pattern_of_the_lists_is_valid_and_canonical() {
        for text in
            [DROPPED_LABELS, DROPPED_MANAGERS, PROTECTED_KEYS, ACTION_LABELS, MACHINE_ANNOTATIONS, STARTUP_TAINTS]
                .concat()
        {
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
    fn labels_of_programs_are_dropped(#[case] key: &str) {
        assert!(Patterns::of(DROPPED_LABELS).matches(key));
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
    fn labels_of_administrators_are_not_dropped(#[case] key: &str) {
        assert!(!Patterns::of(DROPPED_LABELS).matches(key));
    }

    #[rstest]
    #[case("nvidia.com/gpu.deploy.driver", true)]
    #[case("nvidia.com/gpu.deploy.container-toolkit", true)]
    #[case("nvidia.com/gpu.deploy.operands", false)]
    #[case("aws-node-termination-handler/action", true)]
    #[case("aws-node-termination-handler/event-id", true)]
    #[case("node-problem-detector.example.com/ready", true)]
    #[case("example.com/node-problem", true)]
    #[case("example.com/action", false)]
    fn labels_that_control_other_controllers_are_recognized(#[case] key: &str, #[case] expected: bool) {
        assert_eq!(is_action_label(key), expected);
    }

    #[rstest]
    #[case("kubelet", true)]
    #[case("aws-cloud-controller-manager", true)]
    #[case("nfd-master", true)]
    #[case("karpenter", true)]
    #[case("aws-node-termination-handler", true)]
    #[case("kubectl-label", false)]
    #[case("kubectl-client-side-apply", false)]
    #[case("perennial", false)]
    #[case("argocd-controller", false)]
    fn field_managers_of_controllers_are_recognized(#[case] manager: &str, #[case] expected: bool) {
        assert_eq!(Patterns::of(DROPPED_MANAGERS).matches(manager), expected);
    }

    #[rstest]
    #[case("node.cilium.io/agent-not-ready", true)]
    #[case("node.kubernetes.io/not-ready", true)]
    #[case("fsx.csi.aws.com/agent-not-ready", true)]
    #[case("nvidia.com/gpu", false)]
    #[case("dedicated", false)]
    fn startup_taints_are_recognized(#[case] key: &str, #[case] expected: bool) {
        assert_eq!(Patterns::of(STARTUP_TAINTS).matches(key), expected);
    }
}
