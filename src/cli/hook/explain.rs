//! Formats a hook run as text: one line per finished measurement while it runs, then the verdict of each metric and of
//! the whole run. Decides nothing about the hook.

use std::collections::BTreeMap;

use crate::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus, Measurement, MetricResult};
use crate::api::hook_template::Metric;

/// Formats a run, and remembers which measurements it has reported.
pub(super) struct Explain<'a> {
    spec: &'a HookRunSpec,
    /// Number of reported measurements, by metric.
    reported: BTreeMap<String, usize>,
}

impl<'a> Explain<'a> {
    pub(super) fn new(spec: &'a HookRunSpec) -> Self {
        Self { spec, reported: BTreeMap::new() }
    }

    /// One line for each measurement that has finished since the last call.
    pub(super) fn updates(&mut self, status: &HookRunStatus) -> Vec<String> {
        let mut lines = Vec::new();
        for result in &status.metric_results {
            let ended = ended(result);
            let reported = self.reported.entry(result.name.clone()).or_default();
            let metric = self.spec.metrics.iter().find(|metric| metric.name == result.name);
            let done: Vec<_> = result.measurements.iter().filter(|one| one.finished_at.is_some()).collect();
            let first = done.len().saturating_sub(ended - (*reported).min(ended));
            for (index, measurement) in done[first..].iter().enumerate() {
                let number = ended - (done.len() - first) + index + 1;
                lines.push(line(&result.name, number, measurement, metric));
            }
            *reported = ended;
        }
        lines
    }

    /// The remaining measurements, the verdict of each metric, and the verdict of the run.
    pub(super) fn verdict(&mut self, status: &HookRunStatus) -> Vec<String> {
        let mut lines = self.updates(status);
        for metric in &self.spec.metrics {
            let result = status.metric_results.iter().find(|result| result.name == metric.name);
            lines.push(match result {
                Some(result) => format!(
                    "{}: {:?} ({} successful, {} failed, {} inconclusive, {} errors){}",
                    metric.name,
                    result.phase,
                    result.successful,
                    result.failed,
                    result.inconclusive,
                    result.error,
                    because(&result.message)
                ),
                None => format!("{}: not measured", metric.name),
            });
        }
        let phase = status.phase.unwrap_or(HookPhase::Pending);
        lines.push(format!("{phase:?}{}", because(&status.message)));
        lines
    }
}

/// Number of finished measurements, including those that the status no longer lists.
fn ended(result: &MetricResult) -> usize {
    let counters = [result.successful, result.failed, result.inconclusive, result.error];
    counters.into_iter().map(|counter| usize::try_from(counter).unwrap_or(0)).sum()
}

/// `webtest #2 Failed "15" in 12 ms: ...`.
fn line(name: &str, number: usize, measurement: &Measurement, metric: Option<&Metric>) -> String {
    let value = match measurement.value.as_str() {
        "" => String::new(),
        value => format!(" {value:?}"),
    };
    let end = measurement.finished_at.unwrap_or(measurement.started_at);
    let millis = end.as_millisecond() - measurement.started_at.as_millisecond();
    let why = match (measurement.message.as_str(), metric) {
        ("", Some(metric)) if measurement.phase == HookPhase::Successful => passed(metric),
        (message, _) => message.to_owned(),
    };
    format!("{name} #{number} {:?}{value} in {millis} ms{}", measurement.phase, because(&why))
}

/// Explains why a measurement was successful.
fn passed(metric: &Metric) -> String {
    let given = |condition: &Option<String>| condition.clone().filter(|source| !source.trim().is_empty());
    match (given(&metric.success_condition), given(&metric.failure_condition)) {
        (Some(success), _) => format!("successCondition {success} holds"),
        (None, Some(failure)) => format!("failureCondition {failure} does not hold"),
        (None, None) => "an answer was received, and no condition is set".to_owned(),
    }
}

fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::hook_template::Provider;

    fn metric(success: Option<&str>) -> Metric {
        serde_json::from_value(serde_json::json!({
            "name": "web", "successCondition": success, "provider": Provider::default(),
        }))
        .unwrap()
    }

    fn spec() -> HookRunSpec {
        let metrics = vec![metric(Some("asInt(result) > 30"))];
        HookRunSpec { metrics, args: Vec::new(), terminate: false, policy: None }
    }

    fn measured(phase: HookPhase, value: &str) -> Measurement {
        Measurement {
            phase,
            message: String::new(),
            started_at: "2026-11-21T10:00:00Z".parse().unwrap(),
            finished_at: Some("2026-11-21T10:00:00.012Z".parse().unwrap()),
            value: value.to_owned(),
        }
    }

    fn status(failed: i32, measurements: Vec<Measurement>) -> HookRunStatus {
        let result = serde_json::from_value(serde_json::json!({
            "name": "web", "phase": "Running", "failed": failed, "count": failed,
        }));
        let result = MetricResult { measurements, ..result.unwrap() };
        HookRunStatus { phase: Some(HookPhase::Running), metric_results: vec![result], ..Default::default() }
    }

    #[test]
    fn every_measurement_is_reported_once_with_its_number() {
        let spec = spec();
        let mut explain = Explain::new(&spec);
        let one = || measured(HookPhase::Failed, "7");
        assert_eq!(explain.updates(&status(1, vec![one()])), ["web #1 Failed \"7\" in 12 ms"]);
        assert!(explain.updates(&status(1, vec![one()])).is_empty());
        // The status no longer lists the first two of twelve measurements.
        let kept = (0..10).map(|_| one()).collect();
        let lines = explain.updates(&status(12, kept));
        assert_eq!(lines.len(), 10);
        assert_eq!((&lines[0][..6], &lines[9][..7]), ("web #3", "web #12"));
        let mut running = one();
        running.finished_at = None;
        assert!(explain.updates(&status(12, vec![one(), running])).is_empty());
    }

    #[test]
    fn a_success_says_which_condition_held() {
        let reported =
            line("web", 1, &measured(HookPhase::Successful, "43"), Some(&metric(Some("asInt(result) > 30"))));
        assert_eq!(reported, "web #1 Successful \"43\" in 12 ms: successCondition asInt(result) > 30 holds");
        let reported = line("web", 2, &measured(HookPhase::Successful, ""), Some(&metric(None)));
        assert!(reported.ends_with("an answer was received, and no condition is set"), "{reported}");
    }

    #[test]
    fn the_verdict_names_every_metric() {
        let mut spec = spec();
        spec.metrics.push(Metric { name: "later".to_owned(), ..metric(None) });
        let mut ended = status(1, vec![measured(HookPhase::Failed, "7")]);
        ended.phase = Some(HookPhase::Failed);
        "web: 1 failed".clone_into(&mut ended.message);
        let lines = Explain::new(&spec).verdict(&ended);
        assert_eq!(lines[2], "later: not measured");
        assert_eq!(lines[3], "Failed: web: 1 failed");
    }
}
