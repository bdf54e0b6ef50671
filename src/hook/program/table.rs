//! Tests of the verdicts of runs, row by row, as the section Conditions of docs/hooks.md states them.

use serde_json::json;

use super::*;
use crate::api::hook_template::HookTemplateSpec;
use crate::hook::check;
use crate::hook::value::Value;

/// Runs metrics over outcomes, one after the other, each when it is due: `S`uccessful, `F`ailed, `I`nconclusive,
/// `E`rror. The status, the number of measurements and the seconds until the end are compared with the table.
struct TestRun {
    program: Program,
    status: HookRunStatus,
    now: Timestamp,
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "json! reads better where it is used")]
fn run_of(metrics: serde_json::Value, policy: &str) -> TestRun {
    let template: HookTemplateSpec =
        serde_json::from_value(json!({ "metrics": metrics, "policy": policy })).unwrap();
    let spec = check::prepare(&template, &[], None).unwrap();
    let program = Program::compile(&spec).unwrap();
    let mut status = HookRunStatus::default();
    program.start(&mut status, at(0));
    TestRun { program, status, now: at(0) }
}

fn metric(name: &str, fields: &serde_json::Value) -> serde_json::Value {
    let mut metric = json!({
        "name": name, "successCondition": "result == 'S'", "failureCondition": "result == 'F'",
        "provider": { "web": { "url": "http://127.0.0.1:9091" } },
    });
    metric.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    metric
}

fn outcome(letter: char) -> Measured {
    match letter {
        'E' => Measured::Error("connection refused".to_owned()),
        letter => Measured::Value(Value::Text(letter.to_string())),
    }
}

impl TestRun {
    /// Continues until the run has ended, or `outcomes` are used up. Returns the number of measurements.
    fn run(&mut self, outcomes: &str) -> usize {
        let mut outcomes = outcomes.chars();
        let mut made = 0;
        loop {
            match self.program.next(&self.status, &[], self.now) {
                Next::Ended(_) => return made,
                Next::Wait(None) => panic!("waits for nothing: {:?}", self.status),
                Next::Wait(Some(until)) => self.now = until,
                Next::Measure(due) => {
                    for metric in due {
                        let Some(letter) = outcomes.next() else { return made };
                        self.program.begin(&mut self.status, metric, self.now);
                        self.program.record(&mut self.status, metric, &outcome(letter), self.now);
                        made += 1;
                    }
                }
            }
        }
    }

    fn phase(&self) -> HookPhase {
        self.status.phase.unwrap()
    }

    fn seconds(&self) -> i64 {
        self.now.as_second() - at(0).as_second()
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn every_row_of_the_table() {
    use HookPhase::{Error, Failed, Inconclusive, Running, Successful};
    let three = json!({ "count": 3, "interval": "60s", "failureLimit": 2 });
    let strict = json!({ "count": 2, "interval": "5s", "failureLimit": 0 });
    let once = json!({});
    let poll = json!({ "count": 10, "interval": "5s", "successfulLimit": 1 });
    let for_ever = json!({ "interval": "5s", "successfulLimit": 1 });
    let in_a_row = json!({ "interval": "1s", "consecutiveSuccessfulLimit": 2 });
    let count = json!({ "count": 3, "interval": "1s" });
    let bears = json!({ "count": 4, "interval": "1s", "inconclusiveLimit": 1 });
    for (fields, outcomes, phase, made, seconds, message) in [
        // The examples of the reference.
        (
            &three,
            "FFF",
            Failed,
            3,
            120,
            "m: 3 of 3 measurements failed, 2 are tolerated: result == 'F' was true for \"F\"",
        ),
        (&three, "SSS", Successful, 3, 120, ""),
        (&three, "SFF", Successful, 3, 120, ""),
        // With failureLimit 0 or absent no failure is tolerated.
        (&strict, "F", Failed, 1, 0, "m: 1 of 2 measurements failed, none is tolerated"),
        (&once, "F", Failed, 1, 0, "m: 1 of 1 measurement failed, none is tolerated"),
        (&once, "S", Successful, 1, 0, ""),
        (&count, "SF", Failed, 2, 1, "m: 1 of 3 measurements failed, none is tolerated"),
        (&count, "SSS", Successful, 3, 2, ""),
        // An unreachable target approves nothing and is not counted; without an interval it is measured again
        // after 10 s.
        (
            &three,
            "EEEEE",
            Error,
            5,
            240,
            "m: 5 measurements in a row ended with an error, 4 are tolerated: connection refused",
        ),
        (&three, "EEEESEEEESEEEES", Successful, 15, 840, ""),
        (&once, "EES", Successful, 3, 20, ""),
        (&once, "EEEEE", Error, 5, 40, "m: 5 measurements in a row ended with an error"),
        // Polling tolerates failures, but the metric fails if it has no success after `count` measurements.
        (
            &poll,
            "FFFFFFFFFF",
            Failed,
            10,
            45,
            "m: all 10 measurements are finished, 0 successful, 1 required",
        ),
        (&poll, "FFFS", Successful, 4, 15, ""),
        (&for_ever, "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFF", Running, 30, 150, ""),
        (&for_ever, "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFS", Successful, 31, 150, ""),
        (&for_ever, "EEEEE", Error, 5, 20, "m: 5 measurements in a row ended with an error"),
        (&in_a_row, "SFSFSS", Successful, 6, 5, ""),
        (&in_a_row, "SESS", Successful, 4, 3, ""),
        // Neither condition holds.
        (
            &once,
            "I",
            Inconclusive,
            1,
            0,
            "m: 1 of 1 measurement inconclusive, none is tolerated: neither result == 'S' nor",
        ),
        (&bears, "ISSS", Successful, 4, 3, ""),
        (&bears, "ISI", Inconclusive, 3, 2, "m: 2 of 4 measurements inconclusive, 1 is tolerated"),
        // A limit that tolerates every failure does not approve a metric that never succeeded.
        (
            &json!({ "count": 2, "interval": "1s", "failureLimit": 2 }),
            "FF",
            Failed,
            2,
            1,
            "m: all 2 measurements are finished, none was successful",
        ),
        (
            &json!({ "count": 1, "inconclusiveLimit": 1 }),
            "I",
            Inconclusive,
            1,
            0,
            "m: the only measurement is finished, none was successful",
        ),
        // An explicit failureLimit applies while polling as well.
        (
            &json!({ "interval": "1s", "successfulLimit": 1, "failureLimit": 1 }),
            "FF",
            Failed,
            2,
            1,
            "m: 2 measurements failed, 1 is tolerated",
        ),
        (
            &json!({ "interval": "1s", "successfulLimit": 2, "consecutiveErrorLimit": 0 }),
            "SE",
            Error,
            2,
            1,
            "m: 1 measurement in a row ended with an error, none is tolerated",
        ),
        (&json!({ "initialDelay": "30s" }), "S", Successful, 1, 30, ""),
    ] {
        let mut run_of = run_of(json!([metric("m", fields)]), "Parallel");
        let measured = run_of.run(outcomes);
        let row = format!("{fields} {outcomes}: {:?}", run_of.status);
        assert_eq!((run_of.phase(), measured, run_of.seconds()), (phase, made, seconds), "{row}");
        assert!(run_of.status.message.starts_with(message), "{row}");
        assert_eq!(run_of.status.message.is_empty(), message.is_empty(), "{row}");
    }
}

#[test]
fn counters_measurements_and_spelling_of_a_status() {
    let mut run_of = run_of(
        json!([metric(
            "m",
            &json!({ "count": 15, "interval": "1s", "failureLimit": 15, "successCondition": "asInt(result) > 30",
            "failureCondition": "" })
        )]),
        "Parallel",
    );
    for index in 0..12 {
        run_of.program.begin(&mut run_of.status, 0, at(index));
        run_of.program.record(&mut run_of.status, 0, &Measured::Value(Value::Text("45".into())), at(index));
    }
    let status = serde_json::to_value(&run_of.status).unwrap();
    let result = &status["metricResults"][0];
    assert_eq!(result["measurements"].as_array().unwrap().len(), MAX_MEASUREMENTS);
    assert_eq!(result["measurements"][0]["startedAt"], "2023-11-14T22:13:22Z");
    assert_eq!(result["measurements"][9]["value"], "45");
    assert_eq!((&result["count"], &result["successful"]), (&json!(12), &json!(12)));
    for absent in ["failed", "error", "inconclusive", "consecutiveError", "message"] {
        assert!(result.get(absent).is_none(), "{absent} is there: {result}");
    }
}

#[test]
fn times_are_kept_in_milliseconds() {
    let mut run_of = run_of(json!([metric("m", &json!({}))]), "Parallel");
    let now = Timestamp::new(1_700_000_000, 123_456_789).unwrap();
    run_of.program.begin(&mut run_of.status, 0, now);
    run_of.program.record(&mut run_of.status, 0, &outcome('S'), now);
    let measurement = &run_of.status.metric_results[0].measurements[0];
    assert_eq!(measurement.finished_at.unwrap().to_string(), "2023-11-14T22:13:20.123Z");
}

#[test]
fn ordered_metrics_wait_for_the_one_before_and_end_with_a_failed_one() {
    let metrics = json!([metric("a", &json!({})), metric("b", &json!({})), metric("c", &json!({}))]);
    let mut ordered = run_of(metrics.clone(), "Ordered");
    assert_eq!(ordered.program.next(&ordered.status, &[], at(0)), Next::Measure(vec![0]));
    assert_eq!(ordered.program.next(&ordered.status, &[0], at(0)), Next::Wait(None));
    assert_eq!(ordered.run("SF"), 2);
    assert_eq!(ordered.phase(), HookPhase::Failed);
    assert_eq!(ordered.status.metric_results.len(), 2, "c was never measured");
    assert!(ordered.status.message.starts_with("b: 1 of 1 measurement failed"), "{}", ordered.status.message);
    let mut all = run_of(metrics, "Ordered");
    assert_eq!((all.run("SSS"), all.phase()), (3, HookPhase::Successful));
}

#[test]
fn a_metric_that_was_never_measured_does_not_keep_a_failed_run_open() {
    let metrics = json!([metric("now", &json!({})), metric("later", &json!({ "initialDelay": "1h" }))]);
    let mut run_of = run_of(metrics, "Parallel");
    assert_eq!((run_of.run("F"), run_of.phase(), run_of.seconds()), (1, HookPhase::Failed, 0));
}

#[test]
fn what_is_under_way_when_another_metric_fails_is_waited_for_and_approves_nothing() {
    let metrics = json!([metric("a", &json!({})), metric("b", &json!({ "count": 2, "interval": "1s" }))]);
    let mut run_of = run_of(metrics, "Parallel");
    assert_eq!(run_of.program.next(&run_of.status, &[], at(0)), Next::Measure(vec![0, 1]));
    run_of.program.begin(&mut run_of.status, 0, at(0));
    run_of.program.begin(&mut run_of.status, 1, at(0));
    run_of.program.record(&mut run_of.status, 0, &outcome('F'), at(1));
    assert_eq!(run_of.phase(), HookPhase::Running);
    assert_eq!(run_of.program.next(&run_of.status, &[1], at(9)), Next::Wait(None));
    run_of.program.record(&mut run_of.status, 1, &outcome('S'), at(2));
    assert_eq!(run_of.phase(), HookPhase::Failed);
    let b = &run_of.status.metric_results[1];
    assert_eq!((b.phase, b.message.as_str()), (HookPhase::Inconclusive, "stopped because of a"));
}

#[test]
fn a_process_that_died_while_measuring_measures_that_again_and_nothing_else() {
    let metrics = json!([metric("a", &json!({ "count": 2, "interval": "60s" }))]);
    let mut run_of = run_of(metrics, "Parallel");
    run_of.run("S");
    run_of.program.begin(&mut run_of.status, 0, run_of.now);
    let mut stored: HookRunStatus =
        serde_json::from_value(serde_json::to_value(&run_of.status).unwrap()).unwrap();
    run_of.program.resume(&mut stored);
    assert_eq!((stored.metric_results[0].measurements.len(), stored.metric_results[0].count), (1, 1));
    assert_eq!(run_of.program.next(&stored, &[], at(30)), Next::Wait(Some(at(60))));
    assert_eq!(run_of.program.next(&stored, &[], at(60)), Next::Measure(vec![0]));
    // The process was killed when one metric had failed and another one was being measured: no measurement is
    // left to wait for.
    let metrics = json!([metric("a", &json!({})), metric("b", &json!({}))]);
    let mut run_of = super::table::run_of(metrics, "Parallel");
    run_of.program.begin(&mut run_of.status, 0, at(0));
    run_of.program.begin(&mut run_of.status, 1, at(0));
    run_of.program.record(&mut run_of.status, 0, &outcome('F'), at(0));
    run_of.program.resume(&mut run_of.status);
    assert_eq!(run_of.phase(), HookPhase::Failed);
}

#[test]
fn a_clock_that_was_set_back_delays_nothing() {
    let mut run_of = run_of(json!([metric("a", &json!({ "count": 2, "interval": "60s" }))]), "Parallel");
    run_of.run("S");
    assert_eq!(run_of.program.next(&run_of.status, &[], at(-7200)), Next::Measure(vec![0]));
}

#[test]
fn no_number_is_no_verdict() {
    let conditions = json!({ "successCondition": "result > 0", "failureCondition": "" });
    for value in [Value::Number(f64::NAN), Value::Numbers(vec![1.0, f64::NAN])] {
        let mut run_of = run_of(json!([metric("m", &conditions)]), "Parallel");
        run_of.program.record(&mut run_of.status, 0, &Measured::Value(value), at(0));
        assert_eq!(run_of.phase(), HookPhase::Inconclusive);
        assert!(run_of.status.message.contains("NaN"), "{}", run_of.status.message);
    }
}

#[test]
fn conditions_decide_as_the_reference_says() {
    use HookPhase::{Error, Failed, Inconclusive, Successful};
    for (success, failure, value, phase) in [
        ("", "", Value::None, Successful),
        ("", "", Value::Text("x".into()), Successful),
        ("asInt(result) > 1", "", Value::Text("2".into()), Successful),
        ("asInt(result) > 1", "", Value::Text("1".into()), Failed),
        ("asInt(result) > 1", "", Value::Text("one".into()), Error),
        ("", "asInt(result) > 1", Value::Text("2".into()), Failed),
        ("", "asInt(result) > 1", Value::Text("1".into()), Successful),
        ("asInt(result) > 1", "asInt(result) > 2", Value::Text("3".into()), Failed),
        ("asInt(result) > 1", "asInt(result) > 2", Value::Text("2".into()), Successful),
        ("asInt(result) > 1", "asInt(result) < 0", Value::Text("1".into()), Inconclusive),
    ] {
        let fields = json!({ "successCondition": success, "failureCondition": failure });
        let mut run_of = run_of(json!([metric("m", &fields)]), "Parallel");
        run_of.program.record(&mut run_of.status, 0, &Measured::Value(value.clone()), at(0));
        assert_eq!(
            run_of.status.metric_results[0].measurements[0].phase, phase,
            "{success} {failure} {value:?}"
        );
    }
}

#[test]
fn terminated_is_ended_and_approves_nothing() {
    let metrics = json!([
        metric("a", &json!({ "interval": "5s", "successfulLimit": 2 })),
        metric("b", &json!({ "initialDelay": "1h" }))
    ]);
    let mut run_of = run_of(metrics, "Parallel");
    run_of.run("S");
    run_of.program.terminate(&mut run_of.status, run_of.now);
    assert_eq!(run_of.phase(), HookPhase::Inconclusive);
    assert_eq!(run_of.program.next(&run_of.status, &[], run_of.now), Next::Ended(HookPhase::Inconclusive));
    assert!(run_of.status.message.contains("this is no approval"));
    assert_eq!(run_of.status.metric_results[0].phase, HookPhase::Inconclusive);
    // An ended run does not change, whatever results still arrive.
    let before = run_of.status.clone();
    run_of.program.terminate(&mut run_of.status, at(9));
    run_of.program.record(&mut run_of.status, 0, &outcome('S'), at(9));
    run_of.program.resume(&mut run_of.status);
    assert_eq!(run_of.status, before);
}

#[test]
fn approved_by_hand_is_successful_and_says_so() {
    let mut run_of =
        run_of(json!([metric("a", &json!({ "interval": "5s", "successfulLimit": 1 }))]), "Parallel");
    run_of.run("FF");
    run_of.program.approve(&mut run_of.status, run_of.now);
    assert_eq!((run_of.phase(), run_of.status.message.as_str()), (HookPhase::Successful, "approved by hand"));
    assert_eq!(run_of.status.metric_results[0].phase, HookPhase::Inconclusive);
    let mut untouched = HookRunStatus::default();
    run_of.program.terminate(&mut untouched, at(0));
    assert_eq!(untouched.phase, Some(HookPhase::Inconclusive));
}
