//! Metrics of the process itself, read from `/proc` on each scrape.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The kernel's tick in `/proc`, the same on every architecture that Linux has had for decades.
const TICKS_PER_SECOND: f64 = 100.0;

/// Collects the metrics that can be read.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(bytes) = resident_bytes() {
            let gauge = ConstGauge::new(bytes);
            let name = "process_resident_memory_bytes";
            gauge.encode(encoder.encode_descriptor(name, "Resident memory", None, gauge.metric_type())?)?;
        }
        if let Some(seconds) = cpu_seconds() {
            let counter = ConstCounter::new(seconds);
            let name = "process_cpu_seconds";
            counter.encode(encoder.encode_descriptor(name, "CPU time used", None, counter.metric_type())?)?;
        }
        if let Some(count) = open_fds() {
            let gauge = ConstGauge::new(count);
            let name = "process_open_fds";
            gauge.encode(encoder.encode_descriptor(name, "Open file descriptors", None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The command's name is in parentheses and may hold anything; utime and stime are fields 14 and
    // 15.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some((f64::from(user) + f64::from(system)) / TICKS_PER_SECOND)
}

fn open_fds() -> Option<u64> {
    u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()
}
