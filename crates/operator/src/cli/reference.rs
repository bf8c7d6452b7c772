//! docs/cli.md: the introduction and the `--help` of every command. A test keeps the page up to date.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};

use super::Cli;

const INTRODUCTION: &str = "# The command line

`perennial` is also `kubectl perennial`, where it is on the PATH under the name `kubectl-perennial`.

| you want to know | ask |
|---|---|
| why is this label not on this node? | `perennial explain team --node worker-1` |
| what is with this node, and what if it were deleted now? | `perennial explain worker-1` |
| how does everything stand? who works on what? | `perennial status`, `perennial top` |
| the same, live, in a browser? | `perennial dashboard` |
| which nodes are not as their records say? | `perennial nodes --state unsettled`, `perennial diff` |
| what was on this node last week? | `perennial history worker-1` |
| is it installed right? | `perennial check` |
| what would the operator do with these files? | `perennial plan -f FILE` |

- All commands that only look work with read-only rights. Commands that change something go through the same plans and the same
  conditional writes as the operator.
- They judge by the configuration that the operator was installed with (ConfigMap `perennial-config`), or by `--config FILE`.
- `-o table|wide|json|yaml|name` for lists, `-o table|json|yaml` for what tells a story; `-l SELECTOR`, `-w`, `-n`, `--context`,
  `--kubeconfig` as in kubectl. With `-w`, `-o json` and `-o yaml` print one object after the other. Colour is for terminals only,
  and never with `NO_COLOR`; so is the line that shows how far something is that takes longer than a second.
- Lists are printed as they are read, 500 at a time, and no more than that is in memory.
- They end with 0, or with 1 and a sentence that says what to do. `diff` ends with 1 where something differs and with 2 where it
  could not be found out, as `kubectl diff` does; `check` with 1 where something fails; `import` and `export` with 1 where something
  was left out.
- What destroys something wants `--yes`.
- Completion with live names of nodes: `source <(perennial completion bash)`, also for zsh, fish, elvish and powershell. For
  `kubectl perennial`: `perennial completion kubectl > kubectl_complete-perennial`, executable and on the PATH. Man pages:
  `perennial man FOLDER`.

What follows is what `--help` says of each command, made from the program by `make docs`.
";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");

/// `UPDATE_DOCS=1 cargo test -p perennial --lib reference` writes the page.
#[test]
fn the_page_has_the_help_of_every_command() {
    let current = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &current).unwrap();
    }
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert_eq!(page, current, "run: make docs");
}

#[test]
fn the_commands_are_sound() {
    Cli::command().debug_assert();
}

/// All commands with their help, as Markdown.
fn page() -> String {
    let mut text = String::from(INTRODUCTION);
    let mut root = Cli::command().term_width(100);
    root.build();
    describe(&root, "perennial", &mut text);
    text
}

fn describe(command: &Command, name: &str, text: &mut String) {
    let help = command.clone().bin_name(name).term_width(100).render_long_help().to_string();
    let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let _ = write!(text, "\n## {name}\n\n```\n{}\n```\n", help.trim_end());
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
        describe(inner, &format!("{name} {}", inner.get_name()), text);
    }
}
