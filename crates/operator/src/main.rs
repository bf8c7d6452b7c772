use std::process::ExitCode;

fn main() -> ExitCode {
    perennial::cli::main()
}
