//! Builds the status object of an operation, at any moment and at its end, and its one line for people. It decides
//! nothing about the operation.

use jiff::Timestamp;

use crate::api::request::Request;
use crate::api::status::{Action, ContainerReport, Phase, Status};
use crate::operation::group::GroupMembership;
use crate::operation::outcome::{Failure, Outcome, Withdrawal};
use crate::operation::preflight::Refusal;
use crate::operation::state::{Operation, Target};

/// The status of an operation, running or finished.
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
        group: operation.group.as_ref().map(GroupMembership::progress),
        containers: operation.targets.iter().map(container).collect(),
    }
}

/// The status of a request that cannot be executed.
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
        group: None,
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
        stopped_at: reached.and_then(|reached| reached.stopped_at).or(target.stopped_at),
        started_at: reached.and_then(|reached| reached.started_at),
        ready_at: reached.and_then(|reached| reached.ready_at),
        downtime_ms: downtime_ms(target),
    }
}

/// Milliseconds from the end of the old instance to the start of the one that runs now.
fn downtime_ms(target: &Target) -> Option<i64> {
    let reached = target.reached.as_ref()?;
    let down = reached.started_at?.duration_since(reached.stopped_at?);
    i64::try_from(down.as_millis()).ok()
}

fn message(operation: &Operation) -> String {
    let mut text = match &operation.outcome {
        None => match &operation.last_failure {
            Some(last_failure) => {
                format!("{}: retrying: {}", operation.step, last_failure.effect_error.message)
            }
            None => match operation.hook_progress() {
                Some(hook) => format!("waiting for {hook}"),
                None => format!("{} is in progress", operation.step),
            },
        },
        Some(Outcome::Succeeded) => join(operation.targets.iter().map(succeeded)),
        Some(Outcome::RolledBack(failure)) => {
            let back = operation.targets.iter().filter(|target| target.touched).map(returned);
            format!("{}. Cause: {failure}", join(back))
        }
        Some(Outcome::Refused(failure)) => format!("{failure}. Nothing was touched"),
        Some(Outcome::Failed { failure, then: None, touched: false }) => {
            format!("{failure}. The running containers were not touched")
        }
        Some(Outcome::Failed { failure: failure @ Failure::Superseded { .. }, .. }) => failure.to_string(),
        Some(Outcome::Failed { failure, then: None, touched: true }) => {
            format!("{failure}. {}", left_behind(operation))
        }
        Some(Outcome::Failed { failure, then: Some(then), .. }) => {
            format!("{failure}; the rollback failed as well: {then}. {}", left_behind(operation))
        }
        Some(Outcome::Cancelled(withdrawal)) => match withdrawal {
            Withdrawal::Deleted => "the request was withdrawn before anything was touched".to_owned(),
            Withdrawal::Replaced => "another request replaced it before anything was touched".to_owned(),
            Withdrawal::Interrupted => "interrupted before anything was touched".to_owned(),
            Withdrawal::Unprepared => {
                "the group restart goes on without this pod, which was not prepared in time. Nothing was touched".to_owned()
            }
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
    format!("{} {what}: {}", target.name, instances(target))
}

fn returned(target: &Target) -> String {
    match (&target.back, target.action) {
        (Some(_), _) => format!("{} is back on {}: {}", target.name, target.from.image, instances(target)),
        (None, Action::Restart) if target.reached.is_none() => format!("{} runs as before", target.name),
        (None, Action::Restart) => succeeded(target),
        (None, Action::Swap) => format!("{} was not replaced and keeps {}", target.name, target.from.image),
    }
}

fn instances(target: &Target) -> String {
    let to = target.reached.as_ref().map_or(target.from.attempt, |reached| reached.to.attempt);
    let down =
        downtime_ms(target).map_or_else(|| "downtime unknown".to_owned(), |ms| format!("down {ms} ms"));
    format!("{down}, attempt {} -> {to}", target.from.attempt)
}

fn left_behind(operation: &Operation) -> String {
    let names = operation.targets.iter().filter(|t| t.touched).map(|t| t.name.as_str()).collect::<Vec<_>>();
    format!("No further action is taken automatically: check {} now", names.join(", "))
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Class;
    use crate::operation::effect::{Effect, Verb};
    use crate::operation::fixtures::{Answer, Bench, ask, at, pod, situation};
    use crate::operation::snapshot::{Owner, Snapshot};

    const SWAP: &str = "swap app=repo/app:v2";

    #[test]
    fn every_end_is_one_line_that_a_person_understands() {
        type World = fn(&Effect, &mut Snapshot) -> Answer;
        fn obey(_: &Effect, _: &mut Snapshot) -> Answer {
            Answer::Obey
        }
        fn no_new(effect: &Effect, _: &mut Snapshot) -> Answer {
            let of_new = |image: &crate::operation::effect::ImageChoice| image.id == "sha:v2";
            match effect {
                Effect::Create { image: Some(image), .. } if of_new(image) => Answer::No(Class::Final),
                _ => Answer::Obey,
            }
        }
        fn no_stop(effect: &Effect, _: &mut Snapshot) -> Answer {
            if effect.verb() == Verb::Stop { Answer::No(Class::Final) } else { Answer::Obey }
        }
        fn no_create(effect: &Effect, _: &mut Snapshot) -> Answer {
            if effect.verb() == Verb::Create { Answer::No(Class::Final) } else { Answer::Obey }
        }
        fn no_pull(effect: &Effect, _: &mut Snapshot) -> Answer {
            if effect.verb() == Verb::Pull { Answer::No(Class::Final) } else { Answer::Obey }
        }
        let cases: [(&str, World, Phase, &str, &str); 7] = [
            ("restart app", obey, Phase::Succeeded, "", "app restarted in place: down 20 ms, attempt 2 -> 3"),
            (
                SWAP,
                obey,
                Phase::Succeeded,
                "",
                "app swapped in place to repo/app:v2: down 20 ms, attempt 2 -> 3",
            ),
            (
                SWAP,
                no_new,
                Phase::RolledBack,
                "CreateFailed",
                "app is back on repo/app:v1: down 30 ms, attempt 2 -> 3. Cause: the new app could not be created: the \
                 runtime said so",
            ),
            (
                SWAP,
                no_stop,
                Phase::RolledBack,
                "StopFailed",
                "app was not replaced and keeps repo/app:v1. Cause: app did not stop: the runtime said so",
            ),
            (
                SWAP,
                no_pull,
                Phase::Failed,
                "PullFailed",
                "image repo/app:v2 for app is not usable: the runtime said so. The running containers were not touched",
            ),
            (
                "restart app",
                no_create,
                Phase::Failed,
                "CreateFailed",
                "the new app could not be created: the runtime said so. No further action is taken \
                 automatically: check app now",
            ),
            (
                SWAP,
                no_create,
                Phase::Failed,
                "CreateFailed",
                "the new app could not be created: the runtime said so; the rollback failed as well: the new app \
                 could not be \
                 created: the runtime said so. No further action is taken automatically: check app now",
            ),
        ];
        for (text, world, phase, reason, message) in cases {
            let mut bench = Bench::new(text, pod(Owner::Nobody));
            bench.play(world);
            let status = status(&bench.operation);
            assert_eq!(
                (status.phase, status.reason.as_str(), status.message.as_str()),
                (phase, reason, message)
            );
            assert_eq!(status.finished_at, Some(bench.now));
        }
    }

    #[test]
    fn an_open_operation_reports_its_step_and_its_last_failure() {
        let mut bench = Bench::new("restart app", pod(Owner::Nobody));
        let open = status(&bench.operation);
        assert_eq!((open.phase, open.message.as_str()), (Phase::Running, "Swap is in progress"));
        assert_eq!(open.containers[0].to, None);
        while bench.operation.last_failure.is_none() {
            bench.step(&mut |_, _| Answer::No(Class::Unavailable));
        }
        assert_eq!(status(&bench.operation).message, "Swap: retrying: the runtime said so");
    }

    #[test]
    fn downtime_is_from_the_old_end_to_the_new_start_and_never_guessed() {
        let mut bench = Bench::new("restart app", pod(Owner::Nobody));
        bench.obey();
        let report = status(&bench.operation).containers.remove(0);
        assert_eq!(report.downtime_ms, Some(20));
        assert_eq!((report.from.attempt, report.to.unwrap().attempt), (2, 3));
        bench.operation.targets[0].reached.as_mut().unwrap().stopped_at = None;
        let status = status(&bench.operation);
        assert_eq!(status.containers[0].downtime_ms, None);
        assert_eq!(status.message, "app restarted in place: downtime unknown, attempt 2 -> 3");
    }

    #[test]
    fn what_never_became_an_operation_is_reported_too() {
        let refusal = ask("restart db", &situation(pod(Owner::Nobody))).unwrap_err();
        let reported = refused("test-1", &refusal, at(0));
        assert_eq!((reported.phase, reported.reason.as_str()), (Phase::Refused, "UnknownContainer"));
        assert_eq!(
            reported.message,
            "pod default/web has no container db; it has app, side. Nothing was touched"
        );
        let request = Bench::new("restart app", pod(Owner::Nobody)).operation.request;
        assert_eq!(pending(&request, "waits for another").phase, Phase::Pending);
        for (withdrawal, says) in [
            (Withdrawal::Deleted, "the request was withdrawn before anything was touched"),
            (Withdrawal::Replaced, "another request replaced it before anything was touched"),
            (Withdrawal::Interrupted, "interrupted before anything was touched"),
        ] {
            let mut bench = Bench::new("restart app", pod(Owner::Nobody));
            bench.operation.withdraw(withdrawal);
            bench.obey();
            let status = status(&bench.operation);
            assert_eq!((status.reason.as_str(), status.message.as_str()), (withdrawal.reason(), says));
        }
    }
}
