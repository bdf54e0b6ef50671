//! The group restarts that are in progress, from the rollouts with the label of the strategy `Together`. One watch of the
//! agent delivers them: a group restart of any size is published by one write.
//!
//! Must not decide what follows from the phase of a group restart.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::group::{self, GroupPhase, GroupTask, Member, Members};
use crate::api::in_place_rollout::InPlaceRollout;
use crate::api::pod_ref::PodRef;
use crate::api::request::Request;
use crate::api::status::Status;
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::Store;
use crate::cluster::trim::{Trim, Trimmed, meta_of, readable};
use crate::operation::snapshot::GroupSignal;

/// The limit for the group restarts in progress of one namespace, in bytes: about a hundred of them.
const MAX_BYTES_OF_NAMESPACE: usize = 1 << 20;

/// A cache of the rollouts with the strategy `Together`. Clones share it, but each clone tracks its own
/// [`Self::changed`].
#[derive(Clone, Debug)]
pub struct GroupRestarts(Store<Trimmed<CachedGroup>>);

/// A group restart in progress; `None` for a rollout that has none, or is unreadable, which is not cached.
#[derive(Clone, Debug)]
struct CachedGroup(Option<Arc<Group>>);

/// What agents read from the rollout of a group restart.
#[derive(Debug)]
pub struct Group {
    members: Members,
    /// The phase. Only in the phase `Prepare` a pod may begin.
    pub phase: GroupPhase,
    /// What each pod is asked for; the id is the uid of the rollout.
    pub request: Request,
    /// The number of the group restart, and how a pod waits for the others.
    pub task: GroupTask,
    /// The uids of the pods that are not restarted.
    left_out: Vec<String>,
    bytes: usize,
}

impl GroupRestarts {
    /// Watches until `stop`. The cache is empty when this returns.
    pub fn watch(server: Server, stop: CancellationToken) -> Self {
        let selection = Selection {
            what: "the InPlaceRollouts with the strategy Together".to_owned(),
            labels: Some(format!("{}=true", annotation::TOGETHER)),
            ..Selection::default()
        };
        Self(Store::watch(server, selection, stop))
    }

    /// The group restarts in progress.
    pub fn in_progress(&self) -> Vec<Arc<Group>> {
        self.0.list().iter().filter_map(|cached| cached.value.0.clone()).collect()
    }

    /// What is known about the group restart of the rollout with this uid, for this pod.
    pub fn signal(&self, rollout: &str, pod: &PodRef) -> GroupSignal {
        // Check first whether the cache is current: what is read after the check is at least as new.
        let is_current = self.is_current();
        let (cached, is_complete) = self.0.list_with(&pod.namespace);
        let mut groups = cached.iter().filter_map(|cached| cached.value.0.as_ref());
        match groups.find(|group| group.task.rollout == rollout) {
            Some(group) if group.left_out.contains(&pod.uid) => GroupSignal::LeftOut,
            Some(group) => GroupSignal::Phase(group.phase),
            // One that was too large to be cached may be in progress.
            None if is_current && is_complete => GroupSignal::Over,
            None => GroupSignal::Unknown,
        }
    }

    /// True while the cache is up to date.
    pub fn is_current(&self) -> bool {
        self.0.has_synced() && self.0.is_current()
    }

    /// Returns when anything has changed since the last call on this clone.
    pub async fn changed(&mut self) {
        self.0.changed().await;
    }
}

impl Group {
    /// True when the pod belongs to the group.
    pub fn has(&self, pod: Member<'_>) -> bool {
        self.members.has(pod)
    }

    /// The order of the group restarts of a pod.
    fn order(&self) -> (i64, &str) {
        (self.task.epoch, &self.task.rollout)
    }
}

/// The group restart that comes first for a pod that has `reported` this status last, of those to which it belongs: one
/// that stops the pod already, then the one with the highest number. One before the last that was reported is never
/// carried out, nor one with a lower number than the pod has (`epoch`): requests in between replace the status.
pub fn first<'a>(
    groups: impl IntoIterator<Item = &'a Group>,
    reported: Option<&Status>,
    epoch: i64,
) -> Option<&'a Group> {
    let ended = reported.filter(|status| status.phase.is_terminal()).map(|status| status.id.as_str());
    let last = reported.and_then(|status| Some((status.group.as_ref()?.epoch, status.id.as_str())));
    let is_own = |group: &Group| reported.is_some_and(|status| status.id == group.task.rollout);
    // A pod begins only in the phase Prepare.
    let may_begin = |group: &Group| group.phase == GroupPhase::Prepare || is_own(group);
    let open = |group: &&Group| {
        let is_late = group.task.epoch < epoch && !is_own(group);
        ended != Some(&group.task.rollout) && last <= Some(group.order()) && may_begin(group) && !is_late
    };
    let open = groups.into_iter().filter(open);
    open.max_by_key(|group| (group.phase != GroupPhase::Prepare, group.order()))
}

impl Trim for CachedGroup {
    type Kind = InPlaceRollout;
    type Source = Value;

    fn trim(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
        let bytes = source.to_string().len();
        let rollout = readable::<InPlaceRollout>(&meta, source);
        let group = rollout.and_then(|rollout| {
            let status = group::in_progress(&rollout)?;
            let (request, task) = group::task(&rollout, status)?;
            let members = Members::of(&rollout, status);
            let left_out = status.left_out.clone();
            Some(Arc::new(Group { members, phase: status.phase, request, task, left_out, bytes }))
        });
        (meta, Self(group))
    }

    fn groups(&self, _meta: &ObjectMeta) -> Vec<String> {
        Vec::new()
    }

    /// Rollouts that have ended stay for days: many of them must leave room for one in progress.
    fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// The counts of the status change often, and agents do not use them.
    fn is_unchanged_since(&self, before: &Self) -> bool {
        match (&self.0, &before.0) {
            (Some(now), Some(before)) => {
                (now.phase, &now.members, &now.request, &now.task, &now.left_out)
                    == (before.phase, &before.members, &before.request, &before.task, &before.left_out)
            }
            _ => false,
        }
    }

    fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |group| group.bytes)
    }

    fn most_bytes() -> Option<usize> {
        Some(MAX_BYTES_OF_NAMESPACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn group(uid: &str, epoch: i64, phase: &str) -> Arc<Group> {
        let rollout = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
            "metadata": {"name": uid, "namespace": "shop", "uid": uid},
            "spec": {"target": {"selector": {"matchLabels": {"app": "train"}}}, "containers": [{"name": "app"}],
                "strategy": "Together"},
            "status": {"phase": "Running", "group": {"epoch": epoch, "phase": phase, "prepareAt": "2026-11-20T10:00:00Z"}}});
        CachedGroup::trim(rollout).1.0.unwrap()
    }

    fn reported(id: &str, phase: &str, epoch: i64) -> Status {
        serde_json::from_value(
            json!({"id": id, "phase": phase, "reason": "", "message": "", "startedAt": null,
            "finishedAt": null, "containers": [], "group": {"epoch": epoch}}),
        )
        .unwrap()
    }

    #[test]
    fn a_group_restart_that_stops_pods_already_comes_before_one_that_is_prepared() {
        let (a, b) = (group("a", 1, "Stop"), group("b", 2, "Prepare"));
        let of = |groups: &[&Arc<Group>], status: Option<Status>| {
            let groups = groups.iter().map(|group| &***group);
            first(groups, status.as_ref(), 0).map(|group| group.task.rollout.clone())
        };
        let both = [&a, &b];
        assert_eq!(of(&both, None).as_deref(), Some("b"), "the pod is not part of the first one");
        assert_eq!(of(&both, Some(reported("a", "Running", 1))).as_deref(), Some("a"));
        assert_eq!(of(&both, Some(reported("a", "Succeeded", 1))).as_deref(), Some("b"));
        // What has ended on the pod is not begun again, whatever the other one does.
        assert_eq!(of(&both, Some(reported("b", "Succeeded", 2))), None);
        let (c, d) = (group("c", 3, "Start"), group("d", 3, "Start"));
        assert_eq!(of(&[&c, &d], Some(reported("d", "Succeeded", 3))), None, "the same number");
        assert_eq!(of(&[&c], None), None, "too late to begin");
    }

    #[test]
    fn the_number_of_a_pod_never_becomes_lower() {
        let a = group("a", 1, "Prepare");
        let begins = |status: Option<&Status>, epoch| first([&*a], status, epoch).is_some();
        assert!(begins(None, 0) && begins(None, 1));
        // Another group restart has ended on the pod, and then a request, whose status has no number.
        assert!(!begins(None, 2));
        assert!(begins(Some(&reported("a", "Running", 1)), 2), "it has begun");
    }
}
