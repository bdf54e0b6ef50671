//! Property tests for all hooks and all sequences of outcomes: a run ends within bounds, a metric that never succeeded is
//! not approved, and the kill of the process at any point does not change a verdict.

use proptest::prelude::*;

use super::*;
use crate::api::hook_template::{Metric, Provider, Web};
use crate::hook::value::{MAX_MESSAGE, Value};

/// One random metric. Many of them are invalid; these are refused and not tried further.
fn metric() -> impl Strategy<Value = Metric> {
    let limit = || proptest::option::of(0..5_i32);
    (
        (proptest::option::of(0..6_i32), proptest::option::of(1..50_u32), proptest::option::of(0..50_u32)),
        (limit(), limit(), limit(), limit(), proptest::option::of(1..4_i32)),
    )
        .prop_map(|((count, interval, delay), (failure, successful, inconclusive, error, row))| Metric {
            name: String::new(),
            interval: interval.map(|seconds| format!("{seconds}s")),
            initial_delay: delay.map(|seconds| format!("{seconds}s")),
            count,
            success_condition: Some("result == 'S'".to_owned()),
            failure_condition: Some("result == 'F'".to_owned()),
            failure_limit: failure,
            successful_limit: successful,
            inconclusive_limit: inconclusive,
            consecutive_error_limit: error,
            consecutive_successful_limit: row,
            provider: Provider {
                web: Some(Web { url: "http://127.0.0.1/".to_owned(), ..Web::default() }),
                ..Provider::default()
            },
        })
}

fn spec() -> impl Strategy<Value = HookRunSpec> {
    (proptest::collection::vec(metric(), 1..4), any::<bool>()).prop_map(|(mut metrics, ordered)| {
        for (index, metric) in metrics.iter_mut().enumerate() {
            metric.name = format!("m{index}");
        }
        let policy = Some(if ordered { Policy::Ordered } else { Policy::Parallel });
        HookRunSpec { metrics, args: Vec::new(), terminate: false, policy }
    })
}

/// Drives a run through outcomes that depend only on the metric and the number of the measurement. The process is
/// killed where `dies` says so: before a measurement, during it, or after it.
fn drive(program: &Program, outcomes: &[u8], dies: &[bool]) -> (HookRunStatus, usize) {
    let mut status = HookRunStatus::default();
    let mut now = Timestamp::from_second(1_700_000_000).unwrap();
    let mut made = vec![0_usize; program.metrics.len()];
    let mut turns = 0;
    let mut dies = dies.iter().copied();
    program.start(&mut status, now);
    loop {
        turns += 1;
        assert!(turns < 20_000, "it does not end: {status:?}");
        match program.next(&status, &[], now) {
            Next::Ended(_) => return (status, made.iter().sum()),
            Next::Wait(Some(until)) => {
                assert!(until > now, "it waits for the past");
                now = until;
            }
            Next::Wait(None) => panic!("it waits for nothing: {status:?}"),
            Next::Measure(due) => {
                for metric in due {
                    if status.phase.is_some_and(HookPhase::is_completed) {
                        break;
                    }
                    program.begin(&mut status, metric, now);
                    if dies.next().unwrap_or_default() {
                        status = serde_json::from_value(serde_json::to_value(&status).unwrap()).unwrap();
                        program.resume(&mut status);
                        program.start(&mut status, now);
                        break;
                    }
                    let outcome = outcomes[(made[metric] + metric * 7) % outcomes.len()];
                    made[metric] += 1;
                    let measured = match outcome {
                        b'E' => Measured::Error("refused".to_owned()),
                        letter => Measured::Value(Value::Text(char::from(letter).to_string())),
                    };
                    program.record(&mut status, metric, &measured, now);
                }
            }
        }
    }
}

/// Outcomes that recur, with more successes in a row than any metric asks for, so that polling ends as well.
fn world() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(b'S'), Just(b'F'), Just(b'I'), Just(b'E')], 1..40).prop_map(
        |mut world| {
            world.extend([b'S'; 8]);
            world
        },
    )
}

/// A spec of `metrics` metrics that tolerate every outcome for a while.
fn tolerant(metrics: usize) -> HookRunSpec {
    let metric = |index: usize| Metric {
        name: format!("m{index}"),
        interval: Some("1s".to_owned()),
        initial_delay: None,
        count: Some(100),
        success_condition: Some(format!("result == '{}'", "<".repeat(1000))),
        failure_condition: None,
        failure_limit: Some(100),
        successful_limit: None,
        inconclusive_limit: Some(100),
        consecutive_error_limit: Some(100),
        consecutive_successful_limit: None,
        provider: Provider {
            web: Some(Web { url: "http://127.0.0.1/".to_owned(), ..Web::default() }),
            ..Provider::default()
        },
    };
    let metrics = (0..metrics).map(metric).collect();
    HookRunSpec { metrics, args: Vec::new(), terminate: false, policy: None }
}

/// The size of a status as an API server stores it: it also escapes the characters of HTML.
fn stored_size(status: &HookRunStatus) -> usize {
    let json = serde_json::to_string(status).unwrap();
    json.len() + 5 * json.chars().filter(|character| matches!(character, '<' | '>' | '&')).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_status_is_small_whatever_a_measurement_says(
        metrics in prop_oneof![Just(1_usize), Just(20), Just(64)],
        kind in 0..3_u8,
        part in proptest::collection::vec(proptest::sample::select(vec!['<', '\u{1}', '"', 'é', 'x']), 1..8),
        repeats in 1..20_000_usize,
    ) {
        let text = part.iter().collect::<String>().repeat(repeats);
        let measured = match kind {
            0 => Measured::Value(Value::Text(text)),
            1 => Measured::Failed { value: Value::Text(text.clone()), why: text },
            _ => Measured::Error(text),
        };
        let program = Program::compile(&tolerant(metrics)).unwrap();
        let mut status = HookRunStatus::default();
        let now = Timestamp::from_millisecond(1_700_000_000_123).unwrap();
        program.start(&mut status, now);
        for metric in (0..metrics).cycle().take(metrics * (MAX_MEASUREMENTS + 2)) {
            program.record(&mut status, metric, &measured, now);
        }
        prop_assert_eq!(status.phase, Some(HookPhase::Running));
        let size = stored_size(&status);
        prop_assert!(size <= 600 << 10, "{} bytes", size);
        for measurement in status.metric_results.iter().flat_map(|result| &result.measurements) {
            prop_assert!(measurement.message.len() <= MAX_MESSAGE, "{}", measurement.message);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_run_ends_and_its_phase_is_that_of_its_metrics(spec in spec(), world in world()) {
        let Ok(program) = Program::compile(&spec) else { return Ok(()) };
        let (status, _) = drive(&program, &world, &[]);
        let worst = status.metric_results.iter().map(|result| result.phase).max().unwrap();
        prop_assert_eq!(status.phase, Some(worst));
        for result in &status.metric_results {
            prop_assert!(result.measurements.len() <= MAX_MEASUREMENTS);
            prop_assert_eq!(result.count, result.successful + result.failed + result.inconclusive);
            prop_assert!(result.phase != HookPhase::Successful || result.successful > 0, "{:?}", result);
            prop_assert_eq!(result.phase == HookPhase::Successful, result.message.is_empty(), "{:?}", result);
        }
        if worst == HookPhase::Successful {
            prop_assert_eq!(status.metric_results.len(), spec.metrics.len());
        } else {
            prop_assert!(!status.message.is_empty());
        }
    }

    #[test]
    fn nothing_that_never_succeeds_is_approved(spec in spec(), world in proptest::collection::vec(prop_oneof![Just(b'F'), Just(b'I'), Just(b'E')], 1..20)) {
        // A metric that polls without a count may go on forever with these outcomes.
        let polls = |metric: &Metric| metric.count.unwrap_or(0) == 0 && metric.interval.is_some();
        if spec.metrics.iter().any(polls) {
            return Ok(());
        }
        let Ok(program) = Program::compile(&spec) else { return Ok(()) };
        // Errors that recur with other outcomes between them are tolerated forever: at most every second
        // measurement is one.
        let world: Vec<u8> = if world.iter().all(|letter| *letter == b'E') { vec![b'E'] } else { world };
        let (status, _) = drive(&program, &world, &[]);
        prop_assert!(status.phase != Some(HookPhase::Successful), "{:?}", status);
    }

    #[test]
    fn a_process_that_dies_changes_no_verdict(spec in spec(), world in world(), dies in proptest::collection::vec(any::<bool>(), 0..60)) {
        // With several concurrent metrics, a restart may change which of two that are due together is recorded
        // first. Hence the policy is Ordered.
        let mut spec = spec;
        spec.policy = Some(Policy::Ordered);
        let Ok(program) = Program::compile(&spec) else { return Ok(()) };
        let (whole, made) = drive(&program, &world, &[]);
        let (cut, made_again) = drive(&program, &world, &dies);
        prop_assert_eq!(made, made_again);
        prop_assert_eq!(whole, cut);
    }
}
