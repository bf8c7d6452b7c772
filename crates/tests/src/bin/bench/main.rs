//! `make bench`: what Perennial costs and how fast it is, on a real API server on this machine.
//!
//! Every timing is a ratio of two things measured in the same run; counts come from the API server's own metrics, latencies
//! from the operator's, memory is the peak resident size. The report goes to `.bench/report.md`, raw figures beside it.

#![expect(clippy::expect_used, reason = "a benchmark that cannot go on says why and ends")]

mod admission;
mod mass;
mod placement;
mod watcher;

use std::{fmt::Write as _, fs};

use serde_json::{Map, Value, json};

use crate::placement::PlacementSize;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Size {
    nodes: usize,
    seconds: u64,
}

/// Figures as they come, for people and for programs.
#[derive(Debug, Default)]
struct Report {
    text: String,
    raw: Map<String, Value>,
}

impl Report {
    fn part(&mut self, title: &str) {
        eprintln!("bench: {title}");
        let _ = write!(self.text, "\n## {title}\n\n| figure | measured | at most |\n|---|---|---|\n");
    }

    fn figure(&mut self, name: &str, measured: &str, limit: &str, raw: Value) {
        eprintln!(
            "bench:   {name}: {measured}{}",
            if limit.is_empty() { String::new() } else { format!(" (at most {limit})") }
        );
        let _ = writeln!(self.text, "| {name} | {measured} | {limit} |");
        self.raw.insert(name.to_owned(), raw);
    }
}

/// `bench quick placement`: this part alone.
fn only_placement(size: PlacementSize) {
    let figures = runtime().block_on(placement::run(size)).expect("placement is measured");
    fs::create_dir_all(".bench").expect("a folder for the report");
    fs::write(".bench/placement.json", json!(figures).to_string()).expect("writing the figures");
    println!("{}", placement::markdown(&figures));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let size = match words.first().map(String::as_str) {
        None | Some("full") => Size { nodes: 5_000, seconds: 30 },
        Some("quick") => Size { nodes: 1_000, seconds: 10 },
        Some(other) => {
            eprintln!("bench: expected quick or full, not {other}");
            std::process::exit(2);
        }
    };
    if words.get(1).is_some_and(|part| part == "placement") {
        return only_placement(if words[0] == "quick" { PlacementSize::QUICK } else { PlacementSize::FULL });
    }
    let mut report = Report::default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let _ = writeln!(
        report.text,
        "Machine: {cores} cores, shared by API server, etcd, driver and operator. Build: {build}."
    );
    runtime().block_on(async {
        mass::measure(size, &mut report).await;
        admission::measure(size, &mut report).await;
    });
    fs::create_dir_all(".bench").expect("a folder for the report");
    fs::write(".bench/report.md", &report.text).expect("writing the report");
    fs::write(".bench/report.json", json!(report.raw).to_string()).expect("writing the figures");
    println!("{}", report.text);
}
