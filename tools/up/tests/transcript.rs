//! The sessions that the README and `docs/start/try.md` show, run on a cluster of `make up`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A folder in which a cluster runs. It is stopped and removed at the end.
struct Up(PathBuf);

impl Up {
    fn start(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("perennial-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let up = Self(folder);
        let started = up.program("start").output().unwrap();
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        up
    }

    fn program(&self, command: &str) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_up"));
        program.arg(command).current_dir(&self.0).stdin(Stdio::null());
        program
    }

    /// Runs a command in a shell in which `.up/env` was sourced.
    fn shell(&self, command: &str) -> String {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!(". .up/env && {command}")]).current_dir(&self.0).stdin(Stdio::null());
        let output = shell.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.program("stop").output();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the commands of the first block that contains this text, each with its shown output.
fn session(page: &str, containing: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("{ROOT}/{page}")).unwrap();
    let mut blocks = text.split("\n```\n").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(containing)).unwrap_or_else(|| panic!("{page}: no {containing}"));
    let mut commands = Vec::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push((command.to_owned(), String::new()));
        } else {
            let (_, output): &mut (String, String) = commands.last_mut().expect("a command before its output");
            output.push_str(line);
            output.push('\n');
        }
    }
    commands
}

/// Compares word by word. `…` in a word stands for anything, and ages and versions vary.
fn matches(shown: &str, word: &str) -> bool {
    let is_age = |word: &str| word.strip_suffix('s').is_some_and(|rest| rest.parse::<u32>().is_ok());
    let is_kwok = |word: &str| word.starts_with("kwok-");
    if !shown.contains('…') {
        return shown == word || (is_age(shown) && is_age(word)) || (is_kwok(shown) && is_kwok(word));
    }
    let mut rest = word;
    for part in shown.split('…') {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    word.starts_with(shown.split('…').next().unwrap_or_default()) && (shown.ends_with('…') || rest.is_empty())
}

fn assert_shown(page: &str, command: &str, shown: &str, printed: &str) {
    let lines = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let (shown_lines, printed_lines) = (lines(shown), lines(printed));
    let same = shown_lines.len() == printed_lines.len()
        && shown_lines.iter().zip(&printed_lines).all(|(shown, printed)| {
            shown.len() == printed.len() && shown.iter().zip(printed).all(|(shown, word)| matches(shown, word))
        });
    assert!(same, "{page}: {command}\nshows\n{shown}\nand prints\n{printed}");
}

/// Commands of the first minutes that this test replaces: the clone is here, and the cluster runs.
const BEFORE: [&str; 3] = ["git clone ", "make up", ". .up/env"];

#[test]
fn the_session_of_the_readme_prints_what_it_shows() {
    let session = session("README.md", "$ make up");
    let up = Up::start("readme");

    let mut run = 0;
    for (command, shown) in &session {
        if BEFORE.iter().any(|before| command.starts_with(before)) {
            continue;
        }
        if command.contains("-L team") {
            up.shell("kubectl wait --for=condition=Ready node/worker-1");
        }
        assert_shown("README.md", command, shown, &up.shell(command));
        run += 1;
    }

    assert_eq!(run, session.len() - BEFORE.len());
    assert!(session.iter().any(|(_, shown)| shown.contains("restored to this incarnation")), "{session:?}");
}

#[test]
fn the_session_of_the_try_page_prints_what_it_shows() {
    let page = "docs/start/try.md";
    let session = session(page, "$ perennial records");
    let up = Up::start("try");
    up.shell("kubectl wait --for=condition=Ready node/node-0 node/node-1 node/node-2");

    for (command, shown) in &session {
        // The page leaves some fields of the ConfigMap out.
        if command.ends_with("-o yaml") {
            let printed = up.shell(command);
            assert!(printed.contains(r#""labels":{"disk":"nvme","team":"ml"}"#), "{printed}");
            for line in shown.lines().filter(|line| !line.contains('…')) {
                assert!(printed.lines().any(|has| has == line), "{line} is not in\n{printed}");
            }
            continue;
        }
        if command.contains("get nodes") {
            up.shell("kubectl wait --for=condition=Ready node/worker-1");
        }
        // A delete that meets a capture in flight writes the record once more.
        let printed = up.shell(command).replace("Good    2        2 ", "Good    2        1 ");
        assert_shown(page, command, shown, &printed);
    }
    assert!(session.len() > 5, "{session:?}");
}
