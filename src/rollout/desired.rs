//! The spec of one rollout and its last status. Read from the API object; nothing is decided here.

use jiff::Timestamp;

use crate::api::in_place_rollout::{
    InPlaceRollout, InPlaceRolloutSpec, InPlaceRolloutStatus, PodTerms, RolloutContainer, RolloutPhase,
};
use crate::api::request::{ContainerRequest, HookArg, HookRef, Order, PreHookPhase, Request};
use crate::api::workload::WorkloadHook;
use crate::podtask::pod::Pod;
use crate::podtask::{selector, start_first};

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
    /// The spec as the user wrote it.
    pub spec: InPlaceRolloutSpec,
    /// The last status.
    pub before: InPlaceRolloutStatus,
}

impl Rollout {
    /// Reads a rollout.
    pub fn read(object: InPlaceRollout) -> Self {
        let meta = object.metadata;
        Self {
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            version: meta.resource_version.unwrap_or_default(),
            created: meta.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            generation: meta.generation.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
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
            (Some(own), Some(other)) => own.kind == other.kind && own.name == other.name,
            (None, None) => own.selector.is_some() && own.selector == others.selector,
            _ => false,
        };
        same && self.namespace == other.namespace
    }

    /// True when this rollout was created after `other` and supersedes it. A superseded rollout supersedes no other.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.before.phase != RolloutPhase::Superseded && self.age() > other.age()
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
        let mut request = request(&self.uid, &self.spec);
        if request.reason.is_empty() {
            request.reason = format!("InPlaceRollout {}", self.name);
        }
        request
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

/// The request for a spec. Admission rejects numbers out of range; here they become 0.
pub fn request(id: &str, spec: &InPlaceRolloutSpec) -> Request {
    // Both sides are written out: a field that is new on one of them and not here does not compile.
    let PodTerms {
        each_ready,
        grace_period_seconds,
        drain,
        pre_hook,
        post_hook,
        min_ready_seconds,
        ready_timeout_seconds,
        deadline_seconds,
        on_failure,
        engine,
        order,
        reason,
    } = spec.pod.clone();
    let target =
        |one: &RolloutContainer| ContainerRequest { name: one.name.clone(), image: one.image.clone() };
    let seconds = |value: i32| u32::try_from(value).unwrap_or(0);
    Request {
        id: id.to_owned(),
        containers: spec.containers.iter().map(target).collect(),
        each_ready,
        grace_period_seconds: seconds(grace_period_seconds),
        drain,
        pre_hook: pre_hook.as_ref().map(|pre| hook(&pre.hook, pre.phase)),
        post_hook: post_hook.as_ref().map(|post| hook(post, PreHookPhase::Start)),
        min_ready_seconds: seconds(min_ready_seconds),
        ready_timeout_seconds: seconds(ready_timeout_seconds),
        deadline_seconds: seconds(deadline_seconds),
        on_failure,
        engine,
        order,
        reason,
    }
}

fn hook(hook: &WorkloadHook, phase: PreHookPhase) -> HookRef {
    let given = hook
        .args
        .iter()
        .filter_map(|arg| Some(HookArg { name: arg.name.clone(), value: arg.value.clone()? }));
    HookRef { template_name: hook.template_name.clone(), args: given.collect(), phase }
}
