use perennial_core::keeper::{keys::Key as KeptKey, mark::MARK};

use super::*;

fn activity() -> Activity {
    Activity::new(Clock::from_fn(|| Timestamp::UNIX_EPOCH), 3)
}

fn node(uid: &str, given: &[(&str, &str)]) -> selection::Node {
    let mut annotations = BTreeMap::new();
    if !given.is_empty() {
        let given = given.iter().map(|(k, v)| (KeptKey::label(k), (*v).to_owned())).collect();
        annotations.insert(MARK.to_owned(), Mark { given, ..Mark::default() }.render());
    }
    selection::Node { name: "n1".into(), uid: uid.into(), annotations, ..selection::Node::default() }
}

fn kinds(activity: &Activity) -> Vec<(ActivityKind, usize)> {
    let mut kinds: Vec<(ActivityKind, usize)> = activity.recent().map(|h| (h.what, h.keys)).collect();
    kinds.reverse();
    kinds
}

#[test]
fn a_listed_node_is_no_event() {
    let (mut activity, key) = (activity(), NodeKey::from("n1"));
    activity.on_node(&key, (&node("u1", &[("team", "ml")]), None), true, false);
    assert!(kinds(&activity).is_empty());
    assert_eq!(activity.churn.now, ActivityCounts::default());
}

#[test]
fn a_restore_is_published_once_for_each_incarnation() {
    let (mut activity, key) = (activity(), NodeKey::from("n1"));
    let mut listener = activity.listen();
    activity.on_node(&key, (&node("u1", &[]), None), true, true);
    activity.on_node(&key, (&node("u1", &[("team", "ml")]), None), true, true);
    activity.on_node(&key, (&node("u1", &[("team", "ml")]), None), true, true);
    activity.on_node_deleted(&key);
    // The webhook restores it in the create request.
    activity.on_node(&key, (&node("u2", &[("team", "ml")]), None), true, true);
    let expected = [
        (ActivityKind::Returned, 0),
        (ActivityKind::Restored, 1),
        (ActivityKind::Left, 0),
        (ActivityKind::Returned, 0),
        (ActivityKind::Restored, 1),
    ];
    assert_eq!(kinds(&activity), expected);
    assert_eq!((activity.churn.now.created, activity.churn.now.deleted, activity.churn.now.restored), (2, 1, 2));
    assert_eq!(listener.try_recv().unwrap().what, ActivityKind::Returned);
    assert_eq!(listener.try_recv().unwrap().some, ["team=ml"]);
}

#[test]
fn the_number_of_intervals_is_bounded() {
    let mut activity = activity();
    for count in 0..5 {
        activity.churn.now.created = count;
        activity.churn.end_interval();
    }
    let past: Vec<u64> = activity.churn.past.iter().map(|counts| counts.created).collect();
    assert_eq!((past.as_slice(), activity.churn.total.created), ([2, 3, 4].as_slice(), 10));
}

#[test]
fn the_number_of_events_is_bounded() {
    let (mut activity, key) = (activity(), NodeKey::from("n1"));
    for _ in 0..300 {
        activity.on_node_deleted(&key);
    }
    let numbers: Vec<u64> = activity.recent().map(|event| event.number).collect();
    assert_eq!((numbers.len(), numbers[0]), (KEPT_EVENTS, 300));
}
