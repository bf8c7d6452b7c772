//! The programs under test: the operator, and the same one version ahead.
//!
//! `OPERATOR_UNDER_TEST` names another program to be tested as the operator, such as the one of `make image`.

use std::{env, fs::File, os::fd::AsRawFd, path::PathBuf, sync::OnceLock};

/// A program that stays the same file for the whole test run, also when cargo builds another one meanwhile.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    /// The variable of the environment that names another.
    other: Option<&'static str>,
    opened: OnceLock<(PathBuf, File)>,
}

/// The operator of the tree under test.
pub(crate) static OPERATOR: Program = Program::named("operator-under-test", Some("OPERATOR_UNDER_TEST"));
/// The same with the next format of records.
pub(crate) static NEXT_OPERATOR: Program = Program::named("next-operator-under-test", None);

impl Program {
    const fn named(name: &'static str, other: Option<&'static str>) -> Self {
        Self { name, other, opened: OnceLock::new() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        let (path, file) = self.opened.get_or_init(|| {
            let name = self.name;
            let named = self.other.and_then(env::var_os).or_else(|| env::var_os(format!("CARGO_BIN_EXE_{name}")));
            let path = named.map_or_else(|| beside_us(name), PathBuf::from);
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
    let found = us.ancestors().skip(1).map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not built: `cargo build -p perennial-tests --bins` builds it"))
}
