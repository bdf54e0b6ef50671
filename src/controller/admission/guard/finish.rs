//! Asks again for those who ask only once: the taint manager of Kubernetes does not come back to a pod whose deletion was
//! refused. A HookRun that stands before such a deletion is marked, and once it has ended the pod's deletion is asked for.
//!
//! Never forces: this deletion is guarded like any other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::cluster::error::{Class, Error};
use crate::cluster::hooks::{HookRuns, Run};
use crate::cluster::server::Server;
use crate::cluster::workloads::Deletion;
use crate::workload::action::PodRef;

/// Every so often while the answer is no.
const AGAIN: Duration = Duration::from_secs(15);
/// Many changes are one.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks while this process leads.
pub(in crate::controller::admission) async fn run(server: &Server, stop: &CancellationToken) {
    let labels = format!("{}={}", annotation::DELETE_GUARD, annotation::FINISH);
    let mut runs = HookRuns::watch(server.clone(), "the HookRuns of evictions", &labels, stop.clone());
    let mut asked = HashMap::new();
    while !stop.is_cancelled() {
        asked.retain(|_, at: &mut Instant| at.elapsed() < AGAIN);
        for run in runs.list().iter().filter(|run| run.is_completed() || run.is_approved()) {
            let uid = run.uid().unwrap_or_default();
            if let Entry::Vacant(place) = asked.entry(uid) {
                place.insert(Instant::now());
                if let Err(error) = delete(server, run).await {
                    tracing::info!("an eviction of a guarded pod: {error}");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(AGAIN) => {}
            () = async { runs.changed().await; sleep(PAUSE).await } => {}
        }
    }
}

/// Has the pod of `run` deleted, unless it is gone or going.
async fn delete(server: &Server, run: &Run) -> Result<(), Error> {
    let namespace = run.namespace().unwrap_or_default();
    let Some(owner) = run.owner_references().iter().find(|owner| owner.kind == "Pod") else { return Ok(()) };
    let Some(pod) = server.whole_pod(&namespace, &owner.name).await? else { return Ok(()) };
    let uid = pod.uid().unwrap_or_default();
    if uid != owner.uid || pod.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let version = pod.resource_version().unwrap_or_default();
    let pod = PodRef { name: owner.name.clone(), uid, version };
    match server.delete_pod(&namespace, &pod, Deletion::Graceful).await {
        // Gone, or changed meanwhile: the next look tells.
        Err(error) if matches!(error.class(), Class::Gone | Class::Refused) => Ok(()),
        deleted => deleted.map(drop),
    }
}
