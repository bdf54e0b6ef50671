//! The state of each container in the status of a `ContainerRecreateRequest`, as far as it is known. Must not say what a user
//! has written, before it is checked.

use crate::api::container_recreate_request::{ContainerRecreateState, RecreatePhase};
use crate::api::status::Status;
use crate::podtask::state::{End, Stage};
use crate::recreate_request::{Outcome, Pod, PodRecord, RecreateRequest, terms};

/// The longest message of a status, in characters.
const MAX_MESSAGE: usize = 1024;
/// The longest message of a container in the record on the pod, in characters.
const MAX_FAILURE: usize = 200;

/// The state of each container while the object is not `Completed`.
pub(super) fn states(
    object: &RecreateRequest,
    begun: Option<(&Pod, &PodRecord)>,
) -> Vec<ContainerRecreateState> {
    // Without valid names there are no states.
    if terms::malformed(object).is_some() {
        return Vec::new();
    }
    let answer = begun.and_then(|(pod, record)| own_answer(pod, record));
    let outcome = |index: usize| begun.and_then(|(_, record)| record.ended.get(index));
    let state = |(index, name): (usize, &String)| {
        let report = answer.and_then(|answer| answer.containers.iter().find(|report| report.name == *name));
        let phase = match (outcome(index), report) {
            (Some(outcome), _) if outcome.failure.is_empty() => RecreatePhase::Succeeded,
            (Some(_), _) => RecreatePhase::Failed,
            (None, Some(report)) if report.ready_at.is_some() => RecreatePhase::Succeeded,
            (None, Some(report)) if report.stopped_at.is_some() => RecreatePhase::Recreating,
            (None, _) => RecreatePhase::Pending,
        };
        let was_stopped = || report.is_some_and(|report| report.stopped_at.is_some());
        let is_killed = outcome(index).map_or_else(was_stopped, |outcome| outcome.is_killed);
        let message =
            outcome(index).map_or_else(String::new, |outcome| cut_to(&outcome.failure, MAX_FAILURE));
        ContainerRecreateState { name: name.clone(), phase: Some(phase), message, is_killed }
    };
    object.spec.containers.iter().map(|container| &container.name).enumerate().map(state).collect()
}

/// The outcome of the request in `record`, which has ended.
pub(super) fn outcome(pod: &Pod, record: &PodRecord, end: &End) -> Outcome {
    if end.stage == Stage::Done {
        return Outcome { failure: String::new(), is_killed: true };
    }
    let answer = own_answer(pod, record);
    let stopped = answer.is_some_and(|answer| answer.containers.iter().any(|one| one.stopped_at.is_some()));
    let line = end.line();
    let failure = if line.is_empty() { "it failed".to_owned() } else { cut_to(&line, MAX_FAILURE) };
    Outcome { failure, is_killed: stopped }
}

/// The message of an object whose containers had a request each.
pub(super) fn summary(states: &[ContainerRecreateState]) -> String {
    let mut failed = states.iter().filter(|state| state.phase == Some(RecreatePhase::Failed));
    let count = failed.clone().count();
    failed.next().map_or_else(String::new, |first| {
        format!("{count} of {} containers failed: {}: {}", states.len(), first.name, first.message)
    })
}

/// What the agent has reported about the request in `record`.
pub(super) fn own_answer<'a>(pod: &'a Pod, record: &PodRecord) -> Option<&'a Status> {
    pod.base.answer.as_ref().filter(|answer| answer.id == record.id())
}

/// The beginning of a text that others have written.
pub(super) fn cut(text: &str) -> String {
    cut_to(text, MAX_MESSAGE)
}

fn cut_to(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}
