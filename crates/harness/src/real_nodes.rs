//! Reports whether tests can use real nodes.

use localplane::{Kubernetes, Program, Sources};

/// If set, the programs of real nodes are built for the tests, which takes about 7 minutes on 2
/// cores, and tests run their long forms. Otherwise the programs must be in the cache
/// (`localplane fetch --real-nodes`).
const FULL_ENV: &str = "FULL";

/// Reports whether tests run their long forms (`FULL=1`).
pub fn is_full_run() -> bool {
    std::env::var_os(FULL_ENV).is_some_and(|value| !value.is_empty())
}

/// Returns the reason why real nodes are not available here.
pub(crate) fn available() -> Result<(), String> {
    localplane::real_nodes_supported().map_err(|error| error.to_string())?;
    let kubernetes = Kubernetes::from_env().map_err(|error| error.to_string())?;
    find_programs(&Sources::from_env(), kubernetes, &Program::NODE, is_full_run())
}

/// Returns the reason why kube-proxy is not available here.
pub(crate) fn kube_proxy_available() -> Result<(), String> {
    localplane::kube_proxy_supported().map_err(|error| error.to_string())?;
    let kubernetes = Kubernetes::from_env().map_err(|error| error.to_string())?;
    find_programs(&Sources::from_env(), kubernetes, &[Program::KubeProxy], is_full_run())
}

/// Finds programs of a real node. Only a full run downloads or builds them.
fn find_programs(sources: &Sources, kubernetes: Kubernetes, wanted: &[Program], full: bool) -> Result<(), String> {
    if full {
        return sources.find(kubernetes, wanted).map(|_| ()).map_err(|unavailable| unavailable.to_string());
    }
    let local = sources.clone().downloads(None).build(false);
    local.find(kubernetes, wanted).map(|_| ()).map_err(|unavailable| {
        let missing: Vec<_> = unavailable.programs.iter().map(|program| program.file_name()).collect();
        format!(
            "the programs of a real node are not cached ({}); set {FULL_ENV}=1 to build them, or run \
             `localplane fetch --real-nodes`",
            missing.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failed build is a reason to skip, also in a full run.
    #[test]
    fn programs_that_cannot_be_built_are_a_reason() {
        let folder = std::env::temp_dir().join(format!("perennial-no-programs-{}", std::process::id()));
        let nothing = Sources::from_env().without_folders().cache(&folder).downloads(None).build(false);

        let reasons =
            [true, false].map(|full| find_programs(&nothing, Kubernetes::default(), &Program::NODE, full).unwrap_err());

        assert!(reasons.iter().all(|reason| reason.contains("kubelet")), "{reasons:?}");
        let _ = std::fs::remove_dir_all(folder);
    }
}
