//! The spec of one rollout and its last status. Read from the API object; nothing is decided here.

use jiff::Timestamp;

use crate::api::annotation;
use crate::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutSpec, InPlaceRolloutStatus, RolloutPhase};
use crate::api::request::{Order, Request};
use crate::api::rollout_request::request;
use crate::api::selector;
use crate::api::workload_kind::Kind;
use crate::podtask::pod::Pod;
use crate::podtask::start_first;

/// A rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// Namespace of the rollout.
    pub namespace: String,
    /// Name of the rollout.
    pub name: String,
    /// Uid of the rollout: also the id of its request on each pod.
    pub uid: String,
    /// The resource version that was read.
    pub version: String,
    /// Creation time.
    pub created: Timestamp,
    /// Generation of the spec.
    pub generation: i64,
    /// True when the rollout is being deleted.
    pub deleting: bool,
    /// True when it has the label with which agents watch group restarts.
    pub is_labelled: bool,
    /// True when it has the label of a group whose failures restart it.
    pub is_of_group: bool,
    /// The spec as the user wrote it.
    pub spec: InPlaceRolloutSpec,
    /// The last status.
    pub before: InPlaceRolloutStatus,
}

impl Rollout {
    /// Reads a rollout.
    pub fn read(object: InPlaceRollout) -> Self {
        let meta = object.metadata;
        let label = meta.labels.as_ref().and_then(|labels| labels.get(annotation::TOGETHER));
        let is_labelled = label.is_some_and(|label| label == "true");
        let is_of_group =
            meta.labels.as_ref().is_some_and(|labels| labels.contains_key(annotation::GROUP_RESTART));
        Self {
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            version: meta.resource_version.unwrap_or_default(),
            created: meta.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            generation: meta.generation.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            is_labelled,
            is_of_group,
            spec: object.spec,
            before: object.status.unwrap_or_default(),
        }
    }

    /// True until the rollout has ended or is being deleted.
    pub fn is_active(&self) -> bool {
        !self.deleting && !self.before.phase.is_terminal()
    }

    /// The target in the form that people write.
    pub fn target(&self) -> String {
        let target = &self.spec.target;
        match (&target.workload_ref, &target.selector) {
            (Some(workload), _) => format!("{}/{}", workload.kind, workload.name),
            (None, Some(selector)) => selector::text(selector),
            (None, None) => String::new(),
        }
    }

    /// True when both rollouts name the same target in the same way.
    pub fn has_target_of(&self, other: &Self) -> bool {
        let (own, others) = (&self.spec.target, &other.spec.target);
        let same = match (&own.workload_ref, &others.workload_ref) {
            (Some(own), Some(other)) => {
                own.kind == other.kind && Kind::of(own) == Kind::of(other) && own.name == other.name
            }
            (None, None) => own.selector.is_some() && own.selector == others.selector,
            _ => false,
        };
        same && self.namespace == other.namespace
    }

    /// True when this rollout was created after `other`.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.age() > other.age()
    }

    /// True when `other`, an older one, ends because of this rollout. One that has begun is superseded only by one that has
    /// begun too: if this one is refused, nobody would work on the pods. A superseded rollout supersedes no other.
    pub fn supersedes(&self, other: &Self) -> bool {
        let has_begun = self.before.started_at.is_some();
        let may_begin = !self.before.phase.is_terminal() && other.before.started_at.is_none();
        let counts = self.before.phase != RolloutPhase::Superseded && (has_begun || may_begin);
        counts && self.is_newer_than(other) && !self.waits_for(other)
    }

    /// True when this rollout must not begin before `aborting` has ended: it gives no container an image, so the failed
    /// image would stay on the pods if it superseded the abort.
    pub fn waits_for(&self, aborting: &Self) -> bool {
        let only_restarts = self.images().next().is_none();
        only_restarts && self.before.started_at.is_none() && aborting.is_active() && aborting.aborts()
    }

    /// Sorts older rollouts before newer ones. The API server stores whole seconds: of two from the same second, the
    /// one that was reconciled first is the older one.
    pub fn age(&self) -> (Timestamp, Timestamp, &str, &str) {
        let first_reconcile = self.before.started_at.or(self.before.finished_at);
        (self.created, first_reconcile.unwrap_or(Timestamp::MAX), &self.name, &self.uid)
    }

    /// The request for each pod.
    pub fn request(&self) -> Request {
        request(&self.uid, &self.name, &self.spec)
    }

    /// True once the rollout takes its pods back.
    pub fn aborts(&self) -> bool {
        self.before.abort.is_some()
    }

    /// The order of the request for `pod`; `None`: not yet, because a container runs and is not Ready. `repairs`: the
    /// rollout left the pod as it is.
    pub fn order(&self, pod: &Pod, repairs: bool) -> Option<Order> {
        let names = self.spec.containers.iter().map(|container| container.name.as_str());
        start_first::order(self.spec.pod.order, pod, names, repairs)
    }

    /// The containers that get an image, and the image.
    pub fn images(&self) -> impl Iterator<Item = (&str, &str)> {
        self.spec.containers.iter().filter_map(|one| Some((one.name.as_str(), one.image.as_deref()?)))
    }

    /// True when every container gets an image and none is restarted only.
    pub fn only_swaps(&self) -> bool {
        self.spec.containers.iter().all(|one| one.image.is_some())
    }
}
