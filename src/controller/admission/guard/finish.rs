//! Repeats deletions for clients that send them only once: the taint manager of Kubernetes does not retry a pod
//! whose deletion was refused. The HookRun that such a deletion waits for gets a label, and once the HookRun has
//! ended, this module requests the pod's deletion.
//!
//! Must never force: this deletion is guarded like any other. The label alone has no effect: the HookRun must be
//! the one that the guard made for this very pod, and the taints of the pod's node must still evict it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use jiff::SignedDuration;
use kube::{Resource as _, ResourceExt as _};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::hook_run::HookRunStatus;
use crate::cluster::error::{Class, Error};
use crate::cluster::hooks::{HookRuns, Summary};
use crate::cluster::server::Server;
use crate::controller::admission::guard::{Guard, is_evicted};
use crate::controller::workloads::cache::Deletion;
use crate::guard;
use crate::podtask::write::VersionedRef;
use crate::process::clock;

/// Interval between two attempts while the deletion is refused.
const AGAIN: Duration = Duration::from_secs(15);
/// Changes within this time are handled together.
const PAUSE: Duration = Duration::from_millis(200);

/// Requests deletions while this process leads.
pub(in crate::controller::admission) async fn run(of: &Guard, stop: &CancellationToken) {
    let server = &of.server;
    let labels = format!("{}={}", annotation::DELETE_GUARD, annotation::FINISH);
    let mut runs = HookRuns::watch(server.clone(), "the HookRuns of evictions", &labels, stop.clone());
    let mut asked = HashMap::new();
    let longest = of.terms.longest_hold;
    while !stop.is_cancelled() {
        asked.retain(|_, at: &mut Instant| at.elapsed() < AGAIN);
        let ends = |run: &Summary| run.is_completed() || run.is_approved() || is_over(run, longest);
        for run in runs.list().iter().filter(|run| ends(run)) {
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

/// True if the pod was held for the longest time that is configured.
fn is_over(run: &Summary, longest: Option<SignedDuration>) -> bool {
    let since = run.creation_timestamp().map(|time| time.0);
    let until = longest.zip(since).and_then(|(longest, since)| since.checked_add(longest).ok());
    until.is_some_and(|until| until <= clock::now())
}

/// Deletes the pod of `run`, unless it is gone or being deleted, or no taint evicts it any more.
async fn delete(server: &Server, run: &Summary) -> Result<(), Error> {
    let namespace = run.namespace().unwrap_or_default();
    let Some(owner) = run.owner_references().iter().find(|owner| owner.kind == "Pod") else { return Ok(()) };
    let Some(pod) = server.guarded_pod(&namespace, &owner.name).await? else { return Ok(()) };
    let unread = HookRunStatus::default();
    let attempt = guard::attempt(&pod, run.meta(), run.status().unwrap_or(&unread));
    if attempt.is_none() || pod.metadata.deletion_timestamp.is_some() || !is_evicted(server, &pod).await? {
        return Ok(());
    }
    let uid = pod.uid().unwrap_or_default();
    let version = pod.resource_version().unwrap_or_default();
    let pod = VersionedRef { name: owner.name.clone(), uid, version };
    match server.delete_pod(&namespace, &pod, Deletion::Graceful).await {
        // Gone, or changed in the meantime: the next attempt observes which.
        Err(error) if matches!(error.class(), Class::Gone | Class::Refused) => Ok(()),
        deleted => deleted.map(drop),
    }
}
