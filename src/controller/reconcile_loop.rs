//! Runs the reconciliations of one kind: several objects concurrently, each object by one reconciliation at a
//! time, in the order of the queue.
//!
//! Must not know what a reconciliation does.

use std::future::Future;
use std::hash::Hash;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::controller::queue::{Outcome, Queue};
use crate::podtask::write::PodRef;

/// Reconciliations at the same time.
const AT_ONCE: usize = 8;

/// The queue of a kind, and the reconciliations that are running.
pub(super) struct ReconcileLoop<K> {
    queue: Queue<K>,
    running: JoinSet<(K, Outcome)>,
}

impl<K: Clone + Ord + Hash + Send + 'static> ReconcileLoop<K> {
    pub(super) fn new() -> Self {
        Self { queue: Queue::default(), running: JoinSet::new() }
    }

    /// Enqueues `key` after a change. See [`Queue::enqueue`].
    pub(super) fn enqueue(&mut self, key: &K, generation: i64) {
        self.queue.enqueue(key, generation, Instant::now());
    }

    /// How many objects are due.
    pub(super) fn depth(&self) -> usize {
        self.queue.depth(Instant::now())
    }

    /// Starts the reconciliations that are due, up to the limit of concurrent ones.
    pub(super) fn begin<F>(&mut self, reconcile: impl Fn(K, Vec<PodRef>) -> F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let now = Instant::now();
        while self.has_room() {
            let Some((key, unconfirmed)) = self.queue.take(now) else { break };
            let looking = reconcile(key.clone(), unconfirmed);
            self.running.spawn(async move { (key, looking.await) });
        }
    }

    /// Returns when a reconciliation has ended, or when the next one is due and may start. None may start unless
    /// the cache is `current`.
    pub(super) async fn turned(&mut self, current: bool) {
        let next = self.queue.due().filter(|_| current && self.has_room());
        tokio::select! {
            Some(ended) = self.running.join_next() => {
                if let Ok((key, outcome)) = ended {
                    self.queue.end(&key, outcome, Instant::now());
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

    /// Aborts the running reconciliations. Another process may lead by now, so no further write is made.
    pub(super) async fn shutdown(mut self) {
        self.running.shutdown().await;
    }

    fn has_room(&self) -> bool {
        self.running.len() < AT_ONCE
    }
}
