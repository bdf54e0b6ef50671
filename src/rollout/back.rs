//! The way back of one pod of an aborted rollout: which containers go back to which image, and with which request. Decides
//! neither when nor how many pods go back at once.
//!
//! | image of a container in the pod's spec | the container |
//! |---|---|
//! | the one on record from before the swap | is back, or was never swapped |
//! | the one of the rollout, and another one is on record | goes back |
//! | the one of the rollout, none is on record, and the rollout had a request for the pod or may have had one | its pod is left as it is |
//! | a third one | its pod is left as it is |
//!
//! The record is on the pod: a pod that was created anew has none, and is left as it is. Another rollout, which selects the
//! pod by labels, replaces the record; if it did so after the start of this rollout, this rollout may have had a request.

use crate::api::image::ImageRef;
use crate::api::in_place_rollout::back_id;
use crate::api::request::{ContainerRequest, Request};
use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;
use crate::rollout::view::Left;

/// The containers of `pod` that go back, each with its image from before.
///
/// # Errors
/// None goes back, for this reason.
pub(super) fn containers(rollout: &Rollout, pod: &Pod) -> Result<Vec<ContainerRequest>, Left> {
    let record = pod.record.as_ref().filter(|record| record.rollout == rollout.uid);
    let answered = pod.base.answer.as_ref().is_some_and(|answer| answer.id == rollout.uid);
    let begun = record.is_some() || answered || is_record_replaced(rollout, pod);
    let mut containers = Vec::new();
    for (name, new) in rollout.images() {
        let Some(now) = pod.images.get(name) else { continue };
        let before = record.and_then(|record| record.images.get(name));
        match before {
            Some(before) if before == now => {}
            Some(_) if now != new => return Err(Left::Changed),
            Some(before) if ImageRef::parse(before).is_ok() => {
                containers.push(ContainerRequest { name: name.to_owned(), image: Some(before.clone()) });
            }
            None if !begun || now != new => {}
            Some(_) | None => return Err(Left::Unrecorded),
        }
    }
    if containers.is_empty() { Err(Left::Unchanged) } else { Ok(containers) }
}

/// True when another rollout has written its record on the pod since this rollout started.
fn is_record_replaced(rollout: &Rollout, pod: &Pod) -> bool {
    let other = pod.record.as_ref().filter(|record| record.rollout != rollout.uid);
    other.zip(rollout.before.started_at).is_some_and(|(other, started)| other.at >= started)
}

/// The request that takes these containers back: with the same parameters as the request of the swap.
pub(super) fn request(rollout: &Rollout, containers: Vec<ContainerRequest>) -> Request {
    let request = rollout.request();
    let reason = format!("{}: aborted, back to the images from before", request.reason);
    Request { id: back_id(&rollout.uid), containers, reason, ..request }
}
