//! The CA bundle of the webhook configurations, where the certificate comes from a directory.
//!
//! Replicas see a renewed directory minutes apart: some serve a certificate of the new authority,
//! some still one of the old. So authorities that another replica added to the bundle stay in it
//! for a while, and no replica reverts another's write.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Time for which an authority stays that is not in the directory: longer than a kubelet takes to
/// renew a mounted Secret.
const KEEP_FOREIGN_FOR: Duration = Duration::from_mins(10);

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Authorities that other replicas added, and when each was first seen.
#[derive(Debug, Default)]
pub(super) struct Others(BTreeMap<String, Instant>);

impl Others {
    /// Returns the desired bundle: our authorities, and those that other replicas added recently.
    pub(super) fn beside(&mut self, ours: &[u8], carried: &[u8], now: Instant) -> Vec<u8> {
        let own = authorities(ours);
        let mut present = authorities(carried);
        let others: Vec<String> = present.iter().filter(|other| !own.contains(other)).cloned().collect();
        self.0.retain(|known, _| others.contains(known));
        for other in others {
            self.0.entry(other).or_insert(now);
        }
        let stay =
            self.0.iter().filter(|(_, since)| now.duration_since(**since) < KEEP_FOREIGN_FOR).map(|(other, _)| other);
        let stay: Vec<String> = stay.cloned().collect();
        if stay.is_empty() {
            return ours.to_vec();
        }
        let mut wanted = [own, stay].concat();
        let text = format!("{}\n", wanted.join("\n"));
        wanted.sort();
        present.sort();
        // The order does not matter, but each authority is contained once.
        let once = String::from_utf8_lossy(carried).matches(BEGIN).count() == present.len();
        if wanted == present && once { carried.to_vec() } else { text.into_bytes() }
    }
}

/// Whether a bundle contains all authorities of another.
pub(super) fn carries(carried: &[u8], ours: &[u8]) -> bool {
    let carried = authorities(carried);
    authorities(ours).iter().all(|own| carried.contains(own))
}

/// Returns the certificates of a bundle in PEM.
fn authorities(bundle: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bundle);
    let mut found = Vec::new();
    for (inner, _) in text.split(BEGIN).skip(1).filter_map(|rest| rest.split_once(END)) {
        let one = format!("{BEGIN}\n{}\n{END}", inner.split_whitespace().collect::<Vec<_>>().join("\n"));
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(names: &[&str]) -> Vec<u8> {
        let each: Vec<String> = names.iter().map(|name| format!("{BEGIN}\n{name}\n{END}\n")).collect();
        each.concat().into_bytes()
    }

    #[test]
    fn nothing_is_added_to_ours_where_no_other_replica_added_anything() {
        let now = Instant::now();
        let mut others = Others::default();

        assert_eq!(others.beside(&pem(&["a"]), b"", now), pem(&["a"]));
        assert_eq!(others.beside(&pem(&["a"]), &pem(&["a"]), now), pem(&["a"]));
    }

    #[test]
    fn replicas_that_see_different_files_agree_and_forget_in_time() {
        let start = Instant::now();
        let (mut early, mut late) = (Others::default(), Others::default());

        let both = early.beside(&pem(&["new"]), &pem(&["old"]), start);
        assert!(carries(&both, &pem(&["old"])) && carries(&both, &pem(&["new"])));
        assert_eq!(late.beside(&pem(&["old"]), &both, start), both, "it would be written back and forth");
        assert_eq!(early.beside(&pem(&["new"]), &both, start + KEEP_FOREIGN_FOR / 2), both);

        let after = early.beside(&pem(&["new"]), &both, start + KEEP_FOREIGN_FOR);
        assert_eq!(after, pem(&["new"]));
        assert_eq!(late.beside(&pem(&["new"]), &after, start + KEEP_FOREIGN_FOR), after);
    }

    #[test]
    fn a_removed_authority_that_returns_is_kept_again() {
        let start = Instant::now();
        let mut others = Others::default();
        others.beside(&pem(&["a"]), &pem(&["b"]), start);
        others.beside(&pem(&["a"]), &pem(&["a"]), start + KEEP_FOREIGN_FOR);

        let again = others.beside(&pem(&["a"]), &pem(&["b", "a"]), start + KEEP_FOREIGN_FOR);

        assert_eq!(again, pem(&["b", "a"]));
    }

    #[test]
    fn configurations_that_differ_get_the_same_with_each_once() {
        let differing = pem(&["old", "new", "old"]);

        let wanted = Others::default().beside(&pem(&["new"]), &differing, Instant::now());

        assert_eq!(wanted, pem(&["new", "old"]));
    }

    #[test]
    fn the_form_of_a_bundle_does_not_matter() {
        let spaced = String::from_utf8(pem(&["a"])).unwrap().replace('\n', "\r\n");

        assert!(carries(spaced.as_bytes(), &pem(&["a"])));
        assert!(!carries(b"rubbish", &pem(&["a"])));
        assert!(carries(b"rubbish", b""));
    }
}
