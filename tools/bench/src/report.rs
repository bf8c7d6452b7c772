//! Report as Markdown with plots, and as JSON.
//!
//! Each part is stored in its own file `parts/NAME.json`: a part that is measured again replaces
//! its previous figures, and one that fails leaves the others in place.

use std::{fmt::Write as _, fs, io, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const PARTS: &str = "parts";

/// Figures of one part.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    text: String,
    raw: Map<String, Value>,
    goals: Vec<Figure>,
    #[serde(skip)]
    plots: Vec<(String, String)>,
}

/// A figure with a limit.
#[derive(Debug, Serialize, Deserialize)]
struct Figure {
    #[serde(rename = "figure")]
    name: String,
    measured: String,
    limit: String,
    met: bool,
}

/// Limit of a figure, and whether it is met.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) limit: String,
    pub(crate) met: bool,
}

impl Goal {
    pub(crate) fn at_most(measured: f64, limit: f64, text: impl Into<String>) -> Self {
        Self { limit: text.into(), met: measured <= limit }
    }

    /// A count that must be zero.
    pub(crate) fn none(measured: usize) -> Self {
        Self { limit: "0".to_owned(), met: measured == 0 }
    }
}

impl Report {
    pub(crate) fn part(&mut self, title: &str) {
        progress(title);
        let _ = write!(self.text, "\n## {title}\n\n");
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        let _ = write!(self.text, "{text}\n\n");
    }

    /// Adds a table.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let _ = writeln!(self.text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
        for row in rows {
            progress(&format!("  {}", row.join(" · ")));
            let _ = writeln!(self.text, "| {} |", row.join(" | "));
        }
        self.text.push('\n');
    }

    /// Adds a figure with a limit. It also appears in the table of goals.
    pub(crate) fn goal(&mut self, name: &str, measured: &str, goal: Goal) {
        progress(&format!("  {name}: {measured} (at most {}){}", goal.limit, if goal.met { "" } else { ": NOT MET" }));
        let Goal { limit, met } = goal;
        self.goals.push(Figure { name: name.to_owned(), measured: measured.to_owned(), limit, met });
    }

    /// Adds a raw figure to the JSON report.
    pub(crate) fn raw(&mut self, name: &str, value: Value) {
        self.raw.insert(name.to_owned(), value);
    }

    /// Adds a plot and a reference to it.
    pub(crate) fn plot(&mut self, name: &str, title: &str, svg: String) {
        let _ = write!(self.text, "![{title}](benchmarks/{name}.svg)\n\n");
        self.plots.push((name.to_owned(), svg));
    }

    /// Saves this part and its plots.
    pub(crate) fn save(&self, folder: &Path, part: &str) -> io::Result<()> {
        let (parts, plots) = (folder.join(PARTS), folder.join("benchmarks"));
        fs::create_dir_all(&parts)?;
        fs::create_dir_all(&plots)?;
        fs::write(parts.join(format!("{part}.json")), serde_json::to_vec_pretty(self)?)?;
        for (name, svg) in &self.plots {
            fs::write(plots.join(format!("{name}.svg")), svg)?;
        }
        Ok(())
    }
}

/// Deletes all parts.
pub(crate) fn clear(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder.join(PARTS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes `report.md`, goals first, and `report.json` from all saved parts in this order. Returns
/// the report.
pub(crate) fn assemble(folder: &Path, machine: &str, order: &[&str]) -> io::Result<String> {
    let mut whole = Report::default();
    for part in order {
        let bytes = match fs::read(folder.join(PARTS).join(format!("{part}.json"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => read?,
        };
        let part: Report = serde_json::from_slice(&bytes)?;
        whole.text.push_str(&part.text);
        whole.raw.extend(part.raw);
        whole.goals.extend(part.goals);
    }
    let mut text = format!("{machine}\n\n## Goals\n\n| figure | measured | at most | met |\n|---|---|---|---|\n");
    for Figure { name, measured, limit, met } in &whole.goals {
        let _ = writeln!(text, "| {name} | {measured} | {limit} | {} |", if *met { "yes" } else { "**no**" });
    }
    text.push_str(&whole.text);
    whole.raw.insert("goals".to_owned(), serde_json::to_value(&whole.goals)?);
    fs::write(folder.join("report.md"), &text)?;
    fs::write(folder.join("report.json"), format!("{:#}\n", Value::Object(whole.raw)))?;
    Ok(text)
}

/// Prints progress to stderr.
pub(crate) fn progress(text: &str) {
    eprintln!("bench: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("perennial-report-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn part(name: &str, met: bool) -> Report {
        let mut report = Report::default();
        report.part(name);
        report.goal(name, "7", Goal { limit: "5".to_owned(), met });
        report.raw(name, 7.into());
        report
    }

    #[test]
    fn a_report_has_its_parts_in_order_and_the_goals_first() {
        let folder = folder("order");
        part("second", true).save(&folder, "b").unwrap();
        part("first", false).save(&folder, "a").unwrap();

        let text = assemble(&folder, "machine", &["a", "missing", "b"]).unwrap();
        fs::remove_dir_all(&folder).unwrap();

        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
        assert!(at("| first | 7 | 5 | **no** |") < at("| second | 7 | 5 | yes |"), "{text}");
        assert!(at("| second |") < at("## first") && at("## first") < at("## second"), "{text}");
    }

    #[test]
    fn a_part_that_is_measured_again_replaces_its_figures_only() {
        let folder = folder("again");
        part("first", false).save(&folder, "a").unwrap();
        part("second", false).save(&folder, "b").unwrap();
        part("first", true).save(&folder, "a").unwrap();

        let text = assemble(&folder, "machine", &["a", "b"]).unwrap();
        fs::remove_dir_all(&folder).unwrap();

        assert!(text.contains("| first | 7 | 5 | yes |") && text.contains("| second | 7 | 5 | **no** |"), "{text}");
    }

    #[test]
    fn a_goal_is_met_up_to_its_limit() {
        assert!(Goal::at_most(5.0, 5.0, "5").met && !Goal::at_most(5.1, 5.0, "5").met);
        assert!(Goal::none(0).met && !Goal::none(1).met);
    }
}
