//! Metrics of the process itself, under the names that Prometheus clients share, and the release. Read from `/proc` at each
//! scrape.

use std::fs;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

/// The unit of times in `/proc`, in ticks per second. It is the same on every architecture that this program runs on.
const TICKS: f64 = 100.0;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Release {
    version: &'static str,
}

/// Registers the release in `registry`, whose prefix is the name of the program.
pub fn register_release(registry: &mut Registry) {
    let build_info: Family<Release, Gauge> = Family::default();
    build_info.get_or_create(&Release { version: env!("CARGO_PKG_VERSION") }).set(1);
    registry.register("build_info", "Always 1, with the release as a label", build_info.clone());
}

/// The metrics of this process. They have no prefix.
pub fn registry() -> Arc<Registry> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Process { started: started().unwrap_or_default() }));
    Arc::new(registry)
}

#[derive(Debug)]
struct Process {
    /// Seconds since 1970.
    started: f64,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let cpu = ConstCounter::new(cpu_seconds(&stat).unwrap_or_default());
        let help = "User and system CPU time of the process";
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)?;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = ConstGauge::new(resident_bytes(&status).unwrap_or_default());
        let help = "Resident memory of the process";
        resident.encode(encoder.encode_descriptor(
            "process_resident_memory_bytes",
            help,
            None,
            resident.metric_type(),
        )?)?;
        let open = ConstGauge::new(open_files());
        let help = "Open file descriptors of the process";
        open.encode(encoder.encode_descriptor("process_open_fds", help, None, open.metric_type())?)?;
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let limit = ConstGauge::new(max_files(&limits).unwrap_or_default());
        let help = "Limit of open file descriptors of the process";
        limit.encode(encoder.encode_descriptor("process_max_fds", help, None, limit.metric_type())?)?;
        let started = ConstGauge::new(self.started);
        let help = "Time of the start of the process, in seconds since 1970";
        started.encode(encoder.encode_descriptor(
            "process_start_time_seconds",
            help,
            None,
            started.metric_type(),
        )?)
    }
}

/// The field of `/proc/self/stat` with this number, as proc(5) counts them. The second one is a name in parentheses, which
/// may contain spaces.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

/// The start of this process, in seconds since 1970.
fn started() -> Option<f64> {
    let after_boot = field(&fs::read_to_string("/proc/self/stat").ok()?, 22)? / TICKS;
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + after_boot)
}

fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

fn open_files() -> i64 {
    let all = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    // One of them is that of the listing.
    i64::try_from(all.saturating_sub(1)).unwrap_or(i64::MAX)
}

/// The soft limit.
fn max_files(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_after_a_name_with_spaces_and_parentheses() {
        let fields: Vec<_> = (4..=22).map(|number| (number * 100).to_string()).collect();
        let stat = format!("7 (a b) c) S {}", fields.join(" "));
        assert_eq!(cpu_seconds(&stat), Some(29.0));
        assert_eq!(field(&stat, 22), Some(2200.0));
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(resident_bytes("Name:\ta\nVmRSS:\t   12 kB\n"), Some(12_288));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        assert_eq!(max_files(limits), Some(1024));
    }

    #[test]
    fn this_process_has_values() {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry()).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap();
            line.parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e6 && value("process_open_fds") >= 3.0, "{text}");
        assert!(value("process_cpu_seconds_total") >= 0.0 && value("process_max_fds") > 3.0);
        let now = crate::process::clock::now().duration_since(jiff::Timestamp::UNIX_EPOCH).as_secs_f64();
        // The boot time of the kernel has whole seconds.
        let age = now - value("process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "{age}: {text}");
    }
}
