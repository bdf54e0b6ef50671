//! The cached parts of rollouts and of their pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as Core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::api::in_place_rollout::InPlaceRollout;
use crate::cluster::trim::{Trim, meta_of, readable, within};
use crate::controller::bounds::{self, MAX_BYTES_OF_NAMESPACE, memory_of_spec};
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

    fn trim(source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&source);
        let bytes = memory_of_spec(&source);
        let rollout = readable::<InPlaceRollout>(&meta, source).map(|object| Arc::new(Rollout::read(object)));
        // One that has ended holds back no further one.
        let bytes = if rollout.as_ref().is_some_and(|rollout| rollout.is_active()) { bytes } else { 0 };
        (meta, Self(rollout, bytes))
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
