//! The operator as started by the tests, built from the tree under test. Its clock can be shifted.

use std::process::ExitCode;

fn main() -> ExitCode {
    let off = std::env::var("OPERATOR_UNDER_TEST_CLOCK_OFF_BY").ok().and_then(|text| text.parse().ok());
    if let Some(seconds) = off {
        perennial::runtime::clock::pretend_to_be_off_by(seconds);
    }
    perennial::cli::main()
}
