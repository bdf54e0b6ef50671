//! The verdicts: of one measurement by its conditions, of one metric by its limits. Must not measure anything.
//!
//! Must not approve a metric that never succeeded: errors, terminated runs and used-up counts are no successes.

use crate::api::hook_run::{HookPhase, MetricResult};
use crate::hook::condition::Condition;
use crate::hook::measured::Measured;
use crate::hook::value::{MAX_MESSAGE, Value, cut};

/// The default of `consecutiveErrorLimit`: the number of errors in a row that are tolerated.
pub(crate) const DEFAULT_ERROR_LIMIT: i32 = 4;

/// The conditions of one metric.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) success: Option<Condition>,
    pub(crate) failure: Option<Condition>,
}

/// The phase of one measurement, and why it is not successful.
pub(crate) fn measurement(conditions: &Conditions, measured: &Measured) -> (HookPhase, String) {
    let value = match measured {
        Measured::Value(value) => value,
        Measured::Failed { why, .. } => return (HookPhase::Failed, why.clone()),
        Measured::Error(problem) => return (HookPhase::Error, problem.clone()),
    };
    if value.has_nan() {
        return (HookPhase::Inconclusive, "the result is NaN and cannot be evaluated".to_owned());
    }
    match verdict(conditions, value) {
        Ok(verdict) => verdict,
        Err(problem) => (HookPhase::Error, problem),
    }
}

fn verdict(conditions: &Conditions, value: &Value) -> Result<(HookPhase, String), String> {
    let holds = |condition: &Condition| {
        let problem = |error: crate::hook::condition::Undecided| format!("{error}, for {}", quoted(value));
        condition.holds(value).map_err(problem)
    };
    let said =
        |condition: &Condition, yes: bool| format!("{} was {yes} for {}", condition.source(), quoted(value));
    Ok(match (&conditions.success, &conditions.failure) {
        (Some(success), None) if holds(success)? => (HookPhase::Successful, String::new()),
        (Some(success), None) => (HookPhase::Failed, said(success, false)),
        (None, Some(failure)) if holds(failure)? => (HookPhase::Failed, said(failure, true)),
        (None, _) => (HookPhase::Successful, String::new()),
        (Some(success), Some(failure)) => {
            if holds(failure)? {
                (HookPhase::Failed, said(failure, true))
            } else if holds(success)? {
                (HookPhase::Successful, String::new())
            } else {
                let (success, failure) = (success.source(), failure.source());
                let message = format!("neither {success} nor {failure} was true for {}", quoted(value));
                (HookPhase::Inconclusive, message)
            }
        }
    })
}

fn quoted(value: &Value) -> String {
    match value {
        Value::None => "no value".to_owned(),
        Value::Text(_) => format!("{:?}", cut(&value.printed(), 128)),
        _ => cut(&value.printed(), 128),
    }
}

/// The limits of one metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum number of measurements; errors are not counted.
    pub(crate) count: Option<i32>,
    /// The tolerated number of failed measurements. `None`: the metric polls and tolerates any number.
    pub(crate) failures: Option<i32>,
    pub(crate) inconclusive: i32,
    pub(crate) errors_in_a_row: i32,
    pub(crate) successes: Option<i32>,
    pub(crate) successes_in_a_row: Option<i32>,
}

impl Limits {
    /// The phase of a metric by its counters: still `Running`, or its verdict and why it is not successful.
    pub(crate) fn assess(&self, result: &MetricResult) -> (HookPhase, String) {
        let MetricResult { count, successful, failed, inconclusive, consecutive_error, .. } = *result;
        let why =
            |sentence: String| match result.measurements.iter().rev().find(|one| !one.message.is_empty()) {
                Some(last) => format!("{sentence}: {}", cut(&last.message, MAX_MESSAGE)),
                None => sentence,
            };
        let of = |number: i32| match self.count {
            Some(count) => format!("{number} of {}", many(count, "measurement")),
            None => many(number, "measurement"),
        };
        if let Some(tolerated) = self.failures.filter(|tolerated| failed > *tolerated) {
            return (HookPhase::Failed, why(format!("{} failed, {}", of(failed), tolerance(tolerated))));
        }
        if self.successes.is_some_and(|enough| successful >= enough) {
            return (HookPhase::Successful, String::new());
        }
        if inconclusive > self.inconclusive {
            let tolerated = tolerance(self.inconclusive);
            return (HookPhase::Inconclusive, why(format!("{} inconclusive, {tolerated}", of(inconclusive))));
        }
        if consecutive_error > self.errors_in_a_row {
            let errors = many(consecutive_error, "measurement");
            let tolerated = tolerance(self.errors_in_a_row);
            return (HookPhase::Error, why(format!("{errors} in a row ended with an error, {tolerated}")));
        }
        if self.successes_in_a_row.is_some_and(|enough| result.consecutive_successful >= enough) {
            return (HookPhase::Successful, String::new());
        }
        match self.count.filter(|most| count >= *most) {
            Some(most) => self.used_up(most, result, why),
            None => (HookPhase::Running, String::new()),
        }
    }

    /// The verdict after the last measurement, if no limit was reached.
    fn used_up(
        &self,
        most: i32,
        result: &MetricResult,
        why: impl Fn(String) -> String,
    ) -> (HookPhase, String) {
        let all = match most {
            1 => "the only measurement is finished".to_owned(),
            _ => format!("all {most} measurements are finished"),
        };
        let good = result.successful;
        if let Some(enough) = self.successes_in_a_row {
            (HookPhase::Failed, why(format!("{all}, {good} successful, never {enough} in a row as required")))
        } else if let Some(enough) = self.successes {
            (HookPhase::Failed, why(format!("{all}, {good} successful, {enough} required")))
        } else if good > 0 {
            (HookPhase::Successful, String::new())
        } else if result.failed > 0 {
            (HookPhase::Failed, why(format!("{all}, none was successful")))
        } else {
            (HookPhase::Inconclusive, why(format!("{all}, none was successful")))
        }
    }
}

fn many(number: i32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn tolerance(tolerated: i32) -> String {
    match tolerated {
        0 => "none is tolerated".to_owned(),
        1 => "1 is tolerated".to_owned(),
        more => format!("{more} are tolerated"),
    }
}
