//! The machine that a node runs on, as far as the node reports it.

use serde::{Deserialize, Serialize};

/// Identifiers of a machine. A field that the node does not report is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    #[serde(rename = "providerID")]
    pub provider_id: String,
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
    #[serde(rename = "machineID")]
    pub machine_id: String,
}

/// Result of comparing the machine of a node with the one that a record was captured from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sameness {
    Same,
    /// No field differs, but some are empty on the node (a cloud sets the providerID after the node
    /// joined).
    Unknown,
    Different,
}

impl Machine {
    /// Returns the machine in one spelling: the same machine may report its identifiers in another
    /// case, with white space, or with the first groups of its UUID in another byte order.
    #[must_use]
    pub fn normalized(&self) -> Self {
        Self {
            provider_id: normalize(&self.provider_id),
            system_uuid: canonical_uuid(&self.system_uuid),
            machine_id: canonical_uuid(&self.machine_id),
        }
    }

    /// Compares all three fields, in any spelling.
    pub fn compare(&self, recorded: &Self) -> Sameness {
        let (now, then) = (self.normalized(), recorded.normalized());
        let fields = [
            (&now.provider_id, &then.provider_id),
            (&now.system_uuid, &then.system_uuid),
            (&now.machine_id, &then.machine_id),
        ];
        if fields.iter().all(|(now, then)| now == then) {
            Sameness::Same
        } else if fields.iter().all(|(now, then)| now == then || now.is_empty()) {
            Sameness::Unknown
        } else {
            Sameness::Different
        }
    }

    /// Whether this is the same machine with more fields than the record has.
    pub fn completes(&self, recorded: &Self) -> bool {
        self != recorded && recorded.compare(self) == Sameness::Unknown
    }
}

/// Returns an identifier without white space around it, in lower case.
pub(super) fn normalize(text: &str) -> String {
    text.trim().to_ascii_lowercase()
}

/// Returns a UUID without the braces or the URN prefix around it, and any other text as
/// [`normalize`] does.
pub(super) fn bare_uuid(text: &str) -> String {
    let text = normalize(text);
    let inner = text.strip_prefix("urn:uuid:").unwrap_or(&text);
    let inner = inner.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(inner);
    if usual_uuid(inner).is_some() { inner.to_owned() } else { text }
}

/// Returns one of the spellings of a UUID, and any other text as [`normalize`] does.
pub(super) fn canonical_uuid(text: &str) -> String {
    let plain = bare_uuid(text);
    uuid_spellings(&plain).into_iter().filter(|spelling| spelling.contains('-')).min().unwrap_or(plain)
}

/// Returns all spellings of a UUID in lower case: both byte orders, each with and without dashes.
/// Empty for any other text.
pub(super) fn uuid_spellings(text: &str) -> Vec<String> {
    let Some(usual) = usual_uuid(text) else { return Vec::new() };
    let orders = std::iter::once(usual.clone()).chain(swapped_uuid(&usual));
    orders.flat_map(|dashed| [dashed.replace('-', ""), dashed]).collect()
}

/// Returns a UUID in lower case, with or without dashes, in the usual form. `None` for any other
/// text.
fn usual_uuid(text: &str) -> Option<String> {
    if swapped_uuid(text).is_some() {
        return Some(text.to_owned());
    }
    if text.len() != 32 || !text.bytes().all(is_digit) {
        return None;
    }
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| text.get(group).unwrap_or_default());
    Some(groups.join("-"))
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// Returns a UUID with the bytes of its first three groups reversed. SMBIOS stores them in
/// little-endian order, and not all firmware and kernels agree. `None` if the text is not a UUID
/// in lower case with dashes.
fn swapped_uuid(text: &str) -> Option<String> {
    let groups: Vec<&str> = text.split('-').collect();
    let is_group = |group: &&str| group.bytes().all(is_digit);
    if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12]) || !groups.iter().all(is_group) {
        return None;
    }
    let reversed = |group: &str| -> String {
        let bytes: Vec<&str> = (0..group.len()).step_by(2).filter_map(|at| group.get(at..at + 2)).collect();
        bytes.into_iter().rev().collect()
    };
    let (first, rest) = groups.split_at(3);
    let first = first.iter().map(|group| reversed(group));
    Some(first.chain(rest.iter().map(|group| (*group).to_owned())).collect::<Vec<_>>().join("-"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn machine(text: &str) -> Machine {
        let mut parts = text.split(',').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        Machine { provider_id: next(), system_uuid: next(), machine_id: next() }
    }

    #[rstest]
    #[case("p,s,m", "p,s,m", Sameness::Same)]
    #[case("", "", Sameness::Same)]
    #[case(",s,m", "p,s,m", Sameness::Unknown)]
    #[case(",,", "p,s,m", Sameness::Unknown)]
    #[case(",x,m", "p,s,m", Sameness::Different)]
    #[case("p,s,m", "p,s,", Sameness::Different)]
    #[case("p,s,m", "p,s,n", Sameness::Different)]
    fn machines_compare(#[case] now: &str, #[case] then: &str, #[case] expected: Sameness) {
        assert_eq!(machine(now).compare(&machine(then)), expected);
    }

    const UUID: &str = "4c4c4544-0042-4a10-8053-b7c04f4b3732";

    #[rstest]
    #[case::case(&UUID.to_uppercase(), Sameness::Same)]
    #[case::white_space(" 4c4c4544-0042-4a10-8053-b7c04f4b3732\n", Sameness::Same)]
    #[case::byte_order("44454c4c-4200-104a-8053-b7c04f4b3732", Sameness::Same)]
    #[case::byte_order_and_case("44454C4C-4200-104A-8053-B7C04F4B3732", Sameness::Same)]
    #[case::no_dashes("4C4C454400424A108053B7C04F4B3732", Sameness::Same)]
    #[case::no_dashes_and_byte_order("44454c4c4200104a8053b7c04f4b3732", Sameness::Same)]
    #[case::braces("{4C4C4544-0042-4A10-8053-B7C04F4B3732}", Sameness::Same)]
    #[case::braces_and_byte_order("{44454c4c-4200-104a-8053-b7c04f4b3732}", Sameness::Same)]
    #[case::urn("urn:uuid:4c4c4544-0042-4a10-8053-b7c04f4b3732", Sameness::Same)]
    #[case::one_brace("{4c4c4544-0042-4a10-8053-b7c04f4b3732", Sameness::Different)]
    #[case::another_one("4c4c4544-0042-4a10-8053-b7c04f4b3733", Sameness::Different)]
    #[case::the_rest_is_not_swapped("44454c4c-4200-104a-5380-b7c04f4b3732", Sameness::Different)]
    fn a_uuid_has_several_spellings(#[case] now: &str, #[case] expected: Sameness) {
        let machine = |uuid: &str| Machine { system_uuid: uuid.to_owned(), ..Machine::default() };
        assert_eq!(machine(now).compare(&machine(UUID)), expected);
        assert_eq!(machine(UUID).compare(&machine(now)), expected);
        assert!(!machine(now).completes(&machine(UUID)));
    }

    #[test]
    fn a_node_that_reports_more_fields_completes_its_record() {
        assert!(machine("p,s,m").completes(&machine(",s,m")));
        assert!(!machine("p,s,m").completes(&machine("p,s,m")));
        assert!(!machine("p,s,m").completes(&machine(",t,m")));
        assert!(!machine(",s,m").completes(&machine("p,s,m")));
    }
}
