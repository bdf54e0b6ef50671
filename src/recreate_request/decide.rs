//! What to do next about one `ContainerRecreateRequest`.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::api::annotation;
use crate::api::container_recreate_request::{
    ContainerRecreateRequestStatus, ContainerRecreateState, RecreatePhase,
};
use crate::api::request::MAX_CONTAINERS;
use crate::podtask::state::{End, Stage, TaskState};
use crate::podtask::time::{later, whole_seconds};
use crate::podtask::write::{Event, PodPatch};
use crate::recreate_request::states::{cut, outcome, own_answer, states, summary};
use crate::recreate_request::withdraw::withdraw;
use crate::recreate_request::{Pod, PodRecord, RecreateRequest, is_request_of, terms};

/// The interval at which a pod is looked at that has another operation: it is not watched.
const WAIT: SignedDuration = SignedDuration::from_secs(2);

/// What to write: first the patch of the pod, then the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The change of the pod.
    pub patch: Option<PodPatch>,
    /// The new status.
    pub status: Option<ContainerRecreateRequestStatus>,
    /// The event about the object, once the status is written.
    pub event: Option<Event>,
    /// True when the object's time to live is over.
    pub delete: bool,
    /// When to decide again at the latest.
    pub again: Option<Timestamp>,
}

/// Decides about an object that is not being deleted. `pod` is the pod of this name at `now`.
pub fn decide(object: &RecreateRequest, pod: Option<&Pod>, now: Timestamp) -> Decision {
    if let Some(label) = &object.kruise_label {
        let message = format!(
            "the label {label} shows that OpenKruise serves this object: it is not carried out here. If OpenKruise was removed, \
             create the object again"
        );
        return Decision { event: Some(Event::warning("RecreateNotServed", message)), ..Decision::default() };
    }
    if object.before.phase == Some(RecreatePhase::Completed) {
        return completed(object, pod, now);
    }
    if let Some(pod) = pod
        && let Some(record) = record(object, pod)
    {
        return begun(object, pod, &record, now);
    }
    if object.before.phase == Some(RecreatePhase::Recreating) {
        let message = match pod {
            None => format!("pod {} is gone", object.spec.pod_name),
            Some(_) => "the pod was replaced, or another client removed the request: the outcome is unknown"
                .to_owned(),
        };
        return failed(object, &message, now);
    }
    begin(object, pod, now)
}

/// The record of the object on the pod, if the pod has a request of it or had one.
fn record(object: &RecreateRequest, pod: &Pod) -> Option<PodRecord> {
    if let Some(record) = pod.record.as_ref().filter(|record| record.uid == object.uid) {
        return Some(record.clone());
    }
    let answered = pod.base.answer.as_ref().map(|answer| &answer.id);
    let is_own = |id: &&String| is_request_of(&object.uid, id);
    // Another client removed the record and not the request: its time counts from the creation of the object. The outcomes of
    // other containers are not known any more.
    pod.base.request.iter().chain(answered).find(is_own).filter(|_| !terms::is_separate(object))?;
    Some(PodRecord::of(object, object.created, terms::limit(object, object.created).seconds))
}

fn completed(object: &RecreateRequest, pod: Option<&Pod>, now: Timestamp) -> Decision {
    let own = |pod: &&Pod| pod.record.as_ref().is_some_and(|record| record.uid == object.uid);
    let patch = pod.filter(own).map(|pod| withdraw(pod, &object.uid));
    let expires = object.before.completion_time.zip(object.spec.ttl_seconds_after_finished);
    let expires = expires.map(|(at, ttl)| later(at, SignedDuration::from_secs(ttl)));
    let delete = expires.is_some_and(|at| at <= now);
    Decision { patch, delete, again: expires.filter(|_| !delete), ..Decision::default() }
}

/// Nothing was requested of the pod yet.
fn begin(object: &RecreateRequest, pod: Option<&Pod>, now: Timestamp) -> Decision {
    if let Some(problem) = terms::malformed(object) {
        return refused(object, &problem, now);
    }
    let Some(pod) = pod else {
        return refused(object, &format!("spec.podName: pod {} does not exist", object.spec.pod_name), now);
    };
    let name = &pod.base.name;
    if !pod.base.is_active() {
        return refused(object, &format!("spec.podName: pod {name} has ended or is being deleted"), now);
    }
    if pod.base.created > object.created {
        return refused(object, &format!("spec.podName: pod {name} was created after this object"), now);
    }
    if pod.base.node.is_none() {
        return refused(object, &format!("spec.podName: pod {name} is not scheduled to a node"), now);
    }
    let mut record = PodRecord::of(object, now, 0);
    if terms::is_separate(object) {
        (record.container, record.containers) = (Some(0), names(object));
    }
    if terms::limit(object, now).until <= now {
        return failed(
            object,
            "the deadline passed before the request was written: nothing was touched",
            now,
        );
    }
    send(object, pod, &record, now).unwrap_or_else(|problem| refused(object, &problem, now))
}

/// Writes the request for `record` as soon as nothing else works on the pod. An error says which fields cannot be carried out.
fn send(object: &RecreateRequest, pod: &Pod, record: &PodRecord, now: Timestamp) -> Result<Decision, String> {
    let limit = terms::limit(object, now);
    let seconds = terms::share(object, record, limit.seconds);
    let request = terms::request(object, pod, record, seconds).map_err(|problems| problems.join("; "))?;
    let mut patch = PodPatch::default();
    let states = states(object, Some((pod, record)));
    let has_begun = record.is_recorded();
    // The request before this one may be unanswered. Its outcome is recorded, and this one replaces it.
    let own = if has_begun { record.id() } else { request.id.clone() };
    // The end of another object's request is recorded first.
    let other = pod.record.as_ref().filter(|other| other.uid != object.uid && other.is_live(now));
    if pod.base.is_taken(Some(&own)) || other.is_some() {
        let request = pod.base.request.as_deref().unwrap_or("of a group restart");
        let message = match other {
            Some(other) => format!("waiting for ContainerRecreateRequest {} on the pod", other.name),
            None => format!("waiting for another operation on the pod: request {request}"),
        };
        let later = later(now, WAIT);
        let again = Some(if has_begun { later } else { later.min(limit.until) });
        // What has ended is recorded before another answer replaces that of the agent.
        let is_new = has_begun && pod.record.as_ref() != Some(record);
        patch.annotations.insert(annotation::RECREATE_REQUEST.to_owned(), Some(json!(record).to_string()));
        patch.withdraw(&pod.base, &own);
        let patch = Some(patch).filter(|_| is_new);
        let phase = if has_begun { RecreatePhase::Recreating } else { RecreatePhase::Pending };
        return Ok(Decision { patch, again, ..reported(object, states, phase, &message) });
    }
    patch.send(&request);
    let container = record.open_container();
    let record = PodRecord { at: now, seconds: request.deadline_seconds, container, ..record.clone() };
    patch.labels.insert(annotation::RECREATE_REQUEST_UID.to_owned(), Some(object.uid.clone()));
    patch.annotations.insert(annotation::RECREATE_REQUEST.to_owned(), Some(json!(record).to_string()));
    let reported = reported(object, states, RecreatePhase::Recreating, "");
    Ok(Decision { patch: Some(patch), again: Some(later(now, WAIT)), ..reported })
}

/// The pod has a request, or the agent's answer to it.
fn begun(object: &RecreateRequest, pod: &Pod, record: &PodRecord, now: Timestamp) -> Decision {
    if record.container.is_some() && record.containers != names(object) {
        return failed(object, "spec.containers changed after the first request", now);
    }
    if record.is_recorded() {
        return next(object, pod, record, now);
    }
    let states = || states(object, Some((pod, record)));
    match record.state(&pod.base, now) {
        TaskState::Ended(end) if record.container.is_some() => {
            let mut record = PodRecord { at: now, seconds: 0, ..record.clone() };
            record.ended.push(outcome(pod, &record, &end));
            next(object, pod, &record, now)
        }
        TaskState::Ended(end) => ended(object, pod, record, states(), &end, now),
        TaskState::Busy { .. } => {
            let message = own_answer(pod, record).map(|answer| answer.message.clone()).unwrap_or_default();
            let lost = later(record.at, SignedDuration::from_secs(record.seconds.into()));
            let again = later(now, WAIT).max(lost);
            Decision { again: Some(again), ..reported(object, states(), RecreatePhase::Recreating, &message) }
        }
        TaskState::Over | TaskState::Waiting => failed(object, "the outcome is unknown", now),
    }
}

/// The request for the next container, or the end after the last one.
fn next(object: &RecreateRequest, pod: &Pod, record: &PodRecord, now: Timestamp) -> Decision {
    let states = || states(object, Some((pod, record)));
    if record.ended.len() >= object.spec.containers.len() {
        let states = states();
        let message = summary(&states);
        return close(object, states, &message, now);
    }
    let own = object.spec.active_deadline_seconds.map(|_| terms::limit(object, now).until);
    let sent = if !pod.base.is_active() {
        Err(format!("pod {} has ended or is being deleted", pod.base.name))
    } else if own.unwrap_or_else(|| record.waits_until()) <= now {
        Err("the deadline passed before the request for this container was written".to_owned())
    } else {
        send(object, pod, record, now)
    };
    sent.unwrap_or_else(|problem| failed_from(object, states(), &problem, now))
}

fn names(object: &RecreateRequest) -> Vec<String> {
    object.spec.containers.iter().map(|container| container.name.clone()).collect()
}

fn ended(
    object: &RecreateRequest,
    pod: &Pod,
    record: &PodRecord,
    mut states: Vec<ContainerRecreateState>,
    end: &End,
    now: Timestamp,
) -> Decision {
    // The answer of a success may have been replaced by that of a group restart.
    let succeeded = end.stage == Stage::Done;
    let answer = own_answer(pod, record).filter(|_| succeeded);
    let message = answer.map_or_else(|| end.line(), |answer| answer.message.clone());
    for state in &mut states {
        if succeeded {
            (state.phase, state.is_killed) = (Some(RecreatePhase::Succeeded), true);
        } else if state.phase != Some(RecreatePhase::Succeeded) {
            (state.phase, state.message) = (Some(RecreatePhase::Failed), cut(&message));
        }
    }
    close(object, states, &message, now)
}

/// The end of an object that cannot be carried out as written: nothing was touched.
fn refused(object: &RecreateRequest, message: &str, now: Timestamp) -> Decision {
    let event = Event::warning("RecreateRefused", message.to_owned());
    Decision { event: Some(event), ..failed(object, &format!("nothing was touched: {message}"), now) }
}

fn failed(object: &RecreateRequest, message: &str, now: Timestamp) -> Decision {
    let mut states = object.before.container_recreate_states.clone();
    if states.is_empty() {
        states = self::states(object, None);
    }
    states.truncate(MAX_CONTAINERS);
    failed_from(object, states, message, now)
}

/// The end with these states, in which what has not ended has failed.
fn failed_from(
    object: &RecreateRequest,
    mut states: Vec<ContainerRecreateState>,
    message: &str,
    now: Timestamp,
) -> Decision {
    let is_open = |state: &&mut ContainerRecreateState| {
        !matches!(state.phase, Some(RecreatePhase::Succeeded | RecreatePhase::Failed))
    };
    for state in states.iter_mut().filter(is_open) {
        (state.phase, state.message) = (Some(RecreatePhase::Failed), cut(message));
    }
    close(object, states, message, now)
}

/// The status `Completed`. The object is decided about once more: the pod's record has to go.
fn close(
    object: &RecreateRequest,
    states: Vec<ContainerRecreateState>,
    message: &str,
    now: Timestamp,
) -> Decision {
    let mut decision = reported(object, states, RecreatePhase::Completed, message);
    if let Some(status) = &mut decision.status {
        status.completion_time = Some(whole_seconds(now));
    }
    Decision { again: Some(now), ..decision }
}

/// A status, if it differs from the one that was read.
fn reported(
    object: &RecreateRequest,
    states: Vec<ContainerRecreateState>,
    phase: RecreatePhase,
    message: &str,
) -> Decision {
    let new = ContainerRecreateRequestStatus {
        phase: Some(phase),
        completion_time: None,
        message: cut(message),
        container_recreate_states: states,
    };
    Decision { status: Some(new).filter(|new| *new != object.before), ..Decision::default() }
}
