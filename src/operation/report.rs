//! What is told of an operation, at any moment and at its end: the status object and its one line for people.

use jiff::Timestamp;

use crate::api::request::Request;
use crate::api::status::{Action, ContainerReport, Phase, Status};
use crate::operation::outcome::{Outcome, Withdrawal};
use crate::operation::preflight::Refusal;
use crate::operation::state::{Operation, Target};

/// The status of an operation, open or over.
pub fn status(operation: &Operation) -> Status {
    let phase = operation.outcome.as_ref().map_or(Phase::Running, Outcome::phase);
    Status {
        id: operation.request.id.clone(),
        phase,
        step: Some(operation.step),
        reason: operation.outcome.as_ref().map_or("", Outcome::reason).to_owned(),
        message: message(operation),
        started_at: Some(operation.begun_at),
        finished_at: operation.finished_at,
        containers: operation.targets.iter().map(container).collect(),
    }
}

/// The status of a request that cannot be carried out.
pub fn refused(id: &str, refusal: &Refusal, now: Timestamp) -> Status {
    not_begun(id, Phase::Refused, refusal.reason(), refusal, now)
}

/// The status of a request that ended in `phase` before it began, because of `why`.
pub fn not_begun(
    id: &str,
    phase: Phase,
    reason: &str,
    why: &dyn std::fmt::Display,
    now: Timestamp,
) -> Status {
    let (reason, message) = (reason.to_owned(), format!("{why}. Nothing was touched"));
    Status { phase, reason, finished_at: Some(now), ..waiting(id, message) }
}

/// The status of a request that waits for `what`.
pub fn pending(request: &Request, what: &str) -> Status {
    waiting(&request.id, what.to_owned())
}

fn waiting(id: &str, message: String) -> Status {
    Status {
        id: id.to_owned(),
        phase: Phase::Pending,
        step: None,
        reason: String::new(),
        message,
        started_at: None,
        finished_at: None,
        containers: Vec::new(),
    }
}

fn container(target: &Target) -> ContainerReport {
    let reached = target.reached.as_ref();
    ContainerReport {
        name: target.name.clone(),
        action: target.action,
        engine: target.engine,
        from: target.from.clone(),
        to: reached.map(|reached| reached.to.clone()),
        stopped_at: reached.and_then(|reached| reached.stopped_at),
        started_at: reached.and_then(|reached| reached.started_at),
        ready_at: reached.and_then(|reached| reached.ready_at),
        downtime_ms: downtime_ms(target),
    }
}

/// Milliseconds from the end of the old life to the start of the one that runs now.
fn downtime_ms(target: &Target) -> Option<i64> {
    let reached = target.reached.as_ref()?;
    let down = reached.started_at?.duration_since(reached.stopped_at?);
    i64::try_from(down.as_millis()).ok()
}

fn message(operation: &Operation) -> String {
    let mut text = match &operation.outcome {
        None => match &operation.setback {
            Some(setback) => format!("{}: trying again: {}", operation.step, setback.trouble.message),
            None => format!("{} is under way", operation.step),
        },
        Some(Outcome::Succeeded) => join(operation.targets.iter().map(succeeded)),
        Some(Outcome::RolledBack(failure)) => {
            let back = operation.targets.iter().filter(|target| target.touched).map(returned);
            format!("{}: {failure}", join(back))
        }
        Some(Outcome::Failed { failure, then: None, touched: false }) => {
            format!("{failure}. The running containers were not touched")
        }
        Some(Outcome::Failed { failure, then: None, touched: true }) => {
            format!("{failure}. {}", left_behind(operation))
        }
        Some(Outcome::Failed { failure, then: Some(then), .. }) => {
            format!("{failure}; going back failed too: {then}. {}", left_behind(operation))
        }
        Some(Outcome::Cancelled(withdrawal)) => match withdrawal {
            Withdrawal::Deleted => "the request was withdrawn before anything was touched".to_owned(),
            Withdrawal::Replaced => "another request took its place before anything was touched".to_owned(),
            Withdrawal::Interrupted => "interrupted before anything was touched".to_owned(),
        },
    };
    for remark in &operation.remarks {
        text.push_str(". ");
        text.push_str(remark);
    }
    text
}

fn succeeded(target: &Target) -> String {
    let what = match target.action {
        Action::Restart => "restarted in place".to_owned(),
        Action::Swap => format!("swapped in place to {}", target.image.as_deref().unwrap_or_default()),
    };
    format!("{} {what}: {}", target.name, lives(target))
}

fn returned(target: &Target) -> String {
    match (&target.back, target.action) {
        (Some(_), _) => format!("{} is back on {}: {}", target.name, target.from.image, lives(target)),
        (None, Action::Restart) => succeeded(target),
        (None, Action::Swap) => format!("{} never left {}", target.name, target.from.image),
    }
}

fn lives(target: &Target) -> String {
    let to = target.reached.as_ref().map_or(target.from.attempt, |reached| reached.to.attempt);
    let down =
        downtime_ms(target).map_or_else(|| "downtime unknown".to_owned(), |ms| format!("down {ms} ms"));
    format!("{down}, attempt {} -> {to}", target.from.attempt)
}

fn left_behind(operation: &Operation) -> String {
    let names = operation.targets.iter().filter(|t| t.touched).map(|t| t.name.as_str()).collect::<Vec<_>>();
    format!("Nothing more is done by itself: look at {} now", names.join(", "))
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join("; ")
}
