//! Orphans: pods with the label of a rollout that is gone or has ended. A request that has touched nothing is
//! withdrawn, any other is recorded at its end. Without a record of it the label is removed.

use jiff::Timestamp;

use crate::api::annotation;
use crate::api::in_place_rollout::is_request_of;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::rollout::decide::{What, Write, end_of, recall_of};
use crate::rollout::pod::Pod;

/// The write for `pod`, and when to reconcile it again.
pub fn orphan(pod: &Pod, now: Timestamp) -> (Option<Write>, Option<Timestamp>) {
    if !pod.base.is_active() {
        return (None, None);
    }
    let Some(record) = pod.record.as_ref().filter(|record| record.stage.is_live()) else {
        return (release_of(pod), None);
    };
    let base = &pod.base;
    match record.state(base.request.as_deref(), base.answer.as_ref(), now) {
        TaskState::Ended(end) => (Some(end_of(pod, record, &end)), None),
        TaskState::Busy { touched: false } if record.stage == Stage::Ordered => {
            (Some(recall_of(pod, record)), None)
        }
        TaskState::Busy { .. } => {
            let times = [record.silent_at(base.answer.as_ref()), record.lost_at()];
            (None, times.into_iter().filter(|at| *at > now).min())
        }
        TaskState::Over | TaskState::Waiting => (None, None),
    }
}

/// Removes the label of `pod`, unless a request of the rollout is in progress on it: with the label no other rollout
/// takes the pod.
fn release_of(pod: &Pod) -> Option<Write> {
    let (base, uid) = (&pod.base, pod.worked_on.as_ref()?);
    let answer = base.answer.as_ref();
    let asked = base.request.as_deref().filter(|id| is_request_of(uid, id));
    let waits = asked.is_some_and(|id| answer.is_none_or(|answer| !answer.has_ended(id)));
    let runs = answer.is_some_and(|answer| is_request_of(uid, &answer.id) && !answer.phase.is_terminal());
    let labels = [(annotation::ROLLOUT_UID.to_owned(), None)].into();
    let patch = PodPatch { labels, ..PodPatch::default() };
    (!waits && !runs).then(|| Write { pod: VersionedRef::of(base), patch, what: What::Release })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rollout::fixtures::{UID, apply, at, pod, read, say};

    /// What is written on a pod that has the label of a rollout that is gone, and this change.
    fn what(change: &dyn Fn(&mut Value)) -> Option<What> {
        let mut pod = pod(0);
        pod["metadata"]["labels"]["inplace.dev/rollout-uid"] = json!(UID);
        change(&mut pod);
        orphan(&read(&pod), at(1)).0.map(|write| write.what)
    }

    fn annotated(key: &str, value: &Value) -> Option<What> {
        what(&|pod| pod["metadata"]["annotations"][key] = value.clone())
    }

    #[test]
    fn a_label_without_a_record_in_progress_is_removed() {
        let record = json!({"rollout": UID, "name": "one", "stage": "Done", "at": at(0), "seconds": 1});
        let record = json!(record.to_string());
        assert_eq!(what(&|_| {}), Some(What::Release));
        assert_eq!(annotated("inplace.dev/rollout", &json!("{")), Some(What::Release));
        assert_eq!(annotated("inplace.dev/rollout", &record), Some(What::Release));
        let request = json!(json!({"id": UID, "containers": [{"name": "app"}]}).to_string());
        assert_eq!(annotated("inplace.dev/request", &request), None, "an agent may accept it");
        assert_eq!(what(&|pod| say(pod, "Running", Some("Swap"))), None);
        assert_eq!(what(&|pod| say(pod, "Succeeded", None)), Some(What::Release));
        assert_eq!(what(&|pod| pod["metadata"]["deletionTimestamp"] = json!(at(0))), None);
        let mut released = pod(0);
        released["metadata"]["labels"]["inplace.dev/rollout-uid"] = json!(UID);
        let write = orphan(&read(&released), at(1)).0.unwrap();
        apply(&mut released, &write);
        assert_eq!(read(&released).worked_on, None);
        assert!(orphan(&read(&released), at(1)).0.is_none());
    }
}
