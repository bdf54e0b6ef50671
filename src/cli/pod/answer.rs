//! Interprets the annotations of a pod with regard to one request. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::annotation;
use crate::api::request::Request;
use crate::api::status::{Phase, Status, Step};

/// Annotation of a mirror pod, the API object of a static pod: the uid that the pod has on its node.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// The uid of a pod in the events of its agent: that on its node.
pub(in crate::cli) fn uid_in_events(meta: &ObjectMeta) -> Option<&str> {
    let mirrored = meta.annotations.as_ref().and_then(|notes| notes.get(MIRROR));
    mirrored.filter(|uid| !uid.is_empty()).or(meta.uid.as_ref()).map(String::as_str)
}

/// The request and status annotations of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Notes {
    /// The text of the request.
    pub(in crate::cli) request: Option<String>,
    /// The id of the request, if it can be parsed.
    pub(in crate::cli) requested: Option<String>,
    /// The status that the agent wrote.
    pub(in crate::cli) status: Option<Status>,
}

impl Notes {
    /// Reads the annotations from an object's metadata. A status that cannot be parsed counts as absent.
    pub(in crate::cli) fn of(meta: &ObjectMeta) -> Self {
        let note = |key: &str| meta.annotations.as_ref().and_then(|notes| notes.get(key)).cloned();
        let request = note(annotation::REQUEST).filter(|text| !text.trim().is_empty());
        let parsed = Request::parse(request.as_deref()).ok().flatten();
        let status = note(annotation::STATUS).and_then(|text| serde_json::from_str(&text).ok());
        Self { request, requested: parsed.map(|request| request.id), status }
    }

    /// True when the pod has neither annotation.
    pub(super) fn is_empty(&self) -> bool {
        self.request.is_none() && self.status.is_none()
    }

    /// The status of a request that is pending or running.
    pub(super) fn under_way(&self) -> Option<&Status> {
        self.status.as_ref().filter(|status| !status.phase.is_terminal())
    }

    /// True when the written request has no status yet.
    pub(in crate::cli) fn unanswered(&self) -> bool {
        let answered = self.status.as_ref().map(|status| status.id.as_str());
        self.request.is_some() && (self.requested.is_none() || self.requested.as_deref() != answered)
    }

    /// The status of the request `id`, if it has ended.
    pub(super) fn end_of(&self, id: &str) -> Option<&Status> {
        self.status.as_ref().filter(|status| status.id == id && status.phase.is_terminal())
    }

    /// The state of the request `id`.
    pub(super) fn about(&self, id: &str) -> Answer {
        match &self.status {
            Some(status) if status.id == id => Answer::Given(status.clone()),
            _ if self.requested.as_deref() != Some(id) => Answer::Replaced {
                by: self
                    .request
                    .clone()
                    .map(|_| self.requested.clone().unwrap_or_else(|| "one that cannot be read".to_owned())),
            },
            _ => match self.under_way() {
                Some(other) => Answer::Behind(other.clone()),
                None => Answer::None,
            },
        }
    }
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The agent has not written a status for it.
    None,
    /// Another request is running; this one is queued.
    Behind(Status),
    /// The agent's status for it; final when its phase is terminal.
    Given(Status),
    /// The request was removed or replaced before it got a status.
    Replaced {
        /// The id of the new request; `None` when the request was withdrawn.
        by: Option<String>,
    },
}

/// True when a container may have been touched already.
pub(super) fn is_touched(status: &Status) -> bool {
    status.phase == Phase::Running && status.step.is_some_and(|step| step >= Step::Swap)
}

/// One line about a status: phase, step and message.
pub(in crate::cli) fn progress(status: &Status) -> String {
    let (phase, message) = (status.phase, &status.message);
    match status.step.map(|step| step.to_string()) {
        // A message such as `Drain is under way` already names the step.
        Some(step) if message.starts_with(&step) => format!("{phase}: {message}"),
        Some(step) if message.is_empty() => format!("{phase}, {step}"),
        Some(step) => format!("{phase}, {step}: {message}"),
        None if message.is_empty() => phase.to_string(),
        None => format!("{phase}: {message}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A status as an agent writes it.
    pub(in crate::cli::pod) fn status(id: &str, phase: Phase, step: Option<Step>) -> Status {
        Status {
            id: id.into(),
            phase,
            step,
            reason: String::new(),
            message: String::new(),
            started_at: None,
            finished_at: None,
            group: None,
            containers: Vec::new(),
        }
    }

    /// Metadata with these two annotations.
    pub(in crate::cli::pod) fn meta(request: Option<&str>, status: Option<&Status>) -> ObjectMeta {
        let request = request.map(|text| (annotation::REQUEST.to_owned(), text.to_owned()));
        let status =
            status.map(|status| (annotation::STATUS.to_owned(), serde_json::to_string(status).unwrap()));
        ObjectMeta { annotations: Some(request.into_iter().chain(status).collect()), ..ObjectMeta::default() }
    }

    const MINE: &str = r#"{"id":"mine","containers":[{"name":"app"}]}"#;

    #[test]
    fn an_answer_is_distinguished_from_what_is_about_another_request() {
        let open = status("other", Phase::Running, Some(Step::Drain));
        let over = status("other", Phase::Succeeded, None);
        let mine = status("mine", Phase::Failed, None);
        let replaced = |by: Option<&str>| Answer::Replaced { by: by.map(str::to_owned) };
        for (request, status, answer) in [
            (Some(MINE), None, Answer::None),
            (Some(MINE), Some(&over), Answer::None),
            (Some(MINE), Some(&open), Answer::Behind(open.clone())),
            (Some(MINE), Some(&mine), Answer::Given(mine.clone())),
            // A status for the request is valid even if the request was withdrawn or replaced since.
            (None, Some(&mine), Answer::Given(mine.clone())),
            (Some(r#"{"id":"b","containers":[{"name":"app"}]}"#), Some(&mine), Answer::Given(mine.clone())),
            (None, Some(&open), replaced(None)),
            (None, None, replaced(None)),
            (Some(r#"{"id":"b","containers":[{"name":"app"}]}"#), Some(&open), replaced(Some("b"))),
            (Some("reboot app"), None, replaced(Some("one that cannot be read"))),
        ] {
            assert_eq!(Notes::of(&meta(request, status)).about("mine"), answer, "{request:?} {status:?}");
        }
    }

    #[test]
    fn an_unanswered_request_is_known() {
        let over = status("mine", Phase::Succeeded, None);
        for (request, status, unanswered) in [
            (Some(MINE), None, true),
            (Some(MINE), Some(&over), false),
            (Some("restart app"), Some(&over), true),
            (Some("reboot app"), Some(&over), true),
            (Some("  "), None, false),
            (None, Some(&over), false),
        ] {
            assert_eq!(Notes::of(&meta(request, status)).unanswered(), unanswered, "{request:?}");
        }
        assert!(Notes::of(&ObjectMeta::default()).is_empty());
    }

    #[test]
    fn touching_begins_with_the_swap() {
        for (step, touched) in
            [(Step::Pull, false), (Step::Drain, false), (Step::Swap, true), (Step::Rollback, true)]
        {
            assert_eq!(is_touched(&status("a", Phase::Running, Some(step))), touched, "{step}");
        }
        assert!(!is_touched(&status("a", Phase::Succeeded, Some(Step::Ready))));
    }
}
