//! Figures of a process of this machine, from the kernel. Changes nothing.

use std::{fs, time::Duration};

/// A process by its PID.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    /// Resident memory in mebibytes.
    pub(crate) fn resident(self) -> f64 {
        self.mebibytes("status", "VmRSS:")
    }

    /// Peak resident memory in mebibytes.
    pub(crate) fn peak(self) -> f64 {
        self.mebibytes("status", "VmHWM:")
    }

    /// Resident memory without files, in mebibytes.
    pub(crate) fn anonymous(self) -> f64 {
        self.mebibytes("status", "RssAnon:")
    }

    /// Memory that only this process has, and has written, in mebibytes.
    pub(crate) fn private_dirty(self) -> f64 {
        self.mebibytes("smaps_rollup", "Private_Dirty:")
    }

    /// Number of threads.
    pub(crate) fn threads(self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.0)).unwrap().count()
    }

    /// Processor time so far.
    pub(crate) fn cpu(self) -> Duration {
        let ticks = [11, 12].map(|field| self.stat(field).expect("the process has ended"));
        // A clock tick is a hundredth of a second on every current Linux.
        Duration::from_millis(ticks.iter().sum::<u64>() * 10)
    }

    /// The start time in clock ticks; `None` if the process has ended.
    pub(crate) fn started(self) -> Option<u64> {
        self.stat(19)
    }

    /// A field of the process's `stat`, counted from the one after its name.
    fn stat(self, field: usize) -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(field)?.parse().ok()
    }

    fn mebibytes(self, file: &str, key: &str) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.0)).expect("the process has ended");
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB"));
        line.unwrap().trim().parse::<f64>().unwrap() / 1024.0
    }
}
