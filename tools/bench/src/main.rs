//! `make bench`: what Perennial costs and how fast it is, on a real API server on this machine.
//!
//! Every timing is a ratio of two things measured in the same run; counts come from the API server's own metrics, latencies
//! of admission from the operator's, memory is the peak resident size. The report goes to `.bench/report.md`, with its plots
//! and the raw figures beside it.
//!
//! `bench quick|full` measures all, `bench quick|full PART…` only these parts, for the report that is there;
//! `bench publish` puts it into `docs/benchmarks.md`.

#![expect(clippy::expect_used, reason = "a benchmark that cannot go on says why and ends")]

mod admission;
mod contender;
mod failover;
mod fleet;
mod growth;
mod last_second;
mod latency;
mod limit;
mod mass;
mod peers;
mod placement;
mod plot;
mod publish;
mod report;
mod watcher;

use std::{path::Path, process::ExitCode, time::Instant};

use placement::PlacementSize;
use report::{Report, say};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Requests of each kind, at each concurrency.
    limit: usize,
    /// Nodes of the mass returns.
    mass: &'static [usize],
    /// Nodes of one more, on its own since it takes long.
    large: &'static [usize],
    /// The mass return in which the peers take part; 0: none.
    peers: usize,
    last_second: usize,
    /// How long a steady load lasts.
    seconds: u64,
    growth: &'static [usize],
    /// How many of the most nodes come back at once.
    growth_return: usize,
    failover: usize,
    placement: PlacementSize,
}

const FULL: Size = Size {
    limit: 2_000,
    mass: &[1_000, 5_000],
    large: &[20_000],
    peers: 1_000,
    last_second: 1_000,
    seconds: 30,
    growth: &[1_000, 10_000, 50_000, 100_000],
    growth_return: 10_000,
    failover: 1_000,
    placement: PlacementSize::FULL,
};

const QUICK: Size = Size {
    limit: 300,
    mass: &[1_000],
    large: &[],
    peers: 0,
    last_second: 300,
    seconds: 10,
    growth: &[1_000, 3_000],
    growth_return: 1_000,
    failover: 200,
    placement: PlacementSize::QUICK,
};

/// Only what is counted, as small as it can be: for tests.
const COUNTS: Size = Size { limit: 10, mass: &[200], last_second: 200, ..QUICK };

/// Where reports are, in the folder in which the benchmark is started.
const FOLDER: &str = ".bench";

/// Growth leaves a cluster with very many nodes behind: it comes last.
const PARTS: [&str; 8] = ["limit", "mass", "last-second", "admission", "failover", "placement", "large", "growth"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (size, parts) = match words.as_slice() {
        ["plain-peer", kubeconfig, namespace] => {
            runtime.block_on(peers::plain::run(kubeconfig.into(), (*namespace).to_owned()));
            return ExitCode::FAILURE;
        }
        ["publish"] => {
            report::assemble(Path::new(FOLDER), &machine(), &PARTS).expect("writing the report");
            return publish::publish(Path::new(FOLDER), Path::new("docs"));
        }
        ["quick", parts @ ..] => (QUICK, parts),
        ["counts", parts @ ..] => (COUNTS, parts),
        ["full", parts @ ..] => (FULL, parts),
        [] => (FULL, [].as_slice()),
        [other, ..] => return refuse(&format!("expected quick, full or publish, not {other}")),
    };
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(part)) {
        return refuse(&format!("there is no part {unknown}; there are: {}", PARTS.join(", ")));
    }
    let folder = Path::new(FOLDER);
    let parts = if parts.is_empty() {
        report::clear(folder).expect("forgetting the last report");
        PARTS.as_slice()
    } else {
        parts
    };
    for part in parts {
        let (start, mut report) = (Instant::now(), Report::default());
        runtime.block_on(async {
            match *part {
                "limit" => limit::measure(size, &mut report).await,
                "mass" => mass::measure(size.mass, size.peers, &mut report).await,
                "large" => mass::measure(size.large, 0, &mut report).await,
                "last-second" => last_second::measure(size, &mut report).await,
                "admission" => admission::measure(size, &mut report).await,
                "growth" => growth::measure(size, &mut report).await,
                "failover" => failover::measure(size, &mut report).await,
                _ => placement::measure(size.placement, &mut report).await,
            }
        });
        report.paragraph(&when(start));
        report.save(folder, part).expect("keeping what was measured");
    }
    println!("{}", report::assemble(folder, &machine(), &PARTS).expect("writing the report"));
    say("the report is .bench/report.md, the raw figures are .bench/report.json");
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("bench: {why}");
    ExitCode::from(2)
}

/// What this was measured on.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    format!(
        "Machine: {cores} cores ({}), shared by API server, etcd, driver and operator; etcd without fsync. Build: {build}.",
        model.trim_start_matches(['\t', ' ', ':']),
    )
}

/// When, and how long it took.
fn when(start: Instant) -> String {
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC");
    format!("Measured on {date} in {:.1} minutes.", start.elapsed().as_secs_f64() / 60.0)
}
