//! The Debian package: installed, upgraded, removed and purged in a temporary copy of this machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use perennial_harness::skip;
use serde_json::Value;

use crate::packages::stripped;

/// Script that runs in the copy. It stops at the first failing line.
const STORY: &str = r#"set -eux
# The index of man pages is not ours, and the copy need not survive a power cut.
dpkg="dpkg --no-triggers --force-unsafe-io"
$dpkg --install /perennial.deb
test "$(id -un perennial)" = perennial
perennial --version
setpriv --reuid=perennial --regid=perennial --clear-groups perennial manifests crds >/dev/null
perennial manifests --config /etc/perennial/config.yaml >/dev/null
grep -q '^.TH perennial' /usr/share/man/man1/perennial.1 /usr/share/man/man1/perennial-run.1
bash -n /usr/share/bash-completion/completions/perennial
dpkg --verify perennial

# The unit is right: also a directive that systemd would only warn of is an error. What it is open to is looked at below.
systemd-analyze verify --recursive-errors=no --man=no /lib/systemd/system/perennial.service
systemd-analyze security --offline=true --json=short perennial.service

# What an admin changed stays.
echo '# mine' >>/etc/perennial/config.yaml
$dpkg --install --force-confold /perennial.deb
grep -q '^# mine' /etc/perennial/config.yaml

$dpkg --remove perennial
test ! -e /usr/bin/perennial
test ! -e /lib/systemd/system/perennial.service
grep -q '^# mine' /etc/perennial/config.yaml

$dpkg --purge perennial
test ! -e /etc/perennial
! getent passwd perennial
"#;

/// Expected exposure of the service by the names of `systemd-analyze security`: the network and
/// what it implies.
const OPEN: [&str; 6] = [
    "DeviceAllow=",
    "IPAddressDeny=",
    "PrivateNetwork=",
    "RestrictAddressFamilies=~AF_(INET|INET6)",
    // The socket of the watchdog.
    "RestrictAddressFamilies=~AF_UNIX",
    "RootDirectory=/RootImage=",
];

/// Parses the exposure from the output.
fn open(message: &str) -> Vec<String> {
    let list = message.lines().find(|line| line.starts_with("[{\"set\"")).expect("systemd's list");
    let list: Vec<Value> = serde_json::from_str(list).unwrap();
    let mut open: Vec<String> =
        list.iter().filter(|each| each["set"] == false).map(|each| each["name"].as_str().unwrap().to_owned()).collect();
    open.sort();
    open
}

/// Creates an overlay of this machine: reads come from it, writes do not reach it.
const COPY: &str = r#"set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" root
mount -t proc proc root/proc
cat >root/perennial.deb
exec chroot root sh -c "$2"
"#;

/// Creates a folder for a copy.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("perennial-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns why the package cannot be installed in a copy of this machine.
pub(crate) fn obstacle(folder: &Path) -> Option<String> {
    let try_out = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(message) }
    };
    let folder = folder.to_str().unwrap();
    try_out("dpkg", &["--version"])
        .and_then(|()| try_out("systemd-analyze", &["--version"]))
        .and_then(|()| try_out("dpkg", &["--status", "adduser"]))
        .and_then(|()| try_out("unshare", &["--mount", "--pid", "--fork", "sh", "-c", COPY, "sh", folder, "true"]))
        .err()
}

/// The service is reachable from other machines only if an admin configures it.
#[test]
fn the_packaged_config_binds_to_loopback() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/debian/config.yaml");
    let config: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();

    for server in ["webhook", "metrics"] {
        assert_eq!(config[server]["address"], "127.0.0.1", "{server}");
    }
}

/// Writes the package beside a folder.
pub(crate) fn package(folder: &Path) -> PathBuf {
    let stripped = stripped(folder);
    let native = stripped.to_str().unwrap();
    let architecture = Command::new("dpkg").arg("--print-architecture").output().unwrap().stdout;
    let architecture = String::from_utf8(architecture).unwrap();
    let package =
        perennial_package::deb::perennial(architecture.trim(), &fs::read(&stripped).unwrap(), native).unwrap();
    let file = folder.with_extension("deb");
    fs::write(&file, package).unwrap();
    file
}

#[test]
fn the_package_is_installed_upgraded_removed_and_purged() {
    let folder = folder("debian");
    if let Some(why) = obstacle(&folder) {
        skip("needs root on a Debian with systemd, dpkg and adduser", &why);
        return;
    }
    let file = package(&folder);
    let place = folder.join("copy");
    fs::create_dir_all(&place).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "sh", "-c", COPY, "sh", place.to_str().unwrap(), STORY])
        .stdin(fs::File::open(&file).unwrap())
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .unwrap();

    let message = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert_eq!(open(&message), OPEN, "the service is open to something else");
    fs::remove_dir_all(folder).unwrap();
    fs::remove_file(file).unwrap();
}
