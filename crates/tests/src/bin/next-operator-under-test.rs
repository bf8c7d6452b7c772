//! Operator of the next version: its records have a newer format, and it reads both formats.

use std::process::ExitCode;

fn main() -> ExitCode {
    perennial_core::keeper::record::next::pretend();
    perennial::cli::main()
}
