//! The image of the operator under test, as `make image` writes it.
//!
//! `make image` builds a static program, which takes minutes. The tests have a dynamic one, so this
//! image also contains the libraries that it was linked to. `IMAGE_UNDER_TEST` selects the archive
//! of `make image` instead.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use perennial_harness::{TestCluster, program_under_test};
use perennial_package::{
    Entry,
    image::{Build, image, is_static},
    output,
};

/// Loads the image into every real node, under the name in the chart and the manifests.
pub(crate) fn load(cluster: &TestCluster) {
    let archive = env::var_os("IMAGE_UNDER_TEST").map_or_else(|| write_archive(cluster.plane().dir()), PathBuf::from);
    cluster.plane().load_image(&archive).unwrap();
}

fn write_archive(folder: &Path) -> PathBuf {
    let path = stripped(folder);
    let program = fs::read(&path).unwrap();
    let libraries = if is_static(&program) { Vec::new() } else { libraries(&path) };
    let build = Build { architecture: "amd64".to_owned(), program, sbom: None, libraries };
    let archive = folder.join("perennial-image.tar");
    fs::write(&archive, image("perennial", env!("CARGO_PKG_VERSION"), &[build]).unwrap()).unwrap();
    archive
}

/// Returns the operator without debug information where `strip` exists, because it is loaded into
/// every node.
fn stripped(folder: &Path) -> PathBuf {
    let small = folder.join("operator");
    let tried = Command::new("strip").arg("-o").arg(&small).arg(program_under_test()).status();
    if tried.is_ok_and(|status| status.success()) { small } else { program_under_test() }
}

/// Returns the libraries and the loader of a program.
fn libraries(program: &Path) -> Vec<Entry> {
    let printed = output("ldd", &[program.to_str().unwrap()]).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    let paths = printed.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(|path| Entry::file(path.trim_start_matches('/'), 0o755, fs::read(path).unwrap())).collect()
}
