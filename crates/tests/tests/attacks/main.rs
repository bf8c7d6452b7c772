//! Attacks from outside and with stolen credentials, each with the limit that must hold.
//! `docs/explain/security.md` lists these tests.

// clippy does not recognise helpers as tests, but they fail by panics as well.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod account;
mod addresses;
mod cgroup;
mod client;
mod exhaustion;
mod filled_review;
mod http2;
mod names;
mod slow_api_server;
mod tenants;
