//! Coordination of replicas: each announces itself and acquires the shards for which it has the
//! highest rank.
//!
//! Owns the loop that watches the Leases of Perennial's namespace, executes the decisions of
//! [`perennial_core::coordination::lease`] and [`perennial_core::coordination::members`], and moves
//! the windows of [`Ownership`].
//!
//! Leases, all labelled `perennial.dev/group=GROUP` (GROUP is `perennial`, unless roles run in
//! separate processes):
//! - `GROUP-member-IDENTITY`, labelled `perennial.dev/member=v1`: an announcement, deleted on a
//!   graceful stop;
//! - `GROUP-shard-I`, labelled `perennial.dev/shard=v1`; with one shard its only Lease is named
//!   `GROUP`: plain leader election.
//!
//! # Guarantees
//! Handover on a graceful stop is immediate; after a crash it takes the lease and at most 2 s. A
//! shard is given away only after the last work on it has ended.

use super::error_chain::Chain;
use super::lease::{LeaseError, Leases, object, state};
use super::lease_metadata::{Coordination, GROUP, LeaseKind, announcement, shard_lease, since};
use super::ownership::Ownership;
use super::watch::{is_expired, message};
use super::watch_backoff::WatchBackoff;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher;
use perennial_core::coordination::lease::{Election, ElectionStep, Intent, LeaseState, LeaseWrite, Terms, WriteKind};
use perennial_core::coordination::members::Roster;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// First pause after a failed watch of Leases. The longest one is the duration of a Lease.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Returns the ownership, and the task that updates it until `stop`, then hands over every shard
/// and ends.
pub fn coordinate(settings: Coordination, stop: CancellationToken) -> (Ownership, impl Future<Output = ()> + Send) {
    let ownership = Ownership::none(settings.shards);
    let coordinator = Coordinator::new(settings, ownership.clone());
    (ownership, coordinator.run(stop))
}

/// A Lease that this process holds or competes for.
struct Candidacy {
    kind: LeaseKind,
    name: String,
    election: Election,
    last: Option<Lease>,
    busy: bool,
    not_before: Duration,
    held: bool,
}

enum RequestOutcome {
    Read { sent: Duration, result: Result<Option<Lease>, LeaseError> },
    Written { write: WriteKind, sent: Duration, result: Result<Lease, LeaseError> },
}

type LeaseRequests = FuturesUnordered<BoxFuture<'static, (usize, RequestOutcome)>>;

struct Coordinator {
    settings: Coordination,
    terms: Terms,
    leases: Leases,
    ownership: Ownership,
    roster: Roster,
    candidacies: Vec<Candidacy>,
    by_name: BTreeMap<String, usize>,
    announcements: BTreeMap<String, Lease>,
    relist: BTreeSet<String>,
    requests: LeaseRequests,
    /// Leases of dead members that are being deleted.
    deletions: FuturesUnordered<BoxFuture<'static, ()>>,
    leaving: bool,
    failing: bool,
    start: Instant,
}

impl Coordinator {
    fn new(settings: Coordination, ownership: Ownership) -> Self {
        let terms = Terms::new(settings.lease);
        let candidacy = |kind, name: String| Candidacy {
            kind,
            name,
            election: Election::new(settings.identity.clone(), terms),
            last: None,
            busy: false,
            not_before: Duration::ZERO,
            held: false,
        };
        let member = candidacy(LeaseKind::Member, format!("{}-member-{}", settings.group, settings.identity));
        let shards = ownership.shards();
        let candidacies: Vec<Candidacy> = std::iter::once(member)
            .chain(
                (0..shards)
                    .map(|shard| candidacy(LeaseKind::Shard(shard), shard_lease(&settings.group, shard, shards))),
            )
            .collect();
        Self {
            terms,
            leases: Leases::new(settings.client.clone(), &settings.namespace, terms.request),
            roster: Roster::new(settings.identity.clone(), shards, terms),
            by_name: candidacies.iter().enumerate().map(|(i, candidacy)| (candidacy.name.clone(), i)).collect(),
            candidacies,
            ownership,
            announcements: BTreeMap::new(),
            relist: BTreeSet::new(),
            requests: FuturesUnordered::new(),
            deletions: FuturesUnordered::new(),
            leaving: false,
            failing: false,
            start: Instant::now(),
            settings,
        }
    }

    async fn run(mut self, stop: CancellationToken) {
        let mut events = std::pin::pin!(self.events());
        let mut backoff = WatchBackoff::new(FIRST_PAUSE, self.terms.lease);
        let (identity, shards) = (&self.settings.identity, self.ownership.shards());
        info!(identity, shards, "joining the election");
        while !stop.is_cancelled() {
            let wake = self.advance();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                Some(event) = async { backoff.wait().await; events.next().await } => match event {
                    Ok(event) => {
                        backoff.delivered(&event);
                        self.event(event);
                    }
                    Err(error) => {
                        backoff.failed(None);
                        debug!(why = message(&error), "watch of Leases interrupted, retrying");
                        if is_expired(&error) {
                            events.set(self.events());
                        }
                    }
                },
                Some((index, outcome)) = self.requests.next() => self.outcome(index, outcome),
                Some(()) = self.deletions.next() => {}
                () = tokio::time::sleep_until(self.start + wake) => {}
            }
        }
        self.leave().await;
    }

    fn events(&self) -> impl Stream<Item = watcher::Result<watcher::Event<Lease>>> + use<> {
        let selector = format!("{GROUP}={}", self.settings.group);
        // Short, so that a dead connection is noticed soon.
        let config = watcher::Config::default().labels(&selector).timeout(30);
        watcher(self.leases.api().clone(), config)
    }

    /// Releases every Lease at once and deletes the announcement. Bounded: a Lease whose
    /// release gets no response expires.
    async fn leave(mut self) {
        let latest = Instant::now() + self.terms.act;
        self.leaving = true;
        self.roster.leave();
        loop {
            let wake = self.advance();
            let holds = self.candidacies.iter().any(|candidacy| candidacy.busy || candidacy.election.is_named());
            if !holds || Instant::now() >= latest {
                break;
            }
            tokio::select! {
                biased;
                Some((index, outcome)) = self.requests.next() => self.outcome(index, outcome),
                () = tokio::time::sleep_until((self.start + wake).min(latest)) => {}
            }
        }
        info!(identity = self.settings.identity, "left the election");
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Starts every request that is due, publishes the owned shards, and returns the time of the
    /// next call.
    fn advance(&mut self) -> Duration {
        let now = self.now();
        self.roster.set_impaired(!(self.settings.impairments)().is_empty());
        let mut wake = self.roster.next_change(now).unwrap_or(now + self.terms.lease);
        for index in 0..self.candidacies.len() {
            let intent = match self.candidacies[index].kind {
                _ if self.leaving => Intent::NONE,
                LeaseKind::Member => Intent::HOLD,
                LeaseKind::Shard(shard) => self.roster.intent(now, shard),
            };
            let until_before = self.candidacies[index].election.act_until();
            let candidacy = &mut self.candidacies[index];
            candidacy.election.set_intent(intent);
            if !candidacy.busy {
                if candidacy.not_before > now {
                    wake = wake.min(candidacy.not_before);
                } else {
                    match candidacy.election.next(now, self.settings.clock.now().as_microsecond()) {
                        ElectionStep::Wait(until) => wake = wake.min(until.unwrap_or(wake)),
                        ElectionStep::Read => self.read(index),
                        ElectionStep::Write(write) => self.write(index, &write, until_before),
                    }
                }
            }
            if let Some(until) = self.show(index) {
                wake = wake.min(until);
            }
        }
        self.ownership.publish();
        self.collect(now);
        wake.max(now + Duration::from_millis(1))
    }

    /// Sets the window of a shard according to its election. Returns its end.
    fn show(&mut self, index: usize) -> Option<Duration> {
        let now = self.now();
        let candidacy = &mut self.candidacies[index];
        let LeaseKind::Shard(shard) = candidacy.kind else { return None };
        let until = candidacy.election.act_until().filter(|until| now < *until);
        self.ownership.set(shard, until.map(|until| self.start + until));
        self.ownership.set_owner_until(shard, candidacy.election.held_until().map(|until| self.start + until));
        if candidacy.held != until.is_some() {
            candidacy.held = until.is_some();
            info!(
                lease = candidacy.name,
                identity = self.settings.identity,
                held = candidacy.held,
                "leadership changed"
            );
            (self.settings.report)(&candidacy.name, candidacy.held);
        }
        until
    }

    fn read(&mut self, index: usize) {
        let leases = self.leases.clone();
        let name = self.candidacies[index].name.clone();
        self.candidacies[index].busy = true;
        let sent = self.now();
        self.requests.push(Box::pin(async move {
            let result = leases.read(&name).await;
            (index, RequestOutcome::Read { sent, result })
        }));
    }

    fn write(&mut self, index: usize, write: &LeaseWrite, until: Option<Duration>) {
        let (start, leases, ownership) = (self.start, self.leases.clone(), self.ownership.clone());
        let candidacy = &mut self.candidacies[index];
        candidacy.busy = true;
        let (write_kind, kind) = (write.kind, candidacy.kind);
        let object = object(
            &candidacy.name,
            write,
            candidacy.last.as_ref(),
            &self.settings.labels(kind),
            &self.settings.notes(kind),
        );
        self.requests.push(Box::pin(async move {
            if let (WriteKind::Release, LeaseKind::Shard(shard), Some(until)) = (write_kind, kind, until) {
                ownership.set(shard, None);
                ownership.idle(shard, start + until).await;
            }
            let sent = start.elapsed();
            let result = match (write_kind, kind) {
                (WriteKind::Release, LeaseKind::Member) => leases.delete(&object).await.map(|()| object),
                _ => leases.write(&object).await,
            };
            (index, RequestOutcome::Written { write: write_kind, sent, result })
        }));
    }

    fn outcome(&mut self, index: usize, outcome: RequestOutcome) {
        let now = self.now();
        let candidacy = &mut self.candidacies[index];
        candidacy.busy = false;
        let succeeded = matches!(
            outcome,
            RequestOutcome::Read { result: Ok(_), .. } | RequestOutcome::Written { result: Ok(_), .. }
        );
        if succeeded && std::mem::take(&mut self.failing) {
            info!("requests about Leases succeed again");
        }
        match outcome {
            RequestOutcome::Read { sent, result: Ok(lease) } => {
                let version = |seen: &LeaseState| seen.resource_version.parse().unwrap_or_default();
                let (before, read) = (candidacy.election.seen().map(version), lease.as_ref().map(state));
                if candidacy.election.read(sent, now, read.clone()) {
                    let now = read.as_ref().map(version);
                    self.settings.history.report(&candidacy.name, before.unwrap_or_default(), now.unwrap_or_default());
                }
                candidacy.last = lease;
            }
            RequestOutcome::Written { write, sent, result: Ok(lease) } => {
                candidacy.election.written(sent, now, write, state(&lease));
                match candidacy.kind {
                    LeaseKind::Member => self.roster.announced(since(&lease)),
                    LeaseKind::Shard(shard) if write == WriteKind::Acquire => self.roster.took(now, shard),
                    LeaseKind::Shard(_) => {}
                }
                candidacy.last = Some(lease);
            }
            RequestOutcome::Written { result: Err(LeaseError::Changed { lease }), .. } => {
                debug!(lease, "conflict on a Lease, reading it again");
                candidacy.election.conflicted();
            }
            RequestOutcome::Read { result: Err(error), .. } | RequestOutcome::Written { result: Err(error), .. } => {
                // One warning per outage, not one for each Lease and attempt.
                if self.failing {
                    debug!(lease = candidacy.name, error = %Chain(&error), "request about a Lease failed, retrying");
                } else {
                    warn!(lease = candidacy.name, error = %Chain(&error), "requests about Leases fail, retrying");
                }
                self.failing = true;
                candidacy.election.unanswered();
                candidacy.not_before = now + self.terms.step;
            }
        }
    }

    fn event(&mut self, event: watcher::Event<Lease>) {
        match event {
            watcher::Event::Init => self.relist.clear(),
            watcher::Event::InitApply(lease) => {
                self.relist.extend(lease.metadata.name.clone());
                self.applied(lease);
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.relist);
                self.announcements.retain(|name, _| listed.contains(name));
                let present: BTreeSet<String> = self.announcements.values().map(|lease| state(lease).holder).collect();
                self.roster.listed(|identity| present.contains(identity));
            }
            watcher::Event::Apply(lease) => self.applied(lease),
            watcher::Event::Delete(lease) => {
                let name = lease.metadata.name.clone().unwrap_or_default();
                if let Some(index) = self.by_name.get(&name) {
                    self.candidacies[*index].election.mark_stale();
                } else if self.announcements.remove(&name).is_some() {
                    self.roster.gone(&state(&lease).holder);
                }
            }
        }
    }

    fn applied(&mut self, lease: Lease) {
        let now = self.now();
        let name = lease.metadata.name.clone().unwrap_or_default();
        if let Some(index) = self.by_name.get(&name) {
            let candidacy = &mut self.candidacies[*index];
            candidacy.election.observed(now, Some(state(&lease)));
            // An old event must not replace the response to our own write.
            if candidacy.election.seen().map(|seen| &seen.resource_version) == lease.metadata.resource_version.as_ref()
            {
                candidacy.last = Some(lease);
            }
        } else if let Some(announcement) = announcement(&lease) {
            self.roster.observed(now, announcement);
            self.announcements.insert(name, lease);
        }
    }

    /// Deletes the announcements of dead members. Only the owner of the first shard does.
    fn collect(&mut self, now: Duration) {
        if !self.ownership.is_ours(0) {
            return;
        }
        let forgotten: BTreeSet<String> = self.roster.forgotten(now).into_iter().map(str::to_owned).collect();
        for identity in forgotten {
            self.roster.gone(&identity);
            let found = self.announcements.extract_if(.., |_, lease| state(lease).holder == identity);
            for (name, lease) in found.collect::<Vec<_>>() {
                let leases = self.leases.clone();
                info!(lease = name, "collecting the announcement of a dead member");
                self.deletions.push(Box::pin(async move {
                    if let Err(error) = leases.delete(&lease).await {
                        debug!(lease = name, error = %Chain(&error), "could not collect the Lease of a dead member");
                    }
                }));
            }
        }
    }
}
