//! The order of a rotation, step by step and under any interleaving.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LIFETIMES: Lifetimes = Lifetimes { authority: 900, serving: 90, settle: 10, backdate: 0 };

fn names() -> Vec<String> {
    vec!["perennial.perennial-system.svc".to_owned()]
}

fn authority(id: &str, issued: i64, lifetimes: &Lifetimes) -> Authority {
    Authority {
        id: id.to_owned(),
        certificate: format!("cert {id}\n"),
        key: Some(format!("key {id}")),
        issued,
        expires: issued + lifetimes.authority,
        confirmed: false,
        revoked: false,
    }
}

fn serving(authority: &Authority, now: i64, lifetimes: &Lifetimes) -> Serving {
    Serving {
        authority: authority.id.clone(),
        certificate: String::new(),
        key: String::new(),
        issued: now,
        expires: serving_expires(lifetimes, authority, now),
        names: names(),
    }
}

fn created(now: i64) -> Certificates {
    let first = authority("a", now, &LIFETIMES);
    let serving = serving(&first, now, &LIFETIMES);
    Certificates { version: VERSION, serving, authorities: vec![first], rotation: None }
}

fn next_of(kept: &Certificates, now: i64, known: i64) -> Next {
    next(Some(kept), &names(), &LIFETIMES, now, |_| Some(known))
}

#[test]
fn without_certificates_all_are_created() {
    assert_eq!(next(None, &names(), &LIFETIMES, 0, |_| None), Next::Create);
}

#[test]
fn new_certificates_are_confirmed_once() {
    let kept = created(0);

    assert_eq!(next_of(&kept, 1, 0), Next::Confirm);
    assert_eq!(next_of(&kept.confirm(), 1, 0), Next::Wait { until: 60 });
}

#[test]
fn the_serving_certificate_is_renewed_at_two_thirds() {
    let kept = created(0).confirm();

    assert_eq!(next_of(&kept, 59, 100), Next::Wait { until: 60 });
    assert_eq!(next_of(&kept, 60, 100), Next::Serve { authority: "a".to_owned() });
}

#[test]
fn a_new_name_needs_a_new_certificate() {
    let kept = created(0).confirm();
    let other = vec!["10.0.0.1".to_owned()];

    let step = next(Some(&kept), &other, &LIFETIMES, 1, |_| Some(100));

    assert_eq!(step, Next::Serve { authority: "a".to_owned() });
}

#[test]
fn a_rotation_updates_the_bundle_confirms_waits_and_then_switches() {
    let first = created(0).confirm();
    let first = {
        let a = first.authorities[0].clone();
        first.serve(serving(&a, 590, &LIFETIMES))
    };
    assert_eq!(next_of(&first, 600, 100), Next::AddAuthority);

    let added = first.with(authority("b", 600, &LIFETIMES));
    assert_eq!(next_of(&added, 600, 100), Next::Confirm);
    assert!(added.bundle().contains("cert a\ncert b\n"));

    let confirmed = added.confirm();
    assert_eq!(next_of(&confirmed, 600, 0), Next::Wait { until: 610 });
    assert_eq!(next_of(&confirmed, 600, 10), Next::Serve { authority: "b".to_owned() });

    let b = confirmed.authorities[1].clone();
    let switched = confirmed.serve(serving(&b, 610, &LIFETIMES));
    assert_eq!(switched.authorities[0].key, None, "the old one signs nothing any more");
    assert!(switched.bundle().contains("cert a"), "but is trusted until its end");

    let renewed = switched.serve(serving(&b, 890, &LIFETIMES));
    assert_eq!(next_of(&renewed, 900, 100), Next::DropExpired);
    assert!(!renewed.drop_expired(900).bundle().contains("cert a"));
}

#[test]
fn a_renewal_during_a_rotation_is_signed_by_the_old_authority() {
    let kept = created(0).confirm().with(authority("b", 600, &LIFETIMES));
    let a = kept.authorities[0].clone();
    let kept = kept.serve(serving(&a, 500, &LIFETIMES));

    assert_eq!(next_of(&kept, 700, 100), Next::Serve { authority: "a".to_owned() });
}

#[test]
fn expired_certificates_are_created_again() {
    assert_eq!(next_of(&created(0).confirm(), 5000, 100), Next::Create);
}

#[test]
fn an_expired_signer_does_not_wait_for_a_confirmation() {
    let kept = created(0).confirm().with(authority("b", 600, &LIFETIMES));

    assert_eq!(next_of(&kept, 950, 0), Next::Serve { authority: "b".to_owned() });
}

#[test]
fn unusable_content_is_refused() {
    let kept = created(0);
    let orphan = Certificates { authorities: Vec::new(), ..kept.clone() };
    let future = Certificates { version: 2, ..kept.clone() };

    assert_eq!(Certificates::read(&serde_json::to_vec(&kept).unwrap()), Some(kept));
    for broken in [serde_json::to_vec(&orphan).unwrap(), serde_json::to_vec(&future).unwrap(), b"{".to_vec()] {
        assert_eq!(Certificates::read(&broken), None);
    }
}

#[test]
fn a_rotation_on_request_ends_without_the_old_authority() {
    let kept = created(0).confirm();
    assert!(!kept.must_rotate(None));
    assert!(kept.must_rotate(Some("first")));

    let kept = kept.rotate(authority("b", 5, &LIFETIMES), Some("first"));
    assert!(!kept.must_rotate(Some("first")) && !kept.must_rotate(Some("second")), "one at a time");
    assert_eq!(kept.bundle(), "cert a\ncert b\n");
    assert_eq!(next_of(&kept, 5, 0), Next::Confirm);
    let kept = kept.confirm();
    assert!(matches!(next_of(&kept, 6, 5), Next::Wait { .. }), "the API servers load the bundle");
    assert_eq!(next_of(&kept, 16, 10), Next::Serve { authority: "b".to_owned() });
    let kept = kept.clone().serve(serving(&kept.authorities[1], 16, &LIFETIMES));
    assert_eq!(next_of(&kept, 17, 11), Next::Wait { until: 26 }, "other replicas serve the old certificate");
    assert_eq!(next_of(&kept, 26, 20), Next::DropRevoked);
    let kept = kept.drop_revoked();
    assert_eq!(kept.bundle(), "cert b\n");
    assert!(matches!(next_of(&kept, 27, 21), Next::Wait { .. }));
    assert!(!kept.must_rotate(Some("first")) && kept.must_rotate(Some("second")));
    assert_eq!(Certificates::read(&serde_json::to_vec(&kept).unwrap()), Some(kept));
}

proptest! {
    /// Replicas act at any times, with lost and late steps; the bundle in the configurations always
    /// covers what is served.
    #[test]
    fn the_served_certificate_is_always_trusted(steps in prop::collection::vec((1_i64..8, 0_usize..3, prop::bool::weighted(0.2)), 200..600)) {
        let lifetimes = Lifetimes { authority: 60, serving: 20, settle: 4, backdate: 0 };
        let mut now = 0;
        let first = authority("0", 0, &lifetimes);
        let served = serving(&first, 0, &lifetimes);
        let mut kept = Certificates { version: VERSION, serving: served, authorities: vec![first], rotation: None };
        let mut carried = kept.bundle();
        let mut known: Vec<BTreeMap<String, i64>> = vec![BTreeMap::new(); 3];
        let mut rotations = 0;

        for (wait, who, lost) in steps {
            now += wait.min(3);
            for authority in kept.authorities.iter().filter(|authority| authority.confirmed) {
                known[who].entry(authority.id.clone()).or_insert(now);
            }
            let known_for = |id: &str| known[who].get(id).map(|since| now - since);
            let step = next(Some(&kept), &names(), &lifetimes, now, known_for);
            if lost {
                continue;
            }
            let request = format!("request {}", now / 50);
            if now % 50 > 25 && kept.must_rotate(Some(&request)) {
                rotations += 1;
                kept = kept.rotate(authority(&rotations.to_string(), now, &lifetimes), Some(&request));
                continue;
            }
            kept = match step {
                Next::Create => break,
                Next::AddAuthority => { rotations += 1; kept.with(authority(&rotations.to_string(), now, &lifetimes)) }
                Next::Confirm if carried == kept.bundle() => kept.confirm(),
                Next::Confirm => { carried = kept.bundle(); kept }
                Next::Serve { authority } => {
                    let signer = kept.authority(&authority).unwrap().clone();
                    if !signer.confirmed && signer.id != kept.serving.authority {
                        let before = kept.authority(&kept.serving.authority).unwrap();
                        prop_assert!(before.expires <= now, "{} signs before it was confirmed", signer.id);
                        carried = kept.bundle();
                    }
                    kept.serve(serving(&signer, now, &lifetimes))
                }
                Next::DropExpired => { let kept = kept.drop_expired(now); carried = kept.bundle(); kept }
                Next::DropRevoked => { let kept = kept.drop_revoked(); carried = kept.bundle(); kept }
                Next::Wait { until } => { prop_assert!(until > now); kept }
            };
            let signer = kept.authority(&kept.serving.authority);
            prop_assert!(signer.is_some());
            let signer = signer.unwrap();
            prop_assert!(carried.contains(&format!("cert {}\n", signer.id)), "{} signs but is not in {carried}", signer.id);
            prop_assert!(kept.serving.expires <= signer.expires);
            prop_assert!(kept.authorities.len() <= 4);
        }
    }
}
