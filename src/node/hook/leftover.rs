//! Removes HookRuns of operations that ended before this process started and that the previous process did not
//! remove.
//!
//! HookRuns of failed hooks stay for inspection. HookRuns of open operations are left to their operations.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::time::sleep;

use crate::api::annotation;
use crate::api::hook_run::HookPhase;
use crate::api::pod_ref::PodRef;
use crate::api::request::label_value;
use crate::cluster::hooks::{HookRuns, Summary};
use crate::cluster::pods::NodePods;
use crate::cluster::server::Server;
use crate::node::journal::Journal;
use crate::process::log::chain;

/// The pause between two attempts while the API server is unreachable.
const AGAIN: Duration = Duration::from_secs(10);

/// The operations that an earlier process has ended: the pod, and the ID as a label value.
#[derive(Debug)]
pub struct LeftoverHookRuns(HashSet<(PodRef, String)>);

impl LeftoverHookRuns {
    /// Reads the ended operations from the journal. To be called before the first operation of this process:
    /// operations that end later remove their own HookRuns. If the journal cannot be listed, all HookRuns stay.
    pub async fn of(journal: &Journal) -> Self {
        let mut ended = HashSet::new();
        let entries = journal.all().await.unwrap_or_else(|error| {
            tracing::warn!(
                error = chain(&error),
                "the journal cannot be listed: the HookRuns of ended operations are not deleted"
            );
            Vec::new()
        });
        for entry in entries.into_iter().flatten() {
            ended.extend(entry.finished.iter().map(|id| (entry.pod.clone(), label_value(id))));
        }
        Self(ended)
    }

    /// Deletes the HookRuns of these operations, once the caches of this node's pods and HookRuns have synced. The
    /// HookRuns of a pod that is gone are deleted with it.
    pub async fn delete(self, server: Server, mut pods: NodePods, mut runs: HookRuns) {
        while !pods.has_synced() {
            pods.changed().await;
        }
        while !runs.has_synced() {
            runs.changed().await;
        }
        let owners: HashMap<_, _> =
            pods.list().iter().map(|pod| (pod.api_uid().to_owned(), pod.reference())).collect();
        for run in runs.list().into_iter().filter(|run| self.holds(run, &owners)) {
            let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
            let uid = run.uid().unwrap_or_default();
            while let Err(error) = server.delete_hook_run(&namespace, &name, &uid).await {
                if !error.class().is_unavailable() {
                    tracing::warn!(
                        error = chain(&error),
                        "the HookRun of an ended operation cannot be deleted"
                    );
                    break;
                }
                sleep(AGAIN).await;
            }
        }
    }

    /// `owners`: the pods by their uid at the API server. A pod of the same name may have been made again, and the
    /// journal has another uid for a static pod.
    fn holds(&self, run: &Summary, owners: &HashMap<String, PodRef>) -> bool {
        let failed = run.status().is_ok_and(|status| {
            status.phase.is_some_and(|phase| phase.is_completed() && phase != HookPhase::Successful)
        });
        let (Some(id), false) = (run.labels().get(annotation::OPERATION), failed) else { return false };
        let ended = |pod: &PodRef| self.0.contains(&(pod.clone(), id.clone()));
        run.owner_references().iter().filter_map(|owner| owners.get(&owner.uid)).any(ended)
    }
}
