//! Copies the last report into the documentation.

use std::{fs, io, path::Path, process::ExitCode};

use crate::report::progress;

/// Text above this line in docs/explain/benchmarks.md is written by hand, text below it by this
/// program.
const LINE: &str = "<!-- Below: written by `make bench`, put here by `bench publish`. -->";

pub(crate) fn publish(from: &Path, docs: &Path) -> ExitCode {
    match copy(from, docs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress(&format!("publishing the report failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn copy(from: &Path, docs: &Path) -> io::Result<()> {
    let page = docs.join("benchmarks.md");
    let text = fs::read_to_string(&page)?;
    let Some((above, _)) = text.split_once(LINE) else {
        return Err(io::Error::other(format!("{} has no line {LINE}", page.display())));
    };
    let report = fs::read_to_string(from.join("report.md"))?;
    fs::write(&page, format!("{above}{LINE}\n\n{report}"))?;
    let plots = docs.join("benchmarks");
    fs::create_dir_all(&plots)?;
    fs::copy(from.join("report.json"), plots.join("report.json"))?;
    for plot in fs::read_dir(from.join("benchmarks"))? {
        let plot = plot?;
        fs::copy(plot.path(), plots.join(plot.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The README quotes only figures that `make bench` writes.
    #[test]
    fn every_figure_of_the_readme_is_in_the_report() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let read = |path: &str| fs::read_to_string(format!("{root}/{path}")).unwrap();
        let (readme, report) = (read("README.md"), read("docs/explain/benchmarks.md"));
        let section = readme.split("## How it compares").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
        let cells =
            rows.flat_map(|row| row.split('|').skip(2)).filter(|cell| cell.contains(|c: char| c.is_ascii_digit()));
        let mut compared = 0;
        for cell in cells {
            // The report has one unit for three values: `164 / 380 / 443`.
            let figure = cell.trim().trim_end_matches(" ms");
            assert!(report.contains(figure), "{figure} is not in docs/explain/benchmarks.md");
            compared += 1;
        }
        assert!(compared > 10, "{compared} figures in {section}");
    }

    #[test]
    fn a_report_replaces_the_page_below_the_line_only() {
        let folder = std::env::temp_dir().join(format!("perennial-publish-{}", std::process::id()));
        let (from, docs) = (folder.join("report"), folder.join("docs"));
        fs::create_dir_all(from.join("benchmarks")).unwrap();
        fs::create_dir_all(&docs).unwrap();
        fs::write(from.join("report.md"), "new\n").unwrap();
        fs::write(from.join("report.json"), "{}").unwrap();
        fs::write(docs.join("benchmarks.md"), format!("by hand\n{LINE}\n\nold\n")).unwrap();

        copy(&from, &docs).unwrap();
        let page = fs::read_to_string(docs.join("benchmarks.md")).unwrap();
        fs::write(docs.join("benchmarks.md"), "without the line").unwrap();
        let error = copy(&from, &docs).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();

        assert_eq!(page, format!("by hand\n{LINE}\n\nnew\n"));
        assert!(error.to_string().contains("has no line"), "{error}");
    }
}
