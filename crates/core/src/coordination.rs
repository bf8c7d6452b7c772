//! Coordination between replicas: leases, members and the shards each of them owns.

pub mod lease;
pub mod members;
pub mod shards;
