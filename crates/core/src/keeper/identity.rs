//! The identity of a node across its incarnations, and the name of its record.

use super::{hash::Digest, record::Record, selection::Node};
use crate::config::settings::Identity;

/// Maximum length of the name of a ConfigMap.
const NAME_LIMIT: usize = 253;

/// Name of the ConfigMap of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordName(pub String);

/// The identity of a node: `name=worker-1`, `systemUUID=4c4c…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identified {
    kind: Identity,
    value: String,
}

impl Identified {
    /// Returns `None` while the node lacks the identifying field: a cloud may set the providerID
    /// later.
    pub fn of(kind: &Identity, node: &Node) -> Option<Self> {
        let value = match kind {
            Identity::Name => Some(&node.name),
            Identity::ProviderId => Some(&node.machine.provider_id),
            Identity::SystemUuid => Some(&node.machine.system_uuid),
            Identity::MachineId => Some(&node.machine.machine_id),
            Identity::Label(key) => node.labels.get(key),
            Identity::Annotation(key) => node.annotations.get(key),
        };
        value.filter(|value| !value.is_empty()).map(|value| Self { kind: kind.clone(), value: value.clone() })
    }

    /// Returns the identity of a node that is identified by its name.
    pub fn named(name: &str) -> Self {
        Self { kind: Identity::Name, value: name.to_owned() }
    }

    /// Returns the identity that a record belongs to.
    fn of_record(record: &Record) -> Self {
        let told = record.identity.as_deref().and_then(|text| text.split_once('='));
        match told.and_then(|(kind, value)| Some((kind.parse().ok()?, value.to_owned()))) {
            Some((kind, value)) => Self { kind, value },
            None => Self::named(&record.node.name),
        }
    }

    /// Returns the identity as records hold it. `None` if it is the name of the node.
    pub fn text(&self) -> Option<String> {
        (self.kind != Identity::Name).then(|| format!("{}={}", self.kind, self.value))
    }

    /// Returns `node-<name>`, or a readable part and a hash if that is too long or the identity is
    /// not a name.
    pub fn record_name(&self) -> RecordName {
        if self.kind == Identity::Name {
            let plain = format!("node-{}", self.value);
            if plain.len() <= NAME_LIMIT && is_dns_name(&plain) {
                return RecordName(plain);
            }
        }
        let kind = self.kind.to_string();
        let prefix =
            if self.kind == Identity::Name { "node".to_owned() } else { format!("id-{}", readable(&kind, 40)) };
        let hash = Digest::of([kind.as_str(), &self.value]);
        let room = NAME_LIMIT - prefix.len() - hash.short().len() - 2;
        let part = readable(&self.value, room);
        let name = if part.is_empty() {
            format!("{prefix}-{}", hash.short())
        } else {
            format!("{prefix}-{part}-{}", hash.short())
        };
        RecordName(name)
    }
}

impl Record {
    /// Returns the name of the ConfigMap that this record belongs in.
    pub fn name(&self) -> RecordName {
        Identified::of_record(self).record_name()
    }
}

/// Returns the part of a value that fits into a name. The hash beside it makes the name unique.
fn readable(value: &str, room: usize) -> String {
    let clean: String = value
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.' { c } else { '-' })
        .take(room)
        .collect();
    let pieces: Vec<&str> = clean.split(['-', '.']).filter(|piece| !piece.is_empty()).collect();
    pieces.join("-")
}

fn is_dns_name(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.split('.')
        .all(|part| part.starts_with(edge) && part.ends_with(edge) && part.chars().all(|c| edge(c) || c == '-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keeper::machine::Machine;

    fn name_of(kind: Identity, value: &str) -> String {
        Identified { kind, value: value.into() }.record_name().0
    }

    #[test]
    fn records_are_named_after_their_nodes() {
        assert_eq!(name_of(Identity::Name, "worker-1.example.com"), "node-worker-1.example.com");
        assert_eq!(name_of(Identity::ProviderId, "aws:///eu-1a/i-0A"), "id-providerid-aws-eu-1a-i-0a-7ef1966414877ada");
    }

    #[test]
    fn the_longest_name_has_a_record_of_its_own() {
        let a = format!("{}a", "x".repeat(252));
        let b = format!("{}b", "x".repeat(252));
        let (a, b) = (name_of(Identity::Name, &a), name_of(Identity::Name, &b));
        assert_ne!(a, b);
        assert!(a.len() <= 253 && a.starts_with("node-xxx"));
    }

    #[test]
    fn an_identity_that_is_not_known_yet_is_none() {
        let mut node = Node { name: "n".into(), ..Node::default() };
        assert_eq!(Identified::of(&Identity::ProviderId, &node), None);
        node.machine = Machine { provider_id: "p".into(), ..Machine::default() };
        assert!(Identified::of(&Identity::ProviderId, &node).is_some());
    }

    proptest! {
        #[test]
        fn every_name_is_one_that_kubernetes_takes(value in ".{1,300}", name in any::<bool>()) {
            let kind = if name { Identity::Name } else { Identity::Label("example.com/Asset_Tag".into()) };
            let name = name_of(kind, &value);
            prop_assert!(name.len() <= 253 && is_dns_name(&name), "{}", name);
        }
    }
}
