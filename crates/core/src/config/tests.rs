//! Tests of the configuration as a whole: from its sources to settings or problems.

use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use super::settings::{Effect, Operator};
use super::*;
use crate::keeper::{keys::Key, selection::Policy};

fn from_file(text: &str) -> Result<Loaded, ConfigError> {
    load(&Layers { file: Some(text.to_owned()), ..Layers::default() })
}

fn from_environment(variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let environment = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    load(&Layers { environment, ..Layers::default() })
}

fn from_flags(flags: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let flags = flags.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    load(&Layers { flags, ..Layers::default() })
}

/// Returns whether a label is kept where no KeepPolicy selects the node.
fn keeps(keeper: &Keeper, label: &str) -> bool {
    Policy::from_settings(keeper).keeps(&Key::label(label))
}

const DESIGN: &str = r#"
namespace: perennial-system
controller: {resyncPeriod: 300s, auditPeriod: 1h, workers: 16, qps: 5000, shards: 1, roles: [capture, restore, placement, webhooks],
             leaderElection: {enabled: true, leaseDuration: 15s}, namespaceSelector: {matchLabels: {}, matchExpressions: []}}
keeper: {keep: ["*"], annotations: [], taints: [], cordon: false, merge: keepExisting, identity: auto,
         retention: 720h, history: 5, gate: never}
placement: {enabled: true, annotationPrefixes: [perennial.dev], cooldown: 30s}
nodeLabels: {spot: auto, onDemand: auto}
webhook: {enabled: true, port: 9443, certDir: "", url: "", failurePolicy: Ignore, timeout: 2s}
metrics: {enabled: true, port: 8080}
logging: {level: info, format: auto}
"#;

#[test]
fn the_defaults_are_those_of_the_design() {
    assert_eq!(
        from_file(DESIGN).unwrap(),
        Loaded { set: from_file(DESIGN).unwrap().set, settings: Settings::default(), warnings: Vec::new() }
    );
}

#[rstest]
#[case::nothing("")]
#[case::a_comment("# nothing set\n")]
#[case::null("null")]
#[case::empty_sections("controller:\nkeeper: {}\nmetrics:\n  port:\n")]
fn an_empty_file_is_the_defaults(#[case] text: &str) {
    assert_eq!(from_file(text).unwrap().settings, Settings::default());
}

#[test]
fn all_problems_are_reported_at_once_with_their_paths() {
    let error = from_file(
        "
namespace: Perennial
resyncPeriod: 10s
controller: {resyncPerod: 10s, qps: fast, workers: 0, leaderElection: {leaseDuration: 1500ms, on: true}}
keeper:
  keep: ['example.com/', 'a b', 7]
  merge: overwrit
  identity: label:-
  history: -1
  retention: 30
placement: [a]
nodeLabels: {spot: spot of (a)}
webhook: {port: 94430, url: 'http://x', failurePolicy: ignored}
metrics: {enabled: yes please}
colour: blue
",
    )
    .unwrap_err();
    insta::assert_snapshot!(error, @r#"
    the configuration is not valid:
      colour: unknown key
      controller.leaderElection.on: unknown key
      controller.qps: expected a whole number up to 4294967295, got "fast"
      controller.resyncPerod: unknown key; did you mean `controller.resyncPeriod`?
      keeper.history: expected a whole number up to 65535, got -1
      keeper.identity: "-" is not a key of a label or annotation, got "label:-"
      keeper.keep[1]: a pattern may contain letters, digits, `-`, `_`, `.`, `/` and `*`, but not ' ', got "a b"
      keeper.keep[2]: expected a pattern such as example.com/*, got 7
      keeper.merge: expected keepExisting or overwrite (did you mean `overwrite`?), got "overwrit"
      keeper.retention: expected a duration such as 300s, 1h30m or 500ms, got 30
      metrics.enabled: expected true or false, got "yes please"
      namespace: expected a namespace: at most 63 lower-case letters, digits and `-`, got "Perennial"
      nodeLabels.spot: `spot of (a)` is not a requirement, got "spot of (a)"
      placement: expected a mapping, got ["a"]
      resyncPeriod: unknown key; did you mean `controller.resyncPeriod`?
      webhook.failurePolicy: expected Ignore or Fail (did you mean `Ignore`?), got "ignored"
      webhook.port: expected a whole number up to 65535, got 94430
      controller.workers: must be from 1 to 1024, got 0
      controller.leaderElection.leaseDuration: must be whole seconds from 2s to 600s, got 1s500ms
      webhook.url: expected https://host[:port][/path], got "http://x"
    "#);
}

#[test]
fn invalid_yaml_is_refused_with_its_position() {
    let refused =
        |text: &str| from_file(text).unwrap_err().problems.iter().map(ToString::to_string).collect::<String>();
    insta::assert_snapshot!(
        refused("controller: {qps: 5"),
        @"file: not readable as YAML: unclosed bracket '{' at line 1, column 13"
    );
    insta::assert_snapshot!(refused("keeper: {history: 1}\nkeeper: {history: 2}\n"), @"file: not readable as YAML: duplicate mapping key: keeper not allowed here at line 2, column 1");
    insta::assert_snapshot!(refused("- a\n"), @r#"file: expected a mapping, got ["a"]"#);
    insta::assert_snapshot!(refused("a: 1\n---\nb: 2\n"), @"file: not readable as YAML: only single YAML document expected but multiple found at line 3, column 1");
}

#[test]
fn later_layers_win() {
    let file = Some("{namespace: file, controller: {qps: 1, workers: 1, shards: 1}}".to_owned());
    let environment = [("PERENNIAL_CONTROLLER_QPS", "2"), ("PERENNIAL_CONTROLLER_WORKERS", "2"), ("HOME", "x")];
    let environment = environment.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    let flags = vec![("controller.qps".to_owned(), "3".to_owned())];

    let settings = load(&Layers { file, environment, flags }).unwrap().settings;

    assert_eq!(settings.namespace.as_str(), "file");
    let controller = settings.controller;
    assert_eq!((controller.qps, controller.workers, controller.shards), (3, 2, 1));
    assert_eq!(controller.burst, 30);
}

#[test]
fn burst_follows_qps_unless_it_is_set() {
    assert_eq!(from_file("controller: {qps: 50}").unwrap().settings.controller.burst, 500);
    assert_eq!(from_file("controller: {qps: 50, burst: 60}").unwrap().settings.controller.burst, 60);
}

#[test]
fn variables_set_lists_durations_and_selectors() {
    let settings = from_environment(&[
        ("PERENNIAL_CONTROLLER_LEADER_ELECTION_LEASE_DURATION", "30s"),
        ("PERENNIAL_CONTROLLER_NAMESPACE_SELECTOR", "team in (a,b),tier=web"),
        ("PERENNIAL_CONTROLLER_ROLES", "capture, restore"),
        ("PERENNIAL_KEEPER_KEEP", "example.com/,team-*"),
        ("PERENNIAL_KEEPER_DROP", ""),
        ("PERENNIAL_NODE_LABELS_SPOT", "a in (1,2),!b"),
        ("PERENNIAL_WEBHOOK_ENABLED", "False"),
        ("PERENNIAL_PLACEMENT_SPOT_TOLERATIONS", "spot=true:NoSchedule,cheap"),
    ])
    .unwrap()
    .settings;

    assert_eq!(settings.controller.leader_election.lease_duration, Duration::from_secs(30));
    let selector = &settings.controller.namespace_selector;
    assert_eq!(selector.match_labels["tier"], "web");
    assert_eq!((selector.match_expressions[0].operator, selector.match_expressions[0].values.len()), (Operator::In, 2));
    assert_eq!(settings.controller.roles, [Role::Capture, Role::Restore].into());
    assert_eq!(settings.keeper.keep, Patterns::of(&["example.com/*", "team-*"]));
    assert!(settings.keeper.drop.is_empty());
    assert_eq!(settings.node_labels.spot.len(), 2);
    assert!(!settings.webhook.enabled);
    let [first, second] = settings.placement.spot_tolerations.try_into().unwrap();
    assert_eq!((first.value.as_deref(), first.effect), (Some("true"), Some(Effect::NoSchedule)));
    assert_eq!((second.key.as_str(), second.value, second.effect), ("cheap", None, None));
}

#[test]
fn a_wrong_variable_is_refused_by_name() {
    let error = from_environment(&[
        ("PERENNIAL_CONTROLLER_QPS", "many"),
        ("PERENNIAL_CONTROLER_WORKERS", "3"),
        ("PERENNIAL_COLOUR", "blue"),
        ("PERENNIAL_METRICS_PORT", "9443"),
        ("RESYNC_INTERVAL_SECONDS", "soon"),
        ("PERENNIAL_CONFIG", "/etc/perennial.yaml"),
        ("PERENNIAL_WEBHOOK_PORT", "tcp://10.0.0.1:443"),
    ])
    .unwrap_err();
    insta::assert_snapshot!(error, @r#"
    the configuration is not valid:
      PERENNIAL_COLOUR: unknown variable
      PERENNIAL_CONTROLER_WORKERS: unknown variable; did you mean `PERENNIAL_CONTROLLER_WORKERS`?
      controller.qps (PERENNIAL_CONTROLLER_QPS): expected a whole number up to 4294967295, got "many"
      controller.resyncPeriod (RESYNC_INTERVAL_SECONDS): expected a duration such as 300s, 1h30m or 500ms, got "soon"
      controller.auditPeriod (RESYNC_INTERVAL_SECONDS): expected a duration such as 300s, 1h30m or 500ms, got "soon"
      metrics.port (PERENNIAL_METRICS_PORT): 9443 is already used by webhook.port
    "#);
}

#[test]
fn a_wrong_flag_is_refused() {
    let error = from_flags(&[("controller.qp", "1"), ("logging.level", "loud"), ("keeper.history", "51")]).unwrap_err();
    insta::assert_snapshot!(error, @r#"
    the configuration is not valid:
      controller.qp (flag): unknown key; did you mean `controller.qps`?
      logging.level (flag): expected error, warn, info, debug or trace, got "loud"
      keeper.history (flag): must be from 0 to 50, got 51
    "#);
}

#[test]
fn variables_of_older_tools_are_read() {
    let settings = from_environment(&[
        ("PERSIST_LABEL_PREFIX", "example.com/"),
        ("OPERATOR_NAMESPACE", "ops"),
        ("RESYNC_INTERVAL_SECONDS", "60"),
        ("LOG_LEVEL", "WARNING"),
    ])
    .unwrap()
    .settings;

    assert_eq!(settings.keeper.keep, Patterns::of(&["example.com/*"]));
    assert!(keeps(&settings.keeper, "example.com/a") && !keeps(&settings.keeper, "other.com/a"));
    assert_eq!(settings.namespace.as_str(), "ops");
    // Objects are read afresh at this interval, as those tools do.
    assert_eq!(settings.controller.resync_period, Duration::from_mins(1));
    assert_eq!(settings.controller.audit_period, Duration::from_mins(1));
    assert_eq!(settings.logging.level, LogLevel::Warn);
}

#[test]
fn leases_are_in_our_namespace_unless_another_is_set() {
    let settings = from_file("namespace: ours").unwrap().settings;
    assert_eq!(settings.lease_namespace(), "ours");
    let settings = from_file("{namespace: ours, controller: {leaderElection: {namespace: kube-system}}}");
    assert_eq!(settings.unwrap().settings.lease_namespace(), "kube-system");
    assert!(from_file("controller: {leaderElection: {namespace: No_Such}}").is_err());
}

#[test]
fn the_backoff_is_configurable_within_reason() {
    let retry =
        from_file("controller: {retry: {initialBackoff: 1s, maxBackoff: 10m}}").unwrap().settings.controller.retry;
    assert_eq!((retry.initial_backoff, retry.max_backoff), (Duration::from_secs(1), Duration::from_mins(10)));
    assert!(from_file("controller: {retry: {initialBackoff: 2m}}").is_err());
    assert!(from_file("controller: {retry: {initialBackoff: 0s}}").is_err());
}

#[test]
fn our_own_variables_win_over_older_ones() {
    let variables = [("RESYNC_INTERVAL_SECONDS", "soon"), ("PERENNIAL_CONTROLLER_RESYNC_PERIOD", "7s")];
    let settings = from_environment(&variables).unwrap().settings;
    assert_eq!(settings.controller.resync_period, Duration::from_secs(7));
}

#[test]
fn settings_without_effect_are_warnings() {
    let loaded = from_file(
        "
controller: {resyncPeriod: 1s}
keeper: {keep: [karpenter.sh/, example.com/], gate: needed}
webhook: {enabled: false, certDir: /certs}
",
    )
    .unwrap();
    assert_eq!(loaded.settings.controller.resync_period, Duration::from_secs(5));
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(warnings.join("\n"), @r"
    controller.resyncPeriod: 1s is below the minimum and was raised to 5s
    keeper.keep: `karpenter.sh/*` has no effect: keeper.drop contains `karpenter.sh/*`
    keeper.gate: has no effect: a webhook adds the taint, and webhook.enabled is false
    webhook.certDir: has no effect: this process does not serve webhooks
    ");
}

#[rstest]
#[case(
    "nodeLabels: {spot: a=1, onDemand: [b=1, a=1]}",
    "nodeLabels.onDemand: a=1 cannot be both a spot and an on-demand label"
)]
#[case("nodeLabels: {spot: []}", "nodeLabels.spot: must contain at least one label")]
#[case("controller: {roles: []}", "controller.roles: must contain at least one role")]
#[case(
    "placement: {defaults: {minOnDemand: some}}",
    "placement.defaults: min-on-demand: \"some\" is neither a count of replicas (3) nor a percentage of them (20%) (from placement.defaults)"
)]
#[case("webhook: {timeout: 31s}", "webhook.timeout: must be whole seconds from 1s to 30s, got 31s")]
#[case(
    "metrics: {address: localhost}",
    "metrics.address: expected an IP address such as 127.0.0.1 or ::1, got \"localhost\""
)]
#[case(
    "webhook: {address: 127.0.0.1:9443}",
    "webhook.address: expected an IP address such as 127.0.0.1 or ::1, got \"127.0.0.1:9443\""
)]
#[case("metrics: {port: 9443}", "metrics.port: 9443 is already used by webhook.port")]
#[case("dashboard: {enabled: true, port: 8080}", "dashboard.port: 8080 is already used by metrics.port")]
#[case(
    "controller: {leaderElection: {enabled: false}, shards: 2}",
    "controller.shards: more than one shard requires controller.leaderElection.enabled"
)]
#[case(
    "placement: {spotTolerations: [{key: a, operator: Exists, value: b}]}",
    "placement.spotTolerations[0]: operator Exists takes no value"
)]
#[case(
    "placement: {spotTolerations: [{key: a, tolerationSeconds: 3}]}",
    "placement.spotTolerations[0].tolerationSeconds: unknown key"
)]
#[case(
    "placement: {annotationPrefixes: [Not A Domain]}",
    "placement.annotationPrefixes[0]: expected a domain such as perennial.dev, got \"Not A Domain\""
)]
#[case(
    "controller: {namespaceSelector: {matchLabels: {a: 1}}}",
    "controller.namespaceSelector.matchLabels.a: expected a string, got 1; put it in quotes"
)]
#[case(
    "controller: {namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}",
    "controller.namespaceSelector.matchExpressions[0]: has operator In, which needs values"
)]
fn settings_that_disagree_are_refused(#[case] text: &str, #[case] message: &str) {
    let problems: Vec<String> = from_file(text).unwrap_err().problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, [message]);
}

#[test]
fn two_servers_may_both_take_any_free_port() {
    assert!(from_file("{metrics: {port: 0}, webhook: {port: 0}}").is_ok());
}

#[rstest]
#[case("example.com/disk", true)]
#[case("kubernetes.io/hostname", false)]
#[case("perennial.dev/restored", false)]
fn labels_are_kept_by_default(#[case] key: &str, #[case] kept: bool) {
    assert_eq!(keeps(&Keeper::default(), key), kept);
}

#[test]
fn everything_but_our_own_can_be_kept() {
    let keeper = from_file("keeper: {keep: '*', drop: []}").unwrap().settings.keeper;
    assert!(keeps(&keeper, "kubernetes.io/hostname") && !keeps(&keeper, "perennial.dev/restored"));
}

#[rstest]
#[case("auto", Identity::Auto)]
#[case("name", Identity::Name)]
#[case("providerID", Identity::ProviderId)]
#[case("systemUUID", Identity::SystemUuid)]
#[case("machineID", Identity::MachineId)]
#[case("label:example.com/serial", Identity::Label("example.com/serial".to_owned()))]
#[case("annotation:serial", Identity::Annotation("serial".to_owned()))]
fn identities_are_read_and_written(#[case] text: &str, #[case] identity: Identity) {
    assert_eq!(text.parse(), Ok(identity.clone()));
    assert_eq!(identity.to_string(), text);
}

#[test]
fn the_rendered_defaults_contain_every_key_and_read_back() {
    let text = render(&Settings::default());
    assert!(text.starts_with("namespace: perennial-system\ncontroller:\n  resyncPeriod: 5m\n"), "{text}");
    assert_eq!(from_file(&text).unwrap().settings, Settings::default());
}

/// Files with one known key and a random value.
fn nearly_a_file() -> impl Strategy<Value = String> {
    let path = proptest::sample::select(keys().iter().map(|key| key.path.as_str()).collect::<Vec<_>>());
    let value = prop_oneof![
        Just("[]".to_owned()),
        Just("{a: b}".to_owned()),
        Just("[{key: a, operator: In, values: [b]}]".to_owned()),
        Just("~".to_owned()),
        Just("'a=b:NoSchedule'".to_owned()),
        "[0-9]{1,21}",
        "-?[0-9]{1,3}(ms|s|m|h|d)?",
        "[a-z*/.=:, ]{0,12}".prop_map(|text| format!("'{text}'")),
    ];
    (path, value).prop_map(|(path, value)| {
        let parts: Vec<&str> = path.split('.').collect();
        format!("{{{}: {value}{}", parts.join(": {"), "}".repeat(parts.len()))
    })
}

proptest! {
    #[test]
    fn no_file_causes_a_panic(text in any::<String>()) {
        let _ = from_file(&text);
    }

    #[test]
    fn accepted_settings_render_and_read_back(text in nearly_a_file()) {
        if let Ok(loaded) = from_file(&text) {
            for written in [render(&loaded.settings), render_changes(&loaded.settings)] {
                let again = from_file(&written);
                prop_assert_eq!(again.map(|loaded| loaded.settings), Ok(loaded.settings.clone()));
            }
        }
    }

    #[test]
    fn no_variable_and_no_flag_causes_a_panic(index in 0..keys().len(), text in any::<String>()) {
        let key = &keys()[index];
        if let Ok(loaded) = from_environment(&[(&key.variable(), &text)]) {
            prop_assert_eq!(from_flags(&[(&key.path, &text)]).map(|flags| flags.settings), Ok(loaded.settings.clone()));
            for written in [render(&loaded.settings), render_changes(&loaded.settings)] {
                let again = from_file(&written);
                prop_assert_eq!(again.map(|loaded| loaded.settings), Ok(loaded.settings.clone()));
            }
        }
    }
}

/// The layouts of Spotalis' configuration: its current file, and the one of its first
/// documentation.
#[rstest]
#[case::current(
    r#"
operator:
  namespace: "spotalis-system"
  leaderElection: {enabled: true, id: "spotalis-controller-leader", namespace: "election", leaseDuration: 15s}
  readOnlyMode: true
  disruptionWindow: {schedule: "0 2 * * *", duration: "4h"}
controllers:
  reconcileInterval: "30s"
  maxConcurrentReconciles: 1
  rateLimit: {qps: 100.0, burst: 150}
  watchNamespaces: [shop]
  workloadTiming: {cooldownPeriod: 10s, disruptionRetryInterval: 1m, disruptionWindowPollInterval: 10m}
  nodeClassifier:
    spotLabels: [{matchLabels: {karpenter.sh/capacity-type: "spot"}}]
    onDemandLabels: [{matchExpressions: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand, reserved]}]}]
webhook: {enabled: true, port: 9443, certDir: "/certs", certName: "tls.crt", keyName: "tls.key"}
observability:
  logging: {level: "debug", format: "console", output: "stdout", addCaller: true, development: false}
  metrics: {enabled: true, bindAddress: ":8090", path: "/metrics"}
  health: {enabled: true, bindAddress: ":8081", path: "/healthz"}
"#
)]
#[case::first(
    r#"
namespace: spotalis-system
controller:
  resyncPeriod: 30s
  workers: 1
  qps: 100
  burst: 150
  dryRun: true
  leaderElection: {enabled: true, namespace: "election", leaseDuration: 15s}
  namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [shop]}]}
webhook: {enabled: true, port: 9443, certDir: /certs, certName: tls.crt, keyName: tls.key}
nodeLabels:
  spot: {karpenter.sh/capacity-type: spot}
  onDemand: "karpenter.sh/capacity-type in (on-demand,reserved)"
placement:
  annotationPrefixes: [perennial.dev, spotalis.io]
  cooldown: 10s
  defaults: {disruptionSchedule: "0 2 * * *", disruptionDuration: 4h}
logging: {level: debug, format: text}
metrics: {enabled: true, bindAddress: ":8090"}
"#
)]
fn a_file_of_spotalis_is_read_unchanged(#[case] text: &str) {
    let Loaded { settings, warnings, .. } = from_file(text).unwrap();

    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!((settings.namespace.as_str(), settings.lease_namespace()), ("spotalis-system", "election"));
    let controller = &settings.controller;
    assert_eq!((controller.workers, controller.qps, controller.burst, controller.dry_run), (1, 100, 150, true));
    assert_eq!(controller.resync_period, Duration::from_secs(30));
    assert_eq!(controller.namespace_selector.to_string(), "kubernetes.io/metadata.name in (shop)");
    assert_eq!(settings.placement.cooldown, Duration::from_secs(10));
    let rules = settings.placement.annotation_rules();
    assert_eq!(rules.prefixes, ["perennial.dev", "spotalis.io"]);
    assert_eq!((rules.defaults["disruption-schedule"].as_str(), rules.defaults.len()), ("0 2 * * *", 2));
    let labels: Vec<String> =
        settings.node_labels.spot.iter().chain(&settings.node_labels.on_demand).map(ToString::to_string).collect();
    assert_eq!(labels, ["karpenter.sh/capacity-type=spot", "karpenter.sh/capacity-type in (on-demand,reserved)"]);
    assert_eq!((settings.logging.level, settings.logging.format), (LogLevel::Debug, LogFormat::Text));
    assert_eq!((settings.metrics.port, settings.webhook.cert_dir.as_deref()), (8090, Some("/certs")));
}

#[test]
fn an_unknown_key_in_a_file_of_spotalis_is_refused() {
    let error = from_file("operator: {namespace: a, colour: blue}").unwrap_err();
    assert!(error.to_string().contains("operator: unknown key"), "{error}");
}
