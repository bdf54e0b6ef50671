//! Events on a pod or a hook: what `kubectl describe` shows.
//!
//! Each is written once, as a whole. kube's recorder folds events of one reason into a series and keeps the first text;
//! here every text has its own numbers.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::operation::snapshot::PodRef;

/// Who tells.
const CONTROLLER: &str = "inplace.dev/agent";
/// The same for releases and tools that read the older field.
const COMPONENT: &str = "inplace";
/// The API server takes no longer text, in bytes.
const LONGEST_NOTE: usize = 1024;
/// The API server takes no longer name, in bytes.
const LONGEST_NAME: usize = 253;

/// What is told about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    /// One word: `InPlaceSucceeded`.
    pub reason: String,
    /// True for what somebody should look at.
    pub warning: bool,
    /// One line that a person understands.
    pub note: String,
    /// When it happened. Names the event, so that the same one written twice is refused the second time.
    pub at: Timestamp,
}

/// The event about an object as the API server wants it; `host` tells where. In the group of the oldest interface, which
/// every tool reads.
pub(super) fn event(about: ObjectReference, host: &str, reported: &ObjectEvent) -> Event {
    let mark = format!(".{:x}", reported.at.as_nanosecond());
    let name = about.name.as_deref().unwrap_or_default();
    let stem = upto(name, LONGEST_NAME.saturating_sub(mark.len())).trim_end_matches(['.', '-']);
    Event {
        metadata: ObjectMeta {
            namespace: about.namespace.clone(),
            name: Some(format!("{stem}{mark}")),
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

/// A pod, with the uid that kubelets use in their events too, also for a static pod: kubectl looks for it.
pub(super) fn pod(pod: &PodRef) -> ObjectReference {
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
    if line.len() <= LONGEST_NOTE { line } else { format!("{}...", upto(&line, LONGEST_NOTE - 3)) }
}

/// The longest beginning of `text` that has no more than `bytes`.
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
