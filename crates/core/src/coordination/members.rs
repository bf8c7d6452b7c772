//! The live members, as observed by one of them, and the shards that it takes, keeps or hands over
//! accordingly.
//!
//! Owns the judgement of liveness: a member is alive until its announcement was seen unchanged for
//! a whole lease, by the local clock. Safety is not decided here but by the Lease
//! ([`super::lease`]). A wrong judgement costs time, never a second holder.
//!
//! A member that has just started cannot tell a dead member from a quiet one. So there are two
//! judgements:
//! - *presumed* alive (not seen silent for a lease) determines the delay before a free shard is
//!   taken;
//! - *proven* alive (seen to change or to appear) determines whether a shard is handed over to a
//!   member of higher rank. One that appeared must also have been seen to change a lease later: a
//!   member in a crash loop, which has a new name each time, would otherwise be handed shards each
//!   time.
//!
//! A shard is therefore never handed to a member that may be dead, and one that its preferred owner
//! does not take goes to the next in rank a step later. That member keeps it for a while: the
//! preferred owner is alive but cannot take the shard, and a shard that moves back and forth is not
//! worked on.
//!
//! A member that has not listed its resources yet, cannot read one or cannot write announces that
//! it is *impaired*. It hands its shards over to members that are proven alive and not impaired.
//! Where all members are impaired, they keep theirs: every shard has an owner.

use crate::coordination::lease::{Intent, Terms};
use crate::coordination::shards::{self, Member};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of leases after which the announcement of a silent member is collected.
const FORGOTTEN_AFTER: u32 = 10;
/// Number of leases for which a shard is kept that a live member of higher rank did not take.
const LEFT_FOR: u32 = 4;

/// The content of a member's Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    pub member: Member,
    /// Opaque; only tested for having changed.
    pub renewed: Option<i64>,
    pub lease: Option<Duration>,
}

#[derive(Debug, Clone)]
struct Peer {
    announcement: Announcement,
    since: Duration,
    proven: bool,
    /// When it appeared, unless it was there before us.
    appeared: Option<Duration>,
    /// True if it was seen alive after a lease: shards may be handed over to it.
    settled: bool,
}

/// The members as observed by this one. Times are on the local monotonic clock, as in
/// [`super::lease::Election`].
#[derive(Debug, Clone)]
pub struct Roster {
    me: Member,
    terms: Terms,
    peers: BTreeMap<String, Peer>,
    /// Shards that a live member of higher rank did not take, and when we took them.
    left_to_us: BTreeMap<u32, Duration>,
    listed: bool,
    leaving: bool,
}

impl Roster {
    pub fn new(identity: impl Into<String>, shards: u32, terms: Terms) -> Self {
        let me = Member { identity: identity.into(), shards: shards.max(1), since: i64::MAX, impaired: false };
        Self { me, terms, peers: BTreeMap::new(), left_to_us: BTreeMap::new(), listed: false, leaving: false }
    }

    /// Records that our own announcement exists, since this time by the API server's clock.
    pub fn announced(&mut self, since: i64) {
        self.me.since = since;
    }

    /// Records a complete list of announcements. Before the first, and before our own, no shard is
    /// taken.
    pub fn listed(&mut self, identities: impl Fn(&str) -> bool) {
        self.listed = true;
        self.peers.retain(|identity, _| identities(identity));
    }

    /// Records whether this member can do its work.
    pub fn set_impaired(&mut self, impaired: bool) {
        self.me.impaired = impaired;
    }

    /// Hands over every shard from now on.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Records an announcement, seen at this local time.
    pub fn observed(&mut self, now: Duration, announcement: Announcement) {
        if announcement.member.identity == self.me.identity {
            return;
        }
        match self.peers.get_mut(&announcement.member.identity) {
            Some(peer) if peer.announcement == announcement => {}
            Some(peer) => {
                let settled = peer.appeared.is_none_or(|appeared| now >= appeared + self.terms.lease);
                *peer = Peer { announcement, since: now, proven: true, settled, ..*peer };
            }
            None => {
                let identity = announcement.member.identity.clone();
                let appeared = self.listed.then_some(now);
                let peer = Peer { announcement, since: now, proven: self.listed, appeared, settled: false };
                self.peers.insert(identity, peer);
            }
        }
    }

    /// Records that a member deleted its announcement.
    pub fn gone(&mut self, identity: &str) {
        self.peers.remove(identity);
    }

    /// Records that we acquired a shard, at this local time.
    pub fn took(&mut self, now: Duration, shard: u32) {
        if self.is_best(now, shard) {
            self.left_to_us.remove(&shard);
        } else {
            self.left_to_us.insert(shard, now);
        }
    }

    /// Returns whether no member that is proven alive has a higher rank.
    fn is_best(&self, now: Duration, shard: u32) -> bool {
        shards::rank(shard, &self.me.identity, self.candidates(self.proven(now))) == Some(0)
    }

    /// Returns the members that are proven alive, this one included. An impaired member waits for
    /// no other to settle.
    fn proven(&self, now: Duration) -> impl Iterator<Item = &Member> {
        let settled = move |peer: &Peer| self.me.impaired || peer.settled;
        let peers = self.peers.values().filter(move |peer| peer.proven && now < self.silent_at(peer) && settled(peer));
        peers.map(|peer| &peer.announcement.member).chain(std::iter::once(&self.me))
    }

    /// Returns the members that may have shards: of the same number of shards, and not impaired
    /// unless all are.
    fn candidates<'a>(&self, members: impl Iterator<Item = &'a Member>) -> Vec<&'a str> {
        let mut proper: Vec<&Member> = members.filter(|member| self.is_proper(member)).collect();
        if proper.iter().any(|member| !member.impaired) {
            proper.retain(|member| !member.impaired);
        }
        proper.into_iter().map(|member| member.identity.as_str()).collect()
    }

    /// Returns whether another member can do the work that this one cannot.
    fn is_replaced(&self, now: Duration) -> bool {
        self.me.impaired && !self.candidates(self.proven(now)).contains(&self.me.identity.as_str())
    }

    /// Returns until when a shard is kept that a member of higher rank did not take.
    fn kept_until(&self, shard: u32) -> Option<Duration> {
        self.left_to_us.get(&shard).map(|taken| *taken + self.terms.lease * LEFT_FOR)
    }

    /// Returns the members that are presumed alive, this one included.
    pub fn alive(&self, now: Duration) -> Vec<&Member> {
        std::iter::once(&self.me)
            .chain(self.peers.values().filter(|peer| now < self.silent_at(peer)).map(|peer| &peer.announcement.member))
            .collect()
    }

    /// Returns whether to take and to keep a shard.
    pub fn intent(&self, now: Duration, shard: u32) -> Intent {
        if self.leaving {
            return Intent::NONE;
        }
        let alive = self.alive(now);
        let informed = self.listed && self.me.since != i64::MAX && !shards_differ(&alive, self.me.shards);
        if !informed || shard >= self.me.shards {
            return Intent { take: None, keep: informed };
        }
        let best = self.is_best(now, shard);
        let keep = best || self.kept_until(shard).is_some_and(|until| now < until) && !self.is_replaced(now);

        let rank = shards::rank(shard, &self.me.identity, self.candidates(alive.iter().copied()));
        // A member of higher rank that is proven alive would get the shard at once: it has time to
        // take it first.
        let head_start = if best { Duration::ZERO } else { self.terms.request * 2 };
        Intent { take: rank.map(|rank| head_start + self.terms.step * rank), keep }
    }

    /// Returns the next time at which a member turns silent or a shard is to be handed over.
    pub fn next_change(&self, now: Duration) -> Option<Duration> {
        let silent = self.peers.values().map(|peer| self.silent_at(peer));
        let kept = self.left_to_us.keys().filter_map(|shard| self.kept_until(*shard));
        silent.chain(kept).filter(|at| *at > now).min()
    }

    /// Returns the members whose announcements may be collected.
    pub fn forgotten(&self, now: Duration) -> Vec<&str> {
        self.peers
            .iter()
            .filter(|(_, peer)| now >= peer.since + self.lease_of(peer) * FORGOTTEN_AFTER)
            .map(|(identity, _)| identity.as_str())
            .collect()
    }

    fn silent_at(&self, peer: &Peer) -> Duration {
        peer.since + self.lease_of(peer)
    }

    fn lease_of(&self, peer: &Peer) -> Duration {
        peer.announcement.lease.map_or(self.terms.lease, |lease| Terms::new(lease).lease)
    }

    fn is_proper(&self, member: &Member) -> bool {
        member.shards == self.me.shards
    }
}

fn shards_differ(alive: &[&Member], ours: u32) -> bool {
    shards::shards_in_force(alive.iter().copied()).is_some_and(|shards| shards != ours)
}

#[cfg(test)]
mod tests;
