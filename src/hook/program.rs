//! A compiled run: its conditions are compiled, its durations parsed, its limits set. It computes the next step from
//! the run's status and the time, and records each result in the status. Must not read a clock or measure anything.
//!
//! A run can continue from a stored status: see [`Program::resume`].

use jiff::Timestamp;

use crate::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus, Measurement, MetricResult};
use crate::api::hook_template::Policy;
use crate::hook::assess;
use crate::hook::check::{self, CompiledMetric, Invalid};
use crate::hook::measured::Measured;
use crate::hook::value::{MAX_MESSAGE, cut, cut_json};

/// Maximum number of measurements per metric in a status.
const MAX_MEASUREMENTS: usize = 10;
/// Maximum size of all values and messages of the measurements in a status, in bytes of JSON. An API server stores
/// at most 1.5 MiB per object.
const MAX_TEXTS: usize = 384 << 10;

/// A compiled run.
#[derive(Clone, Debug)]
pub struct Program {
    metrics: Vec<CompiledMetric>,
    ordered: bool,
}

/// The next step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Measure these metrics, given by their index, all at the same time.
    Measure(Vec<usize>),
    /// Wait until then, or until a running measurement has ended (`None`: only that).
    Wait(Option<Timestamp>),
    /// Nothing: the run has ended with this phase.
    Ended(HookPhase),
}

impl Program {
    /// Checks and compiles a run.
    pub fn compile(spec: &HookRunSpec) -> Result<Self, Invalid> {
        Ok(Self { metrics: check::compile(spec)?, ordered: spec.policy == Some(Policy::Ordered) })
    }

    /// Starts the run. Does nothing if it has started before.
    pub fn start(&self, status: &mut HookRunStatus, now: Timestamp) {
        if status.phase.is_none_or(|phase| phase == HookPhase::Pending) {
            status.phase = Some(HookPhase::Running);
        }
        status.started_at.get_or_insert_with(|| millis(now));
    }

    /// The next step, while the metrics in `in_flight` are being measured.
    pub fn next(&self, status: &HookRunStatus, in_flight: &[usize], now: Timestamp) -> Next {
        if let Some(phase) = status.phase.filter(|phase| phase.is_completed()) {
            return Next::Ended(phase);
        }
        if self.stopper(status).is_some() {
            return Next::Wait(None);
        }
        let started = status.started_at.unwrap_or(now);
        let mut due = Vec::new();
        let mut earliest: Option<Timestamp> = None;
        for (index, compiled) in self.metrics.iter().enumerate() {
            let result = result(status, &compiled.name);
            if result.is_some_and(|result| result.phase.is_completed()) {
                continue;
            }
            if !in_flight.contains(&index) {
                let at = compiled.schedule.due(result, started, now);
                if at <= now {
                    due.push(index);
                } else {
                    earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
                }
            }
            if self.ordered {
                break;
            }
        }
        if due.is_empty() { Next::Wait(earliest) } else { Next::Measure(due) }
    }

    /// Records the start of a measurement.
    pub fn begin(&self, status: &mut HookRunStatus, metric: usize, now: Timestamp) {
        let Some(compiled) = self.metrics.get(metric) else { return };
        let measurement = Measurement {
            phase: HookPhase::Running,
            message: String::new(),
            started_at: millis(now),
            finished_at: None,
            value: String::new(),
        };
        entry(status, &compiled.name).measurements.push(measurement);
    }

    /// Records the end of a measurement: its verdict, and the phases of its metric and of the run that follow.
    pub fn record(&self, status: &mut HookRunStatus, metric: usize, measured: &Measured, now: Timestamp) {
        let Some(compiled) = self.metrics.get(metric) else { return };
        if status.phase.is_some_and(HookPhase::is_completed) {
            return;
        }
        if entry(status, &compiled.name).measurements.last().is_none_or(|last| last.finished_at.is_some()) {
            self.begin(status, metric, now);
        }
        let result = entry(status, &compiled.name);
        let (phase, message) = assess::measurement(&compiled.conditions, measured);
        if let Some(last) = result.measurements.last_mut() {
            let most = self.longest_text();
            last.phase = phase;
            last.message = cut_json(&cut(&message, MAX_MESSAGE), most);
            last.finished_at = Some(millis(now));
            last.value = cut_json(&measured.printed(), most);
        }
        count(result, phase);
        let surplus = result.measurements.len().saturating_sub(MAX_MEASUREMENTS);
        result.measurements.drain(..surplus);
        (result.phase, result.message) = compiled.limits.assess(result);
        self.settle(status);
    }

    /// Prepares a stored status after the process that drove the run has ended: a measurement that had not ended
    /// is repeated, one that had ended is not.
    pub fn resume(&self, status: &mut HookRunStatus) {
        if status.phase.is_some_and(HookPhase::is_completed) {
            return;
        }
        for result in &mut status.metric_results {
            result.measurements.retain(|measurement| measurement.finished_at.is_some());
        }
        status.metric_results.retain(|result| !result.measurements.is_empty());
        self.settle(status);
    }

    /// Ends the run by hand. This approves nothing: the phase is `Inconclusive`, neither passed nor failed, or
    /// worse if a metric ended worse.
    pub fn terminate(&self, status: &mut HookRunStatus, now: Timestamp) {
        if status.phase.is_some_and(HookPhase::is_completed) {
            return;
        }
        self.start(status, now);
        self.end_metrics(status, "terminated before it had a verdict");
        let worst = status.metric_results.iter().map(|result| result.phase).max();
        status.phase = Some(worst.unwrap_or(HookPhase::Inconclusive).max(HookPhase::Inconclusive));
        "terminated before it had passed: this is no approval".clone_into(&mut status.message);
    }

    /// Passes the run by hand, whatever was measured.
    pub fn approve(&self, status: &mut HookRunStatus, now: Timestamp) {
        if status.phase == Some(HookPhase::Successful) {
            return;
        }
        self.start(status, now);
        self.end_metrics(status, "approved by hand before it had a verdict");
        status.phase = Some(HookPhase::Successful);
        "approved by hand".clone_into(&mut status.message);
    }

    /// The size of one value or message, such that those of all measurements fit in [`MAX_TEXTS`].
    fn longest_text(&self) -> usize {
        MAX_TEXTS / (2 * MAX_MEASUREMENTS * self.metrics.len().max(1))
    }

    /// Ends the run if no measurement is left.
    fn settle(&self, status: &mut HookRunStatus) {
        let under_way =
            |result: &MetricResult| result.measurements.iter().any(|one| one.finished_at.is_none());
        if status.metric_results.iter().any(under_way) {
            return;
        }
        if let Some((name, message)) = self.stopper(status) {
            self.end_metrics(status, &cut(&format!("stopped because of {name}"), MAX_MESSAGE));
            let worst = status.metric_results.iter().map(|result| result.phase).max();
            status.phase = worst;
            status.message = message;
        } else if self.metrics.iter().all(|compiled| {
            result(status, &compiled.name).is_some_and(|result| result.phase == HookPhase::Successful)
        }) {
            status.phase = Some(HookPhase::Successful);
            status.message = String::new();
        }
    }

    /// The worst metric that ended without success: after it nothing more is measured.
    fn stopper(&self, status: &HookRunStatus) -> Option<(String, String)> {
        let ended =
            |result: &&MetricResult| result.phase.is_completed() && result.phase != HookPhase::Successful;
        let results = self.metrics.iter().filter_map(|compiled| result(status, &compiled.name));
        let worst = results.filter(ended).max_by_key(|result| result.phase)?;
        Some((worst.name.clone(), format!("{}: {}", worst.name, worst.message)))
    }

    /// Ends the metrics that have started and have no verdict, as `Inconclusive`, which approves nothing.
    fn end_metrics(&self, status: &mut HookRunStatus, why: &str) {
        let declared = |name: &str| self.metrics.iter().any(|compiled| compiled.name == name);
        status.metric_results.retain(|result| declared(&result.name));
        for result in &mut status.metric_results {
            result.measurements.retain(|measurement| measurement.finished_at.is_some());
            if !result.phase.is_completed() {
                result.phase = HookPhase::Inconclusive;
                why.clone_into(&mut result.message);
            }
        }
    }
}

fn result<'a>(status: &'a HookRunStatus, name: &str) -> Option<&'a MetricResult> {
    status.metric_results.iter().find(|result| result.name == name)
}

fn entry<'a>(status: &'a mut HookRunStatus, name: &str) -> &'a mut MetricResult {
    let results = &mut status.metric_results;
    let index = results.iter().position(|result| result.name == name).unwrap_or_else(|| {
        results.push(MetricResult {
            name: name.to_owned(),
            phase: HookPhase::Running,
            message: String::new(),
            count: 0,
            successful: 0,
            failed: 0,
            inconclusive: 0,
            error: 0,
            consecutive_error: 0,
            consecutive_successful: 0,
            measurements: Vec::new(),
        });
        results.len() - 1
    });
    &mut results[index]
}

fn count(result: &mut MetricResult, phase: HookPhase) {
    let more = |counter: &mut i32| *counter = counter.saturating_add(1);
    if phase == HookPhase::Successful {
        more(&mut result.successful);
        more(&mut result.consecutive_successful);
    } else {
        result.consecutive_successful = 0;
    }
    if phase == HookPhase::Error {
        more(&mut result.error);
        more(&mut result.consecutive_error);
        return;
    }
    result.consecutive_error = 0;
    more(&mut result.count);
    match phase {
        HookPhase::Failed => more(&mut result.failed),
        HookPhase::Inconclusive => more(&mut result.inconclusive),
        _ => {}
    }
}

/// A status contains milliseconds; finer digits are cut here, so that the status is the same after it was stored
/// and read.
fn millis(now: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}

#[cfg(test)]
mod always;
#[cfg(test)]
mod table;
