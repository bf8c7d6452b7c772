//! Watches: from a resourceVersion, with initial events where requested, with bookmarks, and with
//! the faults of a stream.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use futures::stream::{self, Stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    api::ApiRequest,
    kinds::{NODES, PODS},
    lists::shown,
    response::{self, ApiError},
    select::Selector,
    store::{Change, What},
    world::{Delivery, State, World},
};
use crate::tamper;

/// Interval between two bookmarks.
const BOOKMARK: Duration = Duration::from_secs(20);

struct Watching {
    world: World,
    asked: ApiRequest,
    selector: Selector,
    replica: usize,
    position: u64,
    until: Instant,
    bookmark: Option<Instant>,
    ready: VecDeque<Value>,
    held: Option<Instant>,
    /// Events of a broken rule that are delivered later.
    late: VecDeque<(Instant, Value)>,
    ended: bool,
}

/// Starts a watch.
pub fn begin(
    world: &World,
    asked: &ApiRequest,
) -> Result<impl Stream<Item = Result<Bytes, std::io::Error>> + use<>, ApiError> {
    let mut state = world.lock();
    if !state.has(asked.target.kind) {
        return Err(response::no_such_page());
    }
    let initial = asked.query.get("sendInitialEvents").is_some_and(|initial| initial == "true");
    if initial && state.no_streaming {
        return Err(response::invalid(
            asked.target.kind,
            "",
            "sendInitialEvents: Forbidden: not supported by this server",
        ));
    }
    let replicas = state.replicas.len();
    let replica = state.prng.below(replicas);
    let (reached, _) = state.reached(replica, world.elapsed());
    let from: u64 = asked.query.get("resourceVersion").and_then(|rv| rv.parse().ok()).unwrap_or(0);
    if from != 0 && from < state.store.compacted {
        state.faults.add("watch from a version that was compacted (410)");
        return Err(response::expired("too old resource version"));
    }
    let mut ready = VecDeque::new();
    let selector = asked.selector();
    let position = if from == 0 { reached } else { from };
    if initial || from == 0 {
        if reached < state.store.rv() {
            state.faults.add("list from a watch cache that lags");
        }
        for object in state.store.at(asked.target.kind, &asked.target.namespace, reached) {
            if selector.matches(&object) {
                ready.push_back(json!({"type": "ADDED", "object": shown(&object, asked.partial)}));
            }
        }
    }
    if initial {
        state.seen.add("streaming lists");
        let mut bookmark = bookmark(asked, reached);
        bookmark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        ready.push_back(bookmark);
    }
    let seconds = asked.query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(300);
    let bookmarks = asked.query.get("allowWatchBookmarks").is_some_and(|wanted| wanted == "true");
    let now = Instant::now();
    let watching = Watching {
        world: world.clone(),
        asked: asked.clone(),
        selector,
        replica,
        position,
        until: now + Duration::from_secs(seconds),
        bookmark: bookmarks.then(|| now + BOOKMARK),
        ready,
        held: None,
        late: VecDeque::new(),
        ended: false,
    };
    drop(state);
    Ok(stream::unfold(watching, |mut watching| async move {
        let event = watching.deliver().await?;
        let mut line = serde_json::to_vec(&event).unwrap_or_default();
        line.push(b'\n');
        Some((Ok(Bytes::from(line)), watching))
    }))
}

fn bookmark(asked: &ApiRequest, rv: u64) -> Value {
    let kind = asked.target.kind;
    let object = json!({
        "kind": kind.kind, "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": rv.to_string(), "name": "", "creationTimestamp": null},
    });
    json!({"type": "BOOKMARK", "object": object})
}

impl Watching {
    async fn deliver(&mut self) -> Option<Value> {
        loop {
            let mut event = self.next().await?;
            if tamper::event(&self.world, &self.asked, &mut event) {
                return Some(event);
            }
        }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            let told = self.world.clone();
            let told = told.changed().notified();
            let mut told = std::pin::pin!(told);
            told.as_mut().enable();
            let now = Instant::now();
            let is_lost = self.world.lock().is_lost(self.asked.sent);
            if is_lost {
                return None;
            }
            if self.late.front().is_some_and(|(due, _)| *due <= now) {
                let (_, event) = self.late.pop_front()?;
                match tamper::delay_again(&self.world, &event) {
                    Some(delay) => self.late.push_back((now + delay, event)),
                    None => return Some(event),
                }
                continue;
            }
            let wait = self.waits(now);
            if wait.is_none_or(|until| until <= now) {
                if let Some(event) = self.ready.pop_front() {
                    return Some(event);
                }
                if self.ended {
                    return None;
                }
            }
            let mut wake = wait.unwrap_or(self.until).max(now);
            if wait.is_none_or(|until| until <= now) {
                wake = self.until;
                if let Some(due) = self.fetch(now) {
                    wake = wake.min(due);
                }
                if !self.ready.is_empty() || self.held.is_some() || self.ended {
                    continue;
                }
                if self.until <= now {
                    return None;
                }
                if let Some(at) = self.bookmark {
                    if at <= now {
                        self.bookmark = Some(now + BOOKMARK);
                        self.ready.push_back(bookmark(&self.asked, self.position));
                        continue;
                    }
                    wake = wake.min(at);
                }
            }
            if let Some((due, _)) = self.late.front() {
                wake = wake.min(*due);
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(wake) => {}
                () = told => {}
            }
        }
    }

    /// Returns until when nothing is delivered: the operator is cut off, or an event is delayed.
    fn waits(&mut self, now: Instant) -> Option<Instant> {
        let state = self.world.lock();
        let cut = match self.asked.who {
            super::authn::User::Operator(id) => state.cut_off.get(&id).copied(),
            _ => None,
        };
        drop(state);
        if self.held.is_some_and(|held| held <= now) {
            self.held = None;
        }
        [cut.filter(|until| *until > now), self.held].into_iter().flatten().max()
    }

    /// Queues the changes that the API server has reached. Returns when it reaches the next one.
    fn fetch(&mut self, now: Instant) -> Option<Instant> {
        let world = self.world.clone();
        let mut state = world.lock();
        let (reached, due) = state.reached(self.replica, world.elapsed());
        if let (super::authn::User::Operator(id), true) = (self.asked.who, std::ptr::eq(self.asked.target.kind, &PODS))
        {
            self.ready.extend(state.tampering.pod_events.remove(&id).into_iter().flatten());
        }
        for rv in self.position + 1..=reached {
            self.position = rv;
            let change = state.store.between(rv - 1, rv).first();
            let Some(change) = change.filter(|change| std::ptr::eq(change.kind, self.asked.target.kind)).cloned()
            else {
                continue;
            };
            let Some(event) = self.event(&change) else { continue };
            if self.asked.who.is_operator() && self.disturbed(&mut state, &event, now) {
                break;
            }
            if std::ptr::eq(change.kind, &NODES) && change.what == What::Deleted && self.asked.who.is_operator() {
                let at = world.elapsed();
                state.journal.deliveries.push(Delivery { who: self.asked.who, at, rv: change.rv });
            }
            match tamper::delay(&world, &self.asked, &event) {
                Some(delay) => self.late.push_back((now + delay, event)),
                None => self.ready.push_back(event),
            }
            if self.held.is_some() {
                break;
            }
        }
        due.map(|due| world.start() + due)
    }

    /// Injects faults into an event. True: it is not delivered, and the stream ends.
    fn disturbed(&mut self, state: &mut State, event: &Value, now: Instant) -> bool {
        let fault_rates = state.fault_rates.clone();
        let who = self.asked.who;
        if state.prng.per_mille(fault_rates.cut) {
            state.fault("watch cut", who);
            self.ended = true;
            return true;
        }
        if state.prng.per_mille(fault_rates.expired) {
            state.fault("watch ended with 410, events dropped", who);
            let refusal = response::expired("too old resource version").body();
            self.ready.push_back(json!({"type": "ERROR", "object": refusal}));
            self.ended = true;
            return true;
        }
        if state.prng.per_mille(fault_rates.repeated) {
            state.fault("event repeated", who);
            self.ready.push_back(event.clone());
        }
        if state.prng.per_mille(fault_rates.delayed) {
            state.fault("event delayed", who);
            self.held = Some(now + state.prng.millis(200, 8000));
        }
        false
    }

    fn event(&self, change: &Change) -> Option<Value> {
        let target = &self.asked.target;
        let here = std::ptr::eq(change.kind, target.kind)
            && (target.namespace.is_empty() || change.namespace() == target.namespace);
        if !here {
            return None;
        }
        let was = change.before.as_ref().is_some_and(|before| self.selector.matches(before));
        let is = change.what != What::Deleted && self.selector.matches(&change.object);
        let kind = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        // An object that leaves the selection is delivered as it was before.
        let left = kind == "DELETED" && change.what != What::Deleted;
        let mut object = match &change.before {
            Some(before) if left => (**before).clone(),
            _ => (*change.object).clone(),
        };
        object["metadata"]["resourceVersion"] = json!(change.rv.to_string());
        Some(json!({"type": kind, "object": shown(&object, self.asked.partial)}))
    }
}
