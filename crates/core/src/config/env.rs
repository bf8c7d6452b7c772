//! The environment: `PERENNIAL_` and the key's path in capitals, and the variables that older tools used.

use std::collections::BTreeMap;

use super::keys::{KEYS, Key};
use super::problem::{Report, Source, hint, nearest};
use super::settings::Settings;

/// Variables that configure the command line and not the settings; they are not ours to refuse.
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

/// An older variable, the key that it sets, and how its text becomes that key's.
struct Legacy {
    name: &'static str,
    path: &'static str,
    text: fn(&str) -> String,
}

const LEGACY: &[Legacy] = &[
    Legacy { name: "PERSIST_LABEL_PREFIX", path: "keeper.keep", text: starting_with },
    Legacy { name: "OPERATOR_NAMESPACE", path: "namespace", text: str::to_owned },
    Legacy { name: "RESYNC_INTERVAL_SECONDS", path: "controller.resyncPeriod", text: in_seconds },
    Legacy { name: "LOG_LEVEL", path: "logging.level", text: level },
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

/// Reads the environment over the settings. Returns the paths that it set, each with its variable.
pub(super) fn read(
    environment: &BTreeMap<String, String>,
    settings: &mut Settings,
    report: &mut Report,
) -> BTreeMap<&'static str, String> {
    let mut set: BTreeMap<&'static str, String> = BTreeMap::new();
    let names: Vec<(String, &Key)> = KEYS.iter().map(|key| (key.variable(), key)).collect();
    for (name, text) in environment.iter().filter(|(name, text)| is_ours(name, text)) {
        match names.iter().find(|(known, _)| known == name) {
            Some((_, key)) => {
                set.insert(key.path, name.clone());
                let source = Source::Variable(name.clone());
                report.from(source, key.path, |report| (key.from_text)(settings, text, report));
            }
            None => report.from(Source::Variable(name.clone()), "", |report| {
                let meant = nearest(name, names.iter().map(|(known, _)| known.as_str()));
                report.problem(format!("unknown variable{}", hint(meant)));
            }),
        }
    }
    for Legacy { name, path, text } in LEGACY {
        let Some(given) = environment.get(*name).filter(|given| !given.is_empty()) else { continue };
        if let (Some(key), false) = (Key::named(path), set.contains_key(path)) {
            set.insert(key.path, (*name).to_owned());
            let source = Source::Variable((*name).to_owned());
            report.from(source, path, |report| (key.from_text)(settings, &text(given), report));
        }
    }
    set
}

fn is_ours(name: &str, text: &str) -> bool {
    name.starts_with("PERENNIAL_") && !CLI_VARIABLES.contains(&name) && !is_service_link(name, text)
}

/// Kubernetes puts variables for every Service of the namespace into each pod: a Service `perennial-webhook` makes
/// `PERENNIAL_WEBHOOK_PORT=tcp://10.0.0.1:443`, which is not the port that someone configured.
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
        assert_eq!(Key::named(path).unwrap().variable(), name);
    }

    #[test]
    fn no_two_keys_share_a_variable() {
        let names: std::collections::BTreeSet<String> = KEYS.iter().map(Key::variable).collect();
        assert_eq!(names.len(), KEYS.len());
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
    fn service_links_are_told_apart(#[case] name: &str, #[case] text: &str, #[case] link: bool) {
        assert_eq!(is_service_link(name, text), link);
    }
}
