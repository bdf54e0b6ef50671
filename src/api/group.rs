//! A group restart: the restart of all pods of an InPlaceRollout at once (`strategy: Together`). The controller publishes
//! its phase in the status of the rollout, which the agents of all nodes watch; each agent reports in the status of its
//! pods how far they are.
//!
//! ```text
//!  Prepare ──all pods are prepared──▶ Stop ──all containers have stopped──▶ Start ──▶ the rollout ends
//! ```
//!
//! Types only: `rollout` decides the phase, `operation` decides what follows from it in a pod.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::in_place_rollout::InPlaceRollout;
use crate::api::request::Request;
use crate::api::rollout_request::request;
use crate::api::selector::Matcher;
use crate::api::status::Phase;

/// The highest number of a group restart; JSON numbers are exact up to it.
const MAX_EPOCH: i64 = 1 << 53;

/// The number in the annotation of a pod. Users can write it: a number that no group restart reaches counts as none.
pub fn epoch(annotation: Option<&str>) -> i64 {
    let number = annotation.and_then(|text| text.parse().ok());
    number.filter(|number| (0..MAX_EPOCH).contains(number)).unwrap_or_default()
}

/// In which order the pods of a rollout are processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// One after the other, within `maxUnavailable`.
    #[default]
    Rolling,
    /// All at once: a group restart.
    Together,
}

/// The parameters of a group restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TogetherTerms {
    /// True if no container is started before all containers of the group have stopped.
    pub barrier: bool,
    /// What happens if a pod cannot be prepared.
    pub on_unprepared: OnUnprepared,
    /// Seconds that the preparation of all pods may take.
    #[schemars(range(min = 1, max = 3600))]
    pub prepare_timeout_seconds: i32,
    /// Seconds that a container which has stopped waits for the others at most. After that it is started without them.
    /// Longer than the grace period of each pod.
    #[schemars(range(min = 1, max = 300))]
    pub barrier_timeout_seconds: i32,
}

impl Default for TogetherTerms {
    fn default() -> Self {
        Self {
            barrier: true,
            on_unprepared: OnUnprepared::default(),
            prepare_timeout_seconds: 30,
            barrier_timeout_seconds: 60,
        }
    }
}

/// What happens to a group restart if a pod cannot be prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnUnprepared {
    /// The group restart fails, and no container is stopped.
    #[default]
    Fail,
    /// The other pods are restarted without it.
    Skip,
}

/// The phase of a group restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GroupPhase {
    /// The agents check the pods and reserve the names of the new containers. No container is stopped.
    #[default]
    Prepare,
    /// The agents stop the containers. With a barrier none is started.
    Stop,
    /// The agents start the containers.
    Start,
}

/// The most pods that a group restart leaves out: the agents of all nodes receive their uids.
pub const MAX_LEFT_OUT: usize = 256;

/// The state of a group restart, as the controller publishes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The number of this group restart. It is higher than that of every earlier one of its pods.
    pub epoch: i64,
    /// The phase.
    pub phase: GroupPhase,
    /// When the preparation began. Pods that were created later do not belong to the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare_at: Option<Timestamp>,
    /// When the agents were asked to stop the containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<Timestamp>,
    /// When the agents were asked to start the containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// The uids of the pods that are not restarted, because they were not prepared in time. Their agents do not join later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_LEFT_OUT))]
    pub left_out: Vec<String>,
    /// The uids of the controllers of the pods. Empty: any controller.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<String>,
    /// Pods that belong to the group.
    pub pods: i32,
    /// Pods that are prepared or further.
    pub prepared: i32,
    /// Pods whose containers have stopped, or further.
    pub stopped: i32,
    /// Pods that are not restarted, because they could not be prepared.
    pub skipped: i32,
    /// The pod that was the last one in the present phase.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last: String,
}

/// How far a pod is in a group restart, as its agent reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupProgress {
    /// The number of the group restart.
    pub epoch: i64,
    /// When the pod was prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_at: Option<Timestamp>,
    /// When the last container of the request had stopped, while it waits for the other pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    /// The id of the request in the pod's annotation, if it had ended before the group restart: it is not carried out
    /// again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ended_request: String,
    /// How that request had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_phase: Option<Phase>,
}

impl GroupProgress {
    /// Nothing is done yet.
    pub fn of(task: &GroupTask) -> Self {
        let (ended_request, ended_phase) = (task.ended_request.clone(), task.ended_phase);
        Self { epoch: task.epoch, prepared_at: None, stopped_at: None, ended_request, ended_phase }
    }
}

/// What an agent carries out for one pod in a group restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupTask {
    /// The uid of the rollout.
    pub rollout: String,
    /// The number of the group restart.
    pub epoch: i64,
    /// True if no container is started before all containers of the group have stopped.
    pub barrier: bool,
    /// Seconds that a stopped container waits at most.
    pub barrier_timeout_seconds: u32,
    /// The id of the request in the pod's annotation, if it had ended before.
    #[serde(default)]
    pub ended_request: String,
    /// How that request had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_phase: Option<Phase>,
}

/// The identity of a pod, as far as its membership in a group depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The namespace of the pod.
    pub namespace: &'a str,
    /// The labels of the pod.
    pub labels: &'a BTreeMap<String, String>,
    /// The uid of the controller of the pod.
    pub owner: Option<&'a str>,
    /// When the pod was created.
    pub created: Timestamp,
}

/// The state of the group restart of `rollout`; `None` if it has none that is in progress.
pub fn in_progress(rollout: &InPlaceRollout) -> Option<&GroupStatus> {
    let status = rollout.status.as_ref().filter(|status| !status.phase.is_terminal())?;
    let deleted = rollout.metadata.deletion_timestamp.is_some();
    status.group.as_ref().filter(|_| rollout.spec.strategy == Strategy::Together && !deleted)
}

/// Which pods belong to a group restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Members {
    namespace: String,
    target: MemberTarget,
    /// Pods that were created later are no members.
    until: Option<Timestamp>,
}

/// What the members have in common.
#[derive(Clone, Debug, PartialEq)]
enum MemberTarget {
    /// One of these controllers.
    Owners(Vec<String>),
    /// These labels; `None`: no pod has them.
    Labels(Option<Matcher>),
}

impl Members {
    /// The members of the group restart of `rollout`.
    pub fn of(rollout: &InPlaceRollout, group: &GroupStatus) -> Self {
        let target = &rollout.spec.target;
        let target = match (&target.workload_ref, &target.selector) {
            (Some(_), _) => MemberTarget::Owners(group.owners.clone()),
            (None, labels) => MemberTarget::Labels(labels.as_ref().and_then(Matcher::of)),
        };
        let namespace = rollout.metadata.namespace.clone().unwrap_or_default();
        Self { namespace, target, until: group.prepare_at }
    }

    /// True when the pod is a member.
    pub fn has(&self, pod: Member<'_>) -> bool {
        let existed = self.until.is_some_and(|at| pod.created <= at);
        existed
            && self.namespace == pod.namespace
            && match &self.target {
                MemberTarget::Owners(owners) => {
                    pod.owner.is_some_and(|owner| owners.iter().any(|uid| uid == owner))
                }
                MemberTarget::Labels(labels) => {
                    labels.as_ref().is_some_and(|labels| labels.matches(pod.labels))
                }
            }
    }
}

/// The request and the task for each pod of the group restart of `rollout`.
pub fn task(rollout: &InPlaceRollout, group: &GroupStatus) -> Option<(Request, GroupTask)> {
    let uid = rollout.metadata.uid.clone().filter(|uid| !uid.is_empty())?;
    let request = request(&uid, rollout.metadata.name.as_deref().unwrap_or_default(), &rollout.spec);
    let terms = rollout.spec.together.unwrap_or_default();
    let task = GroupTask {
        rollout: uid,
        epoch: group.epoch,
        barrier: terms.barrier,
        barrier_timeout_seconds: u32::try_from(terms.barrier_timeout_seconds).unwrap_or_default(),
        ended_request: String::new(),
        ended_phase: None,
    };
    request.check().is_ok().then_some((request, task))
}
