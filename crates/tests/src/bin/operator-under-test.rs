//! The operator as started by the tests, built from the tree under test. Its clock can be shifted.

use std::process::ExitCode;

use jiff::{SignedDuration, Timestamp};
use perennial::{cli, run::Dependencies, runtime::clock::Clock};

const CLOCK_OFF_BY: &str = "OPERATOR_UNDER_TEST_CLOCK_OFF_BY";

fn main() -> ExitCode {
    let off = std::env::var(CLOCK_OFF_BY).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    let off = SignedDuration::from_secs(off);
    let clock = Clock::from_fn(move || Timestamp::now().saturating_add(off).unwrap_or_else(|_| Timestamp::now()));
    cli::main_in(Dependencies { clock, ..Dependencies::default() })
}
