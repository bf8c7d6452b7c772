//! The identity of a node across its incarnations, and the name of its record.

use super::{
    hash::Digest,
    machine::{Sameness, bare_uuid, canonical_uuid, normalize, uuid_spellings},
    record::Record,
    selection::Node,
};
use crate::config::settings::Identity;

/// Maximum length of the name of a ConfigMap.
const NAME_LIMIT: usize = 253;
/// Taint of a node that the cloud controller has not initialized.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

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
        let kind = &resolve(kind, node);
        let value = match kind {
            // Not resolved yet.
            Identity::Auto => None,
            Identity::Name => Some(&node.name),
            Identity::ProviderId => Some(&node.machine.provider_id),
            Identity::SystemUuid => Some(&node.machine.system_uuid),
            Identity::MachineId => Some(&node.machine.machine_id),
            Identity::Label(key) => node.labels.get(key),
            Identity::Annotation(key) => node.annotations.get(key),
        };
        let value = match kind {
            Identity::ProviderId => normalize(value?),
            Identity::SystemUuid | Identity::MachineId => bare_uuid(value?),
            _ => value?.clone(),
        };
        (!value.is_empty()).then(|| Self { kind: kind.clone(), value })
    }

    /// Returns the identity in every spelling that a record may be filed under, the usual one
    /// first.
    pub(super) fn spellings(kind: &Identity, node: &Node) -> Vec<Self> {
        let Some(usual) = Self::of(kind, node) else { return Vec::new() };
        // Earlier versions used the text as the node reported it.
        let kind = &usual.kind;
        let reported = match kind {
            Identity::ProviderId => Some(&node.machine.provider_id),
            Identity::SystemUuid => Some(&node.machine.system_uuid),
            Identity::MachineId => Some(&node.machine.machine_id),
            _ => None,
        };
        let uuids = match kind {
            Identity::SystemUuid | Identity::MachineId => uuid_spellings(&usual.value),
            _ => Vec::new(),
        };
        let mut all = vec![usual.clone()];
        for value in reported.cloned().into_iter().chain(uuids) {
            let identity = Self { kind: kind.clone(), value };
            if !all.contains(&identity) {
                all.push(identity);
            }
        }
        all
    }

    /// Returns the identity of a node that is identified by its name.
    pub fn named(name: &str) -> Self {
        Self { kind: Identity::Name, value: name.to_owned() }
    }

    /// Returns the identity that a record belongs to.
    pub fn of_record(record: &Record) -> Self {
        let parts = record.identity.as_deref().and_then(|text| text.split_once('='));
        match parts.and_then(|(kind, value)| Some((kind.parse().ok()?, value.to_owned()))) {
            Some((kind, value)) => Self { kind, value },
            None => Self::named(&record.node.name),
        }
    }

    /// Whether the node is identified by its name.
    pub fn is_name(&self) -> bool {
        self.kind == Identity::Name
    }

    /// Returns the property that identifies the node.
    pub fn kind(&self) -> &Identity {
        &self.kind
    }

    /// Whether both identify the same node, in any spelling.
    pub fn is_same(&self, other: &Self) -> bool {
        let canonical = |value: &str| if is_machine(&self.kind) { canonical_uuid(value) } else { value.to_owned() };
        self.kind == other.kind && canonical(&self.value) == canonical(&other.value)
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
    /// Whether both records were captured from the same machine.
    pub fn is_of_same_machine(&self, other: &Self) -> bool {
        self.node.uid == other.node.uid || self.node.machine.compare(&other.node.machine) == Sameness::Same
    }

    /// Returns the name of the ConfigMap that this record belongs in.
    pub fn name(&self) -> RecordName {
        Identified::of_record(self).record_name()
    }
}

/// Returns the property that `auto` stands for. On AWS, names are addresses that other instances
/// reuse. Elsewhere instance groups and scale sets reuse names on purpose. Stays `auto` for a node
/// with a name as on AWS until the cloud controller has initialized it.
fn resolve(kind: &Identity, node: &Node) -> Identity {
    match kind {
        Identity::Auto if node.machine.provider_id.is_empty() && is_uninitialized_instance(node) => Identity::Auto,
        Identity::Auto if normalize(&node.machine.provider_id).starts_with("aws:") => Identity::ProviderId,
        Identity::Auto => Identity::Name,
        other => other.clone(),
    }
}

/// Whether a cloud controller has yet to set the providerID of a node that is named as on AWS. Nodes
/// of other clouds are known by their name at once, and are restored in their create.
fn is_uninitialized_instance(node: &Node) -> bool {
    is_named_by_address(&node.name) && node.taints.iter().any(|taint| taint.key == UNINITIALIZED)
}

/// Whether a name is an address as AWS writes it: `ip-10-0-0-1` or `ip-10-0-0-1.ec2.internal`.
fn is_named_by_address(name: &str) -> bool {
    let host = name.split('.').next().unwrap_or_default();
    host.strip_prefix("ip-").is_some_and(|address| {
        let parts: Vec<&str> = address.split('-').collect();
        parts.len() == 4 && parts.iter().all(|part| part.parse::<u8>().is_ok())
    })
}

/// Whether an identity is an identifier of a machine, which has several spellings.
fn is_machine(kind: &Identity) -> bool {
    matches!(kind, Identity::ProviderId | Identity::SystemUuid | Identity::MachineId)
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
    use crate::keeper::{keys::Taint, machine::Machine};

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
        node.machine = Machine { provider_id: "p".into(), system_uuid: " ".into(), ..Machine::default() };
        assert!(Identified::of(&Identity::ProviderId, &node).is_some());
        assert_eq!(Identified::of(&Identity::SystemUuid, &node), None, "white space is no identifier");
    }

    #[rstest::rstest]
    #[case("aws:///eu-1a/i-0A", "providerID=aws:///eu-1a/i-0a")]
    #[case("AWS:///eu-1a/i-0a", "providerID=aws:///eu-1a/i-0a")]
    #[case("gce://project/zone/n", "name")]
    #[case("azure:///subscriptions/x/virtualMachineScaleSets/y/virtualMachines/0", "name")]
    #[case("", "name")]
    fn the_provider_decides(#[case] provider: &str, #[case] expected: &str) {
        let machine = Machine { provider_id: provider.into(), ..Machine::default() };
        let node = Node { name: "n".into(), machine, ..Node::default() };
        let identity = Identified::of(&Identity::Auto, &node).unwrap();
        assert_eq!(identity.text().unwrap_or_else(|| "name".into()), expected);
    }

    /// The name of an instance that was not initialized may be that of another one later.
    #[rstest::rstest]
    #[case::without_a_cloud("ip-10-0-0-1", "", false, Some("name"))]
    #[case::not_initialized("ip-10-0-0-1", "", true, None)]
    #[case::not_initialized_in_a_domain("ip-10-0-255-1.eu-1.compute.internal", "", true, None)]
    #[case::another_name("gke-pool-1-ab12", "", true, Some("name"))]
    #[case::almost_an_address("ip-10-0-0-256", "", true, Some("name"))]
    #[case::the_id_comes_first("ip-10-0-0-1", "aws:///eu-1a/i-0a", true, Some("providerID=aws:///eu-1a/i-0a"))]
    #[case::elsewhere("ip-10-0-0-1", "gce://project/zone/n", true, Some("name"))]
    fn an_instance_waits_until_its_cloud_has_initialized_it(
        #[case] name: &str,
        #[case] provider: &str,
        #[case] tainted: bool,
        #[case] expected: Option<&str>,
    ) {
        let machine = Machine { provider_id: provider.into(), ..Machine::default() };
        let (key, effect) = (UNINITIALIZED.to_owned(), "NoSchedule".to_owned());
        let taint = Taint { key, value: "true".to_owned(), effect, time_added: None };
        let taints = if tainted { vec![taint] } else { Vec::new() };
        let node = Node { name: name.into(), machine, taints, ..Node::default() };

        let identity = Identified::of(&Identity::Auto, &node);

        assert_eq!(identity.map(|identity| identity.text().unwrap_or_else(|| "name".into())).as_deref(), expected);
        assert!(Identified::of(&Identity::Name, &node).is_some(), "a setting does not wait");
    }

    /// Firmware updates and kernels change the spelling of a UUID. The record is found all the same.
    #[rstest::rstest]
    fn the_record_of_a_machine_is_found_in_every_spelling(
        #[values(Identity::SystemUuid, Identity::MachineId)] kind: Identity,
    ) {
        const SPELLINGS: [&str; 8] = [
            "4c4c4544-0042-4a10-8053-b7c04f4b3732",
            " 4C4C4544-0042-4A10-8053-B7C04F4B3732\n",
            "4c4c454400424a108053b7c04f4b3732",
            "{4C4C4544-0042-4A10-8053-B7C04F4B3732}",
            "44454c4c-4200-104a-8053-b7c04f4b3732",
            "44454C4C4200104A8053B7C04F4B3732",
            "{44454c4c-4200-104a-8053-b7c04f4b3732}",
            "urn:uuid:44454c4c-4200-104a-8053-b7c04f4b3732",
        ];
        let node = |id: &str| Node {
            name: "n".into(),
            machine: Machine { system_uuid: id.into(), machine_id: id.into(), ..Machine::default() },
            ..Node::default()
        };
        for filed in SPELLINGS {
            let record = Identified::of(&kind, &node(filed)).unwrap().record_name();
            for reported in SPELLINGS {
                let found = Identified::spellings(&kind, &node(reported));
                assert!(found.iter().any(|it| it.record_name() == record), "{filed:?} is not found as {reported:?}");
            }
        }
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
