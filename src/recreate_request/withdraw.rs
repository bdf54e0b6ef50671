//! Withdraws from a pod what a `ContainerRecreateRequest` left.

use crate::api::annotation;
use crate::podtask::write::PodPatch;
use crate::recreate_request::{Pod, is_request_of};

/// Withdraws from a pod what an object left that is gone or `Completed`: a request whose end the agent has not reported, so that
/// no agent accepts it later, and the record.
pub fn withdraw(pod: &Pod, uid: &str) -> PodPatch {
    let mut patch = PodPatch::default();
    let own = pod.base.request.as_deref().filter(|id| is_request_of(uid, id));
    let has_ended = |id: &str| pod.base.answer.as_ref().is_some_and(|answer| answer.has_ended(id));
    if let Some(id) = own.filter(|id| !has_ended(id)) {
        patch.withdraw(&pod.base, id);
    }
    patch.labels.insert(annotation::RECREATE_REQUEST_UID.to_owned(), None);
    patch.annotations.insert(annotation::RECREATE_REQUEST.to_owned(), None);
    patch
}
