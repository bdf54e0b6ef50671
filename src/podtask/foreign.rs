//! An in-place update that a bk-bcs operator began on a pod and has not completed, as the pod itself shows it, and what
//! is missing. Must not decide when something is done about it.
//!
//! That operator closes the readiness gate, writes its state as an annotation and moves the revision label at once. It
//! writes the images either with the label or, after a grace period, later. When every container has another image ID
//! than before, it opens the gate.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;

use crate::api::request::DEADLINE_SECONDS;
use crate::api::{annotation, workload_key};
use crate::podtask::time::later;

/// An update that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignUpdate {
    /// When it began, if its state says so.
    pub began: Option<Timestamp>,
    /// True while the gate is closed as that operator closes it.
    pub gate_closed: bool,
    /// Containers whose new image was to be written after the grace period and is not.
    pub unwritten: Vec<String>,
    /// Containers with a new image that they do not run yet, as far as the pod's status shows.
    pub restarting: Vec<String>,
}

/// What follows from an update that is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignStep {
    /// All containers run their new images: only the gate has to be opened.
    Open,
    /// Images are not written: the update has to be finished.
    Finish,
    /// The kubelet restarts containers.
    Wait,
    /// The kubelet has had time enough: the containers will not run their new images without another change.
    Stuck,
}

/// The annotation [`workload_key::UPDATE_STATE`].
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct State {
    update_timestamp: Option<Timestamp>,
    last_container_statuses: BTreeMap<String, Recorded>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Recorded {
    #[serde(rename = "imageID")]
    image_id: String,
}

/// The annotation [`workload_key::UPDATE_GRACE`].
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Grace {
    container_images: BTreeMap<String, String>,
}

impl ForeignUpdate {
    /// Reads it from a pod. `taken_over`: the controller has closed the gate for a task of its own, and the gate still is. Then
    /// containers that the kubelet restarts for that operator are waited for, too. An annotation that is malformed counts
    /// as absent.
    pub fn read(pod: &core::Pod, taken_over: bool) -> Option<Self> {
        let gate_closed = is_closed(pod, workload_key::UPDATE_GATE);
        let grace: Grace = parsed(pod, workload_key::UPDATE_GRACE);
        let image = |name: &str| {
            let container = pod.spec.as_ref()?.containers.iter().find(|container| container.name == name)?;
            container.image.as_deref()
        };
        let differs =
            |(name, wanted): &(&String, &String)| image(name).is_some_and(|now| now != wanted.as_str());
        let unwritten: Vec<_> =
            grace.container_images.iter().filter(differs).map(|(name, _)| name.clone()).collect();
        if !gate_closed && unwritten.is_empty() && !taken_over {
            return None;
        }
        let state: State = parsed(pod, workload_key::UPDATE_STATE);
        let began = state.update_timestamp;
        let restarting = state.last_container_statuses.iter().filter(|(name, before)| {
            !unwritten.contains(name)
                && image(name).is_some_and(|image| !has_restarted(pod, name, image, before, began))
        });
        let restarting: Vec<_> = restarting.map(|(name, _)| name.clone()).collect();
        if !gate_closed && unwritten.is_empty() && restarting.is_empty() {
            return None;
        }
        Some(Self { began, gate_closed, unwritten, restarting })
    }

    /// What follows at `now`.
    pub fn step(&self, now: Timestamp) -> ForeignStep {
        if !self.unwritten.is_empty() {
            return ForeignStep::Finish;
        }
        if self.restarting.is_empty() {
            return ForeignStep::Open;
        }
        if self.stuck_at().is_none_or(|at| at <= now) { ForeignStep::Stuck } else { ForeignStep::Wait }
    }

    /// When a kubelet has had time enough.
    pub fn stuck_at(&self) -> Option<Timestamp> {
        self.began.map(|began| later(began, SignedDuration::from_secs(i64::from(DEADLINE_SECONDS))))
    }
}

fn parsed<T: Default + serde::de::DeserializeOwned>(pod: &core::Pod, key: &str) -> T {
    let text = pod.metadata.annotations.as_ref().and_then(|all| all.get(key));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// True if the readiness gate is closed for this reason.
pub(super) fn is_closed(pod: &core::Pod, reason: &str) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut gates = conditions.filter(|condition| condition.type_ == annotation::GATE);
    gates.any(|gate| gate.status == "False" && gate.reason.as_deref() == Some(reason))
}

/// True when the container runs `image`: it has another image ID than before, or, if the new image has the ID of the
/// old one, it was started with the new name after the update began.
fn has_restarted(
    pod: &core::Pod,
    name: &str,
    image: &str,
    before: &Recorded,
    began: Option<Timestamp>,
) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let Some(status) = statuses.into_iter().find(|status| status.name == name) else { return false };
    let Some(running) = status.state.as_ref().and_then(|state| state.running.as_ref()) else { return false };
    if !status.image_id.is_empty() && status.image_id != before.image_id {
        return true;
    }
    let started = running.started_at.as_ref().map(|time| time.0);
    started.zip(began).is_some_and(|(started, began)| started > began)
        && full_name(&status.image) == full_name(image)
}

/// An image name with the parts that runtimes add.
fn full_name(image: &str) -> String {
    let image = image.strip_prefix("docker.io/").unwrap_or(image);
    let image = image.strip_prefix("library/").unwrap_or(image);
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod as a bk-bcs operator leaves it.
    fn pod(change: impl FnOnce(&mut Value)) -> Option<ForeignUpdate> {
        read(false, change)
    }

    fn read(taken_over: bool, change: impl FnOnce(&mut Value)) -> Option<ForeignUpdate> {
        let state = json!({"revision": "web-2", "updateTimestamp": "2026-01-01T00:00:00Z",
            "lastContainerStatuses": {"app": {"imageID": "sha256:old"}}});
        let mut pod = json!({
            "metadata": {"labels": {"controller-revision-hash": "web-2"}, "annotations": {"inplace-update-state": state.to_string()}},
            "spec": {"containers": [{"name": "app", "image": "app:2"}, {"name": "side", "image": "side:1"}]},
            "status": {
                "conditions": [{"type": "InPlaceUpdateReady", "status": "False", "reason": "StartInPlaceUpdate"}],
                "containerStatuses": [{"name": "app", "image": "docker.io/library/app:2", "imageID": "sha256:new", "ready": true,
                    "restartCount": 1, "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}}],
            },
        });
        change(&mut pod);
        ForeignUpdate::read(&serde_json::from_value(pod).unwrap(), taken_over)
    }

    fn at(second: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
    }

    fn step(change: impl FnOnce(&mut Value)) -> Option<ForeignStep> {
        pod(change).map(|update| update.step(at(60)))
    }

    fn status(pod: &mut Value) -> &mut Value {
        &mut pod["status"]["containerStatuses"][0]
    }

    #[test]
    fn only_a_gate_that_is_closed_as_that_operator_closes_it_is_an_update_of_it() {
        assert_eq!(step(|_| {}), Some(ForeignStep::Open));
        for (status, reason) in
            [("True", "StartInPlaceUpdate"), ("False", "InPlaceDrain"), ("False", "InPlaceFailed")]
        {
            let update = step(|pod| {
                pod["status"]["conditions"][0]["status"] = json!(status);
                pod["status"]["conditions"][0]["reason"] = json!(reason);
            });
            assert_eq!(update, None, "{status} {reason}");
        }
    }

    #[test]
    fn images_that_wait_for_the_grace_period_have_to_be_written() {
        let grace = |image: &str, pod: &mut Value| {
            let grace = json!({"revision": "web-2", "containerImages": {"app": image}, "graceSeconds": 30});
            pod["metadata"]["annotations"]["inplace-update-grace"] = json!(grace.to_string());
        };
        let update = pod(|pod| grace("app:3", pod)).unwrap();
        assert_eq!((update.step(at(60)), update.unwritten), (ForeignStep::Finish, vec!["app".to_owned()]));
        // The gate is no longer closed as by that operator, but the image is still missing.
        let taken = pod(|pod| {
            grace("app:3", pod);
            pod["status"]["conditions"][0]["reason"] = json!("InPlaceFailed");
        });
        assert_eq!(
            taken.map(|update| (update.gate_closed, update.step(at(60)))),
            Some((false, ForeignStep::Finish))
        );
        assert_eq!(step(|pod| grace("app:2", pod)), Some(ForeignStep::Open), "it is written");
    }

    #[test]
    fn a_container_that_does_not_run_its_new_image_is_waited_for_and_not_for_ever() {
        for change in [
            |pod: &mut Value| status(pod)["imageID"] = json!("sha256:old"),
            |pod: &mut Value| status(pod)["imageID"] = json!(""),
            |pod: &mut Value| status(pod)["state"] = json!({"waiting": {"reason": "ImagePullBackOff"}}),
            |pod: &mut Value| pod["status"]["containerStatuses"] = json!([]),
        ] {
            let change = |pod: &mut Value| {
                change(pod);
                if let Some(running) = pod.pointer_mut("/status/containerStatuses/0/state/running") {
                    running["startedAt"] = json!("2025-12-31T00:00:00Z");
                }
            };
            let update = pod(change).unwrap();
            assert_eq!(
                (update.step(at(60)), update.restarting.as_slice()),
                (ForeignStep::Wait, &["app".to_owned()][..])
            );
            assert_eq!(update.step(at(i64::from(DEADLINE_SECONDS))), ForeignStep::Stuck);
        }
    }

    #[test]
    fn after_a_takeover_a_container_that_its_kubelet_restarts_is_still_waited_for() {
        let reason = |pod: &mut Value| pod["status"]["conditions"][0]["reason"] = json!("InPlaceFailed");
        let restarts = |pod: &mut Value| {
            reason(pod);
            status(pod)["state"] = json!({"waiting": {"reason": "ImagePullBackOff"}});
        };
        assert_eq!(read(true, restarts).map(|update| update.step(at(60))), Some(ForeignStep::Wait));
        assert_eq!(read(true, reason), None, "it runs its new image");
        assert_eq!(read(false, restarts), None, "an operation of this project failed");
    }

    #[test]
    fn a_new_name_of_the_same_image_is_found_by_the_start_of_its_container() {
        let same = |pod: &mut Value| status(pod)["imageID"] = json!("sha256:old");
        assert_eq!(step(same), Some(ForeignStep::Open));
        let crashed_before = |pod: &mut Value| {
            same(pod);
            status(pod)["image"] = json!("docker.io/library/app:1");
        };
        assert_eq!(step(crashed_before), Some(ForeignStep::Wait), "a crash with the old image is no restart");
    }

    #[test]
    fn a_state_that_cannot_be_read_is_none() {
        for text in ["", "{", "[]", r#"{"updateTimestamp":"yesterday"}"#] {
            let update = step(|pod| {
                pod["metadata"]["annotations"] =
                    json!({"inplace-update-state": text, "inplace-update-grace": text});
            });
            assert_eq!(update, Some(ForeignStep::Open), "nothing was changed yet: {text}");
        }
    }
}
