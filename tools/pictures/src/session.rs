//! A terminal session: real commands and their output, drawn as SVG.

use std::fmt::Write as _;

use perennial_harness::eventually;

use crate::scene::Scene;

/// The commands. `worker-07` is replaced before, and its rack label is removed.
const COMMANDS: [&str; 5] = [
    "kubectl label node worker-07 rack-",
    "kubectl get node worker-07 -L team,rack,disk",
    "perennial explain rack --node worker-07",
    "perennial history worker-07",
    "perennial status",
];
const LINE: usize = 19;
const LETTER: f64 = 7.83;
const MARGIN: usize = 22;
const COLUMNS: usize = 132;

pub(crate) async fn play(scene: &Scene) -> String {
    scene.replace(7).await;
    let mut text = String::new();
    for command in COMMANDS {
        // `script` provides a terminal, so that the output has colours.
        let typed = format!(
            "export COLUMNS={COLUMNS}; script -qec {} /dev/null | tr -d '\\r'",
            quoted(&format!("{command} {}", whose(scene, command)))
        );
        let answer = scene.cluster.shell(&typed).expect_success();
        let _ = writeln!(text, "\u{1b}[1;32m$\u{1b}[0m \u{1b}[1m{command}\u{1b}[0m\n{}\n", answer.trim_end());
        if command.starts_with("kubectl label") {
            eventually("the record has followed", async || {
                let record = scene.cluster.record("worker-07").await.unwrap_or_default();
                if record["labels"]["rack"].is_null() { Ok(()) } else { Err("it has not") }
            })
            .await;
        }
    }
    draw(text.trim_end())
}

/// Adds the namespace of the scene to a command.
fn whose(scene: &Scene, command: &str) -> String {
    if command.starts_with("perennial") { format!("-n {}", scene.cluster.namespace()) } else { String::new() }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Draws text with ANSI colours as a terminal.
fn draw(text: &str) -> String {
    let lines: Vec<String> = text.lines().flat_map(wrapped).collect();
    let top = 52;
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pixels")]
    let width = (COLUMNS as f64 * LETTER) as usize + 2 * MARGIN;
    let height = top + lines.len() * LINE + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"A terminal session with kubectl and perennial\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"12\" fill=\"#141917\"/>\n\
         <circle cx=\"24\" cy=\"22\" r=\"6\" fill=\"#c9745f\"/><circle cx=\"44\" cy=\"22\" r=\"6\" fill=\"#d9a83a\"/><circle cx=\"64\" cy=\"22\" r=\"6\" fill=\"#52a27c\"/>\n\
         <g font-family=\"JetBrains Mono, ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"13\" fill=\"#dfe6e2\">\n"
    );
    for (number, line) in lines.iter().enumerate() {
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\">{}</text>", top + number * LINE + 8, spans(line));
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Wraps a line at the width of the terminal.
fn wrapped(line: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let (mut column, mut escape) = (0, false);
    for letter in line.chars() {
        escape |= letter == '\u{1b}';
        if !escape {
            if column == COLUMNS {
                lines.push(String::new());
                column = 0;
            }
            column += 1;
        }
        escape &= letter != 'm';
        lines.last_mut().expect("there is one").push(letter);
    }
    lines
}

/// Converts one line with ANSI colours to SVG.
fn spans(line: &str) -> String {
    let mut svg = String::new();
    let mut parts = line.split('\u{1b}');
    let mut put = |text: &str, style: &str| {
        // Non-breaking spaces keep their width in every viewer.
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace(' ', "\u{a0}");
        if text.is_empty() {
            return;
        }
        let _ = if style.is_empty() { write!(svg, "{text}") } else { write!(svg, "<tspan {style}>{text}</tspan>") };
    };
    put(parts.next().unwrap_or_default(), "");
    for part in parts {
        let (code, text) = part.strip_prefix('[').and_then(|part| part.split_once('m')).unwrap_or(("0", part));
        let style = match code {
            "32" => "fill=\"#83cba7\"",
            "1;32" => "fill=\"#83cba7\" font-weight=\"700\"",
            "33" => "fill=\"#ecc46c\"",
            "31" => "fill=\"#f3a0a6\"",
            "2" => "fill=\"#8d9a93\"",
            "1" => "fill=\"#ffffff\" font-weight=\"700\"",
            _ => "",
        };
        put(text, style);
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_do_not_count_when_a_line_is_wrapped() {
        let line = format!("\u{1b}[32m{}\u{1b}[0mx", "a".repeat(COLUMNS));
        let lines = wrapped(&line);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("\u{1b}[32m") && lines[1].ends_with('x'), "{lines:?}");
    }

    #[test]
    fn text_is_escaped_and_coloured() {
        let svg = spans("a<b \u{1b}[31mred\u{1b}[0m end");
        assert_eq!(svg, "a&lt;b\u{a0}<tspan fill=\"#f3a0a6\">red</tspan>\u{a0}end");
    }
}
