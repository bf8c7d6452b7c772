//! The live members, as one of them sees them, and the shards that it takes, keeps or hands over accordingly.
//!
//! Owns the judgement of liveness: a member is alive until its announcement was seen unchanged for a whole lease, by the
//! local clock. Safety is not decided here but by the Lease ([`super::lease`]). A wrong judgement costs time, never a second
//! holder.
//!
//! A member that has just started cannot tell a dead member from a quiet one. So there are two judgements:
//! - *presumed* alive (not seen silent for a lease) determines the delay before a free shard is taken;
//! - *proven* alive (seen to change or to appear) determines whether a shard is handed over to a member of higher rank.
//!
//! A shard is therefore never handed to a member that may be dead, and one that its preferred owner does not take goes to
//! the next in rank a step later. That member keeps it for a while: the preferred owner is alive but cannot take the shard,
//! and a shard that moves back and forth is not worked on.

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
}

/// The members as this one sees them. Times are on the local monotonic clock, as in [`super::lease::Election`].
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
        let me = Member { identity: identity.into(), shards: shards.max(1), since: i64::MAX };
        Self { me, terms, peers: BTreeMap::new(), left_to_us: BTreeMap::new(), listed: false, leaving: false }
    }

    /// Takes in that our own announcement exists, since this time by the API server's clock.
    pub fn announced(&mut self, since: i64) {
        self.me.since = since;
    }

    /// Takes in a complete list of announcements. Before the first, and before our own, no shard is taken.
    pub fn listed(&mut self, identities: impl Fn(&str) -> bool) {
        self.listed = true;
        self.peers.retain(|identity, _| identities(identity));
    }

    /// Hands over every shard from now on.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Takes in an announcement, seen at this local time.
    pub fn observed(&mut self, now: Duration, announcement: Announcement) {
        if announcement.member.identity == self.me.identity {
            return;
        }
        match self.peers.get_mut(&announcement.member.identity) {
            Some(peer) if peer.announcement == announcement => {}
            Some(peer) => *peer = Peer { announcement, since: now, proven: true },
            None => {
                let identity = announcement.member.identity.clone();
                self.peers.insert(identity, Peer { announcement, since: now, proven: self.listed });
            }
        }
    }

    /// Takes in that a member deleted its announcement.
    pub fn gone(&mut self, identity: &str) {
        self.peers.remove(identity);
    }

    /// Takes in that we acquired a shard, at this local time.
    pub fn took(&mut self, now: Duration, shard: u32) {
        if self.is_best(now, shard) {
            self.left_to_us.remove(&shard);
        } else {
            self.left_to_us.insert(shard, now);
        }
    }

    /// Whether no member that is proven alive has a higher rank.
    fn is_best(&self, now: Duration, shard: u32) -> bool {
        let proven = self
            .peers
            .values()
            .filter(|peer| peer.proven && now < self.silent_at(peer) && self.is_proper(&peer.announcement.member))
            .map(|peer| peer.announcement.member.identity.as_str())
            .chain(std::iter::once(self.me.identity.as_str()));
        shards::rank(shard, &self.me.identity, proven) == Some(0)
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
        let keep = best || self.kept_until(shard).is_some_and(|until| now < until);

        let presumed = alive.iter().filter(|member| self.is_proper(member)).map(|member| member.identity.as_str());
        let rank = shards::rank(shard, &self.me.identity, presumed);
        // A member of higher rank that is proven alive would get the shard at once: it has time to take it first.
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
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn announcement(identity: &str, shards: u32, since: i64, renewed: i64) -> Announcement {
        Announcement {
            member: Member { identity: identity.to_owned(), shards, since },
            renewed: Some(renewed),
            lease: Some(LEASE),
        }
    }

    /// `a` among others, all of 8 shards, that were there when it started.
    fn roster(others: &[&str]) -> Roster {
        let mut roster = Roster::new("a", 8, Terms::new(LEASE));
        for name in others {
            roster.observed(at(0), announcement(name, 8, 10, 1));
        }
        roster.listed(|_| true);
        roster.announced(20);
        roster
    }

    fn renewed(roster: &mut Roster, now: Duration, names: &[&str], renewed: i64) {
        for name in names {
            roster.observed(now, announcement(name, 8, 10, renewed));
        }
    }

    /// A shard whose rightful holder among these is the given one.
    fn shard_of(member: &str, members: &[&str]) -> u32 {
        (0..8).find(|shard| shards::ranking(*shard, members.iter().copied())[0] == member).unwrap()
    }

    #[test]
    fn alone_it_holds_everything() {
        let roster = roster(&[]);

        for shard in 0..8 {
            assert_eq!(roster.intent(at(0), shard), Intent::HOLD);
        }
        assert_eq!(roster.intent(at(0), 8).take, None);
    }

    #[test]
    fn nothing_is_taken_before_the_members_are_listed() {
        let roster = Roster::new("a", 8, Terms::new(LEASE));

        assert_eq!(roster.intent(at(0), 0), Intent::NONE);
    }

    #[test]
    fn nothing_is_taken_before_our_announcement_exists() {
        let mut roster = Roster::new("a", 8, Terms::new(LEASE));
        roster.listed(|_| true);
        assert_eq!(roster.intent(at(0), 0), Intent::NONE);

        roster.announced(20);
        assert_eq!(roster.intent(at(0), 0), Intent::HOLD);
    }

    #[test]
    fn a_shard_is_handed_over_to_a_member_of_higher_rank_that_is_proven_alive() {
        let mut roster = roster(&["b"]);
        let shard = shard_of("b", &["a", "b"]);

        assert!(roster.intent(at(1), shard).keep, "one that was there before us may be dead");

        renewed(&mut roster, at(3), &["b"], 2);
        assert!(!roster.intent(at(4), shard).keep);
    }

    #[test]
    fn a_member_that_appears_later_is_proven_alive() {
        let mut roster = roster(&[]);
        let shard = shard_of("b", &["a", "b"]);
        roster.observed(at(3), announcement("b", 8, 30, 1));

        assert!(!roster.intent(at(3), shard).keep);
    }

    #[test]
    fn lower_ranks_wait_longer() {
        let roster = roster(&["b"]);
        let (own, foreign) = (shard_of("a", &["a", "b"]), shard_of("b", &["a", "b"]));

        assert_eq!(roster.intent(at(1), own).take, Some(Duration::ZERO));
        assert_eq!(roster.intent(at(1), foreign).take, Some(Terms::new(LEASE).step));
    }

    #[test]
    fn a_live_member_has_time_to_take_its_own_shard() {
        let mut roster = roster(&["b"]);
        let foreign = shard_of("b", &["a", "b"]);
        renewed(&mut roster, at(3), &["b"], 2);

        assert!(roster.intent(at(4), foreign).take > Some(Terms::new(LEASE).request));
    }

    #[test]
    fn a_shard_that_a_higher_rank_does_not_take_is_kept_for_a_while() {
        let mut roster = roster(&["b"]);
        let foreign = shard_of("b", &["a", "b"]);
        renewed(&mut roster, at(3), &["b"], 2);
        assert!(!roster.intent(at(10), foreign).keep);

        roster.took(at(10), foreign);
        renewed(&mut roster, at(60), &["b"], 3);

        assert!(roster.intent(at(69), foreign).keep);
        assert_eq!(roster.next_change(at(69)), Some(at(70)));
        assert!(!roster.intent(at(70), foreign).keep);
    }

    #[test]
    fn a_silent_member_is_dead_after_its_lease() {
        let mut roster = roster(&["b"]);
        let shard = shard_of("b", &["a", "b"]);
        renewed(&mut roster, at(3), &["b"], 2);

        assert_eq!(roster.next_change(at(4)), Some(at(18)));
        assert!(!roster.intent(at(17), shard).keep);
        assert_eq!(roster.intent(at(18), shard), Intent::HOLD);
        assert!(roster.forgotten(at(18)).is_empty());
        assert_eq!(roster.forgotten(at(3) + LEASE * 10), vec!["b"]);
    }

    #[test]
    fn a_member_that_was_paused_and_returns_is_alive_again() {
        let mut roster = roster(&["b"]);
        let shard = shard_of("b", &["a", "b"]);

        renewed(&mut roster, at(60), &["b"], 2);

        assert!(!roster.intent(at(60), shard).keep);
    }

    #[test]
    fn newcomers_with_another_number_of_shards_wait() {
        let mut newcomer = Roster::new("a", 16, Terms::new(LEASE));
        newcomer.observed(at(0), announcement("b", 8, 10, 1));
        newcomer.listed(|_| true);
        newcomer.announced(20);

        assert_eq!(newcomer.intent(at(1), 3), Intent::NONE);

        newcomer.gone("b");
        assert_eq!(newcomer.intent(at(1), 3), Intent::HOLD);
    }

    #[test]
    fn newcomers_with_another_number_of_shards_get_nothing() {
        let mut roster = roster(&[]);
        roster.observed(at(1), announcement("b", 16, 30, 1));

        for shard in 0..8 {
            assert_eq!(roster.intent(at(1), shard), Intent::HOLD);
        }
    }

    #[test]
    fn a_member_that_leaves_hands_over_everything() {
        let mut roster = roster(&["b"]);
        roster.leave();

        for shard in 0..8 {
            assert_eq!(roster.intent(at(1), shard), Intent::NONE);
        }
    }

    #[test]
    fn members_missing_from_a_new_list_are_gone() {
        let mut roster = roster(&["b", "c"]);
        roster.listed(|identity| identity == "c");

        assert_eq!(roster.alive(at(1)).len(), 2);
    }
}
