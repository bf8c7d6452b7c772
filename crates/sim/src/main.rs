//! `sim`: plays simulated histories.

use std::{ops::Range, process::ExitCode};

use anyhow::Context as _;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use perennial_sim::{
    batch,
    broken_rule::{self, BrokenRule},
    history,
};

/// Maximum number of failed histories whose log is printed.
const STORIES: usize = 3;

/// Plays random histories of the operator in a simulated cluster and checks every guarantee
#[derive(Parser)]
struct Options {
    /// Range of histories, `500..700`, or their number from 0 on. Without it, as many new histories
    /// as `--fresh`
    #[arg(long)]
    seeds: Option<String>,
    /// Number of histories that start at a random seed
    #[arg(long, default_value_t = 1000, conflicts_with = "seeds")]
    fresh: u64,
    /// Play one history and print its log
    #[arg(long)]
    seed: Option<u64>,
    /// Play only the histories of placement, every fifth one
    #[arg(long)]
    placement: bool,
    /// Stop at the first violation
    #[arg(long)]
    first: bool,
    /// Number of threads (default: one for each core)
    #[arg(long)]
    threads: Option<usize>,
    /// Break this rule of the operator
    #[arg(long)]
    broken: Option<String>,
    /// Break every rule in turn and report which are noticed
    #[arg(long)]
    mutations: bool,
    /// Print the log of the operator too, for one history: `debug`, `perennial=debug`
    #[arg(long)]
    log: Option<String>,
}

fn main() -> ExitCode {
    match execute(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(options: &Options) -> anyhow::Result<()> {
    let broken = options.broken.as_deref().map(mutation).transpose()?;
    if options.mutations {
        return break_rules(options);
    }
    if let Some(seed) = options.seed {
        return replay(seed, broken, options.log.as_deref());
    }
    let seeds = seeds(options)?;
    println!("histories {}..{}", seeds.start, seeds.end);
    let threads = threads(options);
    let seeds: Vec<u64> = seeds.filter(|seed| !options.placement || history::is_placement(*seed)).collect();
    let bar = ProgressBar::new(seeds.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} histories, {per_sec}, {eta} left")?);
    let enough = |summary: &batch::Summary| options.first && !summary.failed.is_empty();
    let summary = batch::run(seeds.into_iter(), broken, threads, |_| bar.inc(1), enough)?;
    bar.finish_and_clear();
    println!("{}", summary.report());
    if let Some(peak) = peak_memory() {
        println!("peak memory: {peak}");
    }
    for failed in summary.failed.iter().take(STORIES) {
        let outcome = history::play_with(failed.seed, broken, true)?;
        println!("\nthe story of SEED={}:\n{}", failed.seed, outcome.story.join("\n"));
    }
    anyhow::ensure!(summary.failed.is_empty(), "guarantees violated; replay with --seed, or make sim SEED=…");
    let over = summary.over_limit();
    anyhow::ensure!(over.is_empty(), "limits of the design were needed more often than expected: {}", over.join(", "));
    Ok(())
}

/// Returns the largest resident size of this process so far.
fn peak_memory() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(peak.trim().to_owned())
}

/// Returns the seeds to play.
fn seeds(options: &Options) -> anyhow::Result<Range<u64>> {
    if let Some(text) = &options.seeds {
        return range(text).with_context(|| format!("--seeds {text} is not a count or a range"));
    }
    let start = u64::from(rand::random::<u32>());
    Ok(start..start + options.fresh)
}

fn range(text: &str) -> anyhow::Result<Range<u64>> {
    match text.split_once("..") {
        Some((from, to)) => Ok(from.trim().parse()?..to.trim().parse()?),
        None => Ok(0..text.trim().parse()?),
    }
}

fn mutation(name: &str) -> anyhow::Result<BrokenRule> {
    let found = BrokenRule::ALL.iter().copied().find(|mutation| format!("{mutation:?}") == name);
    found.with_context(|| format!("no rule is called {name}; they are {:?}", BrokenRule::ALL))
}

/// Breaks one rule after the other. Each must be noticed.
fn break_rules(options: &Options) -> anyhow::Result<()> {
    let seeds = options.seeds.as_deref().map_or(Ok(0..1000), range)?;
    let mut missed = Vec::new();
    for mutation in BrokenRule::ALL.iter().copied() {
        if let Some(outcome) = broken_rule::noticed(mutation, seeds.clone(), threads(options))? {
            let (seed, violation) = (outcome.seed, &outcome.violations[0]);
            println!("{mutation:?}: caught, SEED={seed} {violation}");
        } else {
            println!("{mutation:?}: NOT caught");
            missed.push(mutation);
        }
    }
    let all = BrokenRule::ALL.len();
    println!("{} of {all} mutations caught", all - missed.len());
    anyhow::ensure!(missed.is_empty(), "not caught: {missed:?}");
    Ok(())
}

fn threads(options: &Options) -> usize {
    options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn replay(seed: u64, broken: Option<BrokenRule>, log: Option<&str>) -> anyhow::Result<()> {
    if let Some(filter) = log {
        let filter = tracing_subscriber::EnvFilter::try_new(filter)?;
        tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false).init();
    }
    let outcome = history::play_with(seed, broken, true)?;
    println!("{}", outcome.lines.join("\n"));
    println!("\nthe story:\n{}\n", outcome.story.join("\n"));
    println!("SEED={seed} digest {:016x}", outcome.digest);
    for violation in &outcome.violations {
        println!("{violation}");
    }
    anyhow::ensure!(outcome.violations.is_empty(), "{} guarantees did not hold", outcome.violations.len());
    Ok(())
}
