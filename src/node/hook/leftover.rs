//! Removes HookRuns of operations that ended before this process started and that the previous process did not
//! remove.
//!
//! HookRuns of failed hooks stay for inspection. HookRuns of open operations are left to their operations.

use std::collections::HashSet;
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::time::sleep;

use crate::api::annotation;
use crate::api::hook_run::HookPhase;
use crate::api::request::label_value;
use crate::cluster::hooks::{HookRuns, Summary};
use crate::cluster::server::Server;
use crate::node::journal::Journal;
use crate::process::log::chain;

/// The pause between two attempts while the API server is unreachable.
const AGAIN: Duration = Duration::from_secs(10);

/// The operations that an earlier process has ended: namespace and name of the pod, and the ID as a label value.
#[derive(Debug)]
pub struct LeftoverHookRuns(HashSet<(String, String, String)>);

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
            let of_pod = |id: &String| (entry.pod.namespace.clone(), entry.pod.name.clone(), label_value(id));
            ended.extend(entry.finished.iter().map(of_pod));
        }
        Self(ended)
    }

    /// Deletes the HookRuns of these operations, once the cache of this node's HookRuns has synced.
    pub async fn delete(self, server: Server, mut runs: HookRuns) {
        while !runs.has_synced() {
            runs.changed().await;
        }
        for run in runs.list().into_iter().filter(|run| self.holds(run)) {
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

    fn holds(&self, run: &Summary) -> bool {
        let failed = run.status().is_ok_and(|status| {
            status.phase.is_some_and(|phase| phase.is_completed() && phase != HookPhase::Successful)
        });
        let (Some(id), false) = (run.labels().get(annotation::OPERATION), failed) else { return false };
        let namespace = run.namespace().unwrap_or_default();
        let ended = |pod: &String| self.0.contains(&(namespace.clone(), pod.clone(), id.clone()));
        run.owner_references().iter().any(|owner| owner.kind == "Pod" && ended(&owner.name))
    }
}
