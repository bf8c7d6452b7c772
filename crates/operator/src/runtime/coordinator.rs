//! Replicas among each other: each announces itself, and each works towards holding the shards that are rightly its own.
//!
//! Owns the loop that watches the Leases of our namespace, asks [`perennial_core::coordination::lease`] and [`perennial_core::coordination::members`]
//! what to do, does it, and moves the windows of [`Ownership`].
//!
//! Leases, all labelled `perennial.dev/group=GROUP` (GROUP is `perennial`, unless roles run in processes of their own):
//! - `GROUP-member-IDENTITY`, labelled `perennial.dev/member=v1`: an announcement, deleted on a graceful stop;
//! - `GROUP-shard-I`, labelled `perennial.dev/shard=v1`; with one shard its only Lease is named `GROUP`: plain leader election.
//!
//! # Guarantees
//! Handover on a graceful stop is immediate; after a crash it takes the lease and at most 2 s. A shard is given away only
//! after the last work on it has ended.

use super::error_chain::Chain;
use super::lease::{LeaseError, Leases, object, seen};
use super::lease_metadata::{Coordination, GROUP, Kind, announcement, shard_lease, since};
use super::ownership::Ownership;
use super::watch::is_expired;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use perennial_core::coordination::lease::{Act, Election, Seen, Step, Terms, Wish, Write};
use perennial_core::coordination::members::Roster;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Returns the handle, and the task that keeps it true until `stop`, then hands everything over and ends.
pub fn coordinate(settings: Coordination, stop: CancellationToken) -> (Ownership, impl Future<Output = ()> + Send) {
    let ownership = Ownership::none(settings.shards);
    let coordinator = Coordinator::new(settings, ownership.clone());
    (ownership, coordinator.run(stop))
}

/// One Lease that we hold or would like to.
struct Contest {
    kind: Kind,
    name: String,
    election: Election,
    last: Option<Lease>,
    busy: bool,
    not_before: Duration,
    held: bool,
}

enum Outcome {
    Read { sent: Duration, result: Result<Option<Lease>, LeaseError> },
    Written { act: Act, sent: Duration, result: Result<Lease, LeaseError> },
}

type Requests = FuturesUnordered<BoxFuture<'static, (usize, Outcome)>>;

struct Coordinator {
    settings: Coordination,
    terms: Terms,
    leases: Leases,
    ownership: Ownership,
    roster: Roster,
    contests: Vec<Contest>,
    by_name: BTreeMap<String, usize>,
    announcements: BTreeMap<String, Lease>,
    relist: BTreeSet<String>,
    requests: Requests,
    /// Leases of dead members that are being deleted.
    deletions: FuturesUnordered<BoxFuture<'static, ()>>,
    leaving: bool,
    failing: bool,
    start: Instant,
}

impl Coordinator {
    fn new(settings: Coordination, ownership: Ownership) -> Self {
        let terms = Terms::new(settings.lease);
        let contest = |kind, name: String| Contest {
            kind,
            name,
            election: Election::new(settings.identity.clone(), terms),
            last: None,
            busy: false,
            not_before: Duration::ZERO,
            held: false,
        };
        let member = contest(Kind::Member, format!("{}-member-{}", settings.group, settings.identity));
        let shards = ownership.shards();
        let contests: Vec<Contest> = std::iter::once(member)
            .chain((0..shards).map(|shard| contest(Kind::Shard(shard), shard_lease(&settings.group, shard, shards))))
            .collect();
        Self {
            terms,
            leases: Leases::new(settings.client.clone(), &settings.namespace, terms.request),
            roster: Roster::new(settings.identity.clone(), shards, terms),
            by_name: contests.iter().enumerate().map(|(i, contest)| (contest.name.clone(), i)).collect(),
            contests,
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
        let (identity, shards) = (&self.settings.identity, self.ownership.shards());
        info!(identity, shards, "this member joins");
        while !stop.is_cancelled() {
            let wake = self.advance();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                Some(event) = events.next() => match event {
                    Ok(event) => self.event(event),
                    Err(error) => {
                        debug!(%error, "the watch of Leases was interrupted");
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
        // A watch whose connection died in silence is noticed soon.
        let config = watcher::Config::default().labels(&selector).timeout(30);
        watcher(self.leases.api().clone(), config).backoff(Steady)
    }

    /// Hands everything over at once, then takes the announcement back. Bounded: what is not answered lapses by itself.
    async fn leave(mut self) {
        let latest = Instant::now() + self.terms.act;
        self.leaving = true;
        self.roster.leave();
        loop {
            let wake = self.advance();
            let holds = self.contests.iter().any(|contest| contest.busy || contest.election.is_named());
            if !holds || Instant::now() >= latest {
                break;
            }
            tokio::select! {
                biased;
                Some((index, outcome)) = self.requests.next() => self.outcome(index, outcome),
                () = tokio::time::sleep_until((self.start + wake).min(latest)) => {}
            }
        }
        info!(identity = self.settings.identity, "this member has left");
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Starts every request that is due, publishes what is owned, and returns when to look again.
    fn advance(&mut self) -> Duration {
        let now = self.now();
        let mut wake = self.roster.next_change(now).unwrap_or(now + self.terms.lease);
        for index in 0..self.contests.len() {
            let wish = match self.contests[index].kind {
                _ if self.leaving => Wish::NONE,
                Kind::Member => Wish::HOLD,
                Kind::Shard(shard) => self.roster.wish(now, shard),
            };
            let until_before = self.contests[index].election.act_until();
            let contest = &mut self.contests[index];
            contest.election.wish(wish);
            if !contest.busy {
                if contest.not_before > now {
                    wake = wake.min(contest.not_before);
                } else {
                    match contest.election.next(now, self.settings.clock.now().as_microsecond()) {
                        Step::Wait(until) => wake = wake.min(until.unwrap_or(wake)),
                        Step::Read => self.read(index),
                        Step::Write(write) => self.write(index, &write, until_before),
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

    /// Moves the window of a shard to where its election says; returns its end.
    fn show(&mut self, index: usize) -> Option<Duration> {
        let now = self.now();
        let contest = &mut self.contests[index];
        let Kind::Shard(shard) = contest.kind else { return None };
        let until = contest.election.act_until().filter(|until| now < *until);
        self.ownership.set(shard, until.map(|until| self.start + until));
        self.ownership.set_attended(shard, contest.election.attended_until().map(|until| self.start + until));
        if contest.held != until.is_some() {
            contest.held = until.is_some();
            info!(lease = contest.name, identity = self.settings.identity, held = contest.held, "leadership changed");
            (self.settings.report)(&contest.name, contest.held);
        }
        until
    }

    fn read(&mut self, index: usize) {
        let leases = self.leases.clone();
        let name = self.contests[index].name.clone();
        self.contests[index].busy = true;
        let sent = self.now();
        self.requests.push(Box::pin(async move {
            let result = leases.read(&name).await;
            (index, Outcome::Read { sent, result })
        }));
    }

    fn write(&mut self, index: usize, write: &Write, until: Option<Duration>) {
        let (start, leases, ownership) = (self.start, self.leases.clone(), self.ownership.clone());
        let contest = &mut self.contests[index];
        contest.busy = true;
        let (act, kind) = (write.act, contest.kind);
        let object = object(
            &contest.name,
            write,
            contest.last.as_ref(),
            &self.settings.labels(kind),
            &self.settings.notes(kind),
        );
        self.requests.push(Box::pin(async move {
            if let (Act::Release, Kind::Shard(shard), Some(until)) = (act, kind, until) {
                ownership.set(shard, None);
                ownership.idle(shard, start + until).await;
            }
            let sent = start.elapsed();
            let result = match (act, kind) {
                (Act::Release, Kind::Member) => leases.delete(&object).await.map(|()| object),
                _ => leases.write(&object).await,
            };
            (index, Outcome::Written { act, sent, result })
        }));
    }

    fn outcome(&mut self, index: usize, outcome: Outcome) {
        let now = self.now();
        let contest = &mut self.contests[index];
        contest.busy = false;
        let succeeded = matches!(outcome, Outcome::Read { result: Ok(_), .. } | Outcome::Written { result: Ok(_), .. });
        if succeeded && std::mem::take(&mut self.failing) {
            info!("requests about Leases succeed again");
        }
        match outcome {
            Outcome::Read { sent, result: Ok(lease) } => {
                let version = |seen: &Seen| seen.resource_version.parse().unwrap_or_default();
                let (before, read) = (contest.election.seen().map(version), lease.as_ref().map(seen));
                if contest.election.read(sent, now, read.clone()) {
                    let now = read.as_ref().map(version);
                    self.settings.history.report(&contest.name, before.unwrap_or_default(), now.unwrap_or_default());
                }
                contest.last = lease;
            }
            Outcome::Written { act, sent, result: Ok(lease) } => {
                contest.election.written(sent, now, act, seen(&lease));
                match contest.kind {
                    Kind::Member => self.roster.announced(since(&lease)),
                    Kind::Shard(shard) if act == Act::Acquire => self.roster.took(now, shard),
                    Kind::Shard(_) => {}
                }
                contest.last = Some(lease);
            }
            Outcome::Written { result: Err(LeaseError::Changed { lease }), .. } => {
                debug!(lease, "somebody else wrote the Lease first");
                contest.election.refused();
            }
            Outcome::Read { result: Err(error), .. } | Outcome::Written { result: Err(error), .. } => {
                // One sentence for an outage, not one for each Lease and each try.
                if self.failing {
                    debug!(lease = contest.name, error = %Chain(&error), "a request about a Lease failed");
                } else {
                    warn!(lease = contest.name, error = %Chain(&error), "requests about Leases fail");
                }
                self.failing = true;
                contest.election.unanswered();
                contest.not_before = now + self.terms.step;
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
                let present: BTreeSet<String> = self.announcements.values().map(|lease| seen(lease).holder).collect();
                self.roster.listed(|identity| present.contains(identity));
            }
            watcher::Event::Apply(lease) => self.applied(lease),
            watcher::Event::Delete(lease) => {
                let name = lease.metadata.name.clone().unwrap_or_default();
                if let Some(index) = self.by_name.get(&name) {
                    self.contests[*index].election.doubt();
                } else if self.announcements.remove(&name).is_some() {
                    self.roster.gone(&seen(&lease).holder);
                }
            }
        }
    }

    fn applied(&mut self, lease: Lease) {
        let now = self.now();
        let name = lease.metadata.name.clone().unwrap_or_default();
        if let Some(index) = self.by_name.get(&name) {
            let contest = &mut self.contests[*index];
            contest.election.observed(now, Some(seen(&lease)));
            // An old event must not replace what the answer to our own write showed.
            if contest.election.seen().map(|seen| &seen.resource_version) == lease.metadata.resource_version.as_ref() {
                contest.last = Some(lease);
            }
        } else if let Some(announcement) = announcement(&lease) {
            self.roster.observed(now, announcement);
            self.announcements.insert(name, lease);
        }
    }

    /// The holder of the first shard removes what dead members left behind.
    fn collect(&mut self, now: Duration) {
        if !self.ownership.is_ours(0) {
            return;
        }
        let forgotten: BTreeSet<String> = self.roster.forgotten(now).into_iter().map(str::to_owned).collect();
        for identity in forgotten {
            self.roster.gone(&identity);
            let found = self.announcements.extract_if(.., |_, lease| seen(lease).holder == identity);
            for (name, lease) in found.collect::<Vec<_>>() {
                let leases = self.leases.clone();
                info!(lease = name, "the announcement of a dead member is collected");
                self.deletions.push(Box::pin(async move {
                    if let Err(error) = leases.delete(&lease).await {
                        debug!(lease = name, error = %Chain(&error), "could not collect the Lease of a dead member");
                    }
                }));
            }
        }
    }
}

/// Tries again at a steady pace: a member that cannot watch soon holds nothing.
struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(500))
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}
