//! Built-in lists of keys: those that are not kept by default, are protected by default, or are
//! never kept.

mod dropped_labels;
mod never_kept;
mod protected_keys;

pub use dropped_labels::DROPPED_LABELS;
pub use never_kept::{MACHINE_ANNOTATIONS, OWN_DOMAIN, STARTUP_TAINTS};
pub use protected_keys::PROTECTED_KEYS;

#[cfg(test)]
mod tests {
    use super::super::pattern::{Pattern, Patterns};
    use super::*;
    use rstest::rstest;

    #[test]
    fn every_pattern_of_the_lists_is_valid_and_canonical() {
        for text in [DROPPED_LABELS, PROTECTED_KEYS, MACHINE_ANNOTATIONS, STARTUP_TAINTS].concat() {
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
    #[case("node.cilium.io/agent-not-ready", true)]
    #[case("node.kubernetes.io/not-ready", true)]
    #[case("fsx.csi.aws.com/agent-not-ready", true)]
    #[case("nvidia.com/gpu", false)]
    #[case("dedicated", false)]
    fn startup_taints_are_recognized(#[case] key: &str, #[case] expected: bool) {
        assert_eq!(Patterns::of(STARTUP_TAINTS).matches(key), expected);
    }
}
