//! Seeded pseudo-random numbers (SplitMix64): the same seed gives the same numbers on every machine
//! and in every version.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    pub fn new(seed: u64) -> Self {
        let mut prng = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        prng.number();
        prng
    }

    /// Returns a separate generator for one part, so that its draws do not change those of other
    /// parts.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self::new(self.number())
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, and 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.number() % bound.max(1) as u64).unwrap_or_default()
    }

    /// Returns true with a probability of `chance` in a thousand.
    pub fn per_mille(&mut self, chance: u32) -> bool {
        self.number() % 1000 < u64::from(chance)
    }

    /// Returns true with a probability of `chance` in a hundred.
    pub fn percent(&mut self, chance: u32) -> bool {
        self.per_mille(chance * 10)
    }

    /// Returns a duration between two numbers of milliseconds, both included.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.number() % (most - least + 1))
    }

    /// Returns one of the items.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
