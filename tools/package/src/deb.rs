//! Debian package: an `ar` archive of two tar archives, see deb(5).

use std::fs;

use anyhow::{Context as _, ensure};

use crate::{Entry, output, tar};

const UNIT: &str = include_str!("../../../packaging/debian/perennial.service");
const CONFIG: &str = include_str!("../../../packaging/debian/config.yaml");
const SCRIPTS: &[Script] = &[
    Script { name: "postinst", text: include_str!("../../../packaging/debian/postinst") },
    Script { name: "prerm", text: include_str!("../../../packaging/debian/prerm") },
    Script { name: "postrm", text: include_str!("../../../packaging/debian/postrm") },
];
const LICENSE: &str = include_str!("../../../LICENSE");

/// Fields of the control file.
#[derive(Debug, Clone)]
pub struct Control {
    pub version: String,
    /// Debian architecture: `amd64`, `arm64`.
    pub architecture: String,
}

/// Maintainer script.
#[derive(Debug, Clone)]
pub struct Script {
    pub name: &'static str,
    pub text: &'static str,
}

/// Builds Perennial's package. `native` is the same program for this machine; it prints the man
/// pages and completions.
pub fn perennial(architecture: &str, program: &[u8], native: &str) -> anyhow::Result<Vec<u8>> {
    let control = Control { version: env!("CARGO_PKG_VERSION").to_owned(), architecture: architecture.to_owned() };
    package(&control, SCRIPTS, &files(program, native)?)
}

/// Builds a package. Files under `etc/` are conffiles: changes of an admin are kept.
pub fn package(control: &Control, scripts: &[Script], files: &[Entry]) -> anyhow::Result<Vec<u8>> {
    ensure!(
        !control.version.contains('-'),
        "a `-` in a Debian version starts the revision, which this package does not have: {}",
        control.version
    );
    let kilobytes = files.iter().map(|file| file.content.len().div_ceil(1024)).sum::<usize>();
    let about = format!(
        "Package: perennial
Version: {}
Architecture: {}
Maintainer: The Perennial authors <maintainers@perennial.dev>
Installed-Size: {kilobytes}
Depends: adduser
Section: admin
Priority: optional
Homepage: {}
Description: {}
 Keeps the labels, annotations, taints and cordons of Kubernetes nodes in
 ConfigMaps, and restores them when a node returns. This package runs the
 operator outside of the cluster, with a kubeconfig.
",
        control.version,
        control.architecture,
        env!("CARGO_PKG_REPOSITORY"),
        "keeps labels, taints and annotations of Kubernetes nodes",
    );
    let kept: Vec<&str> = files.iter().filter_map(|file| file.path.strip_prefix('.')).collect();
    let kept: Vec<&str> = kept.into_iter().filter(|path| path.starts_with("/etc/")).collect();
    let mut meta =
        vec![Entry::file("./control", 0o644, about), Entry::file("./conffiles", 0o644, kept.join("\n") + "\n")];
    meta.extend(scripts.iter().map(|script| Entry::file(&format!("./{}", script.name), 0o755, script.text)));
    let meta = tar(&meta)?;
    let data = tar(files)?;

    let mut archive = b"!<arch>\n".to_vec();
    for (name, bytes) in [("debian-binary", b"2.0\n".to_vec()), ("control.tar", meta), ("data.tar", data)] {
        archive.extend(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, bytes.len()).into_bytes());
        archive.extend(&bytes);
        if bytes.len() % 2 == 1 {
            archive.push(b'\n');
        }
    }
    Ok(archive)
}

fn files(program: &[u8], native: &str) -> anyhow::Result<Vec<Entry>> {
    let completion = |shell| output(native, &["completion", shell]);
    let mut files = vec![
        Entry::file("./etc/perennial/config.yaml", 0o644, CONFIG),
        Entry::file("./lib/systemd/system/perennial.service", 0o644, UNIT),
        Entry::file("./usr/bin/perennial", 0o755, program),
        Entry::file("./usr/share/bash-completion/completions/perennial", 0o644, completion("bash")?),
        Entry::file("./usr/share/doc/perennial/copyright", 0o644, LICENSE),
        Entry::file("./usr/share/fish/vendor_completions.d/perennial.fish", 0o644, completion("fish")?),
        Entry::file("./usr/share/zsh/vendor-completions/_perennial", 0o644, completion("zsh")?),
    ];
    files.extend(man_pages(native)?);
    Ok(files)
}

/// Returns one man page per command.
fn man_pages(native: &str) -> anyhow::Result<Vec<Entry>> {
    let folder = std::env::temp_dir().join(format!("perennial-man-{}", std::process::id()));
    output(native, &["man", &folder.to_string_lossy()])?;
    let mut pages = Vec::new();
    for page in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let page = page?;
        let name = page.file_name().to_string_lossy().into_owned();
        pages.push(Entry::file(&format!("./usr/share/man/man1/{name}"), 0o644, fs::read(page.path())?));
    }
    fs::remove_dir_all(&folder)?;
    // Same order on every machine.
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(pages)
}
