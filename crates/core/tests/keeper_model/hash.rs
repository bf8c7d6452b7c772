//! A fast hash, since hashing states is most of the work.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Fast>>;

/// Two independent 64-bit streams.
#[derive(Clone)]
pub struct Fast(u64, u64);

impl Default for Fast {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325, 0x0123_4567)
    }
}

impl Fast {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }

    /// 128 bits of a value: with millions of states a collision is out of the question.
    pub fn wide(value: &impl Hash) -> u128 {
        let mut hasher = Self::default();
        value.hash(&mut hasher);
        let (low, high) = (hasher.0 ^ (hasher.0 >> 31), hasher.1 ^ (hasher.1 >> 29));
        (u128::from(high) << 64) | u128::from(low)
    }
}

impl Hasher for Fast {
    fn finish(&self) -> u64 {
        self.0 ^ (self.1 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            self.mix(chunk.iter().fold(chunk.len() as u64, |word, byte| (word << 8) | u64::from(*byte)));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.mix(u64::from(byte));
    }

    fn write_u128(&mut self, value: u128) {
        self.0 ^= value as u64;
        self.1 ^= (value >> 64) as u64;
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(value as u64);
    }
}
