//! What was measured, for people (Markdown and plots) and for programs (JSON).

use std::{fmt::Write as _, fs, io, path::Path};

use serde_json::{Map, Value, json};

/// Figures as they come.
#[derive(Debug, Default)]
pub(crate) struct Report {
    text: String,
    raw: Map<String, Value>,
    /// Figures with a limit: name, measured, limit, whether it is met.
    goals: Vec<(String, String, String, bool)>,
    plots: Vec<(String, String)>,
}

/// What a figure may be at most (or at least), and whether it is.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) limit: String,
    pub(crate) met: bool,
}

impl Goal {
    pub(crate) fn at_most(measured: f64, limit: f64, text: impl Into<String>) -> Self {
        Self { limit: text.into(), met: measured <= limit }
    }

    /// Nothing of this kind may happen.
    pub(crate) fn none(measured: usize) -> Self {
        Self { limit: "0".to_owned(), met: measured == 0 }
    }
}

impl Report {
    pub(crate) fn part(&mut self, title: &str) {
        say(title);
        let _ = write!(self.text, "\n## {title}\n\n");
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        let _ = write!(self.text, "{text}\n\n");
    }

    /// A table; its columns are aligned by whoever shows it.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let _ = writeln!(self.text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
        for row in rows {
            say(&format!("  {}", row.join(" · ")));
            let _ = writeln!(self.text, "| {} |", row.join(" | "));
        }
        self.text.push('\n');
    }

    /// A figure that has a limit. It is shown in the table of goals.
    pub(crate) fn goal(&mut self, name: &str, measured: &str, goal: Goal) {
        say(&format!("  {name}: {measured} (at most {}){}", goal.limit, if goal.met { "" } else { ": NOT MET" }));
        self.goals.push((name.to_owned(), measured.to_owned(), goal.limit, goal.met));
    }

    /// A figure for programs.
    pub(crate) fn raw(&mut self, name: &str, value: Value) {
        self.raw.insert(name.to_owned(), value);
    }

    /// A picture, and the place where it is shown.
    pub(crate) fn plot(&mut self, name: &str, title: &str, svg: String) {
        let _ = write!(self.text, "![{title}](benchmarks/{name}.svg)\n\n");
        self.plots.push((name.to_owned(), svg));
    }

    /// The whole report, the goals first.
    fn markdown(&self, about: &str) -> String {
        let mut text = format!("{about}\n\n## Goals\n\n| figure | measured | at most | met |\n|---|---|---|---|\n");
        for (name, measured, limit, met) in &self.goals {
            let _ = writeln!(text, "| {name} | {measured} | {limit} | {} |", if *met { "yes" } else { "**no**" });
        }
        text.push_str(&self.text);
        text
    }

    /// Writes `report.md`, `report.json` and the plots into a folder; the report itself is given back.
    pub(crate) fn write(&self, folder: &Path, about: &str) -> io::Result<String> {
        let text = self.markdown(about);
        let plots = folder.join("benchmarks");
        fs::create_dir_all(&plots)?;
        fs::write(folder.join("report.md"), &text)?;
        let goals: Vec<Value> = self
            .goals
            .iter()
            .map(|(name, measured, limit, met)| json!({"figure": name, "measured": measured, "limit": limit, "met": met}))
            .collect();
        let mut raw = self.raw.clone();
        raw.insert("goals".to_owned(), goals.into());
        fs::write(folder.join("report.json"), format!("{:#}\n", Value::Object(raw)))?;
        for (name, svg) in &self.plots {
            fs::write(plots.join(format!("{name}.svg")), svg)?;
        }
        Ok(text)
    }
}

/// Progress, for whoever waits.
pub(crate) fn say(text: &str) {
    eprintln!("bench: {text}");
}
