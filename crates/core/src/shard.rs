//! Shards.
