//! Locates the operator binaries under test.
//!
//! `OPERATOR_UNDER_TEST` selects another binary, such as the one that `make image` builds.

use std::{env, fs::File, os::fd::AsRawFd, path::PathBuf, sync::OnceLock};

/// A binary that stays the same file for the whole test run, even if cargo replaces it.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    /// Environment variable that selects another binary.
    other: Option<&'static str>,
    opened: OnceLock<(PathBuf, File)>,
}

/// Operator of the tree under test.
pub(crate) static OPERATOR: Program = Program::named("operator-under-test", Some("OPERATOR_UNDER_TEST"));
/// Operator of the next version, with the next record format.
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

pub(crate) fn path() -> PathBuf {
    OPERATOR.path()
}

/// Path of the operator under test.
pub fn program_under_test() -> PathBuf {
    path()
}

/// Searches the folders above the running executable, for programs that cargo did not start.
fn beside_us(name: &str) -> PathBuf {
    let us = env::current_exe().expect("a running program has a path");
    let found = us.ancestors().skip(1).map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not built: `cargo build -p perennial-tests --bins` builds it"))
}
