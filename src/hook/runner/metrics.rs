//! The metrics of HookRuns. Must not have unbounded labels: no names.

use std::collections::BTreeMap;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::api::hook_run::{HookPhase, HookRunStatus};
use crate::cluster::hooks::Summary;

/// Every phase: a gauge must return to 0 when no HookRun has its phase.
const PHASES: [HookPhase; 6] = [
    HookPhase::Pending,
    HookPhase::Running,
    HookPhase::Successful,
    HookPhase::Inconclusive,
    HookPhase::Error,
    HookPhase::Failed,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: String,
}

/// All metrics of HookRuns; cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    runs: Family<PhaseLabel, Gauge>,
    waiting: Gauge,
    measurements: Family<PhaseLabel, Counter>,
    durations: Family<PhaseLabel, Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new([0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0]);
        Self {
            runs: Family::default(),
            waiting: Gauge::default(),
            measurements: Family::default(),
            durations: Family::new_with_constructor(seconds),
        }
    }
}

impl Metrics {
    /// Registers all metrics in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("hook_runs", "HookRuns that this process runs, by phase", metrics.runs.clone());
        let waiting = "HookRuns that wait because the limits of running HookRuns are reached";
        registry.register("waiting_hook_runs", waiting, metrics.waiting.clone());
        let measurements = "Measurements of HookRuns, by outcome";
        registry.register("hook_measurements", measurements, metrics.measurements.clone());
        let durations =
            "Time from the start of a hook to its end, also of the hooks of operations, by outcome";
        registry.register_with_unit("hook_run_duration", durations, Unit::Seconds, metrics.durations.clone());
        metrics
    }

    /// Records the end of a run at `now`. One that has not started is not recorded.
    pub(crate) fn ended(&self, status: &HookRunStatus, now: Timestamp) {
        if let (Some(phase), Some(started)) = (status.phase, status.started_at) {
            let took = now.duration_since(started).as_secs_f64().max(0.0);
            self.durations.get_or_create(&label(phase)).observe(took);
        }
    }

    /// Sets the gauges to the current HookRuns.
    pub(super) fn count<'a>(&self, runs: impl Iterator<Item = &'a Summary>, waiting: i64) {
        let mut counts: BTreeMap<_, _> = PHASES.iter().map(|phase| (*phase, 0)).collect();
        for run in runs {
            let phase = run.status().ok().and_then(|status| status.phase);
            *counts.entry(phase.unwrap_or(HookPhase::Pending)).or_default() += 1;
        }
        for (phase, count) in counts {
            self.runs.get_or_create(&label(phase)).set(count);
        }
        self.waiting.set(waiting);
    }

    /// Sets the gauges back: this process runs no HookRuns any more.
    #[cfg(target_os = "linux")]
    pub(crate) fn reset(&self) {
        self.count(std::iter::empty(), 0);
    }

    /// Counts the measurements that ended between `before` and `after`.
    pub(super) fn measured(&self, before: &HookRunStatus, after: &HookRunStatus) {
        for (phase, before, after) in
            totals(before).into_iter().zip(totals(after)).map(|(b, a)| (a.0, b.1, a.1))
        {
            let new = u64::try_from(after.saturating_sub(before)).unwrap_or(0);
            if new > 0 {
                self.measurements.get_or_create(&label(phase)).inc_by(new);
            }
        }
    }
}

fn totals(status: &HookRunStatus) -> [(HookPhase, i64); 4] {
    let mut totals = [
        (HookPhase::Successful, 0),
        (HookPhase::Failed, 0),
        (HookPhase::Inconclusive, 0),
        (HookPhase::Error, 0),
    ];
    for result in &status.metric_results {
        let counts = [result.successful, result.failed, result.inconclusive, result.error];
        for (total, count) in totals.iter_mut().zip(counts) {
            total.1 += i64::from(count);
        }
    }
    totals
}

fn label(phase: HookPhase) -> PhaseLabel {
    PhaseLabel { phase: format!("{phase:?}") }
}
