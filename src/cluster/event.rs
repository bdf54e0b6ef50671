//! Builds the events on a pod, a hook or another object, which `kubectl describe` prints. Must not write them.
//!
//! Each event is written once. kube's recorder aggregates events of one reason into a series and keeps only the
//! first text; here each text has its own numbers.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::api::pod_ref::PodRef;

/// The reporting controller of the events.
const CONTROLLER: &str = "inplace.dev/agent";
/// The reporting component, for releases and tools that read this older field.
const COMPONENT: &str = "inplace";
/// The API server's limit for the text, in bytes.
const MAX_NOTE: usize = 1024;
/// The API server's limit for the name, in bytes.
const MAX_NAME: usize = 253;

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    /// The reason, one word: `InPlaceSucceeded`.
    pub reason: String,
    /// True if a user should look at it (type `Warning`).
    pub warning: bool,
    /// One line of text for users.
    pub note: String,
    /// When it happened. The name of the event is derived from it, so that a repeated write of the same event is
    /// refused.
    pub at: Timestamp,
}

/// The event object for the API server. `host` is the reporting instance. It is in the core group, which every tool
/// reads.
pub(crate) fn event(about: ObjectReference, host: &str, reported: &ObjectEvent) -> Event {
    let suffix = format!(".{:x}", reported.at.as_nanosecond());
    let name = about.name.as_deref().unwrap_or_default();
    let stem = upto(name, MAX_NAME.saturating_sub(suffix.len())).trim_end_matches(['.', '-']);
    Event {
        metadata: ObjectMeta {
            namespace: about.namespace.clone(),
            name: Some(format!("{stem}{suffix}")),
            ..Default::default()
        },
        involved_object: about,
        reason: Some(reported.reason.clone()),
        message: Some(shortened(&reported.note)),
        type_: Some(if reported.warning { "Warning" } else { "Normal" }.to_owned()),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: Some(host.to_owned()) }),
        reporting_component: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(host.to_owned()),
        first_timestamp: Some(Time(reported.at)),
        last_timestamp: Some(Time(reported.at)),
        count: Some(1),
        ..Default::default()
    }
}

/// The reference to a pod. It has the uid that kubelets use in their events, also for a static pod, because kubectl
/// selects events by it.
pub(crate) fn pod(pod: &PodRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..Default::default()
    }
}

fn shortened(note: &str) -> String {
    let line = note.replace('\n', " ");
    if line.len() <= MAX_NOTE { line } else { format!("{}...", upto(&line, MAX_NOTE - 3)) }
}

/// The longest prefix of `text` with at most `bytes` bytes.
fn upto(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_and_note_are_shortened_to_what_is_allowed() {
        let pod = PodRef {
            namespace: "shop".into(),
            name: format!("{}-{}", "a".repeat(235), "b".repeat(17)),
            uid: "u".into(),
        };
        let at = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_nanos(i64::MAX);
        let reported =
            ObjectEvent { reason: "InPlaceFailed".into(), warning: true, note: "ä\n".repeat(600), at };
        let event = event(super::pod(&pod), "node-1", &reported);
        let name = event.metadata.name.unwrap();
        assert!(name.len() <= 253 && name.ends_with("a.7fffffffffffffff"), "{name}");
        let message = event.message.unwrap();
        assert!(message.len() <= 1024 && message.ends_with("...") && !message.contains('\n'));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
    }
}
