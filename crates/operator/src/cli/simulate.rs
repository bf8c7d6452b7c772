//! `perennial simulate`: the slots of a number of replicas. Needs no cluster.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use perennial_core::placement::{
    explain::{LEGEND, simulate},
    slots::Split,
};

use super::output::Telling;

#[derive(Debug, Args)]
pub(super) struct Simulate {
    /// Number of replicas
    #[arg(long, value_name = "COUNT")]
    replicas: u32,
    /// Percentage of replicas on spot capacity
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    spot: u8,
    /// Minimum number of on-demand replicas
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    min_on_demand: u32,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Telling,
}

impl Simulate {
    pub(super) fn execute(&self) -> anyhow::Result<ExitCode> {
        let simulation = simulate(Split::new(self.spot, self.min_on_demand), self.replicas);
        let text = || {
            let mut text = format!(
                "{} replicas: {} on spot, {} on-demand\n{}\n({LEGEND})\n",
                simulation.replicas, simulation.spot, simulation.on_demand, simulation.slots
            );
            for note in &simulation.notes {
                let _ = writeln!(text, "note: {note}");
            }
            text
        };
        self.output.print(|| &simulation, text)?;
        Ok(ExitCode::SUCCESS)
    }
}
