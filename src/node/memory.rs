//! Reads how much memory the containers of a pod use and how much their node has available. Decides nothing.

use std::time::Duration;

use crate::api::annotation;
use crate::cri::client::Client;
use crate::cri::proto::v1::ContainerStats;
use crate::operation::memory::Memory;

/// Time limit of the runtime's answer. The memory is not checked without it.
const LIMIT: Duration = Duration::from_secs(2);
/// The memory of the machine, also inside a container.
const MEMINFO: &str = "/proc/meminfo";

/// The memory in use in a sandbox; `None` if the runtime does not say.
pub(super) async fn observe(client: &Client, sandbox: &str) -> Option<Memory> {
    let stats = match client.within(LIMIT).container_stats(sandbox).await {
        Ok(stats) => stats,
        Err(error) => {
            tracing::debug!(sandbox, %error, "the runtime does not report the memory of the pod");
            return None;
        }
    };
    // The kernel answers at once: no disk is read.
    let meminfo = std::fs::read_to_string(MEMINFO).unwrap_or_default();
    Some(Memory { available: available(&meminfo), ..memory(&stats) })
}

/// Adds up the containers. Fences and standbys count with what they use, and under no name of the pod's spec.
fn memory(stats: &[ContainerStats]) -> Memory {
    let mut memory = Memory::default();
    for stats in stats {
        let Some(usage) = &stats.memory else { continue };
        let used = usage.working_set_bytes.map_or(0, |bytes| bytes.value);
        memory.used = memory.used.saturating_add(used);
        let labels = stats.attributes.as_ref().map(|attributes| &attributes.labels);
        if let Some(name) = labels.and_then(|labels| labels.get(annotation::CONTAINER_NAME)) {
            // A runtime that does not report it reports 0 or nothing.
            let allocated =
                usage.rss_bytes.map(|bytes| bytes.value).filter(|bytes| *bytes > 0).unwrap_or(used);
            memory.allocated.insert(name.clone(), allocated);
        }
    }
    memory
}

/// `MemAvailable` in bytes; the table has it in KiB.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::proto::v1::{ContainerAttributes, MemoryUsage, UInt64Value};

    fn stats(name: &str, used: u64, allocated: Option<u64>) -> ContainerStats {
        let number = |value| UInt64Value { value };
        let labels = [(annotation::CONTAINER_NAME.to_owned(), name.to_owned())].into();
        ContainerStats {
            attributes: Some(ContainerAttributes { labels, ..Default::default() }),
            memory: Some(MemoryUsage {
                working_set_bytes: Some(number(used)),
                rss_bytes: allocated.map(number),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_pod_uses_what_its_containers_use() {
        let memory = memory(&[
            stats("app", 100, Some(70)),
            stats("side", 30, Some(0)),
            stats("old", 5, None),
            ContainerStats::default(),
        ]);
        assert_eq!(memory.used, 135);
        let allocated: Vec<_> = memory.allocated.into_iter().collect();
        assert_eq!(allocated, [("app".to_owned(), 70), ("old".to_owned(), 5), ("side".to_owned(), 30)]);
    }

    #[test]
    fn the_kernel_says_what_is_available() {
        let table = "MemTotal:       24645752 kB\nMemFree:         1245752 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available(table), Some(2 << 20));
        for unreadable in ["", "MemFree: 1 kB", "MemAvailable: many kB", "MemAvailable: 7"] {
            assert_eq!(available(unreadable), None, "{unreadable}");
        }
    }
}
