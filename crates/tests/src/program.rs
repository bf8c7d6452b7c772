//! The program under test.

use std::{env, fs::File, os::fd::AsRawFd, path::PathBuf, sync::OnceLock};

const NAME: &str = "operator-under-test";

/// Where the program is. It stays the same file for the whole test run, also when cargo builds another one meanwhile.
pub(crate) fn path() -> PathBuf {
    static PROGRAM: OnceLock<(PathBuf, File)> = OnceLock::new();
    let (path, file) = PROGRAM.get_or_init(|| {
        let path = env::var_os(format!("CARGO_BIN_EXE_{NAME}")).map_or_else(beside_us, PathBuf::from);
        let file =
            File::open(&path).unwrap_or_else(|error| panic!("no program to test at {}: {error}", path.display()));
        (path, file)
    });
    let open = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    if open.exists() { open } else { path.clone() }
}

/// Where the program under test is, for those who do more with it than to start it.
pub fn program_under_test() -> PathBuf {
    path()
}

/// Where cargo puts programs, for test binaries that are started without it.
fn beside_us() -> PathBuf {
    let us = env::current_exe().expect("a running program has a path");
    us.ancestors().skip(1).map(|folder| folder.join(NAME)).find(|path| path.exists()).expect("cargo built the operator")
}
