//! The shard of a key, and the member that a shard belongs to.
//!
//! Owns the two hash functions. They are part of what replicas of different versions agree on, so
//! they never change: test vectors keep them fixed.
//!
//! - `hash(bytes)` is FNV-1a with 64 bits, followed by the finalizer of splitmix64 (FNV alone
//!   leaves its high bits too regular for short, similar names such as `node-1`, `node-2`).
//! - `shard_of(key, n) = hash(key) mod n`.
//! - `weight(member, shard) = mix(hash(member) ^ mix(shard + 1))`; a shard belongs to the live
//!   member with the highest weight (rendezvous hashing), equal weights to the lower name.
//!
//! # Guarantees
//! A member that leaves moves only the shards that were its own; one that joins takes shards and
//! moves no others.
//!
//! # Caveats
//! The spread is that of independent draws: with 8 shards on 3 members one may hold 5 and another
//! 1. Eight shards for each replica, or more, are near enough to even.

use std::collections::BTreeMap;

/// A replica, as its announcement describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Unique for each process.
    pub identity: String,
    /// Its `controller.shards`.
    pub shards: u32,
    /// Creation of its announcement, by the API server's clock. Only an order: never compared with
    /// a local clock.
    pub since: i64,
    /// True if it cannot read a resource that the work needs.
    pub impaired: bool,
}

/// Returns the shard of a key, for example a node's name or `namespace/name` of a workload. With 0
/// or 1 shards that is 0.
pub fn shard_of(key: &str, shards: u32) -> u32 {
    let shards = u64::from(shards.max(1));
    u32::try_from(hash(key.as_bytes()) % shards).unwrap_or(0)
}

/// Returns the members from the highest to the lowest rank for a shard.
pub fn ranking<'a>(shard: u32, members: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ranked: Vec<(u64, &str)> = members.into_iter().map(|member| (weight(member, shard), member)).collect();
    ranked.sort_unstable_by(|(a_weight, a), (b_weight, b)| b_weight.cmp(a_weight).then(a.cmp(b)));
    ranked.dedup();
    ranked.into_iter().map(|(_, member)| member).collect()
}

/// Returns the rank of `identity` for a shard; 0 is the preferred owner. `None` when it is not
/// among the members.
pub fn rank<'a>(shard: u32, identity: &str, members: impl IntoIterator<Item = &'a str>) -> Option<u32> {
    let place = ranking(shard, members).iter().position(|member| *member == identity)?;
    u32::try_from(place).ok()
}

/// Returns the owner of each shard once every member has taken its own.
pub fn assignment<'a>(shards: u32, members: impl IntoIterator<Item = &'a str>) -> BTreeMap<u32, &'a str> {
    let members: Vec<&str> = members.into_iter().collect();
    (0..shards).filter_map(|shard| Some((shard, ranking(shard, members.iter().copied()).first().copied()?))).collect()
}

/// Returns the number of shards in force among these members: that of the oldest one.
///
/// Replicas with different numbers would map the same keys to different shards and work on them at
/// the same time. Newer replicas wait until the last member with the old number has left. Of two
/// members created in the same second the lower name counts as older.
pub fn shards_in_force<'a>(members: impl IntoIterator<Item = &'a Member>) -> Option<u32> {
    members
        .into_iter()
        .min_by(|a, b| a.since.cmp(&b.since).then_with(|| a.identity.cmp(&b.identity)))
        .map(|senior| senior.shards)
}

fn weight(member: &str, shard: u32) -> u64 {
    mix(hash(member.as_bytes()) ^ mix(u64::from(shard) + 1))
}

fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    mix(fnv)
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn member(identity: &str, shards: u32, since: i64) -> Member {
        Member { identity: identity.to_owned(), shards, since, impaired: false }
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("perennial-7c9f-{i}")).collect()
    }

    #[test]
    fn the_hash_is_the_same_in_every_version() {
        let vectors: Vec<(&str, u64, u32, u32)> =
            ["", "a", "node-1", "node-2", "default/web", "gpu-rack-17.example.com"]
                .into_iter()
                .map(|key| (key, hash(key.as_bytes()), shard_of(key, 8), shard_of(key, 1000)))
                .collect();

        assert_eq!(
            vectors,
            vec![
                ("", 0xf52a_15e9_a9b5_e89b, 3, 203),
                ("a", 0x02c0_bdbf_4814_20f8, 0, 736),
                ("node-1", 0x1395_0d4e_f307_e655, 5, 909),
                ("node-2", 0xc8c9_d86c_1e83_187b, 3, 603),
                ("default/web", 0x2096_4ea8_4e94_d226, 6, 582),
                ("gpu-rack-17.example.com", 0xbb8c_9fd9_05ca_bb65, 5, 813),
            ]
        );
        assert_eq!(weight("perennial-0", 0), 0x2b8d_c268_d771_b57d);
        assert_eq!(ranking(3, ["a", "b", "c", "d"]), vec!["a", "b", "c", "d"]);
    }

    #[test]
    fn one_shard_or_none_holds_every_key() {
        for key in ["", "a", "node-1"] {
            assert_eq!(shard_of(key, 0), 0);
            assert_eq!(shard_of(key, 1), 0);
        }
    }

    #[test]
    fn more_members_than_shards_leaves_some_without() {
        let members = names(20);
        let held = assignment(4, members.iter().map(String::as_str));

        assert_eq!(held.len(), 4);
    }

    #[test]
    fn no_shard_has_an_owner_without_members() {
        assert!(assignment(8, []).is_empty());
        assert_eq!(rank(0, "a", []), None);
        assert_eq!(shards_in_force([]), None);
    }

    #[test]
    fn many_keys_spread_over_all_shards() {
        let mut counts = vec![0_u32; 16];
        for i in 0..16_000 {
            counts[shard_of(&format!("node-{i}"), 16) as usize] += 1;
        }

        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn many_shards_spread_over_all_members() {
        let members = names(5);
        let held = assignment(200, members.iter().map(String::as_str));

        for name in &members {
            let own = held.values().filter(|holder| *holder == name).count();
            assert!((20..=65).contains(&own), "{name} holds {own} of 200");
        }
    }

    #[test]
    fn the_number_of_shards_is_that_of_the_oldest_member() {
        let old = member("z", 8, 100);
        let new = member("a", 16, 200);

        assert_eq!(shards_in_force([&new, &old]), Some(8));
        assert_eq!(shards_in_force([&new]), Some(16));
        assert_eq!(shards_in_force([&member("b", 2, 100), &member("a", 4, 100)]), Some(4));
    }

    proptest! {
        #[test]
        fn a_key_is_in_a_shard_that_exists(key in ".*", shards in 0_u32..5000) {
            prop_assert!(shard_of(&key, shards) < shards.max(1));
        }

        #[test]
        fn a_member_that_leaves_moves_only_its_own(
            members in prop::collection::btree_set("[a-z0-9-]{1,20}", 2..12), shards in 1_u32..64, pick in any::<prop::sample::Index>(),
        ) {
            let leaver = members.iter().nth(pick.index(members.len())).unwrap().clone();
            let rest: BTreeSet<String> = members.iter().filter(|name| **name != leaver).cloned().collect();

            let before = assignment(shards, members.iter().map(String::as_str));
            let after = assignment(shards, rest.iter().map(String::as_str));

            for shard in 0..shards {
                if before[&shard] != leaver {
                    prop_assert_eq!(before[&shard], after[&shard]);
                }
            }
        }

        #[test]
        fn the_ranking_does_not_depend_on_the_order_of_members(
            members in prop::collection::vec("[a-z]{1,8}", 1..10), shard in 0_u32..100,
        ) {
            let mut reversed = members.clone();
            reversed.reverse();

            prop_assert_eq!(
                ranking(shard, members.iter().map(String::as_str)),
                ranking(shard, reversed.iter().map(String::as_str))
            );
        }

        #[test]
        fn ranks_are_the_places_of_the_ranking(
            members in prop::collection::btree_set("[a-z]{1,8}", 1..10), shard in 0_u32..100,
        ) {
            let mut ranks: Vec<u32> = members
                .iter()
                .filter_map(|name| rank(shard, name, members.iter().map(String::as_str)))
                .collect();
            ranks.sort_unstable();

            let expected: Vec<u32> = (0..u32::try_from(members.len()).unwrap()).collect();
            prop_assert_eq!(ranks, expected);
        }
    }
}
