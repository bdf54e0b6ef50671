//! HookRuns of operations that were over before this process began, and that the process before did not get to put away.
//!
//! What failed stays, for somebody to look at. What is open is left to its operation.

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

/// How soon to try again while the API server is away.
const AGAIN: Duration = Duration::from_secs(10);

/// The operations that an earlier process has ended: namespace and name of the pod, and the id as a label shows it.
#[derive(Debug)]
pub struct Forgotten(HashSet<(String, String, String)>);

impl Forgotten {
    /// To be asked for before the first operation of this process: what ends later is put away by itself. Where the journal
    /// cannot be listed, they stay.
    pub async fn of(journal: &Journal) -> Self {
        let mut ended = HashSet::new();
        let entries = journal.all().await.unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "the HookRuns of ended operations stay");
            Vec::new()
        });
        for entry in entries.into_iter().flatten() {
            let of_pod = |id: &String| (entry.pod.namespace.clone(), entry.pod.name.clone(), label_value(id));
            ended.extend(entry.finished.iter().map(of_pod));
        }
        Self(ended)
    }

    /// Deletes their runs, as soon as the runs of this node are known.
    pub async fn put_away(self, server: Server, mut runs: HookRuns) {
        while !runs.has_synced() {
            runs.changed().await;
        }
        for run in runs.list().into_iter().filter(|run| self.holds(run)) {
            let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
            let uid = run.uid().unwrap_or_default();
            while let Err(error) = server.delete_hook_run(&namespace, &name, &uid).await {
                if !error.class().is_away() {
                    tracing::warn!(error = chain(&error), "the HookRun of an ended operation stays");
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
