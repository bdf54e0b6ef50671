//! Derives from a rollout's status whether it is done, in progress, failed, or waits for a person. Pure.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutStatus, RolloutPhase, SOME_FAILED};
use crate::cli::exit::Exit;

/// The state of a rollout, and the message for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Verdict {
    /// The exit code for a command that waits for the rollout; `None` while it progresses on its own.
    pub(in crate::cli) end: Option<Exit>,
    pub(in crate::cli) message: String,
}

/// Evaluates the status of `rollout`. `flags` are those of a command that the user is to run next.
pub(in crate::cli) fn verdict(rollout: &InPlaceRollout, flags: &str) -> Verdict {
    let blank = InPlaceRolloutStatus::default();
    let status = rollout.status.as_ref().unwrap_or(&blank);
    let name = rollout.metadata.name.as_deref().unwrap_or_default();
    let said = if status.message.is_empty() { String::new() } else { format!("{}; ", status.message) };
    let far = format!("{said}{}", counts(status));
    let phase = status.phase;
    let of = |end: Exit| Verdict { end: Some(end), message: format!("{phase:?}: {far}") };
    // A terminal phase is final, whatever is written into the spec afterwards.
    match phase {
        RolloutPhase::Succeeded => return of(Exit::Done),
        RolloutPhase::Failed | RolloutPhase::Aborted | RolloutPhase::AbortFailed => {
            return of(Exit::Failed);
        }
        RolloutPhase::Superseded => return of(Exit::Interrupted),
        RolloutPhase::Pending | RolloutPhase::Running | RolloutPhase::Paused | RolloutPhase::Aborting => {}
    }
    if rollout.metadata.deletion_timestamp.is_some() {
        return Verdict { end: None, message: format!("being deleted: {far}") };
    }
    if is_unseen(rollout) {
        return Verdict {
            end: None,
            message: "the controller has not observed the latest change yet".to_owned(),
        };
    }
    match phase {
        RolloutPhase::Paused if rollout.spec.paused => Verdict {
            end: Some(Exit::Failed),
            message: format!("Paused (run `inplace rollout resume ipr/{name}{flags}` to continue): {far}"),
        },
        RolloutPhase::Paused if status.reason == SOME_FAILED => Verdict {
            end: Some(Exit::Failed),
            message: format!("pods failed before the partition ({}): {far}", amount(&rollout.spec.partition)),
        },
        RolloutPhase::Paused => Verdict {
            end: Some(Exit::Done),
            message: format!("complete up to its partition ({}): {far}", amount(&rollout.spec.partition)),
        },
        _ => Verdict { end: None, message: format!("{phase:?}: {far}") },
    }
}

fn amount(amount: &IntOrString) -> String {
    match amount {
        IntOrString::Int(count) => count.to_string(),
        IntOrString::String(share) => share.clone(),
    }
}

/// True when the controller has not observed the latest spec.
pub(in crate::cli) fn is_unseen(rollout: &InPlaceRollout) -> bool {
    let seen = rollout.status.as_ref().map_or(0, |status| status.observed_generation);
    seen < rollout.metadata.generation.unwrap_or(1)
}

/// `12/40 done, 2 busy, 0 failed, median down 61 ms, most 95 ms`.
pub(in crate::cli) fn counts(status: &InPlaceRolloutStatus) -> String {
    let InPlaceRolloutStatus { wanted, done, busy, failed, downtime_ms: down, .. } = status;
    let mut text = format!("{done}/{wanted} done, {busy} busy, {failed} failed");
    if let Some(abort) = &status.abort {
        text = format!("{text}, {}/{} returned", abort.returned, abort.pods);
    }
    if down.most > 0 {
        return format!("{text}, median down {} ms, most {} ms", down.median, down.most);
    }
    text
}

/// One line for each pod that failed, or that did not come back in an abort.
pub(super) fn failures(rollout: &InPlaceRollout) -> Vec<String> {
    let Some(status) = &rollout.status else { return Vec::new() };
    let line = |reason: &str, message: &str| match (reason, message) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    let reported = status.failures.iter();
    let mut lines: Vec<_> = reported
        .map(|failure| format!("pod/{}: {}", failure.pod, line(&failure.reason, &failure.message)))
        .collect();
    let failed = usize::try_from(status.failed).unwrap_or_default();
    if failed > lines.len() {
        lines.push(format!("and {} more", failed - lines.len()));
    }
    let left = status.abort.iter().flat_map(|abort| &abort.failures);
    lines.extend(left.map(|failure| {
        format!("pod/{} did not come back: {}", failure.pod, line(&failure.reason, &failure.message))
    }));
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rollout(spec: &Value, status: &Value) -> InPlaceRollout {
        let mut whole = json!({"target": {}, "containers": [{"name": "app"}], "partition": "50%"});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let meta = json!({"name": "web-restart-1", "generation": 2});
        serde_json::from_value(json!({"metadata": meta, "spec": whole, "status": status})).unwrap()
    }

    #[test]
    fn what_ends_a_wait_and_how_is_reported_by_the_phase() {
        let status = |phase: &str, seen: u32| json!({"observedGeneration": seen, "phase": phase, "message": "it is so", "wanted": 4, "done": 3, "failed": 1});
        let none = || json!({});
        for (spec, status, end, says) in [
            (
                none(),
                status("Succeeded", 1),
                Some(Exit::Done),
                "Succeeded: it is so; 3/4 done, 0 busy, 1 failed",
            ),
            (none(), status("Failed", 2), Some(Exit::Failed), "Failed: it is so; 3/4"),
            (none(), status("Aborting", 2), None, "Aborting: it is so"),
            (none(), status("Aborted", 2), Some(Exit::Failed), "Aborted: it is so"),
            (none(), status("AbortFailed", 2), Some(Exit::Failed), "AbortFailed: it is so"),
            (none(), status("Superseded", 2), Some(Exit::Interrupted), "Superseded: it is so"),
            (none(), status("Running", 2), None, "Running: it is so"),
            (none(), status("Pending", 2), None, "Pending: it is so"),
            (none(), status("Paused", 1), None, "has not observed the latest change"),
            (none(), Value::Null, None, "has not observed the latest change"),
            (none(), status("Paused", 2), Some(Exit::Done), "complete up to its partition (50%): it is so"),
            (
                none(),
                json!({"observedGeneration": 2, "phase": "Paused", "reason": "SomePodsFailed", "wanted": 2, "failed": 1}),
                Some(Exit::Failed),
                "pods failed before the partition (50%): 0/2 done, 0 busy, 1 failed",
            ),
            (
                json!({"paused": true}),
                status("Paused", 2),
                Some(Exit::Failed),
                "`inplace rollout resume ipr/web-restart-1 -n shop`",
            ),
        ] {
            let verdict = verdict(&rollout(&spec, &status), " -n shop");
            assert_eq!(verdict.end, end, "{status}");
            assert!(verdict.message.contains(says), "{verdict:?}");
        }
    }

    #[test]
    fn every_failed_pod_is_named_or_counted() {
        let failure = |pod: &str, reason: &str, message: &str| json!({"pod": pod, "uid": "u", "reason": reason, "message": message});
        let listed = json!([
            failure("a", "RolledBack", "it crashed"),
            failure("b", "Gone", ""),
            failure("c", "", "said")
        ]);
        let status = json!({"phase": "Failed", "failed": 5, "failures": listed});
        assert_eq!(
            failures(&rollout(&json!({}), &status)),
            ["pod/a: RolledBack: it crashed", "pod/b: Gone", "pod/c: said", "and 2 more"]
        );
        assert!(failures(&rollout(&json!({}), &Value::Null)).is_empty());
        let abort = json!({"pods": 3, "returned": 2, "failed": 1, "failures": [failure("d", "NoAgent", "")]});
        let aborted = rollout(&json!({}), &json!({"phase": "AbortFailed", "abort": abort}));
        assert_eq!(failures(&aborted), ["pod/d did not come back: NoAgent"]);
        assert!(verdict(&aborted, "").message.ends_with("0 failed, 2/3 returned"));
    }
}
