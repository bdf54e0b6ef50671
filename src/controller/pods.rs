//! Writes on pods, for every controller: the result of a write is in the cache before the next decision. A write
//! without an answer is unconfirmed until the pod is read again.
//!
//! Must not decide anything.

use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::cluster::trim::{Trim, Trimmed};
use crate::podtask::write::{PodPatch, PodRef};
use crate::process::log::chain;

/// The pods that a controller has cached.
pub(super) trait PodCache {
    /// What is cached of a pod.
    type Pod: Trim;

    /// Stores a pod that the API server returned, unless the cache has a newer version.
    fn upsert(&self, pod: Trimmed<Self::Pod>);

    /// Removes a pod that no longer exists.
    fn remove(&self, namespace: &str, name: &str, uid: &str);
}

/// Reads the pods whose last write has no confirmed result. Returns those that could not be read.
pub(super) async fn confirm(
    server: &Server,
    namespace: &str,
    cache: &impl PodCache,
    unconfirmed: Vec<PodRef>,
) -> Vec<PodRef> {
    let mut left = Vec::new();
    for pod in unconfirmed {
        match server.see_pod(namespace, &pod).await {
            Ok(Some(seen)) => cache.upsert(seen),
            Ok(None) => cache.remove(namespace, &pod.name, &pod.uid),
            Err(error) => {
                tracing::debug!("pod {namespace}/{}: {}", pod.name, chain(&error));
                left.push(pod);
            }
        }
    }
    left
}

/// Changes labels and annotations of a pod, provided that it is unchanged since it was read.
pub(super) async fn patch(
    server: &Server,
    namespace: &str,
    cache: &impl PodCache,
    pod: &PodRef,
    patch: &PodPatch,
) -> Result<(), Error> {
    cache.upsert(server.patch_pod(namespace, pod, patch).await?);
    Ok(())
}
