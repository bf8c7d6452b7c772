//! Every `perennial` command in the README and the documentation is accepted by the command line.

use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, error::ErrorKind};

use super::Cli;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the README and all pages of the documentation.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![Path::new(ROOT).join("README.md")];
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") && !path.ends_with("reference/cli.md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Returns the lines of the code blocks of a page. Lines that end in a backslash are joined.
fn code_lines(text: &str) -> Vec<String> {
    let mut code = false;
    let mut lines: Vec<String> = Vec::new();
    let mut continues = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            code = !code;
        } else if code {
            let (part, more) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
            match lines.last_mut().filter(|_| continues) {
                Some(last) => last.push_str(part),
                None => lines.push(part.to_owned()),
            }
            continues = more;
        }
    }
    lines
}

/// Returns the words of a command line up to a comment, pipe or redirection, as a shell splits
/// them.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '#' | '|' | '>' | '<' | ';' | '&') if word.is_none() => return words,
            (None, ')') => break,
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Returns the code spans of a page outside of its code blocks.
fn code_spans(text: &str) -> Vec<String> {
    let mut code = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    let prose = prose.collect::<Vec<_>>().join(" ");
    prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Replaces a placeholder such as `NODE` by a value that is a name and a number.
fn filled(word: String) -> String {
    if word.chars().all(|c| c.is_ascii_uppercase()) { "1".to_owned() } else { word }
}

/// Returns the commands of `perennial` in a page.
fn commands(text: &str) -> Vec<Vec<String>> {
    let lines = code_lines(text).into_iter().chain(code_spans(text));
    let starts = lines.filter_map(|line| {
        let line = line.trim_start_matches("$ ");
        let line = line.strip_prefix("kubectl ").filter(|rest| rest.starts_with("perennial ")).unwrap_or(line);
        line.starts_with("perennial ").then(|| words(line).into_iter().map(filled).collect())
    });
    starts.collect()
}

#[test]
fn every_documented_command_is_accepted() {
    let mut accepted = 0;
    for page in pages() {
        for command in commands(&std::fs::read_to_string(&page).unwrap()) {
            let refused = Cli::command().try_get_matches_from(&command).err();
            // Prose names commands without their arguments: `perennial show`.
            let named_only =
                |error: &clap::Error| error.kind() == ErrorKind::MissingRequiredArgument && command.len() == 2;
            let refused = refused.filter(|error| error.kind() != ErrorKind::DisplayHelp && !named_only(error));
            assert!(refused.is_none(), "{}: {command:?}: {}", page.display(), refused.unwrap());
            accepted += 1;
        }
    }
    assert!(accepted > 50, "only {accepted} commands were found");
}

#[test]
fn commands_are_found_and_split_as_a_shell_does() {
    let page = "perennial text\n```\n$ perennial explain 'a b' --node n1   # why\nkubectl perennial nodes | head\n\
                perennial export > f.yaml\nperennial import \\\n  -f x\nhelm install\n```\nRun `perennial show NODE`.\n";
    let found: Vec<String> = commands(page).iter().map(|words| words.join("|")).collect();
    let expected = [
        "perennial|explain|a b|--node|n1",
        "perennial|nodes",
        "perennial|export",
        "perennial|import|-f|x",
        "perennial|show|1",
    ];
    assert_eq!(found, expected);
}
