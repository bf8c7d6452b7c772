use super::*;

const LEASE: Duration = Duration::from_secs(15);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn announcement(identity: &str, shards: u32, since: i64, renewed: i64) -> Announcement {
    Announcement {
        member: Member { identity: identity.to_owned(), shards, since, impaired: false },
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

/// An announcement of `b`.
fn impaired(impaired: bool, renewed: i64) -> Announcement {
    let mut announcement = announcement("b", 8, 10, renewed);
    announcement.member.impaired = impaired;
    announcement
}

#[test]
fn an_impaired_member_hands_over_to_one_that_can_work() {
    let mut roster = roster(&["b"]);
    roster.observed(at(1), impaired(false, 2));
    roster.set_impaired(true);

    for shard in 0..8 {
        let intent = roster.intent(at(1), shard);
        assert_eq!((intent.take, intent.keep), (None, false), "shard {shard}");
    }
    // Also a shard that was left to it.
    roster.took(at(1), shard_of("b", &["a", "b"]));
    assert!(!roster.intent(at(1), shard_of("b", &["a", "b"])).keep);
    // Once it can work again, it takes its own.
    roster.set_impaired(false);
    assert_eq!(roster.intent(at(1), shard_of("a", &["a", "b"])), Intent::HOLD);
}

#[test]
fn shards_of_an_impaired_member_are_taken() {
    let mut roster = roster(&["b"]);
    roster.observed(at(1), impaired(true, 2));

    for shard in 0..8 {
        assert_eq!(roster.intent(at(1), shard), Intent::HOLD, "shard {shard}");
    }
}

#[test]
fn where_all_are_impaired_each_keeps_its_own() {
    let mut roster = roster(&["b"]);
    roster.observed(at(1), impaired(true, 2));
    roster.set_impaired(true);

    assert_eq!(roster.intent(at(1), shard_of("a", &["a", "b"])), Intent::HOLD);
    assert!(!roster.intent(at(1), shard_of("b", &["a", "b"])).keep);
}

#[test]
fn an_impaired_member_keeps_its_shards_while_no_other_is_proven_alive() {
    let mut roster = roster(&["b"]);
    roster.set_impaired(true);

    let intent = roster.intent(at(0), shard_of("a", &["a", "b"]));
    assert_eq!((intent.take, intent.keep), (None, true), "the other may be dead");
    assert_eq!(roster.intent(at(15), 0), Intent::HOLD, "and it is");
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
fn a_member_that_appears_later_gets_its_shards_after_a_lease() {
    let mut roster = roster(&[]);
    let shard = shard_of("b", &["a", "b"]);
    roster.observed(at(3), announcement("b", 8, 30, 1));
    roster.observed(at(10), announcement("b", 8, 30, 2));
    assert!(roster.intent(at(18), shard).keep, "it may have crashed since");

    roster.observed(at(18), announcement("b", 8, 30, 3));

    assert!(!roster.intent(at(18), shard).keep);
}

#[test]
fn a_member_in_a_crash_loop_is_handed_nothing() {
    let mut roster = roster(&[]);

    for (life, seconds) in (0..20).map(|life| (life, life * 10)) {
        let identity = format!("b-{life}");
        roster.observed(at(seconds), announcement(&identity, 8, 30, 1));
        roster.observed(at(seconds + 9), announcement(&identity, 8, 30, 2));
        for shard in 0..8 {
            assert!(roster.intent(at(seconds + 9), shard).keep, "life {life}, shard {shard}");
        }
    }
}

#[test]
fn a_member_that_has_not_synced_is_handed_nothing_however_old_it_is() {
    let mut roster = roster(&[]);
    let shard = shard_of("b", &["a", "b"]);
    for seconds in (3..60).step_by(3) {
        roster.observed(at(seconds), impaired(true, i64::try_from(seconds).unwrap()));
        assert_eq!(roster.intent(at(seconds), shard), Intent::HOLD);
    }

    roster.observed(at(60), impaired(false, 60));

    assert!(!roster.intent(at(60), shard).keep);
}

#[test]
fn an_impaired_member_does_not_wait_for_another_to_settle() {
    let mut roster = roster(&[]);
    roster.set_impaired(true);
    roster.observed(at(3), announcement("b", 8, 30, 1));

    for shard in 0..8 {
        assert!(!roster.intent(at(3), shard).keep, "shard {shard}");
    }
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
