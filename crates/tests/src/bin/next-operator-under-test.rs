//! The operator of the next version, as far as this one notices: its records have a newer format, and it reads both.

use std::process::ExitCode;

fn main() -> ExitCode {
    perennial_core::keeper::record::next::pretend();
    perennial::cli::main()
}
