//! The cached parts of rollouts and of their pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as Core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::api::in_place_rollout::InPlaceRollout;
use crate::cluster::trim::{Trim, meta_of, readable, within};
use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;

/// A rollout; `None` if it is unreadable.
#[derive(Clone, Debug)]
pub(crate) struct CachedRollout(pub(super) Option<Arc<Rollout>>);

/// A pod of a rollout's target.
#[derive(Clone, Debug)]
pub(crate) struct CachedPod(pub(super) Arc<Pod>);

impl Trim for CachedRollout {
    type Kind = InPlaceRollout;
    type Source = Value;

    fn trim(source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&source);
        let rollout = readable::<InPlaceRollout>(&meta, source).map(|object| Arc::new(Rollout::read(object)));
        (meta, Self(rollout))
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
}

impl Trim for CachedPod {
    type Kind = Core;
    type Source = Core;

    fn trim(source: Core) -> (ObjectMeta, Self) {
        let pod = Arc::new(Pod::read(&source));
        (source.metadata, Self(pod))
    }

    fn groups(&self, _meta: &ObjectMeta) -> Vec<String> {
        Vec::new()
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.0.is_unchanged_since(&before.0)
    }
}
