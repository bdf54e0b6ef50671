//! Maintains the fences and standbys of an operation while one of its effects runs.
//!
//! Decides nothing: `operation` decides which fence is created again and which one is removed.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use crate::node::Node;
use crate::node::drive::{observe, write_within};
use crate::node::execute::EffectExecutor;
use crate::node::journal::Entry;
use crate::node::journal_writer::JournalWriter;
use crate::node::time_limits::{self, JOURNAL_LIMIT, MIN_LIMIT};
use crate::operation::effect::Effect;
use crate::operation::end::obstructing;
use crate::operation::fence::while_it_starts;
use crate::operation::snapshot::Declared;
use crate::operation::standby::terminated;
use crate::operation::state::Operation;
use crate::process::clock;

/// The interval between two checks of the fences.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits for the start of a container, and creates its fence again if it disappears before the container runs.
pub(super) async fn maintained<T>(
    node: &Node,
    operation: &Operation,
    (container, id): (&str, &str),
    mut starting: impl Future<Output = T> + Unpin,
) -> T {
    loop {
        tokio::select! {
            biased;
            result = &mut starting => return result,
            () = sleep(PAUSE) => {}
        }
        let Ok(snapshot) = observe(node, operation).await else { continue };
        if let Some(fence) = while_it_starts(operation, &snapshot, container, id) {
            let mut own = EffectExecutor::new(node, operation);
            let made = Box::pin(own.execute(operation, &fence, MIN_LIMIT, &|_| {})).await;
            tracing::debug!(pod = %operation.pod, container, effect_error = ?made.err(), "fence created again");
        }
    }
}

/// Waits for the stop of a container, and removes its fence as soon as the whole pod is to be terminated. Otherwise
/// the kubelet would try in vain to stop the fence, and terminate the pod later.
pub(super) async fn released<T>(
    node: &Node,
    operation: &Operation,
    journal: &mut StandbyJournal<'_>,
    mut ending: impl Future<Output = T> + Unpin,
) -> T {
    let leaves = || {
        let Some(pods) = &node.cluster else { return false };
        // Read before the pod is looked up: if the pod is then not found, it was deleted by force.
        let is_synced = operation.in_cluster && pods.has_synced();
        pods.declared(&operation.pod).as_ref().map_or(is_synced, Declared::leaves)
    };
    loop {
        tokio::select! {
            biased;
            result = &mut ending => return result,
            () = sleep(PAUSE) => {}
        }
        if !leaves() {
            continue;
        }
        let Ok(snapshot) = observe(node, operation).await else { continue };
        let fences: Vec<_> = obstructing(operation, &snapshot).collect();
        if fences.is_empty() {
            let standbys = terminated(operation, &snapshot, clock::now());
            return tokio::join!(ending, stopped(node, operation, journal, standbys)).0;
        }
        for fence in fences {
            let mut own = EffectExecutor::new(node, operation);
            let removed = Box::pin(own.execute(operation, &fence, MIN_LIMIT, &|_| {})).await;
            tracing::debug!(
                pod = %operation.pod,
                effect_error = ?removed.err(),
                "the pod is being terminated: fence removed"
            );
        }
    }
}

/// Journals that the stop of a standby begins: its preStop handler must not run twice if the process dies meanwhile.
pub(super) struct StandbyJournal<'a> {
    pub(super) writer: &'a mut JournalWriter,
    pub(super) entry: &'a mut Entry,
    /// The stops that were begun, and when. The caller begins them in its own state of the operation.
    pub(super) begun: &'a mut Vec<(Effect, Timestamp)>,
}

impl StandbyJournal<'_> {
    async fn begin(&mut self, operation: &Operation, standbys: &[Effect]) {
        let now = clock::now();
        let mut begun = operation.clone();
        for standby in standbys {
            begun.begin(standby, now);
            self.begun.push((standby.clone(), now));
        }
        self.entry.open = Some(begun);
        if let Err(error) = write_within(self.writer, self.entry, JOURNAL_LIMIT).await {
            tracing::error!(pod = %operation.pod, %error, "the journal cannot be written: continuing without it");
        }
    }
}

/// Stops the standbys of a pod that is being terminated, while its container stops as well.
async fn stopped(
    node: &Node,
    operation: &Operation,
    journal: &mut StandbyJournal<'_>,
    standbys: Vec<Effect>,
) {
    if standbys.is_empty() {
        return;
    }
    journal.begin(operation, &standbys).await;
    for standby in standbys {
        let mut own = EffectExecutor::new(node, operation);
        let limit = time_limits::effect(operation, &standby);
        let stopped = Box::pin(own.execute(operation, &standby, limit, &|_| {})).await;
        tracing::debug!(
            pod = %operation.pod,
            effect_error = ?stopped.err(),
            "the pod is being terminated: standby stopped"
        );
    }
}
