//! What goes wrong between Perennial and a real Kubernetes, one thing at a time, and that nothing comes of it.
//!
//! Each test knows what people wanted ([`life`]), and compares it with what the API server says when things are calm again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "whatever fails here fails the test")]

mod control_plane;
mod crashes;
mod etcd_restore;
mod life;
mod load;
mod ports;
mod stale;
mod weather;
