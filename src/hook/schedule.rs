//! The schedule of a metric: parses Go durations, and computes the time of the next measurement. Pure.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::hook_run::MetricResult;

/// The delay after a measurement that could not be made, if no interval is given.
const AFTER_ERROR: Duration = Duration::from_secs(10);
/// Minimum interval: a shorter one would amount to a denial-of-service attack.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum interval or delay.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// The schedule of one metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) initial_delay: Duration,
    pub(crate) interval: Option<Duration>,
}

impl Schedule {
    /// When the metric is due. If the last time lies in the future, the clock was set back: the metric is then
    /// due now.
    pub(crate) fn due(&self, result: Option<&MetricResult>, started: Timestamp, now: Timestamp) -> Timestamp {
        let last = result.and_then(|result| result.measurements.iter().rev().find_map(|one| one.finished_at));
        let (from, gap) = match last {
            None => (started, self.initial_delay),
            Some(finished) => (finished, self.interval.unwrap_or(AFTER_ERROR)),
        };
        if from > now { now } else { from.checked_add(gap).unwrap_or(Timestamp::MAX) }
    }
}

/// Parses `90s`, `1m30s`, `500ms`, `1.5h` as Go does; negative durations are refused.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    const WRONG: &str = "write a duration as `90s`, `1m30s`, `500ms` or `1.5h`";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos: u128 = 0;
    if text.is_empty() || text.len() > 64 {
        return Err(WRONG);
    }
    while !rest.is_empty() {
        let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (number, tail) = rest.split_at(number);
        let unit_length = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_length);
        let unit: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(WRONG),
        };
        nanos = nanos.saturating_add(scaled(number, unit).ok_or(WRONG)?);
        rest = tail;
    }
    let nanos = u64::try_from(nanos).map_err(|_| "it is longer than 584 years")?;
    Ok(Duration::from_nanos(nanos))
}

/// A decimal number such as `1.5` times a unit. Digits below a nanosecond are cut.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(18)];
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(unit)?.checked_add(part * unit / scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, millis) in [
            ("90s", 90_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1000),
            ("0", 0),
            ("0s", 0),
            ("1h2m3.004s", 3_723_004),
            ("1000us", 1),
            ("1000µs", 1),
            ("1000000ns", 1),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "90",
            "-1s",
            "+1s",
            "s",
            "1 s",
            "1d",
            "1..5s",
            ".s",
            "1m30",
            "1e3s",
            "99999999999999999999h",
            "é",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in r"[0-9.a-zµ -]{0,12}") {
            let _read = parse_duration(&text);
        }

        #[test]
        fn whole_seconds_are_exact(seconds in 0_u64..1_000_000_000) {
            prop_assert_eq!(parse_duration(&format!("{seconds}s")), Ok(Duration::from_secs(seconds)));
        }
    }
}
