//! The status of a rollout: counts, recorded failures, phase, conditions, one line for people, events. Decides
//! nothing about pods.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::api::in_place_rollout::{
    Downtime, InPlaceRolloutStatus, PodFailure, RolloutPhase, SOME_FAILED, UNREACHABLE,
};
use crate::api::kstatus::ObjectState;
use crate::api::status::Status;
use crate::api::workload::Condition;
use crate::podtask::state::Stage;
use crate::podtask::time::whole_seconds;
use crate::podtask::write::Event;
use crate::rollout::abort;
use crate::rollout::budget::Bounds;
use crate::rollout::desired::Rollout;
use crate::rollout::stop_reason::StopReason;
use crate::rollout::view::{PodView, State};

/// The reason when as many pods are done as the partition allows.
const PARTITION: &str = "Partition";
/// The reason while `spec.paused` is true.
pub(super) const PAUSED: &str = "Paused";
/// The reason while, and when, the target does not exist.
pub(super) const TARGET_NOT_FOUND: &str = "TargetNotFound";
/// The reason while the abort of an older rollout of the same target is in progress.
pub(super) const ABORT_IN_PROGRESS: &str = "AbortInProgress";

/// Maximum number of failures with details.
pub(super) const MAX_FAILURES: usize = 100;

/// What the rollout waits for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The names of the budgets that allow no disruption.
    pub(super) budgets: BTreeSet<String>,
    /// The nodes whose agents have as many requests as they carry out at once.
    pub(super) nodes: BTreeSet<String>,
    /// Number of pods that other clients work on.
    pub(super) taken: usize,
    /// The pods that no agent reaches, by name.
    pub(super) unreachable: Option<String>,
    /// Number of pods that are not available.
    pub(super) unavailable: usize,
    /// Number of pods that get no request with the order `StartFirst`, because a container runs and is not Ready.
    pub(super) not_ready: usize,
    /// Number of pods that do not exist yet or are being deleted.
    pub(super) missing: usize,
}

/// Maximum number of pods that a message names.
pub(super) const MAX_NAMES: usize = 5;

/// The pods that are not done and that no agent reaches, and why.
pub(super) fn unreachable(views: &[PodView<'_>]) -> Option<String> {
    let pods: Vec<_> = views.iter().filter(|view| view.is_unreachable()).collect();
    let name = |view: &&PodView<'_>| format!("{} ({})", view.pod.base.name, view.reach.problem());
    let names: Vec<_> = pods.iter().take(MAX_NAMES).map(name).collect();
    let more = and_more(pods.len());
    (!pods.is_empty())
        .then(|| format!("waiting for {} pods that no agent reaches: {}{more}", pods.len(), names.join(", ")))
}

/// How a list of names ends that has at most [`MAX_NAMES`] of `count` names.
pub(super) fn and_more(count: usize) -> String {
    let more = count.saturating_sub(MAX_NAMES);
    if more > 0 { format!(" and {more} more") } else { String::new() }
}

pub(super) fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub(super) fn status(rollout: &Rollout, views: &[PodView<'_>], bounds: Bounds) -> InPlaceRolloutStatus {
    let count = |is: &dyn Fn(&PodView<'_>) -> bool| number(views.iter().filter(|view| is(view)).count());
    let before = &rollout.before;
    // Pods that go back have no record of their failure any more.
    let has_failed = |view: &PodView<'_>| view.has_failed();
    let done = views.iter().filter(|view| view.outcome() == Some(Stage::Done));
    let answers =
        done.filter_map(|view| view.pod.base.answer.as_ref()).filter(|answer| answer.id == rollout.uid);
    let (failures, failed) = failures((&before.failures, before.failed), views, has_failed, rollout.aborts());
    InPlaceRolloutStatus {
        observed_generation: rollout.generation,
        target: rollout.target(),
        pods: number(views.len()),
        wanted: number(views.len().saturating_sub(bounds.held)),
        done: count(&|view| view.is_done(rollout)),
        busy: count(&|view| view.is_busy()),
        failed,
        unavailable: count(&|view| !view.available),
        failures,
        abort: before.abort.as_ref().map(|abort| abort::counted(abort, views)),
        conditions: before.conditions.clone(),
        downtime_ms: if rollout.aborts() { before.downtime_ms } else { downtime(answers) },
        ..InPlaceRolloutStatus::default()
    }
}

/// The failed pods with details, including those that no longer exist, and the number of all of them. `before`: the last
/// list and number. `keep`: a pod that has failed once stays on the list.
pub(super) fn failures(
    before: (&[PodFailure], i32),
    views: &[PodView<'_>],
    has_failed: impl Fn(&PodView<'_>) -> bool,
    keep: bool,
) -> (Vec<PodFailure>, i32) {
    let there: BTreeMap<&str, bool> =
        views.iter().map(|view| (view.pod.base.uid.as_str(), has_failed(view))).collect();
    let (recorded, number_before) = before;
    let mut failures: Vec<_> = recorded
        .iter()
        .filter(|recorded| keep || there.get(recorded.uid.as_str()).is_none_or(|failed| *failed))
        .cloned()
        .collect();
    for view in views.iter().filter(|view| has_failed(view)) {
        if !failures.iter().any(|recorded| recorded.uid == view.pod.base.uid) {
            failures.push(failure(view));
        }
    }
    let all = number(failures.len());
    // Of failures beyond the maximum only the number is recorded.
    let beyond = if recorded.len() >= MAX_FAILURES { number_before } else { 0 };
    failures.truncate(MAX_FAILURES);
    (failures, all.max(beyond))
}

fn failure(view: &PodView<'_>) -> PodFailure {
    let base = &view.pod.base;
    let (reason, message) = match (&view.state, &view.pod.record) {
        (State::Ended(end), _) => (end.reason.clone(), end.note.clone()),
        (_, Some(record)) => (record.reason.clone(), record.note.clone()),
        _ => (String::new(), String::new()),
    };
    let at = base.answer.as_ref().and_then(|answer| answer.finished_at);
    PodFailure { pod: base.name.clone(), uid: base.uid.clone(), reason, message, at }
}

/// The downtime of the containers of pods that are done, from the reports of their agents.
pub(super) fn downtime<'a>(reports: impl Iterator<Item = &'a Status>) -> Downtime {
    let mut times: Vec<_> =
        reports.flat_map(|report| &report.containers).filter_map(|container| container.downtime_ms).collect();
    times.sort_unstable();
    let at = |index: usize| times.get(index).copied().unwrap_or(0);
    Downtime { median: at(times.len() / 2), most: at(times.len().saturating_sub(1)) }
}

/// The status of a rollout that has not begun and waits, for this reason.
pub(super) fn pending(
    rollout: &Rollout,
    reason: &str,
    message: String,
    now: Timestamp,
) -> InPlaceRolloutStatus {
    let mut status = InPlaceRolloutStatus {
        observed_generation: rollout.generation,
        target: rollout.target(),
        reason: reason.to_owned(),
        message,
        conditions: rollout.before.conditions.clone(),
        ..InPlaceRolloutStatus::default()
    };
    conditions(rollout, &mut status, now);
    status
}

/// The status of a rollout that ends at once, see `refused`: with the last counts, if it had begun.
pub(super) fn ended_early(
    rollout: &Rollout,
    stop_reason: &StopReason,
    now: Timestamp,
) -> InPlaceRolloutStatus {
    let mut status = InPlaceRolloutStatus {
        observed_generation: rollout.generation,
        target: rollout.target(),
        phase: stop_reason.phase,
        reason: stop_reason.reason.to_owned(),
        message: stop_reason.message.clone(),
        finished_at: Some(now),
        ..rollout.before.clone()
    };
    conditions(rollout, &mut status, now);
    status
}

/// Sets phase, reason and message.
pub(super) fn phase(
    rollout: &Rollout,
    status: &mut InPlaceRolloutStatus,
    views: &[PodView<'_>],
    bounds: Bounds,
    stop_reason: Option<&StopReason>,
    waits: &Waits,
) {
    let settled = |view: &PodView<'_>| view.outcome().is_some();
    let withdrawn = views.iter().filter(|view| view.outcome() == Some(Stage::Dropped)).count();
    let some_failed = status.failed > 0 || withdrawn > 0;
    let done = format!("{} of {} pods are done", status.done, status.wanted);
    let (phase, reason, message) = if let Some(stop_reason) = stop_reason {
        let phase = if status.busy > 0 { RolloutPhase::Running } else { stop_reason.phase };
        (phase, stop_reason.reason, stop_reason.message.clone())
    } else if status.busy == 0 && bounds.held == 0 && views.iter().all(settled) {
        if some_failed {
            let withdrawn = if withdrawn > 0 { format!(", {withdrawn} withdrawn") } else { String::new() };
            let message = format!("{done}, {} failed{withdrawn}: see status.failures", status.failed);
            (RolloutPhase::Failed, SOME_FAILED, message)
        } else {
            (RolloutPhase::Succeeded, "AllPodsDone", done)
        }
    } else {
        let held = number(views.iter().filter(|view| settled(view)).count()) >= status.wanted;
        let line = waits.line(&done, status.busy, status.failed);
        match (rollout.spec.paused, held && status.busy == 0) {
            (true, _) => (RolloutPhase::Paused, PAUSED, format!("{line}; paused by spec.paused")),
            (_, true) => {
                let reason = if some_failed { SOME_FAILED } else { PARTITION };
                let message = format!("{line}; spec.partition holds back {} pods", bounds.held);
                (RolloutPhase::Paused, reason, message)
            }
            _ => (RolloutPhase::Running, waits.reason(status.busy), line),
        }
    };
    status.phase = phase;
    reason.clone_into(&mut status.reason);
    status.message = message;
}

/// Sets the time of the end and the conditions, once the phase is set.
pub(super) fn complete(rollout: &Rollout, status: &mut InPlaceRolloutStatus, now: Timestamp) {
    if status.phase.is_terminal() {
        status.finished_at = Some(now);
    }
    conditions(rollout, status, now);
}

impl Waits {
    /// One line for people: `done`, the numbers of pods in progress and failed, and what is waited for.
    pub(super) fn line(&self, done: &str, busy: i32, failed: i32) -> String {
        let some = |count: usize, text: String| (count > 0).then_some(text);
        let names: Vec<_> = self.budgets.iter().map(String::as_str).collect();
        let idle = busy == 0;
        let parts = [
            Some(done.to_owned()),
            (busy > 0).then(|| format!("{busy} in progress")),
            (failed > 0).then(|| format!("{failed} failed")),
            some(names.len(), format!("waiting for PodDisruptionBudget {}", names.join(", "))),
            some(
                self.nodes.len(),
                format!("waiting for the requests in progress on {} nodes", self.nodes.len()),
            ),
            some(self.taken, format!("waiting for {} pods with a request of another client", self.taken)),
            some(
                self.missing,
                format!("waiting for {} pods that do not exist yet or are being deleted", self.missing),
            )
            .filter(|_| idle),
            some(self.unavailable, format!("waiting for {} pods that are not available", self.unavailable))
                .filter(|_| idle),
            some(
                self.not_ready,
                format!(
                    "waiting for {} pods whose container runs and is not Ready: with spec.pod.order StartFirst it is not replaced",
                    self.not_ready
                ),
            ),
            self.unreachable.clone(),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The reason why the rollout waits, when no pod is in progress.
    pub(super) fn reason(&self, busy: i32) -> &'static str {
        match busy {
            0 if !self.budgets.is_empty() => "PodDisruptionBudget",
            0 if self.taken > 0 => "PodsTaken",
            0 if self.unreachable.is_some() => UNREACHABLE,
            0 if self.unavailable + self.missing + self.not_ready > 0 => "PodsUnavailable",
            _ => "",
        }
    }
}

/// The state as `kubectl wait`, Flux and Helm read it. A rollout that has done what its partition allows is as its spec
/// says, unless pods have failed; one that is paused is not.
fn state(status: &InPlaceRolloutStatus) -> ObjectState {
    match status.phase {
        RolloutPhase::Succeeded => ObjectState::Ready,
        RolloutPhase::Paused if status.reason == PARTITION => ObjectState::Ready,
        RolloutPhase::Paused if status.reason == SOME_FAILED => ObjectState::Stalled,
        RolloutPhase::Pending | RolloutPhase::Running | RolloutPhase::Paused | RolloutPhase::Aborting => {
            ObjectState::Reconciling
        }
        RolloutPhase::Failed
        | RolloutPhase::Superseded
        | RolloutPhase::Aborted
        | RolloutPhase::AbortFailed => ObjectState::Stalled,
    }
}

/// Sets all conditions, each with its transition time.
pub(super) fn conditions(rollout: &Rollout, status: &mut InPlaceRolloutStatus, now: Timestamp) {
    let phase = status.phase;
    let ended = phase.is_terminal();
    let own = [
        ("Progressing", matches!(phase, RolloutPhase::Running | RolloutPhase::Aborting)),
        ("Complete", phase == RolloutPhase::Succeeded),
        ("Failed", ended && phase != RolloutPhase::Succeeded),
    ];
    for (kind, is) in own.into_iter().chain(state(status).conditions()) {
        let truth = if is { "True" } else { "False" };
        let before = rollout.before.conditions.iter().find(|recorded| recorded.kind == kind);
        let since = before
            .filter(|recorded| recorded.status == truth)
            .and_then(|recorded| recorded.last_transition_time);
        // A message that changes with every pod is in status.message only.
        let message = if ended { status.message.clone() } else { String::new() };
        let new = Condition {
            kind: kind.to_owned(),
            status: truth.to_owned(),
            last_transition_time: Some(since.unwrap_or_else(|| whole_seconds(now))),
            last_update_time: None,
            reason: if status.reason.is_empty() { format!("{phase:?}") } else { status.reason.clone() },
            message,
        };
        match status.conditions.iter_mut().find(|recorded| recorded.kind == kind) {
            Some(recorded) => *recorded = new,
            None => status.conditions.push(new),
        }
    }
}

/// The events between the last status and this one.
pub(super) fn events(rollout: &Rollout, status: &InPlaceRolloutStatus) -> Vec<Event> {
    let before = &rollout.before;
    let mut events = Vec::new();
    let mut report = |reason, message: String, warning| events.push(Event { reason, message, warning });
    if before.started_at.is_none() && status.started_at.is_some() {
        report("RolloutStarted", format!("{} pods of {}", status.pods, status.target), false);
    }
    for failure in status.failures.iter().filter(|new| !before.failures.iter().any(|old| old.uid == new.uid))
    {
        report("PodFailed", format!("pod {}: {}: {}", failure.pod, failure.reason, failure.message), true);
    }
    events.extend(abort::events(before, status));
    let mut report = |reason, message: String, warning| events.push(Event { reason, message, warning });
    if status.phase.is_terminal() && !before.phase.is_terminal() {
        let (reason, warning) = match status.phase {
            RolloutPhase::Succeeded => ("RolloutSucceeded", false),
            RolloutPhase::Superseded => ("RolloutSuperseded", false),
            RolloutPhase::Aborted => ("RolloutAborted", true),
            RolloutPhase::AbortFailed => ("RolloutAbortFailed", true),
            _ => ("RolloutFailed", true),
        };
        report(reason, status.message.clone(), warning);
    }
    events
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rollout::fixtures::{at, rollout};

    /// The conditions of the three that are True.
    fn health(phase: RolloutPhase, reason: &str) -> Vec<String> {
        let mut status = InPlaceRolloutStatus { phase, reason: reason.to_owned(), ..Default::default() };
        conditions(&rollout(&json!({})), &mut status, at(1));
        let own = |kind: &str| !matches!(kind, "Progressing" | "Complete" | "Failed");
        let all = status.conditions.into_iter().filter(|condition| own(&condition.kind));
        let all: Vec<_> = all.collect();
        assert_eq!(all.len(), 3, "each of the three is always there");
        all.into_iter()
            .filter(|condition| condition.status == "True")
            .map(|condition| condition.kind)
            .collect()
    }

    #[test]
    fn a_rollout_is_ready_in_progress_or_stalled() {
        for (phase, reason, is) in [
            (RolloutPhase::Pending, "TargetNotFound", "Reconciling"),
            (RolloutPhase::Running, "PodsUnavailable", "Reconciling"),
            (RolloutPhase::Paused, "Paused", "Reconciling"),
            (RolloutPhase::Paused, "Partition", "Ready"),
            (RolloutPhase::Paused, "SomePodsFailed", "Stalled"),
            (RolloutPhase::Succeeded, "AllPodsDone", "Ready"),
            (RolloutPhase::Failed, "FailureThreshold", "Stalled"),
            (RolloutPhase::Superseded, "Superseded", "Stalled"),
        ] {
            assert_eq!(health(phase, reason), [is], "{phase:?} {reason}");
        }
    }

    #[test]
    fn a_rollout_that_waits_for_its_target_is_in_progress() {
        let status =
            pending(&rollout(&json!({})), TARGET_NOT_FOUND, "the target does not exist".to_owned(), at(1));
        let is = status.conditions.iter().find(|condition| condition.status == "True").unwrap();
        assert_eq!((is.kind.as_str(), is.reason.as_str()), ("Reconciling", "TargetNotFound"));
        assert!(status.observed_generation > 0);
    }
}
