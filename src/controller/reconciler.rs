//! Runs the reconciliations of one kind of objects: several objects concurrently, each object by one reconciliation
//! at a time, in the order of the queue. A kind implements [`Reconciler`] and delivers its [`Changes`].
//!
//! All state that decisions depend on is in the objects; nothing here has to survive a restart. Must not know what a
//! reconciliation does.

use std::fmt::Display;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::cluster::error::{Class, Error};
use crate::controller::queue::{Outcome, Queue};
use crate::podtask::write::VersionedRef;
use crate::process::log::chain;

/// Reconciliations at the same time.
const AT_ONCE: usize = 8;

/// The reconciliation of one kind of objects.
pub(super) trait Reconciler: Send + Sync + 'static {
    /// Identifies an object.
    type Key: Clone + Ord + Hash + Display + Send + Sync + 'static;

    /// Reconciles `key` once: observes, decides, applies. `unconfirmed` are pods whose last write has no confirmed
    /// result; those that are still unconfirmed must be in the outcome.
    ///
    /// # Errors
    /// When it could not observe, before it has written anything. It is called again after a back-off, with the same
    /// unconfirmed pods.
    fn reconcile(
        &self,
        key: &Self::Key,
        unconfirmed: Vec<VersionedRef>,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// Receives the number of objects that are due.
    fn observe_depth(&self, _due: usize) {}
}

/// The changes that the caches of a kind have received.
pub(super) trait Changes<K> {
    /// Removes and returns the objects that have changed since the last call, each with the generation of its spec.
    fn take(&mut self) -> Vec<(K, i64)>;

    /// True while the caches are as new as the API server can deliver them: only then may a reconciliation begin.
    fn is_current(&self) -> bool;

    /// Returns when something has changed since the last call. May be cancelled without losing a change.
    async fn changed(&mut self);
}

/// Reconciles until `stop` is cancelled. Running reconciliations are aborted then: another process may lead by now,
/// so no further write is made.
pub(super) async fn run<R: Reconciler>(
    reconciler: &Arc<R>,
    mut changes: impl Changes<R::Key>,
    stop: &CancellationToken,
) {
    let mut queue = Queue::default();
    let mut running = JoinSet::new();
    loop {
        for (key, generation) in changes.take() {
            queue.enqueue(&key, generation, Instant::now());
        }
        let current = changes.is_current();
        while current && running.len() < AT_ONCE {
            let Some((key, unconfirmed)) = queue.take(Instant::now()) else { break };
            let reconciler = Arc::clone(reconciler);
            running.spawn(async move {
                let before = unconfirmed.clone();
                let outcome = reconciler.reconcile(&key, unconfirmed).await;
                let outcome = outcome.unwrap_or_else(|error| failed(&key, &error, before));
                (key, outcome)
            });
        }
        reconciler.observe_depth(queue.depth(Instant::now()));
        let next = queue.due().filter(|_| current && running.len() < AT_ONCE);
        tokio::select! {
            () = stop.cancelled() => break,
            () = changes.changed() => {}
            Some(ended) = running.join_next() => {
                if let Ok((key, outcome)) = ended {
                    queue.end(&key, outcome, Instant::now());
                }
            }
            () = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
    running.shutdown().await;
}

fn failed(key: &impl Display, error: &Error, unconfirmed: Vec<VersionedRef>) -> Outcome {
    // Conflict, or the object is gone: the next reconciliation observes which.
    let stale = matches!(error.class(), Class::Refused | Class::Gone);
    if !stale {
        tracing::info!("{key}: {}", chain(error));
    }
    Outcome { failed: !stale, stale, again: None, unconfirmed }
}
