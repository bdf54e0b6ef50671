//! What to do next about one `ContainerRecreateRequest`.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::api::annotation;
use crate::api::container_recreate_request::{
    ContainerRecreateRequestStatus, ContainerRecreateState, RecreatePhase,
};
use crate::api::request::MAX_CONTAINERS;
use crate::api::status::Phase;
use crate::podtask::state::{End, TaskState};
use crate::podtask::time::{later, whole_seconds};
use crate::podtask::write::{Event, PodPatch};
use crate::recreate_request::{Pod, PodRecord, RecreateRequest, request_id, terms};

/// The longest message of a status, in characters.
const MAX_MESSAGE: usize = 1024;
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
    if let Some(pod) = pod {
        let id = request_id(&object.uid);
        let is_there = pod.base.request.as_deref() == Some(&id)
            || pod.base.answer.as_ref().is_some_and(|answer| answer.id == id);
        let record = pod.record.clone().filter(|record| record.uid == object.uid);
        // Another client removed the record and not the request: its time counts from the creation of the object.
        let lost = || PodRecord {
            name: object.name.clone(),
            uid: object.uid.clone(),
            at: object.created,
            seconds: terms::limit(object, object.created).seconds,
        };
        if let Some(record) = record.or_else(|| is_there.then(lost)) {
            return begun(object, pod, &record, now);
        }
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

/// Withdraws from a pod what an object left that is gone or `Completed`: a request whose end the agent has not reported, so that
/// no agent accepts it later, and the record.
pub fn withdraw(pod: &Pod, uid: &str) -> PodPatch {
    let (id, mut patch) = (request_id(uid), PodPatch::default());
    if !pod.base.answer.as_ref().is_some_and(|answer| answer.has_ended(&id)) {
        patch.withdraw(&pod.base, &id);
    }
    patch.labels.insert(annotation::RECREATE_REQUEST_UID.to_owned(), None);
    patch.annotations.insert(annotation::RECREATE_REQUEST.to_owned(), None);
    patch
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
    let limit = terms::limit(object, now);
    if limit.until <= now {
        return failed(
            object,
            "the deadline passed before the request was written: nothing was touched",
            now,
        );
    }
    let request = match terms::request(object, pod, limit.seconds) {
        Ok(request) => request,
        Err(problems) => return refused(object, &problems.join("; "), now),
    };
    // The end of another object's request is recorded first.
    let other = pod.record.as_ref().filter(|record| record.uid != object.uid && record.is_live(now));
    if pod.base.is_taken(Some(&request.id)) || other.is_some() {
        let request = pod.base.request.as_deref().unwrap_or("of a group restart");
        let message = match other {
            Some(other) => format!("waiting for ContainerRecreateRequest {} on the pod", other.name),
            None => format!("waiting for another operation on the pod: request {request}"),
        };
        let again = Some(later(now, WAIT).min(limit.until));
        return Decision {
            again,
            ..reported(object, states(object, None), RecreatePhase::Pending, &message)
        };
    }
    let record = PodRecord {
        name: object.name.clone(),
        uid: object.uid.clone(),
        at: now,
        seconds: request.deadline_seconds,
    };
    let mut patch = PodPatch::default();
    patch.send(&request);
    patch.labels.insert(annotation::RECREATE_REQUEST_UID.to_owned(), Some(object.uid.clone()));
    patch.annotations.insert(annotation::RECREATE_REQUEST.to_owned(), Some(json!(record).to_string()));
    let status = reported(object, states(object, None), RecreatePhase::Recreating, "");
    Decision { patch: Some(patch), again: Some(later(now, WAIT)), ..status }
}

/// The pod has the request, or the agent's answer to it.
fn begun(object: &RecreateRequest, pod: &Pod, record: &PodRecord, now: Timestamp) -> Decision {
    let states = states(object, Some(pod));
    match record.state(&pod.base, now) {
        TaskState::Ended(end) => ended(object, pod, states, &end, now),
        TaskState::Busy { .. } => {
            let message = own_answer(object, pod).map(|answer| answer.message.clone()).unwrap_or_default();
            let lost = later(record.at, SignedDuration::from_secs(record.seconds.into()));
            let again = later(now, WAIT).max(lost);
            Decision { again: Some(again), ..reported(object, states, RecreatePhase::Recreating, &message) }
        }
        TaskState::Over | TaskState::Waiting => failed(object, "the outcome is unknown", now),
    }
}

fn ended(
    object: &RecreateRequest,
    pod: &Pod,
    mut states: Vec<ContainerRecreateState>,
    end: &End,
    now: Timestamp,
) -> Decision {
    let succeeded = own_answer(object, pod).filter(|answer| answer.phase == Phase::Succeeded);
    let message = succeeded.map_or_else(|| end.line(), |answer| answer.message.clone());
    for state in &mut states {
        if succeeded.is_some() {
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
    for state in states.iter_mut().filter(|state| state.phase != Some(RecreatePhase::Succeeded)) {
        (state.phase, state.message) = (Some(RecreatePhase::Failed), cut(message));
    }
    close(object, states, message, now)
}

/// The beginning of a text that others have written.
fn cut(text: &str) -> String {
    text.chars().take(MAX_MESSAGE).collect()
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

/// The state of each container while the request is not over, as far as the agent has reported it.
fn states(object: &RecreateRequest, pod: Option<&Pod>) -> Vec<ContainerRecreateState> {
    // Without valid names there are no states.
    if terms::malformed(object).is_some() {
        return Vec::new();
    }
    let answer = pod.and_then(|pod| own_answer(object, pod));
    let state = |name: &String| {
        let report = answer.and_then(|answer| answer.containers.iter().find(|report| report.name == *name));
        let phase = match report {
            Some(report) if report.ready_at.is_some() => RecreatePhase::Succeeded,
            Some(report) if report.stopped_at.is_some() => RecreatePhase::Recreating,
            _ => RecreatePhase::Pending,
        };
        let is_killed = report.is_some_and(|report| report.stopped_at.is_some());
        ContainerRecreateState { name: name.clone(), phase: Some(phase), message: String::new(), is_killed }
    };
    object.spec.containers.iter().map(|container| state(&container.name)).collect()
}

fn own_answer<'a>(object: &RecreateRequest, pod: &'a Pod) -> Option<&'a crate::api::status::Status> {
    pod.base.answer.as_ref().filter(|answer| answer.id == request_id(&object.uid))
}
