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
    /// Compares all three fields.
    pub fn compare(&self, recorded: &Self) -> Sameness {
        let fields = [
            (&self.provider_id, &recorded.provider_id),
            (&self.system_uuid, &recorded.system_uuid),
            (&self.machine_id, &recorded.machine_id),
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

    #[test]
    fn a_node_that_says_more_completes_its_record() {
        assert!(machine("p,s,m").completes(&machine(",s,m")));
        assert!(!machine("p,s,m").completes(&machine("p,s,m")));
        assert!(!machine("p,s,m").completes(&machine(",t,m")));
        assert!(!machine(",s,m").completes(&machine("p,s,m")));
    }
}
