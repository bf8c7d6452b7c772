//! A fast 128-bit hash for states of a model: hashing them is most of the work of an exploration.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

/// A map by this hash.
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Fast>>;

/// Two independent 64-bit streams, fed eight bytes at a time.
#[derive(Clone, Debug)]
pub struct Fast {
    streams: (u64, u64),
    word: u64,
    bytes: u32,
}

impl Default for Fast {
    fn default() -> Self {
        Self { streams: (0xcbf2_9ce4_8422_2325, 0x0123_4567), word: 0, bytes: 0 }
    }
}

impl Fast {
    fn mix(&mut self, word: u64) {
        let (low, high) = self.streams;
        self.streams.0 = (low ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        self.streams.1 = (high.rotate_left(23) ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }

    fn end(&self) -> (u64, u64) {
        let mut last = self.clone();
        last.mix(self.word ^ (u64::from(self.bytes) << 56));
        let (low, high) = last.streams;
        (low ^ (low >> 31), high ^ (high >> 29))
    }

    /// Hashes a value to 128 bits. Among millions of states no collision is to be expected.
    pub fn wide(value: &impl Hash) -> u128 {
        let mut hasher = Self::default();
        value.hash(&mut hasher);
        let (low, high) = hasher.end();
        (u128::from(high) << 64) | u128::from(low)
    }
}

impl Hasher for Fast {
    fn finish(&self) -> u64 {
        let (low, high) = self.end();
        low ^ (high >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.word = (self.word << 8) | u64::from(byte);
        self.bytes += 1;
        if self.bytes == 8 {
            self.mix(self.word);
            (self.word, self.bytes) = (0, 0);
        }
    }

    /// Only for keys that are hashes already.
    #[expect(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
    fn write_u128(&mut self, value: u128) {
        self.word = value as u64;
    }

    /// Discriminants of enums, which are small.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "enums have few variants")]
    fn write_isize(&mut self, value: isize) {
        self.write_u8(value as u8);
    }

    /// Lengths of collections are left out.
    fn write_usize(&mut self, _length: usize) {}
}
