//! `make help`, `make run` and the scripts at the root behave as described.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn make(words: &[&str], input: &str) -> String {
    let mut child = Command::new("make")
        .args(words)
        .current_dir(ROOT)
        // Those of `make test` do not apply.
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "make {words:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn make_help_lists_every_target() {
    let makefile = fs::read_to_string(format!("{ROOT}/Makefile")).unwrap();
    let targets = makefile.lines().find_map(|line| line.strip_prefix(".PHONY: ")).unwrap();
    let help = make(&["help"], "");

    let listed = |target: &str| help.lines().any(|line| line.split_whitespace().nth(1) == Some(target));
    let missing: Vec<&str> = targets.split(' ').filter(|target| !listed(target)).collect();
    assert!(missing.is_empty(), "without a description after ##: {missing:?}");
}

#[test]
fn make_run_starts_nothing_without_consent() {
    for refusal in ["n\n", "\n", "no\n", "never\n"] {
        // A build is not needed to be asked.
        let output = make(&["run", "CARGO=true"], refusal);
        assert!(output.contains("[y/N]") && output.ends_with("Nothing was started.\n"), "{refusal:?}: {output}");
    }
}

/// `./test.sh` and `./lint.sh` call the targets of the same name, from any folder.
#[test]
fn the_scripts_at_the_root_are_the_targets() {
    let folder = std::env::temp_dir().join(format!("perennial-make-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let stand_in = folder.join("make");
    fs::write(&stand_in, "#!/bin/sh\necho \"$PWD: make $*\"\n").unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let root = fs::canonicalize(ROOT).unwrap();

    for target in ["test", "lint"] {
        let script = root.join(format!("{target}.sh"));
        let output = Command::new(script).arg("FULL=1").current_dir("/").env("PATH", &path).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, format!("{}: make {target} FULL=1\n", root.display()));
    }
    fs::remove_dir_all(folder).unwrap();
}
