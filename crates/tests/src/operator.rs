//! The operator as the tests start it: the whole program, built from the tree under test.

use std::process::ExitCode;

fn main() -> ExitCode {
    perennial::cli::main()
}
