//! Copies the last report into the documentation.

use std::{fs, io, path::Path, process::ExitCode};

use crate::report::say;

/// Text above this line in docs/benchmarks.md is written by hand, text below it by this program.
const LINE: &str = "<!-- Below: written by `make bench`, put here by `bench publish`. -->";

pub(crate) fn publish(from: &Path, docs: &Path) -> ExitCode {
    match copy(from, docs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("publishing the report failed: {error}"));
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
