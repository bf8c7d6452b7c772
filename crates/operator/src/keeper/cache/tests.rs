//! Table tests of the cache: lists, deletions, late events, shared identities, counts and cached
//! nodes.

use perennial_core::{
    config::{Identity, Settings},
    keeper::{
        case::{Case, CaseContext},
        collect::ABSENT_SINCE,
        decide::{Decision, decide},
        mark::MARK,
        record::{RECORD_KEY, RECORD_LABEL, RECORD_LABEL_VALUE},
        status::{KeepState, NodeCounts},
    },
};
use rstest::rstest;
use serde_json::{Value, json};

use super::{entries::RecordEntry, index::Index, *};
use crate::keeper::policies::KeepPolicyResource;

fn settings(identity: Identity) -> perennial_core::config::Keeper {
    perennial_core::config::Keeper { identity, ..Settings::default().keeper }
}

fn empty() -> KeeperCache {
    KeeperCache::new(Policies::new(&settings(Identity::Name)), Signatures::none())
}

fn object(name: &str, uid: &str, version: u64, labels: &Value) -> Value {
    let metadata = json!({"name": name, "uid": uid, "resourceVersion": version.to_string(), "labels": labels});
    json!({"metadata": metadata, "spec": {"providerID": uid}})
}

fn node(name: &str, uid: &str, version: u64, labels: &Value) -> Node {
    serde_json::from_value(object(name, uid, version, labels)).unwrap()
}

fn bare(name: &str, uid: &str, version: u64) -> Node {
    node(name, uid, version, &json!({}))
}

/// Returns the ConfigMap of the record that a node is captured with.
fn record_of(node: Node, version: u64, cache: &KeeperCache) -> ConfigMap {
    let policies = cache.policies.current();
    let context = CaseContext { policies: &policies, now: jiff::Timestamp::UNIX_EPOCH, by: "test" };
    let Decision::WriteRecord(_, record) = decide(&Case::live(node.into_view(), None, Vec::new(), &context)) else {
        panic!("the node has nothing to keep")
    };
    serde_json::from_value(json!({
        "metadata": {
            "name": record.name().0, "uid": "r", "resourceVersion": version.to_string(),
            "labels": {RECORD_LABEL: RECORD_LABEL_VALUE},
        },
        "data": {RECORD_KEY: record.encode().unwrap()},
    }))
    .unwrap()
}

fn list(cache: &KeeperCache, nodes: Vec<Node>, records: Vec<ConfigMap>) -> ReconcileRequests {
    cache.on_node(Event::Init);
    for node in nodes {
        cache.on_node(Event::InitApply(node));
    }
    cache.on_node(Event::InitDone);
    cache.on_record(Event::Init);
    for record in records {
        cache.on_record(Event::InitApply(record));
    }
    cache.on_record(Event::InitDone)
}

/// Returns a cache that has listed a captured node `n1` and its record.
fn synced() -> KeeperCache {
    let cache = empty();
    cache.set_policies_known();
    let captured = node("n1", "u1", 5, &json!({"team": "ml"}));
    let record = record_of(captured.clone(), 6, &cache);
    let requests = list(&cache, vec![captured], vec![record]);
    assert!(requests.is_empty(), "{requests:?}");
    cache
}

/// Puts exactly these policies in force.
fn set_policies(cache: &KeeperCache, policies: &[(&str, Value)]) {
    cache.policies.on_event(Event::Init);
    for (name, spec) in policies {
        let mut policy = KeepPolicyResource::default();
        policy.metadata.name = Some((*name).to_owned());
        policy.spec.0 = spec.clone();
        cache.policies.on_event(Event::InitApply(policy));
    }
    cache.policies.on_event(Event::InitDone);
    cache.set_policies_known();
}

fn requests(pairs: &[(&str, Priority)]) -> ReconcileRequests {
    pairs.iter().map(|(name, priority)| (NodeKey::from(*name), *priority)).collect()
}

#[test]
fn nothing_is_requested_before_both_lists_and_the_policies_are_complete() {
    let cache = empty();
    let labelled = || node("n1", "u1", 5, &json!({"team": "ml"}));
    cache.on_node(Event::Init);
    assert!(cache.on_node(Event::InitApply(labelled())).is_empty());
    assert!(cache.on_node(Event::InitDone).is_empty() && !cache.is_synced());
    cache.on_record(Event::Init);
    assert!(cache.on_record(Event::InitDone).is_empty() && !cache.is_synced(), "the policies are not known");

    cache.set_policies_known();

    assert!(cache.is_synced());
    assert_eq!(cache.everything(), requests(&[("n1", Priority::Capture)]));
}

#[rstest]
#[case::unchanged(node("n1", "u1", 7, &json!({"team": "ml"})), &[])]
#[case::changed(node("n1", "u1", 7, &json!({"team": "db"})), &[("n1", Priority::Capture)])]
#[case::an_older_state(node("n1", "u1", 4, &json!({"team": "db"})), &[])]
#[case::recreated(bare("n1", "u2", 7), &[("n1", Priority::Restore)])]
#[case::new_with_labels(node("n2", "u2", 7, &json!({"team": "ml"})), &[("n2", Priority::Capture)])]
#[case::new_without_labels(bare("n2", "u2", 7), &[("n2", Priority::Collect)])]
fn an_event_requests_work_only_where_it_may_be_needed(#[case] event: Node, #[case] expected: &[(&str, Priority)]) {
    assert_eq!(synced().on_node(Event::Apply(event)), requests(expected));
}

#[test]
fn a_relist_drops_nodes_and_records_that_are_gone() {
    let cache = synced();
    list(&cache, vec![bare("n2", "u2", 9)], Vec::new());
    assert!(!cache.contains_node("n1") && cache.contains_node("n2"));
    assert_eq!(cache.next_last("n1").map(|node| node.uid), None, "its last state is not known");
    assert_eq!(cache.survey().records, 0);
}

#[test]
fn a_deletion_holds_the_last_state_until_it_is_written() {
    let cache = synced();
    let deleted = cache.on_node(Event::Delete(node("n1", "u1", 9, &json!({"team": "db"}))));
    assert_eq!(deleted, requests(&[("n1", Priority::LastState)]));
    assert!(!cache.contains_node("n1"));
    assert_eq!(cache.next_last("n1").map(|node| node.resource_version), Some(9));
    cache.finish_last("n1", "other");
    assert!(cache.next_last("n1").is_some());
    cache.finish_last("n1", "u1");
    assert!(cache.next_last("n1").is_none());
}

#[test]
fn a_removal_follows_the_last_state_that_is_still_to_be_written() {
    let cache = empty();
    cache.set_policies_known();
    list(&cache, Vec::new(), Vec::new());
    cache.on_node(Event::Delete(bare("n1", "u1", 5)));
    assert_eq!(cache.next_last("n1"), None, "without a record and without keys there is nothing to write");
    cache.on_node(Event::Delete(node("n1", "u2", 7, &json!({"team": "ml"}))));
    cache.on_node(Event::Delete(bare("n1", "u3", 9)));

    let pending = cache.pending_for(&RecordName("node-n1".to_owned()), "n1");
    assert_eq!(pending.iter().map(|state| &*state.uid).collect::<Vec<_>>(), ["u2", "u3"]);
}

#[test]
fn a_last_state_stays_behind_one_that_the_record_lacks() {
    let cache = synced();
    cache.on_node(Event::Delete(node("n1", "u1", 9, &json!({"team": "db"}))));
    cache.on_node(Event::Delete(node("n1", "u2", 12, &json!({"team": "ml"}))));
    assert_eq!(cache.pending().states, 2);

    cache.on_record(Event::Apply(record_of(node("n1", "u1", 6, &json!({"team": "ml"})), 13, &cache)));

    assert_eq!(cache.pending().states, 2, "the record equals the second one, but not the first");
}

#[test]
fn a_last_state_is_dropped_when_its_record_has_caught_up() {
    let cache = synced();
    cache.on_node(Event::Delete(node("n1", "u1", 9, &json!({"team": "db"}))));
    assert_eq!(cache.pending().states, 1);
    cache.on_record(Event::Apply(record_of(node("n1", "u1", 8, &json!({"team": "web"})), 10, &cache)));
    assert_eq!(cache.pending().states, 1, "the record is older");

    // Another replica, or admission, has written it.
    cache.on_record(Event::Apply(record_of(node("n1", "u1", 9, &json!({"team": "db"})), 11, &cache)));

    assert_eq!(cache.pending(), Pending::default());
    assert!(cache.next_last("n1").is_none());
}

#[test]
fn a_deletion_of_an_earlier_incarnation_leaves_the_entry_of_the_next() {
    let gate = json!({"key": "perennial.dev/restoring", "effect": "NoSchedule"});
    let mut gated = object("n1", "u2", 9, &json!({}));
    gated["spec"]["taints"] = json!([gate]);
    let cache = synced();
    cache.learn_node(&serde_json::from_value::<Node>(gated).unwrap().into_view());
    assert!(cache.waits_since("n1").is_some() && !cache.overdue(Duration::ZERO).is_empty());

    cache.on_node(Event::Delete(node("n1", "u1", 8, &json!({"team": "ml"}))));

    assert!(cache.waits_since("n1").is_some(), "the next incarnation still waits for its restore");
    assert_eq!(cache.overdue(Duration::ZERO), [NodeKey::from("n1")], "and is still gated");
    assert!(cache.take_hot("n1").is_some(), "and its labels are cached");
}

/// A response that was on its way when the list was made.
#[test]
fn a_response_during_a_relist_leaves_no_ghost() {
    let cache = synced();
    let late = record_of(node("n1", "u1", 5, &json!({"team": "ml"})), 6, &cache);
    cache.on_node(Event::Init);
    cache.on_record(Event::Init);
    // Both were deleted while the watches were down.
    cache.learn_node(&node("n1", "u1", 7, &json!({"team": "db"})).into_view());
    cache.learn_node(&node("other", "u3", 6, &json!({"team": "db"})).into_view());
    cache.learn_record(&LoadedRecord::new(late, &Signatures::none()));
    // A new incarnation is in the list, and an earlier one in a late response.
    cache.on_node(Event::InitApply(bare("n2", "u2", 9)));
    cache.learn_node(&node("n2", "u0", 4, &json!({"team": "db"})).into_view());
    cache.on_node(Event::InitDone);
    cache.on_record(Event::InitDone);

    assert!(!cache.contains_node("n1") && !cache.contains_node("other"));
    assert_eq!((cache.survey().records, cache.rows().len()), (0, 1), "n2 alone");
    assert!(cache.on_node(Event::Apply(bare("n2", "u2", 9))).is_empty(), "the listed incarnation is cached");
    cache.on_node(Event::Delete(bare("n2", "u2", 10)));
    assert!(!cache.contains_node("n2"));
}

#[test]
fn a_deletion_of_a_recorded_state_needs_no_write() {
    let cache = synced();
    assert!(cache.on_node(Event::Delete(node("n1", "u1", 9, &json!({"team": "ml"})))).is_empty());
    assert!(cache.next_last("n1").is_none());
    let recalled = cache.recall_for_create("n1").unwrap();
    assert_eq!(recalled.node.uid, "u1", "its successor may be given the last state");
}

#[test]
fn a_deletion_of_another_incarnation_leaves_the_node() {
    let cache = synced();
    cache.on_node(Event::Apply(bare("n1", "u2", 9)));
    cache.on_node(Event::Delete(node("n1", "u1", 8, &json!({"team": "ml"}))));
    assert!(cache.contains_node("n1"));
}

#[test]
fn a_late_response_does_not_bring_a_deleted_node_back() {
    let cache = empty();
    let old = bare("old", "1", 7).into_view();
    cache.on_node(Event::Init);
    cache.learn_node(&bare("early", "1", 2).into_view());
    assert!(cache.contains_node("early"), "the list that is being delivered may contain it");
    cache.on_node(Event::InitApply(bare("old", "1", 7)));
    cache.on_node(Event::InitDone);
    cache.on_node(Event::Delete(bare("old", "1", 9)));

    cache.learn_node(&old);
    assert!(!cache.contains_node("old"));

    // Its successor is not replaced by it either.
    cache.on_node(Event::Apply(bare("old", "2", 10)));
    cache.reconsider(&old);
    assert!(cache.lock().index.node("old").is_some_and(|entry| entry.fingerprint.is_of("2")));

    cache.learn_node(&bare("new", "3", 11).into_view());
    assert!(cache.contains_node("new"), "the watch has not delivered it yet");
}

#[test]
fn a_late_response_does_not_bring_a_deleted_record_back() {
    let cache = synced();
    let record = record_of(node("n1", "u1", 5, &json!({"team": "ml"})), 6, &cache);
    let mut deleted = record.clone();
    deleted.metadata.resource_version = Some("8".to_owned());
    assert_eq!(cache.on_record(Event::Delete(deleted)), requests(&[("n1", Priority::Capture)]));
    assert!(cache.learn_record(&LoadedRecord::new(record, &Signatures::none())).is_empty());
    assert_eq!(cache.survey().records, 0);
}

#[test]
fn a_record_that_arrives_late_revives_the_last_state_that_is_newer() {
    let cache = synced();
    cache.on_node(Event::Delete(node("n1", "u1", 9, &json!({"team": "ml"}))));
    let older = record_of(node("n1", "u1", 5, &json!({"team": "older"})), 10, &cache);
    assert_eq!(cache.on_record(Event::Apply(older)), requests(&[("n1", Priority::LastState)]));
}

#[test]
fn names_are_stored_once() {
    let cache = synced();
    let state = cache.lock();
    let (name, entry) = state.index.nodes.get_key_value("n1").unwrap();
    let (record, stored) = state.index.records.get_key_value("node-n1").unwrap();
    assert!(Arc::ptr_eq(&stored.node, name));
    assert!(Arc::ptr_eq(&state.index.key("n1"), name) && Arc::ptr_eq(&state.index.record_key("node-n1"), record));
    assert_eq!(entry.record.as_ref(), Some(record));
}

#[test]
fn nodes_with_one_identity_are_rivals_until_one_is_deleted() {
    let cache = KeeperCache::new(Policies::new(&settings(Identity::ProviderId)), Signatures::none());
    cache.set_policies_known();
    let first = node("a", "p", 5, &json!({"team": "ml"}));
    let record = record_of(first.clone(), 6, &cache);
    let name = RecordName(record.metadata.name.clone().unwrap());
    list(&cache, vec![first, bare("b", "p", 7)], vec![record]);

    let rivals = cache.rivals(&name, Some("p"), "b");
    assert_eq!(rivals, [Rival { name: "a".to_owned(), holds_record: true }]);
    assert_eq!(cache.rivals(&name, None, "b"), [Rival { name: "a".to_owned(), holds_record: false }]);

    let deleted = cache.on_node(Event::Delete(node("a", "p", 9, &json!({"team": "ml"}))));
    assert_eq!(deleted, requests(&[("b", Priority::Restore)]), "it may be the only one now");
    assert!(cache.rivals(&name, None, "b").is_empty());
}

#[test]
fn a_last_state_under_another_name_is_found_by_its_record() {
    let cache = KeeperCache::new(Policies::new(&settings(Identity::ProviderId)), Signatures::none());
    cache.set_policies_known();
    list(&cache, vec![node("a", "p", 5, &json!({"team": "ml"}))], Vec::new());
    cache.on_node(Event::Delete(node("a", "p", 9, &json!({"team": "ml"}))));
    cache.on_node(Event::Apply(bare("b", "p", 10)));
    assert_eq!(cache.left_as("b").as_deref(), Some("a"));
    assert_eq!(cache.left_as("a"), None);
}

#[test]
fn the_survey_counts_nodes_and_records_by_state() {
    let cache = synced();
    for event in [
        bare("bare", "u2", 10),
        node("changed", "u3", 11, &json!({"team": "ml"})),
        node("ignored", "u4", 12, &json!({"team": "ml", "perennial.dev/ignore": "true"})),
    ] {
        cache.on_node(Event::Apply(event));
    }
    let absent = record_of(node("absent", "u5", 5, &json!({"team": "ml"})), 13, &cache);
    let returned = record_of(node("returned", "u6", 5, &json!({"team": "ml"})), 14, &cache);
    cache.on_record(Event::Apply(absent));
    cache.on_record(Event::Apply(returned));
    cache.on_node(Event::Apply(bare("returned", "u7", 15)));
    let mut bad = record_of(node("bad", "u8", 5, &json!({"team": "ml"})), 16, &cache);
    bad.data = Some([(RECORD_KEY.to_owned(), "{}".to_owned())].into());
    cache.on_record(Event::Apply(bad));

    let mut nodes = NodeCounts::default();
    for state in [KeepState::Current, KeepState::NoRecord, KeepState::Pending, KeepState::Unsettled, KeepState::Ignored]
    {
        nodes.add(state);
    }
    let expected = Survey { nodes, records: 4, bad_records: 1, absent: 2, ..Survey::default() };
    assert_eq!(cache.survey(), expected);
    assert_eq!(cache.survey(), expected, "the second answer is remembered");
    let state_of = |name: &str| cache.rows().into_iter().find(|row| *row.name == *name).map(|row| row.state);
    assert_eq!(state_of("returned"), Some(KeepState::Unsettled));
    assert_eq!(state_of("absent"), Some(KeepState::Away));
}

#[test]
fn a_node_that_waits_for_its_restore_is_cached_and_taken_once() {
    let cache = synced();
    cache.on_node(Event::Apply(bare("n1", "u2", 9)));
    assert!(cache.waits_since("n1").is_some());
    assert_eq!(cache.take_hot("n1").map(|node| node.uid).as_deref(), Some("u2"));
    assert!(cache.take_hot("n1").is_none());
}

#[test]
fn a_cached_node_is_dropped_once_it_is_deleted() {
    let cache = synced();
    cache.on_node(Event::Apply(bare("n1", "u2", 9)));
    cache.on_node(Event::Delete(bare("n1", "u2", 10)));
    assert!(cache.take_hot("n1").is_none() && cache.waits_since("n1").is_none());
}

#[test]
fn a_node_found_clean_needs_nothing_until_it_or_its_record_changes() {
    let cache = synced();
    // A mark that is not complete: hashes cannot tell.
    let marked = |version: u64| {
        let mut value = object("n1", "u2", version, &json!({"team": "ml"}));
        value["metadata"]["annotations"] = json!({MARK: "{\"complete\":false}"});
        serde_json::from_value::<Node>(value).unwrap()
    };
    assert_eq!(cache.on_node(Event::Apply(marked(9))), requests(&[("n1", Priority::Restore)]));
    let record = record_of(node("n1", "u1", 5, &json!({"team": "ml"})), 6, &cache);
    let held = LoadedRecord::new(record, &Signatures::none());

    cache.note_clean(&NodeKey::from("n1"), &marked(9).into_view(), Some(&held));

    assert!(cache.everything().is_empty());
    assert!(cache.on_node(Event::Apply(marked(10))).is_empty());
    let newer = record_of(node("n1", "u1", 5, &json!({"team": "ml"})), 11, &cache);
    assert_eq!(cache.on_record(Event::Apply(newer)), requests(&[("n1", Priority::Restore)]));
}

#[test]
fn a_noted_absence_of_a_live_node_is_to_be_cleared() {
    let cache = synced();
    let mut noted = record_of(node("n1", "u1", 5, &json!({"team": "ml"})), 8, &cache);
    noted.metadata.annotations = Some([(ABSENT_SINCE.to_owned(), "2026-01-01T00:00:00Z".to_owned())].into());
    assert_eq!(cache.on_record(Event::Apply(noted)), requests(&[("n1", Priority::Collect)]));
}

/// Of the records of absent nodes, all but the most recent ones are cached as hashes of their
/// names. When a node returns, its record is read.
#[test]
fn the_record_of_a_node_that_was_absent_for_long_is_read_when_it_returns() {
    const ABSENT: usize = 3 * absent_records::RECENT;
    let cache = empty();
    cache.set_policies_known();
    let captured = node("n1", "u1", 5, &json!({"team": "ml"}));
    let live = record_of(captured.clone(), 6, &cache);
    let old = |i: usize| {
        let version = 100 + u64::try_from(i).unwrap();
        record_of(node(&format!("old-{i}"), &format!("u-{i}"), version, &json!({"team": "ml"})), version + 1, &cache)
    };
    let records: Vec<ConfigMap> = (0..ABSENT).map(old).collect();

    list(&cache, vec![captured], std::iter::once(live).chain(records.iter().cloned()).collect());

    let entries = || cache.lock().index.records.len();
    assert!(entries() <= 1 + 2 * absent_records::RECENT, "{}", entries());
    let survey = cache.survey();
    assert_eq!((survey.records, survey.absent), (ABSENT + 1, ABSENT));
    assert_eq!(cache.record_name_of("old-0"), Some(RecordName("node-old-0".to_owned())));

    // It returns without its labels.
    let returned = bare("old-0", "new", 900_000);
    assert_eq!(cache.on_node(Event::Apply(returned.clone())), [(Arc::from("old-0"), Priority::Restore)]);
    assert_eq!(cache.known_record("old-0"), Some(RecordName("node-old-0".to_owned())));
    let (read, key) = (LoadedRecord::new(records[0].clone(), &Signatures::none()), Arc::from("old-0"));
    cache.remember(&read);
    assert!(cache.lock().index.record("node-old-0").is_some());
    cache.note_clean(&key, &returned.into_view(), Some(&read));
    assert_eq!(cache.everything(), []);

    // One that is deleted is forgotten, and a node of its name has no record.
    cache.on_record(Event::Delete(records[1].clone()));
    assert_eq!(cache.survey().records, ABSENT);
    assert_eq!(cache.on_node(Event::Apply(bare("old-1", "other", 900_001))), requests(&[("old-1", Priority::Collect)]));
    cache.note_clean(&Arc::from("old-1"), &bare("old-1", "other", 900_001).into_view(), None);
    assert_eq!(cache.known_record("old-1"), None, "looked up once");

    // A list contains fewer of them.
    list(&cache, vec![bare("old-0", "new", 900_000)], records[..2].to_vec());
    assert_eq!(cache.survey().records, 2);
    assert_eq!(cache.record_name_of("old-2"), None);
}

/// Names are addresses that other machines reuse. A move leaves a copy of the record of the same
/// machine.
#[test]
fn the_record_of_another_machine_of_the_same_name_is_no_copy() {
    let cache = KeeperCache::new(Policies::new(&settings(Identity::ProviderId)), Signatures::none());
    cache.set_policies_known();
    let captured = |uid: &str, version| node("n1", uid, version, &json!({"team": "ml"}));
    let first = record_of(captured("u1", 5), 6, &cache);
    list(&cache, Vec::new(), vec![first.clone(), record_of(captured("u2", 8), 9, &cache)]);
    let first = LoadedRecord::new(first, &Signatures::none());
    assert!(cache.is_only_copy(&first));

    cache.on_record(Event::Apply(record_of(captured("u1", 5), 10, &empty())));

    assert!(!cache.is_only_copy(&first));
}

/// Entries are dropped in batches, since each search for them looks at every record. Records that
/// must keep their entry, as those without a signature, must not make every further one that slow.
#[test]
fn entries_of_absent_records_are_dropped_in_batches() {
    const RECENT: usize = absent_records::RECENT;
    const UNSIGNED: usize = 2 * RECENT + 1;
    let mut index = Index::default();
    index.end_nodes();
    let config_map = record_of(node("n1", "u1", 5, &json!({"team": "ml"})), 6, &empty());
    let held = LoadedRecord::new(config_map, &Signatures::none());
    let mut most = 0;
    for i in 0..UNSIGNED + 3 * RECENT {
        index.put_record(&format!("node-{i}"), RecordEntry { unsigned: i < UNSIGNED, ..RecordEntry::new(&held) });
        index.trim_now_and_then();
        most = most.max(index.records.len() - UNSIGNED.min(i + 1));
    }
    assert!(most > RECENT + RECENT / 2 && most <= 2 * RECENT, "{most} entries beside those that stay");
}

const OWNER: &str = "example.com/owner";

fn annotated(name: &str, uid: &str, version: u64) -> Node {
    let mut value = object(name, uid, version, &json!({"kind": "gpu"}));
    value["metadata"]["annotations"] = json!({OWNER: "ada"});
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_node_that_leaves_before_the_policies_are_known_keeps_its_annotations() {
    let cache = empty();
    list(&cache, vec![annotated("n1", "u1", 5)], Vec::new());

    cache.on_node(Event::Delete(annotated("n1", "u1", 6)));

    let owner = |name: &str| cache.next_last(name).and_then(|node| node.annotations.get(OWNER).cloned());
    assert_eq!(owner("n1").as_deref(), Some("ada"), "a policy that is not read yet may keep it");

    let gpu = json!({"nodeSelector": {"matchLabels": {"kind": "gpu"}}, "annotations": [OWNER]});
    set_policies(&cache, &[("gpu", gpu)]);
    set_policies(&cache, &[]);
    cache.on_node(Event::Delete(annotated("n2", "u2", 7)));
    assert_eq!(owner("n2").as_deref(), Some("ada"), "the policy may be missing for a while only");
}

#[test]
fn a_last_state_is_filed_under_the_record_of_its_node() {
    let cache = empty();
    let by_machine = json!({"nodeSelector": {"matchLabels": {"kind": "gpu"}}, "identity": "providerID"});
    set_policies(&cache, &[("gpu", by_machine.clone())]);
    let captured = node("a", "p", 5, &json!({"kind": "gpu", "team": "ml"}));
    let record = record_of(captured.clone(), 6, &cache);
    list(&cache, vec![captured], vec![record]);

    // It returned without the label that selects its policy, and leaves again.
    cache.on_node(Event::Delete(node("a", "p", 9, &json!({"team": "web"}))));
    cache.on_node(Event::Apply(node("b", "p", 10, &json!({"kind": "gpu"}))));

    assert_eq!(cache.left_as("b").as_deref(), Some("a"), "its record is that of the machine");
}

#[test]
fn a_last_state_from_before_the_policies_were_known_is_filed_again() {
    let cache = empty();
    list(&cache, Vec::new(), Vec::new());
    cache.on_node(Event::Delete(node("a", "p", 9, &json!({"kind": "gpu", "team": "web"}))));
    let by_machine = json!({"nodeSelector": {"matchLabels": {"kind": "gpu"}}, "identity": "providerID"});

    set_policies(&cache, &[("gpu", by_machine)]);

    cache.on_node(Event::Apply(node("b", "p", 10, &json!({"kind": "gpu"}))));
    assert_eq!(cache.left_as("b").as_deref(), Some("a"));
}

#[test]
fn a_record_that_is_deleted_while_the_watch_is_interrupted_is_reported() {
    let cache = synced();
    let away = |name: &str, version| record_of(node(name, name, 5, &json!({"team": "ml"})), version, &cache);
    for (name, version) in [("lost", 7), ("collected", 8), ("stays", 9)] {
        cache.on_record(Event::Apply(away(name, version)));
    }
    let live = record_of(node("n1", "u1", 5, &json!({"team": "ml"})), 6, &cache);
    let relist = |records: Vec<ConfigMap>| {
        cache.on_record(Event::Init);
        for record in records {
            cache.on_record(Event::InitApply(record));
        }
        cache.on_own_deletions(&["node-collected".to_owned(), "node-stays".to_owned()]);
        cache.on_record(Event::InitDone);
        cache.take_lost()
    };

    let lost = relist(vec![away("stays", 9)]);

    let expected = LostRecord { record: Arc::from("node-lost"), node: Arc::from("lost") };
    assert_eq!(lost, LostRecords { records: vec![expected], others: 0 }, "the live node will be captured again");
    assert!(cache.lock().index.has_record("node-stays"), "it was created again");
    assert_eq!(relist(vec![live, away("stays", 9)]), LostRecords::default(), "reported once");
}

#[test]
fn a_last_state_that_arrived_during_the_read_stays() {
    let cache = synced();
    let known = cache.newest_last_state("n1");
    let read = node("n1", "u1", 5, &json!({"team": "ml"})).into_view();
    cache.on_node(Event::Delete(node("n1", "u1", 10, &json!({"team": "web"}))));

    cache.drop_lost_history(&read, known);

    assert_eq!(cache.pending_names().len(), 1);
}
