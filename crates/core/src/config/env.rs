//! The environment: `PERENNIAL_` and the path of the key in capitals, and the variables of older
//! tools.

use std::collections::{BTreeMap, BTreeSet};

use super::document::Document;
use super::keys::{ConfigKey, keys};
use super::problem::{Source, hint, nearest};

/// Variables of the command line. They are not settings, and are not refused as unknown.
pub const CLI_VARIABLES: &[&str] = &[
    "PERENNIAL_CONFIG",
    "PERENNIAL_KUBECONFIG",
    "PERENNIAL_CONTEXT",
    "PERENNIAL_OUTPUT",
    "PERENNIAL_POD_NAME",
    "PERENNIAL_POD_NAMESPACE",
    "PERENNIAL_POD_IP",
    "PERENNIAL_NODE_NAME",
];

/// A variable of an older tool, the keys that it sets, and the conversion of its text.
struct Legacy {
    name: &'static str,
    paths: &'static [&'static str],
    text: fn(&str) -> String,
}

const LEGACY: &[Legacy] = &[
    Legacy { name: "PERSIST_LABEL_PREFIX", paths: &["keeper.keep"], text: starting_with },
    Legacy { name: "OPERATOR_NAMESPACE", paths: &["namespace"], text: str::to_owned },
    // Older tools list all objects again at this interval.
    Legacy {
        name: "RESYNC_INTERVAL_SECONDS",
        paths: &["controller.resyncPeriod", "controller.auditPeriod"],
        text: in_seconds,
    },
    Legacy { name: "LOG_LEVEL", paths: &["logging.level"], text: level },
];

fn starting_with(prefix: &str) -> String {
    if prefix.ends_with('*') { prefix.to_owned() } else { format!("{prefix}*") }
}

fn in_seconds(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("{text}s") } else { text.to_owned() }
}

fn level(text: &str) -> String {
    match text.to_ascii_lowercase().as_str() {
        "warning" => "warn".to_owned(),
        "critical" | "fatal" => "error".to_owned(),
        other => other.to_owned(),
    }
}

/// Reads the environment into the document.
pub(super) fn read(environment: &BTreeMap<String, String>, document: &mut Document) {
    let names: BTreeMap<String, &'static ConfigKey> = keys().iter().map(|key| (key.variable(), key)).collect();
    let mut set: BTreeSet<&str> = BTreeSet::new();
    for (name, text) in environment.iter().filter(|(name, text)| is_ours(name, text)) {
        let source = Source::Variable(name.clone());
        if let Some(key) = names.get(name) {
            set.insert(&key.path);
            document.set_text(key, text, &source);
        } else {
            let meant = nearest(name, names.keys().map(String::as_str));
            document.problem("", source, format!("unknown variable{}", hint(meant)));
        }
    }
    for Legacy { name, paths, text } in LEGACY {
        let Some(given) = environment.get(*name).filter(|given| !given.is_empty()) else { continue };
        if paths.iter().any(|path| set.contains(path)) {
            continue;
        }
        for key in paths.iter().filter_map(|path| ConfigKey::named(path)) {
            document.set_text(key, &text(given), &Source::Variable((*name).to_owned()));
        }
    }
}

fn is_ours(name: &str, text: &str) -> bool {
    name.starts_with("PERENNIAL_") && !CLI_VARIABLES.contains(&name) && !is_service_link(name, text)
}

/// Returns whether Kubernetes made this variable for a Service of the namespace: the Service
/// `perennial-webhook` yields `PERENNIAL_WEBHOOK_PORT=tcp://10.0.0.1:443` in every pod, which does
/// not configure the port.
fn is_service_link(name: &str, text: &str) -> bool {
    let address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| text.starts_with(scheme));
    let port_of_protocol = || {
        let (_, rest) = name.rsplit_once("_PORT_").filter(|(_, rest)| !rest.is_empty()).or_else(|| {
            // `…_PORT_443_TCP_PORT` ends in another `_PORT`.
            name.strip_suffix("_PORT")?.rsplit_once("_PORT_")
        })?;
        let (number, protocol) = rest.split_once('_')?;
        let protocol = protocol.split('_').next()?;
        (number.bytes().all(|byte| byte.is_ascii_digit()) && ["TCP", "UDP", "SCTP"].contains(&protocol)).then_some(())
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && address)
        || port_of_protocol().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("controller.resyncPeriod", "PERENNIAL_CONTROLLER_RESYNC_PERIOD")]
    #[case("controller.leaderElection.leaseDuration", "PERENNIAL_CONTROLLER_LEADER_ELECTION_LEASE_DURATION")]
    #[case("nodeLabels.onDemand", "PERENNIAL_NODE_LABELS_ON_DEMAND")]
    #[case("namespace", "PERENNIAL_NAMESPACE")]
    fn variables_are_named_after_the_path(#[case] path: &str, #[case] name: &str) {
        assert_eq!(ConfigKey::named(path).unwrap().variable(), name);
    }

    #[test]
    fn no_two_keys_share_a_variable() {
        let names: std::collections::BTreeSet<String> = keys().iter().map(ConfigKey::variable).collect();
        assert_eq!(names.len(), keys().len());
        assert!(CLI_VARIABLES.iter().all(|name| !names.contains(*name)));
    }

    #[rstest]
    #[case("PERENNIAL_SERVICE_HOST", "10.0.0.1", true)]
    #[case("PERENNIAL_SERVICE_PORT", "443", true)]
    #[case("PERENNIAL_SERVICE_PORT_HTTPS", "443", true)]
    #[case("PERENNIAL_PORT", "tcp://10.0.0.1:443", true)]
    #[case("PERENNIAL_WEBHOOK_PORT", "tcp://10.0.0.1:443", true)]
    #[case("PERENNIAL_WEBHOOK_PORT_443_TCP", "tcp://10.0.0.1:443", true)]
    #[case("PERENNIAL_WEBHOOK_PORT_443_TCP_PROTO", "tcp", true)]
    #[case("PERENNIAL_WEBHOOK_PORT_443_TCP_PORT", "443", true)]
    #[case("PERENNIAL_WEBHOOK_PORT_443_TCP_ADDR", "10.0.0.1", true)]
    #[case("PERENNIAL_WEBHOOK_PORT", "9443", false)]
    #[case("PERENNIAL_METRICS_PORT", "8080", false)]
    #[case("PERENNIAL_METRICS_PORTS", "8080", false)]
    fn service_links_are_not_settings(#[case] name: &str, #[case] text: &str, #[case] link: bool) {
        assert_eq!(is_service_link(name, text), link);
    }
}
