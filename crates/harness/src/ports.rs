//! Free ports below the ephemeral range.
//!
//! A free ephemeral port may become the source port of any connection before the program that it is
//! meant for listens on it.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    net::TcpListener,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// localplane uses 20000 to 29999.
const FIRST: u16 = 30_000;
const COUNT: u16 = 2_700;

/// Returns a free port. A process never gets the same port twice before it has had all others.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(std::process::id())));
    let candidates = (0..COUNT).map(|_| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(COUNT);
        FIRST + u16::try_from(step).unwrap_or_default()
    });
    let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    candidates.into_iter().find(is_free).expect("a free port between 30000 and 32699")
}
