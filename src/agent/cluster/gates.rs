//! Writes the changes to readiness gates that `gate` decides: one write at a time per pod, a bounded number at
//! once, with back-off.
//!
//! No operation starts on a pod while its gate is being written: a late write that opens the gate would undo a
//! drain.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::agent::cluster::answers::BACKOFF;
use crate::agent::cluster::gate::{self, GateRepair};
use crate::agent::cluster::metrics::Writes;
use crate::agent::request_source::Key;
use crate::api::pod_ref::PodRef;
use crate::cluster::error::Error;
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::failure::Class;
use crate::node::journal::{Entry, Journal};
use crate::operation::effect::GateAction;
use crate::process::backoff::Backoff;
use crate::process::log::chain;
use crate::process::permits::Permits;

/// The time after the end of an operation during which its gate is not changed: the operation's own last write has
/// to reach the cache first.
const SETTLES: Duration = Duration::from_secs(3);
/// The interval after which the journal is read again for a gate that stays closed on purpose.
const REQUEUE: Duration = Duration::from_secs(300);
/// How long a write may take to appear in the watch before it is repeated.
const WATCH_DELAY: Duration = Duration::from_secs(10);
/// Results that wait to be taken in; a task that has one more waits.
const MAX_ENDED: usize = 64;

/// The readiness gates of the node's pods.
#[derive(Debug)]
pub(super) struct Gates {
    pods: NodePods,
    journal: Journal,
    writes: Writes,
    permits: Permits,
    /// Holds only the pods that have to wait.
    waits: HashMap<PodRef, Wait>,
    ended: mpsc::Receiver<(PodRef, Ended)>,
    end: mpsc::Sender<(PodRef, Ended)>,
}

/// The result of one attempt to repair a gate.
#[derive(Debug)]
enum Ended {
    /// The write was attempted; this is its result.
    Written(Result<(), Error>),
    /// The gate stays closed on purpose.
    StaysClosed,
    /// The journal has an open operation of the pod, or cannot be read at the moment.
    NotNow,
}

#[derive(Debug)]
struct Wait {
    under_way: bool,
    not_before: Instant,
    backoff: Backoff,
}

impl Gates {
    pub(super) fn new(pods: NodePods, journal: Journal, writes: Writes, permits: Permits) -> Self {
        let (end, ended) = mpsc::channel(MAX_ENDED);
        Self { pods, journal, writes, permits, waits: HashMap::new(), ended, end }
    }

    /// Whether the gate of this pod is being written.
    pub(super) fn is_under_way(&self, pod: &PodRef) -> bool {
        self.waits.get(pod).is_some_and(|wait| wait.under_way)
    }

    /// Waits for the end of a write.
    pub(super) async fn changed(&mut self) {
        // The channel is never closed, because this struct holds a sender.
        if let Some((pod, result)) = self.ended.recv().await {
            self.take_in(&pod, result);
        }
    }

    /// Starts the writes that are due, and returns the time of the next call, if any.
    pub(super) fn maintain(&mut self, busy: &dyn Fn(&Key) -> bool) -> Option<Instant> {
        if !self.pods.is_current() {
            return None;
        }
        let (pods, now) = (self.pods.list(), Instant::now());
        for pod in &pods {
            self.check(pod, busy, now);
        }
        self.waits.retain(|waiting, wait| {
            wait.under_way || wait.not_before > now && pods.iter().any(|pod| pod.reference() == *waiting)
        });
        self.waits.values().filter(|wait| !wait.under_way).map(|wait| wait.not_before).min()
    }

    fn check(&mut self, pod: &Pod, busy: &dyn Fn(&Key) -> bool, now: Instant) {
        let over = pod.is_deleting() || pod.is_finished();
        let reference = pod.reference();
        if self.is_under_way(&reference) {
            return;
        }
        if busy(&Key::from(&reference)) {
            let wait = Wait { under_way: false, not_before: now + SETTLES, backoff: BACKOFF };
            self.waits.insert(reference, wait);
            return;
        }
        let gate = self.pods.gate(pod).1;
        let repair = |owed| gate::repair(gate, over, false, owed);
        // The gate was left closed by a failure. Only the journal says whether it has to be opened.
        let left_closed = gate.left_closed();
        let Some(likely) = repair(left_closed.then_some(GateAction::Open)) else { return };
        // An earlier process may have written a closed gate just before it ended, so wait for that write to appear.
        let first = if likely == GateRepair::OpenNew { now } else { now + SETTLES };
        let wait = self.waits.entry(reference.clone()).or_insert(Wait {
            under_way: false,
            not_before: first,
            backoff: BACKOFF,
        });
        if wait.not_before > now {
            return;
        }
        // From here on no request starts on this pod, so that the journal entry stays valid until the write. The
        // read runs in a task, because a slow disk may delay it.
        wait.under_way = true;
        let (pods, permits, end) = (self.pods.clone(), self.permits.clone(), self.end.clone());
        let (journal, gate) = (self.journal.clone(), gate.clone());
        tokio::spawn(async move {
            let ended = match journal.load_async(&reference).await {
                Ok(Entry { open: None, owed_gate, .. }) => {
                    match gate::repair(&gate, over, false, owed_gate) {
                        Some(repair) => Ended::Written(write(&pods, &permits, &reference, repair).await),
                        None => Ended::StaysClosed,
                    }
                }
                // An open operation in the journal makes the pod busy. If the journal cannot be read, its state is
                // unknown.
                Ok(_) | Err(_) => Ended::NotNow,
            };
            // The receiver is gone when the process ends.
            let _ = end.send((reference, ended)).await;
        });
    }

    fn take_in(&mut self, pod: &PodRef, ended: Ended) {
        let Some(wait) = self.waits.get_mut(pod) else { return };
        wait.under_way = false;
        let result = match ended {
            Ended::Written(result) => result,
            Ended::StaysClosed => {
                // The end of an operation schedules the next check earlier.
                wait.not_before = Instant::now() + REQUEUE;
                return;
            }
            Ended::NotNow => {
                wait.not_before = Instant::now() + SETTLES;
                return;
            }
        };
        self.writes.count("gate", result.as_ref().err().map(Error::class));
        match result {
            Ok(()) => {
                *wait = Wait { under_way: false, not_before: Instant::now() + WATCH_DELAY, backoff: BACKOFF }
            }
            Err(error) => {
                let may_pass = error.class().is_unavailable() || error.class() == Class::Gone;
                if !may_pass && wait.backoff.is_first() {
                    tracing::error!(
                        %pod,
                        error = chain(&error),
                        "the condition of the readiness gate cannot be written: retrying"
                    );
                }
                wait.not_before = Instant::now() + wait.backoff.pause();
            }
        }
    }
}

/// Writes one gate, after waiting for a permit.
async fn write(pods: &NodePods, permits: &Permits, pod: &PodRef, repair: GateRepair) -> Result<(), Error> {
    let (open, reason, message) = repair.condition();
    tracing::info!(%pod, open, reason, message, "setting the condition of the readiness gate");
    let _permit = permits.acquire(&pod.namespace).await;
    pods.set_gate(pod, open, reason, message).await
}
