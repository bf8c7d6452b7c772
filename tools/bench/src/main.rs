//! `make bench`: cost and speed of Perennial on a real API server on this machine.
//!
//! Every timing is a ratio of two measurements of the same run. Counts come from the API server's
//! metrics, admission latencies from the operator's; memory is the peak resident size. The report
//! is `.bench/report.md`, with plots and raw figures beside it.
//!
//! `bench quick|full` measures everything. `bench quick|full PART…` measures these parts again and
//! keeps the others. `PERENNIAL_NODES` replaces the number of nodes of the last-second changes,
//! `PERENNIAL_ABSENT` the number of absent records. `bench publish` copies the report to
//! `docs/explain/benchmarks.md`.

#![expect(clippy::expect_used, reason = "a benchmark that cannot continue prints why and exits")]

mod admission;
mod contender;
mod failover;
mod fleet;
mod floor;
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
use report::{Report, progress};

/// Extent of a benchmark run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Requests of each kind at each concurrency.
    limit: usize,
    /// Numbers of nodes of the mass returns.
    mass: &'static [usize],
    /// Numbers of nodes of the large mass returns, a separate part because they take long.
    large: &'static [usize],
    /// Number of nodes of the mass return that includes the peers; 0 for none.
    peers: usize,
    last_second: usize,
    /// Duration of a steady load in seconds.
    seconds: u64,
    growth: &'static [usize],
    /// Number of nodes that return at once on the largest cluster.
    growth_return: usize,
    absent: growth::AbsentSize,
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
    absent: growth::AbsentSize { live: 1_000, absent: 999_000 },
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
    absent: growth::AbsentSize { live: 1_000, absent: 20_000 },
    failover: 200,
    placement: PlacementSize::QUICK,
};

/// Smallest run, for tests that assert counts.
const COUNTS: Size = Size { limit: 10, mass: &[200], last_second: 200, ..QUICK };

/// Folder of the reports, relative to the working directory.
const FOLDER: &str = ".bench";

/// Growth and absent records are last because they leave a very large cluster behind.
const PARTS: [&str; 9] =
    ["limit", "mass", "last-second", "admission", "failover", "placement", "large", "growth", "absent"];

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
        [peers::no_op::COMMAND, kubeconfig] => {
            runtime.block_on(peers::no_op::run(kubeconfig.into()));
            return ExitCode::FAILURE;
        }
        ["publish"] => {
            report::assemble(Path::new(FOLDER), &machine(), &PARTS).expect("writing the report");
            return publish::publish(Path::new(FOLDER), Path::new("docs/explain"));
        }
        ["quick", parts @ ..] => (QUICK, parts),
        ["counts", parts @ ..] => (COUNTS, parts),
        ["full", parts @ ..] => (FULL, parts),
        [] => (FULL, [].as_slice()),
        [other, ..] => return refuse(&format!("expected quick, full or publish, not {other}")),
    };
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(part)) {
        return refuse(&format!("unknown part {unknown}; parts: {}", PARTS.join(", ")));
    }
    let folder = Path::new(FOLDER);
    let parts = if parts.is_empty() {
        report::clear(folder).expect("deleting the last report");
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
                "absent" => growth::measure_absent(size.absent, &mut report).await,
                "failover" => failover::measure(size, &mut report).await,
                _ => placement::measure(size.placement, &mut report).await,
            }
        });
        report.paragraph(&when(start));
        report.save(folder, part).expect("saving the figures");
    }
    println!("{}", report::assemble(folder, &machine(), &PARTS).expect("writing the report"));
    progress("report: .bench/report.md, raw figures: .bench/report.json");
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("bench: {why}");
    ExitCode::from(2)
}

/// Describes the machine and the build.
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

/// Describes date and duration of a measurement.
fn when(start: Instant) -> String {
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC");
    format!("Measured on {date} in {:.1} minutes.", start.elapsed().as_secs_f64() / 60.0)
}
