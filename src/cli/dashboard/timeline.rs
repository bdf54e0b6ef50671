//! Derives the timeline of an operation: its steps, and for each container when it ran, was down and became Ready. Pure.

use jiff::Timestamp;
use serde::Serialize;

use crate::api::status::{ContainerReport, Phase, Status, Step};
use crate::cli::dashboard::seen::SeenOperation;

/// An operation on a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Operation {
    id: String,
    phase: Phase,
    step: Option<Step>,
    reason: String,
    message: String,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    /// The steps, as this process saw them. Empty if the operation had ended before.
    steps: Vec<Span>,
    containers: Vec<ContainerLine>,
}

/// A container of an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerLine {
    name: String,
    action: String,
    engine: String,
    /// The attempt before, and the new one.
    attempts: (u32, Option<u32>),
    from_image: String,
    to_image: Option<String>,
    downtime_ms: Option<i64>,
    spans: Vec<Span>,
}

/// A part of a timeline, in milliseconds since the operation began.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Span {
    name: String,
    from_ms: i64,
    /// Absent while it lasts.
    to_ms: Option<i64>,
}

impl Operation {
    /// The timeline of an operation. The steps have the time at which they arrived, by the clock of this machine; all other
    /// times are those of the node. The clocks are matched at the end, which both of them have.
    pub(super) fn of(seen: &SeenOperation) -> Self {
        let status = &seen.status;
        let begin = status.started_at.or(status.finished_at);
        Self {
            id: status.id.clone(),
            phase: status.phase,
            step: status.step,
            reason: status.reason.clone(),
            message: status.message.clone(),
            started_at: status.started_at,
            finished_at: status.finished_at,
            steps: begin.map(|begin| steps(seen, begin)).unwrap_or_default(),
            containers: status.containers.iter().map(|report| line(report, status, begin)).collect(),
        }
    }
}

fn ms(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or_default().max(0)
}

fn steps(seen: &SeenOperation, begin: Timestamp) -> Vec<Span> {
    let skew = match (seen.ended, seen.status.finished_at) {
        (Some(arrived), Some(ended)) => arrived.duration_since(ended),
        _ => jiff::SignedDuration::ZERO,
    };
    let at = |arrived: Timestamp| ms(begin, arrived.checked_sub(skew).unwrap_or(arrived));
    let ends = seen.steps.iter().skip(1).map(|(_, next)| Some(at(*next))).chain([seen.ended.map(at)]);
    let spans = seen.steps.iter().zip(ends);
    spans.map(|((step, from), to)| Span { name: step.to_string(), from_ms: at(*from), to_ms: to }).collect()
}

fn line(report: &ContainerReport, status: &Status, begin: Option<Timestamp>) -> ContainerLine {
    ContainerLine {
        name: report.name.clone(),
        action: report.action.to_string(),
        engine: report.engine.to_string(),
        attempts: (report.from.attempt, report.to.as_ref().map(|to| to.attempt)),
        from_image: report.from.image.clone(),
        to_image: report.to.as_ref().map(|to| to.image.clone()),
        downtime_ms: report.downtime_ms,
        spans: begin.map(|begin| spans(report, status, begin)).unwrap_or_default(),
    }
}

/// `before`, `down`, `starting`, `after`, as far as the container got.
fn spans(report: &ContainerReport, status: &Status, begin: Timestamp) -> Vec<Span> {
    let moments = [
        ("before", Some(begin)),
        ("down", report.stopped_at),
        ("starting", report.started_at),
        ("after", report.ready_at),
    ];
    let reached: Vec<_> = moments.into_iter().filter_map(|(name, at)| Some((name, ms(begin, at?)))).collect();
    let end = status.finished_at.map(|at| ms(begin, at));
    let ends = reached.iter().skip(1).map(|(_, next)| Some(*next)).chain([end]);
    let spans = reached.iter().zip(ends);
    spans.map(|((name, from), to)| Span { name: (*name).to_owned(), from_ms: *from, to_ms: to }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn operation(status: &Value, steps: &[(Step, i64)], ended: Option<i64>) -> Value {
        let seen = SeenOperation {
            status: serde_json::from_value(status.clone()).unwrap(),
            steps: steps.iter().map(|(step, second)| (*step, at(*second))).collect(),
            ended: ended.map(at),
        };
        serde_json::to_value(Operation::of(&seen)).unwrap()
    }

    #[test]
    fn the_clock_of_this_machine_is_matched_with_that_of_the_node() {
        // The clock of this machine is 100 s ahead.
        let status = json!({"id": "a", "phase": "Succeeded", "step": "Ready", "reason": "", "message": "",
            "startedAt": "1970-01-01T00:00:10.000Z", "finishedAt": "1970-01-01T00:00:16.000Z", "containers": [
            {"name": "app", "action": "Restart", "engine": "Recreate", "from": {"containerID": "a", "attempt": 3, "image": "i",
             "imageID": "s"}, "to": {"containerID": "b", "attempt": 4, "image": "i", "imageID": "s"},
             "stoppedAt": "1970-01-01T00:00:11.000Z", "startedAt": "1970-01-01T00:00:11.076Z",
             "readyAt": "1970-01-01T00:00:15.000Z", "downtimeMs": 76}]});
        let found = operation(&status, &[(Step::Swap, 110), (Step::Verify, 111)], Some(116));
        let span = |name: &str, from: i64, to: i64| json!({"name": name, "fromMs": from, "toMs": to});
        assert_eq!(found["steps"], json!([span("Swap", 0, 1000), span("Verify", 1000, 6000)]));
        let app = &found["containers"][0];
        let spans = [
            span("before", 0, 1000),
            span("down", 1000, 1076),
            span("starting", 1076, 5000),
            span("after", 5000, 6000),
        ];
        assert_eq!(app["spans"], json!(spans));
        assert_eq!((&app["downtimeMs"], &app["attempts"]), (&json!(76), &json!([3, 4])));
    }

    #[test]
    fn the_last_part_of_an_operation_in_progress_is_open() {
        let status = json!({"id": "a", "phase": "Running", "step": "Swap", "reason": "", "message": "",
            "startedAt": "1970-01-01T00:00:10.000Z", "finishedAt": null, "containers": [
            {"name": "app", "action": "Restart", "engine": "Recreate", "from": {"containerID": "a", "attempt": 0, "image": "i",
             "imageID": "s"}, "stoppedAt": "1970-01-01T00:00:11.000Z"}]});
        let found = operation(&status, &[(Step::Swap, 9)], None);
        assert_eq!(found["steps"], json!([{"name": "Swap", "fromMs": 0, "toMs": null}]));
        assert_eq!(found["containers"][0]["spans"][1], json!({"name": "down", "fromMs": 1000, "toMs": null}));
    }

    #[test]
    fn a_request_that_did_not_begin_has_no_spans() {
        let status = json!({"id": "a", "phase": "Refused", "reason": "NotRunning", "message": "no", "startedAt": null,
            "finishedAt": null, "containers": []});
        let found = operation(&status, &[], None);
        assert_eq!((&found["steps"], &found["phase"]), (&json!([]), &json!("Refused")));
    }
}
