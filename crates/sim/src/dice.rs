//! The one source of chance: numbers that look random and are the same for the same seed.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        let mut dice = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        dice.number();
        dice
    }

    /// Dice of their own for one part, so that what it rolls does not change what others roll.
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

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.number() % sides.max(1) as u64).unwrap_or_default()
    }

    /// True so many times in a thousand.
    pub fn permille(&mut self, chance: u32) -> bool {
        self.number() % 1000 < u64::from(chance)
    }

    pub fn percent(&mut self, chance: u32) -> bool {
        self.permille(chance * 10)
    }

    /// Uniform between two numbers of milliseconds, both included.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.number() % (most - least + 1))
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len())]
    }
}
