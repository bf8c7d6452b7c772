use super::*;
use crate::runtime::{
    client::{Listeners, over},
    metrics::Metrics,
};

impl Dedup {
    fn normal(&mut self, about: &EventObject, reason: &'static str) -> bool {
        self.admit(about, Severity::Normal, reason, EventKind::Happens)
    }
}

fn dedup() -> Dedup {
    Dedup::new()
}

fn object(name: &str, uid: &str) -> EventObject {
    EventObject::cluster_scoped("Widget", name, uid)
}

fn workload(namespace: &str, name: &str) -> EventObject {
    let (namespace, name, uid) = (Some(namespace.to_owned()), name.to_owned(), "u".to_owned());
    EventObject { api_version: "apps/v1".into(), kind: "Deployment".into(), namespace, name, uid }
}

#[tokio::test]
async fn no_event_is_written_if_they_are_disabled() {
    let listeners = Listeners { metrics: Metrics::new(), budget: None, clock: None, health: None };
    let client = over(axum::Router::new(), "default", listeners);
    for enabled in [true, false] {
        let (events, _task) = Events::new(client.clone(), Clock::system(), enabled);
        let mut written = false;
        events.occurred(object("n1", "u1"), Severity::Normal, "Restored", || {
            written = true;
            String::new()
        });
        assert_eq!(written, enabled);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_silences_only_its_own_namespace() {
    let mut dedup = dedup();
    let loud = (0..5000).filter(|i| dedup.normal(&workload("loud", &format!("w{i}")), "Moved")).count();
    assert_eq!(loud, NAMESPACE_BURST as usize);

    assert!(dedup.normal(&workload("quiet", "w"), "Moved"));
    assert!(dedup.admit(&object("n1", "u1"), Severity::Warning, "RecordInvalid", EventKind::Happens));
}

#[tokio::test(start_paused = true)]
async fn many_namespaces_do_not_suppress_guaranteed_events() {
    let mut dedup = dedup();
    let all = (0..5000).filter(|i| dedup.normal(&workload(&format!("ns{i}"), "w"), "Moved")).count();
    assert_eq!(all, NAMESPACES_BURST as usize);
    assert!(dedup.namespaces.len() <= NAMESPACES + 1);
    // A mass of restores does not either.
    for i in 0..5000 {
        dedup.normal(&object(&format!("n{i}"), "u"), "Restored");
    }

    assert!(dedup.admit(&object("n1", "u1"), Severity::Warning, "RecordInvalid", EventKind::Happens));
}

#[tokio::test(start_paused = true)]
async fn an_occurrence_is_written_once_in_a_while() {
    let mut dedup = dedup();
    let node = object("n1", "u1");
    assert!(dedup.normal(&node, "Restored"));
    assert!(!dedup.normal(&node, "Restored"));
    assert!(dedup.normal(&node, "RecordInvalid"));
    tokio::time::advance(QUIET).await;
    assert!(dedup.normal(&node, "Restored"));
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_written_when_its_message_changes_and_not_again_while_it_lasts() {
    let mut dedup = dedup();
    let workload = object("web", "u1");
    let mut lasting =
        |words: &str| dedup.admit(&workload, Severity::Warning, "InvalidPlacement", EventKind::lasting(words));
    assert!(lasting("\"abc\" is not a number"));
    assert!(lasting("\"140\" is above 100"));
    // Two conditions that last side by side are not written again, for days.
    for _ in 0..1_000 {
        tokio::time::advance(Duration::from_mins(5)).await;
        assert!(!lasting("\"abc\" is not a number") && !lasting("\"140\" is above 100"));
    }
    tokio::time::advance(OVER).await;
    assert!(lasting("\"abc\" is not a number"), "it was otherwise for a while");
}

#[tokio::test(start_paused = true)]
async fn a_mass_event_is_not_a_mass_of_events() {
    let mut dedup = dedup();
    let count = (0..5000).filter(|i| dedup.normal(&object(&format!("n{i}"), "u"), "Restored")).count();
    assert_eq!(count, BURST as usize);
    tokio::time::advance(REFILL * 3).await;
    let count = (0..5000).filter(|i| dedup.normal(&object(&format!("m{i}"), "u"), "Restored")).count();
    assert_eq!(count, 3);
}

#[tokio::test]
async fn many_events_about_workloads_displace_none_about_nodes() {
    let (sender, mut receiver) = queues();
    for number in 0..2 * QUEUE {
        sender.send((workload("loud", &format!("w{number}")), Severity::Normal, "Moved", String::new()));
    }

    sender.send((object("n1", "u1"), Severity::Warning, "RecordInvalid", String::new()));

    assert_eq!(receiver.next().await.unwrap().0.name, "n1", "first of all");
    drop(sender);
    let mut rest = 0;
    while receiver.next().await.is_some() {
        rest += 1;
    }
    assert_eq!(rest, QUEUE);
}
