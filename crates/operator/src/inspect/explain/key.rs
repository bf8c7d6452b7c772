//! `perennial explain KEY --node NODE`: the very reason why a label is, or is not, on a node.

use std::{fmt::Write as _, sync::LazyLock};

use jiff::Timestamp;
use perennial_core::{
    config::{Settings, pattern::Pattern},
    keeper::{
        explain::{Cause, explain as cause_of},
        keys::Key,
        machine::Machine,
        selection::IGNORE,
        stored_record::{Stored, Substitute},
    },
};
use serde_json::{Value, json};

use crate::inspect::{format::age, leases::Leases, look::Look, session::Session};

/// Why a key is, or is not, on a node.
pub(crate) struct KeyExplanation<'a> {
    look: &'a Look,
    key: Key,
    cause: Cause,
    why: String,
    fix: Option<String>,
    /// Sentences about the operator and the record.
    more: Vec<String>,
}

impl<'a> KeyExplanation<'a> {
    pub(crate) async fn read(session: &Session, look: &'a Look, key: &str) -> Self {
        let key = Key::parse(key);
        let cause = cause_of(&key, &look.case);
        let (why, fix) = words(&key, &cause, look);
        let mut more = Vec::new();
        if cause.is_due() {
            let role = if matches!(cause, Cause::ToGive { .. }) { "restore" } else { "capture" };
            match Leases::read(&session.client, session.settings.namespace.as_str()).await {
                Ok(leases) => more.push(leases.owner(look.name(), role).sentence()),
                Err(error) => more.push(format!("who works on it is not known: {error:#}")),
            }
        }
        if let Some(Stored::Bad { fault, good }) = look.stored() {
            more.push(format!("its record is quarantined ({fault}); {}", substitute(good)));
        }
        Self { look, key, cause, why, fix, more }
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { look, key, cause, why, fix, more } = self;
        let live = look.node().and_then(|live| value_on(live, key));
        let record = look.record().and_then(|record| record.kept.get(key).cloned());
        json!({
            "node": look.name(), "key": key, "cause": cause.word(), "why": why, "fix": fix, "more": more,
            "onNode": live, "inRecord": record, "policy": look.policy().name,
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let Self { look, key, why, fix, more, .. } = self;
        let mut text = format!("{key} on {}: {why}.\n", look.name());
        for line in more {
            let _ = writeln!(text, "  {line}.");
        }
        if let Some(fix) = fix {
            let _ = writeln!(text, "  What to do: {fix}");
        }
        text
    }
}

/// Names the content that is used in place of a quarantined record.
pub(crate) fn substitute(good: &Substitute) -> &'static str {
    match good {
        Substitute::Recovered(_) => "a record written since serves instead",
        Substitute::History(_) => "the newest good entry of its history serves instead",
        Substitute::Nothing => "nothing serves instead",
    }
}

/// What the live node has under this key, kept or not.
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

/// The reason as a sentence, and what to do about it, where there is something to do.
#[expect(clippy::too_many_lines, reason = "one arm for each cause, and nothing else")]
pub(crate) fn words(key: &Key, cause: &Cause, look: &Look) -> (String, Option<String>) {
    let (node, now) = (look.name(), Timestamp::now());
    let ago = |then: Timestamp| format!("{} ago", age(then, now));
    match cause {
        Cause::Ignored => (
            "nothing is done about it, since the node says to be left alone".to_owned(),
            Some(format!("kubectl annotate node {node} {IGNORE}- (or remove the label of that name)")),
        ),
        Cause::OurDomain => ("it is a key of Perennial's own, and those are never kept".to_owned(), None),
        Cause::Dropped { policy, pattern } => {
            let whose = if is_default(policy, pattern) {
                format!(
                    "by default: the pattern `{pattern}` of keeper.drop stands for what kubelets, clouds and discovery write themselves"
                )
            } else if policy == "config" {
                format!("by the pattern `{pattern}` of keeper.drop in the configuration")
            } else {
                format!("by the pattern `{pattern}` of {}", named(policy))
            };
            (
                format!("it is not kept: dropped {whose}"),
                Some(format!("to keep it, take the pattern out of `drop` of {}", named(policy))),
            )
        }
        Cause::NotKept { policy } => (
            format!("it is not kept: no pattern of {} says to keep it", named(policy)),
            Some(format!("to keep it, add a pattern to {}", list_of(key, policy))),
        ),
        Cause::Unidentified { identity } => (
            format!("the node does not say its {identity} yet, so nobody knows which record is its own"),
            Some(format!("it is looked at again as soon as it does; or choose another identity than {identity}")),
        ),
        Cause::Newer { fault } => {
            (format!("the record is left alone: {fault}"), Some("run the newer operator".to_owned()))
        }
        Cause::Quarantined { fault } => (
            format!("nothing is restored, since the record cannot be trusted: {fault}"),
            Some(format!(
                "look at it (kubectl get configmap {} -o yaml), then `perennial forget {node} --yes`, or import a backup",
                look.held.as_ref().map_or("", |held| held.name())
            )),
        ),
        Cause::Contested { rivals } => (
            format!(
                "nothing is given, since {} says to be the same as this node ({})",
                rivals.join(", "),
                look.policy().identity
            ),
            Some("let only one of them have this identity, or choose another keeper.identity".to_owned()),
        ),
        Cause::AnotherMachine { recorded, node: machine } => (
            format!(
                "it is protected and belongs to another machine: it was taken from {}, and this node is {}",
                told(recorded),
                told(machine)
            ),
            Some(format!("if it is meant for this machine too: kubectl label node {node} {key}=…")),
        ),
        Cause::MachineUnknown { recorded } => (
            format!(
                "it is protected and waits until the node shows to be the machine that it was taken from: {}",
                told(recorded)
            ),
            Some("it is given as soon as the node says its providerID, systemUUID and machineID".to_owned()),
        ),
        Cause::Unwritable { value } => {
            (format!("the API server would refuse {key}={value}, so it stays in the record only"), None)
        }
        Cause::OwnValue { node: Some(own), record } => (
            format!(
                "the node came with a value of its own, {own}, and that wins{}",
                record.as_ref().map(|value| format!(" over {value} of the record")).unwrap_or_default()
            ),
            Some(format!("for the record's value: perennial restore {node}, or keeper.merge: overwrite")),
        ),
        Cause::OwnValue { node: None, .. } => ("the node itself decided not to have it".to_owned(), None),
        Cause::Removed { value, last_seen, removed_at, sequence } => (
            format!(
                "it was removed, and what people remove stays removed: {value} was in the record of {}, and no longer in that of {}",
                ago(*last_seen),
                ago(*removed_at)
            ),
            Some(format!(
                "to have it back: perennial rollback {node} --to {sequence}, or kubectl label node {node} {key}={value}"
            )),
        ),
        Cause::BeingRemoved { value } => (
            format!(
                "it was removed from the node, and what people remove stays removed; the record still has {value} and is about to follow"
            ),
            None,
        ),
        Cause::ToCapture { value } => (format!("the node has {value}, and the record is about to be told"), None),
        Cause::ToGive { value } => (format!("the record has {value}, and the node is about to be given it"), None),
        Cause::NeverSeen => (
            if look.held.is_some() {
                "it was never seen on this node: neither the record nor its history has it".to_owned()
            } else {
                "it was never seen on this node: there is no record".to_owned()
            },
            Some(format!("kubectl label node {node} {key}=… and it is kept from then on")),
        ),
        Cause::Waits { value, protected } => (
            format!(
                "the node is away; {value} is given back when it returns{}",
                if *protected { " as the same machine: the key is protected" } else { "" }
            ),
            None,
        ),
        Cause::Kept { value, given } => (
            format!(
                "it is kept: node and record have {value}{}",
                if *given { "; this incarnation was given it back" } else { "" }
            ),
            None,
        ),
    }
}

/// A pattern stands in the default of `keeper.drop`: what it means, programs write themselves.
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

fn told(machine: &Machine) -> String {
    let parts = [
        ("providerID", &machine.provider_id),
        ("systemUUID", &machine.system_uuid),
        ("machineID", &machine.machine_id),
    ];
    let said: Vec<String> =
        parts.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name} {value}")).collect();
    if said.is_empty() { "one that says nothing of itself".to_owned() } else { said.join(", ") }
}
