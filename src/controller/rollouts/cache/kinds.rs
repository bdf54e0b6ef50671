//! The cached parts of rollouts and of their pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as Core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use crate::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutSpec, InPlaceRolloutStatus, PodTerms};
use crate::cluster::trim::{Trim, meta_of, readable, within};
use crate::controller::bounds::{self, MAX_BYTES_OF_NAMESPACE, memory, memory_of_spec};
use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;

/// A rollout, `None` if it is unreadable, and the memory of its spec in bytes.
#[derive(Clone, Debug)]
pub(crate) struct CachedRollout(pub(super) Option<Arc<Rollout>>, usize);

/// A pod of a rollout's target, and its memory in bytes.
///
/// The number of pods has no limit: a rollout that does not know all pods of its target would end too early. See
/// `follow` instead.
#[derive(Clone, Debug)]
pub(crate) struct CachedPod(pub(super) Arc<Pod>, pub(super) usize);

impl Trim for CachedRollout {
    type Kind = InPlaceRollout;
    type Source = Value;

    fn trim(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
        let bytes = memory_of_spec(&source);
        let Some(rollout) = readable::<InPlaceRollout>(&meta, source).map(Rollout::read) else {
            return (meta, Self(None, 0));
        };
        if rollout.is_active() {
            return (meta, Self(Some(Arc::new(rollout)), bytes));
        }
        let rollout = ended(rollout);
        let bytes = memory(&json!(rollout.spec.target));
        (meta, Self(Some(Arc::new(rollout)), bytes))
    }

    /// One group for the rollout itself, and one for all rollouts of its namespace.
    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let own = format!("of/{namespace}/{}", meta.name.as_deref().unwrap_or_default());
        vec![own, within(namespace)]
    }

    /// Of the status, which the controller itself writes, only the begin is compared: it supersedes older rollouts.
    fn is_unchanged_since(&self, before: &Self) -> bool {
        let user = |rollout: &Rollout| {
            let has_begun = rollout.before.started_at.is_some();
            (rollout.generation, rollout.deleting, rollout.is_labelled, rollout.uid.clone(), has_begun)
        };
        match (&self.0, &before.0) {
            (Some(now), Some(before)) => user(now) == user(before) && now.spec == before.spec,
            _ => false,
        }
    }

    /// Without the status, which the controller itself writes.
    fn bytes(&self) -> usize {
        self.1
    }

    fn most_bytes() -> Option<usize> {
        Some(MAX_BYTES_OF_NAMESPACE)
    }
}

/// What is used of a rollout that has ended or is being deleted: many of them must leave room for further ones. Its
/// status is not written again.
fn ended(rollout: Rollout) -> Rollout {
    let Rollout { spec, before, .. } = rollout;
    let unused = || IntOrString::Int(0);
    Rollout {
        spec: InPlaceRolloutSpec {
            containers: Vec::new(),
            max_unavailable: unused(),
            partition: unused(),
            priority: Vec::new(),
            failure_threshold: unused(),
            pod: PodTerms::default(),
            ..spec
        },
        before: InPlaceRolloutStatus {
            phase: before.phase,
            started_at: before.started_at,
            finished_at: before.finished_at,
            ..InPlaceRolloutStatus::default()
        },
        ..rollout
    }
}

impl Trim for CachedPod {
    type Kind = Core;
    type Source = Core;

    fn trim(mut source: Core) -> (ObjectMeta, Self) {
        bounds::bound(&mut source);
        let mut pod = Pod::read(&source);
        bounds::cut(&mut pod.base.labels);
        if let Some(owner) = &mut pod.owner {
            bounds::bound_owner(owner);
        }
        let bytes = bounds::memory_of_pod(&source);
        (source.metadata, Self(Arc::new(pod), bytes))
    }

    fn groups(&self, _meta: &ObjectMeta) -> Vec<String> {
        Vec::new()
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.0.is_unchanged_since(&before.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::in_place_rollout::RolloutPhase;
    use crate::cluster::trim::Trimmed;

    #[test]
    fn little_is_cached_of_a_rollout_that_has_ended_and_it_counts() {
        let long = "x".repeat(100 << 10);
        let rollout = |phase: &str| -> Trimmed<CachedRollout> {
            let spec = json!({"target": {"workloadRef": {"kind": "Deployment", "name": "web"}},
                "containers": [{"name": long, "image": long}], "maxUnavailable": long, "pod": {"reason": long},
                "ttlSecondsAfterFinished": 60});
            let failure = json!({"pod": "web-0", "uid": "u", "reason": "Why", "message": long});
            let status = json!({"phase": phase, "message": long, "failures": [failure],
                "startedAt": "2026-11-20T10:00:00Z", "finishedAt": "2026-11-20T10:05:00Z"});
            let metadata = json!({"name": "r", "namespace": "shop", "uid": "u-r"});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
        };
        let running = rollout("Running").value;
        assert!(running.bytes() > 400 << 10 && running.0.unwrap().spec.containers.len() == 1);
        let cached = rollout("Succeeded");
        assert!(format!("{cached:?}").len() < 8 << 10);
        assert!((500..4 << 10).contains(&cached.value.bytes()), "{}", cached.value.bytes());
        let cached = cached.value.0.unwrap();
        assert_eq!(cached.target(), "Deployment/web");
        assert_eq!(cached.before.phase, RolloutPhase::Succeeded);
        let times = [cached.before.started_at, cached.before.finished_at];
        assert!(times.iter().all(Option::is_some) && cached.spec.ttl_seconds_after_finished == Some(60));
    }
}
