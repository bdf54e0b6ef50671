//! Writes on pods, for every controller: the result of a write is in the cache before the next decision. A write
//! without an answer is unconfirmed until the pod is read again.
//!
//! Must not decide anything.

use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::cluster::store::Store;
use crate::cluster::trim::{self, Trim, Trimmed};
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::process::log::chain;

/// Reads the pods whose last write has no confirmed result. Returns those that could not be read.
pub(super) async fn confirm<T: Trim>(
    server: &Server,
    namespace: &str,
    cache: &Store<Trimmed<T>>,
    unconfirmed: Vec<VersionedRef>,
) -> Vec<VersionedRef> {
    let mut left = Vec::new();
    for pod in unconfirmed {
        match server.read_pod(namespace, &pod).await {
            Ok(Some(seen)) => cache.upsert(seen),
            Ok(None) => cache.remove(&trim::key(namespace, &pod.name), &pod.uid),
            Err(error) => {
                tracing::debug!("pod {namespace}/{}: {}", pod.name, chain(&error));
                left.push(pod);
            }
        }
    }
    left
}

/// Changes labels and annotations of a pod, provided that it is unchanged since it was read.
pub(super) async fn patch<T: Trim>(
    server: &Server,
    namespace: &str,
    cache: &Store<Trimmed<T>>,
    pod: &VersionedRef,
    patch: &PodPatch,
) -> Result<(), Error> {
    cache.upsert(server.patch_pod(namespace, pod, patch).await?);
    Ok(())
}
