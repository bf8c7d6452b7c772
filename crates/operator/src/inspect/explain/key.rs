//! Why a key is, or is not, on a node.

use std::{fmt::Write as _, sync::LazyLock};

use jiff::Timestamp;
use perennial_core::{
    config::{
        Role, Settings,
        names::{is_annotation_key, is_label_key},
        pattern::Pattern,
    },
    keeper::{
        explain::{Cause, explain as cause_of},
        keys::Key,
        machine::Machine,
        selection::IGNORE,
        stored_record::{Stored, Substitute},
    },
};
use serde_json::{Value, json};

use crate::inspect::{
    format::{age, shell_quoted},
    inspected_node::InspectedNode,
    leases::{Attendance, LeaseSnapshot},
    session::Session,
};

/// Why a key is, or is not, on a node.
pub(crate) struct KeyExplanation<'a> {
    look: &'a InspectedNode,
    key: Key,
    cause: Cause,
    why: String,
    fix: Option<String>,
    /// Sentences about the operator and the record.
    more: Vec<String>,
}

impl<'a> KeyExplanation<'a> {
    pub(crate) async fn read(session: &Session, look: &'a InspectedNode, key: &str) -> Self {
        let key = Key::parse(key);
        let cause = cause_of(&key, &look.case);
        let (why, fix) = words(&key, &cause, look);
        let mut more = Vec::new();
        let waits = matches!(cause, Cause::Waits { .. });
        if cause.is_due() || waits {
            let role = if waits || matches!(cause, Cause::ToGive { .. }) { Role::Restore } else { Role::Capture };
            match LeaseSnapshot::read(&session.client, session.settings.lease_namespace()).await {
                Ok(leases) => {
                    let owner = leases.owner(look.name(), role);
                    let attendance = Attendance::of(&session.settings);
                    let pending = || owner.unattended(attendance).or_else(|| Some(owner.sentence()));
                    more.extend(if waits { owner.unattended(attendance) } else { pending() });
                }
                Err(error) => more.push(format!("the owner of its shard is unknown: {error:#}")),
            }
        }
        if let Some(Stored::Bad { fault, good }) = look.stored() {
            more.push(format!("its record is quarantined ({fault}); {}", substitute(good)));
        }
        let writers = writers(look, &key);
        if !writers.is_empty() && !matches!(cause, Cause::Controllers { .. }) {
            more.push(format!("written by {}", writers.join(", ")));
        }
        Self { look, key, cause, why, fix, more }
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { look, key, cause, why, fix, more } = self;
        let live = look.node().and_then(|live| value_on(live, key));
        let record = look.record().and_then(|record| record.kept.get(key).cloned());
        json!({
            "node": look.name(), "key": key, "cause": cause.word(), "why": why, "fix": fix, "more": more,
            "onNode": live, "inRecord": record, "policy": look.policy().name, "writers": writers(look, key),
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let Self { look, key, why, fix, more, .. } = self;
        let mut text = format!("{key} on {}: {why}.\n", look.name());
        for line in more {
            let _ = writeln!(text, "  {line}.");
        }
        if let Some(fix) = fix {
            let _ = writeln!(text, "  Fix: {fix}");
        }
        text
    }
}

/// Returns the field managers of a label of the live node.
pub(crate) fn writers<'a>(look: &'a InspectedNode, key: &'a Key) -> Vec<&'a str> {
    match (look.node(), key) {
        (Some(node), Key::Label(label)) => node.writers.of(label).collect(),
        _ => Vec::new(),
    }
}

/// Names the content that is used in place of a quarantined record.
pub(crate) fn substitute(good: &Substitute) -> &'static str {
    match good {
        Substitute::Recovered(_) => "a record that was written later is used instead",
        Substitute::History(_) => "the newest valid entry of its history is used instead",
        Substitute::Nothing => "nothing is used instead",
    }
}

/// Returns the value of a key on the live node, kept or not.
fn value_on(node: &perennial_core::keeper::selection::Node, key: &Key) -> Option<String> {
    match key {
        Key::Label(key) => node.labels.get(key).cloned(),
        Key::Annotation(key) => node.annotations.get(key).cloned(),
        Key::Taint { key, effect } => node
            .taints
            .iter()
            .find(|taint| taint.key == *key && taint.effect == *effect)
            .map(|taint| taint.value.clone()),
        Key::Cordon => node.unschedulable.then(|| "true".to_owned()),
    }
}

/// Returns the reason as a sentence, and a fix if there is one.
#[expect(clippy::too_many_lines, reason = "one arm per cause")]
pub(crate) fn words(key: &Key, cause: &Cause, look: &InspectedNode) -> (String, Option<String>) {
    let (node, now) = (look.name(), Timestamp::now());
    let ago = |then: Timestamp| format!("{} ago", age(then, now));
    match cause {
        Cause::Ignored => (
            "the node is excluded by the annotation or label perennial.dev/ignore".to_owned(),
            Some(remove_ignore(look)),
        ),
        Cause::OurDomain => ("keys of Perennial itself are never kept".to_owned(), None),
        // These patterns are not settings.
        Cause::Dropped { pattern, .. } if !matches!(key, Key::Label(_)) => (
            format!(
                "never kept: the built-in pattern `{pattern}` matches keys that belong to one machine or one start"
            ),
            None,
        ),
        Cause::Dropped { policy, pattern } => {
            let whose = if is_default(policy, pattern) {
                format!(
                    "by default: the pattern `{pattern}` of keeper.drop matches keys that kubelets, cloud controllers or feature discovery write"
                )
            } else if policy == "config" {
                format!("by the pattern `{pattern}` of keeper.drop or keeper.dropAlso in the configuration")
            } else {
                format!("by the pattern `{pattern}` of {}", named(policy))
            };
            (
                format!("not kept: dropped {whose}"),
                Some(format!("to keep it, remove the pattern from `drop` or `dropAlso` of {}", named(policy))),
            )
        }
        Cause::NotKept { policy } => (
            format!("not kept: no pattern of {} matches it", named(policy)),
            Some(match key {
                Key::Cordon => format!("to keep it, set `cordon: true` in {}", named(policy)),
                _ => format!("to keep it, add a pattern to {}", list_of(key, policy)),
            }),
        ),
        Cause::Unidentified { identity } => (
            format!("the node has no {identity} yet, so its record is unknown"),
            Some(format!("wait until the node has one, or set an identity other than {identity}")),
        ),
        Cause::Newer { fault } => {
            (format!("the record is not used: {fault}"), Some("run the newer version of the operator".to_owned()))
        }
        Cause::Quarantined { fault } => (
            format!("the record is quarantined: {fault}"),
            Some(format!(
                "inspect it with `kubectl get configmap {} -n {} -o yaml`, then run `perennial forget {node} --yes` or import a backup with --force",
                look.held.as_ref().map_or("", |held| held.name()),
                look.held.as_ref().map_or("", |held| held.namespace())
            )),
        ),
        Cause::Contested { rivals } => (
            format!(
                "neither captured nor restored: {} has the same identity as this node ({})",
                rivals.join(", "),
                look.policy().identity
            ),
            Some("make the identity unique, or set another keeper.identity".to_owned()),
        ),
        Cause::AnotherMachine { recorded, node: machine } => (
            format!(
                "not restored: the key is protected and was captured from another machine ({}); this node is {}",
                describe(recorded),
                describe(machine)
            ),
            look.node().map(|_| format!("to set it on this machine: {}", set_command(node, key, None))),
        ),
        Cause::MachineUnknown { recorded } => (
            format!(
                "not restored yet: the key is protected, and the node is not known to be the machine it was captured from ({})",
                describe(recorded)
            ),
            Some("wait until the node reports providerID, systemUUID and machineID".to_owned()),
        ),
        Cause::Unwritable { value } => (format!("not restored: the API server would reject {key}={value}"), None),
        Cause::OwnValue { node: Some(own), record, rollback_to: None } => (
            format!(
                "the node was created with its own value, {own}, which takes precedence{}",
                record.as_ref().map(|value| format!(" over {value} in the record")).unwrap_or_default()
            ),
            Some(format!("to use the value of the record: perennial restore {node}, or set keeper.merge: overwrite")),
        ),
        Cause::OwnValue { node: Some(own), record, rollback_to: Some(sequence) } => {
            let before = record.as_deref().unwrap_or_default();
            (
                format!(
                    "the node was created with its own value, {own}, which takes precedence over {before} in version {sequence} of the record"
                ),
                Some(format!("to use {before} again: perennial rollback {node} --to {sequence}")),
            )
        }
        Cause::OwnValue { node: None, .. } => ("the key was removed from this incarnation".to_owned(), None),
        Cause::Removed { value, last_seen, removed_at, sequence } => (
            format!(
                "it was removed from the node, and removed keys are not restored: the record contained {value} {}, and no longer {}",
                ago(*last_seen),
                ago(*removed_at)
            ),
            Some(match look.node() {
                Some(_) => format!(
                    "to restore it: perennial rollback {node} --to {sequence}, or {}",
                    set_command(node, key, Some(value))
                ),
                None => format!("to restore it when the node returns: perennial rollback {node} --to {sequence}"),
            }),
        ),
        Cause::BeingRemoved { value } => (
            format!(
                "it was removed from the node, and removed keys are not restored; the record still contains {value} and is about to be updated"
            ),
            None,
        ),
        Cause::ToCapture { value } => (format!("the node has {}, which is about to be captured", shown(value)), None),
        Cause::ToGive { value } => {
            (format!("the record contains {}, which is about to be restored", shown(value)), None)
        }
        Cause::NeverSeen if !is_valid(key) => ("no node can have it: the key is not valid".to_owned(), None),
        Cause::NeverSeen => (
            if look.held.is_some() {
                "never seen on this node: neither the record nor its history contains it".to_owned()
            } else {
                "never seen on this node: there is no record".to_owned()
            },
            // A node that does not exist cannot be labelled.
            look.node().map(|_| set_command(node, key, None)),
        ),
        Cause::Waits { value, protected } => (
            format!(
                "the node does not exist; {} is restored when it is created again{}",
                shown(value),
                if *protected { " on the same machine (the key is protected)" } else { "" }
            ),
            None,
        ),
        Cause::ActionLabel => (
            "never kept: by this label other controllers report the health of one machine, or act on it".to_owned(),
            None,
        ),
        Cause::Controllers { managers } => (
            format!(
                "not kept: it is written only by {}, which writes it again (keeper.dropManagers)",
                managers.join(", ")
            ),
            // A value that does not change leaves the field manager.
            Some(format!(
                "to keep it, change keeper.dropManagers, or remove it and set it yourself: kubectl label node {} {} && {}",
                shell_quoted(node),
                shell_quoted(&format!("{key}-")),
                set_command(node, key, look.node().and_then(|live| value_on(live, key)).as_deref())
            )),
        ),
        Cause::Kept { value, given } => (
            format!(
                "kept: the node and the record have {}{}",
                shown(value),
                if *given { "; restored to this incarnation" } else { "" }
            ),
            None,
        ),
    }
}

/// Whether the API server accepts the key.
fn is_valid(key: &Key) -> bool {
    match key {
        Key::Label(text) | Key::Taint { key: text, .. } => is_label_key(text),
        Key::Annotation(text) => is_annotation_key(text),
        Key::Cordon => true,
    }
}

/// Returns a value as words.
fn shown(value: &str) -> &str {
    if value.is_empty() { "an empty value" } else { value }
}

/// Returns the kubectl commands that make a node managed again.
fn remove_ignore(look: &InspectedNode) -> String {
    let node = shell_quoted(look.name());
    let labelled = look.node().is_some_and(|node| node.labels.contains_key(IGNORE));
    let annotated = look.node().is_some_and(|node| node.annotations.contains_key(IGNORE));
    let commands = [("annotate", annotated), ("label", labelled)].into_iter().filter(|(_, there)| *there);
    commands.map(|(verb, _)| format!("kubectl {verb} node {node} {IGNORE}-")).collect::<Vec<_>>().join("; ")
}

/// Returns the kubectl command that sets a key on a node. The value is left out if it is unknown.
fn set_command(node: &str, key: &Key, value: Option<&str>) -> String {
    let (node, value) = (shell_quoted(node), value.unwrap_or("VALUE"));
    match key {
        Key::Label(label) => format!("kubectl label node {node} {}", shell_quoted(&format!("{label}={value}"))),
        Key::Annotation(name) => format!("kubectl annotate node {node} {}", shell_quoted(&format!("{name}={value}"))),
        Key::Taint { key, effect } if value.is_empty() => {
            format!("kubectl taint node {node} {}", shell_quoted(&format!("{key}:{effect}")))
        }
        Key::Taint { key, effect } => {
            format!("kubectl taint node {node} {}", shell_quoted(&format!("{key}={value}:{effect}")))
        }
        Key::Cordon => format!("kubectl cordon {node}"),
    }
}

/// Returns whether a pattern is in the default of `keeper.drop`, which matches keys that programs
/// write.
pub(crate) fn is_default(policy: &str, pattern: &Pattern) -> bool {
    static DEFAULT: LazyLock<Settings> = LazyLock::new(Settings::default);
    policy == "config" && DEFAULT.keeper.drop.as_slice().contains(pattern)
}

fn named(policy: &str) -> String {
    if policy == "config" { "the configuration (keeper.*)".to_owned() } else { format!("KeepPolicy {policy}") }
}

fn list_of(key: &Key, policy: &str) -> String {
    let list = match key {
        Key::Label(_) => "keep",
        Key::Annotation(_) => "annotations",
        Key::Taint { .. } => "taints",
        Key::Cordon => "cordon: true",
    };
    format!("`{list}` of {}", named(policy))
}

fn describe(machine: &Machine) -> String {
    let parts = [
        ("providerID", &machine.provider_id),
        ("systemUUID", &machine.system_uuid),
        ("machineID", &machine.machine_id),
    ];
    let known: Vec<String> =
        parts.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name} {value}")).collect();
    if known.is_empty() { "an unknown machine".to_owned() } else { known.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_set_with_the_command_of_its_kind() {
        for (key, value, command) in [
            ("team", Some("ml"), "kubectl label node n1 team=ml"),
            ("team", None, "kubectl label node n1 team=VALUE"),
            (
                "annotation:example.com/owner",
                Some("it's me"),
                r"kubectl annotate node n1 'example.com/owner=it'\''s me'",
            ),
            ("taint:dedicated:NoSchedule", Some("gpu"), "kubectl taint node n1 dedicated=gpu:NoSchedule"),
            ("taint:dedicated:NoSchedule", Some(""), "kubectl taint node n1 dedicated:NoSchedule"),
            ("cordon:", Some("true"), "kubectl cordon n1"),
        ] {
            assert_eq!(set_command("n1", &Key::parse(key), value), command, "{key}");
        }
    }
}
