//! The programs under test: the operator, and the same one version ahead.

use std::{env, fs::File, os::fd::AsRawFd, path::PathBuf, sync::OnceLock};

/// A program that stays the same file for the whole test run, also when cargo builds another one meanwhile.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    opened: OnceLock<(PathBuf, File)>,
}

/// The operator of the tree under test.
pub(crate) static OPERATOR: Program = Program::named("operator-under-test");
/// The same with the next format of records.
pub(crate) static NEXT_OPERATOR: Program = Program::named("next-operator-under-test");

impl Program {
    const fn named(name: &'static str) -> Self {
        Self { name, opened: OnceLock::new() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        let (path, file) = self.opened.get_or_init(|| {
            let name = self.name;
            let path = env::var_os(format!("CARGO_BIN_EXE_{name}")).map_or_else(|| beside_us(name), PathBuf::from);
            let file =
                File::open(&path).unwrap_or_else(|error| panic!("no program to test at {}: {error}", path.display()));
            (path, file)
        });
        let open = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        if open.exists() { open } else { path.clone() }
    }
}

/// Where the operator under test is.
pub(crate) fn path() -> PathBuf {
    OPERATOR.path()
}

/// Where the program under test is, for those who do more with it than to start it.
pub fn program_under_test() -> PathBuf {
    path()
}

/// Where cargo puts programs, for test binaries that are started without it.
fn beside_us(name: &str) -> PathBuf {
    let us = env::current_exe().expect("a running program has a path");
    us.ancestors().skip(1).map(|folder| folder.join(name)).find(|path| path.exists()).expect("cargo built the operator")
}
