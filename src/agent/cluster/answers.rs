//! Writes the results of the agent in a cluster: the status annotation and the events of each pod.
//!
//! Each pod with pending writes has its own task, so that a pod whose writes fail does not delay other pods. The
//! number of concurrent writes is bounded, and shared fairly among namespaces: an admission webhook may delay the writes
//! in one of them. Per pod, only the newest status and a few events are held. `outbox` decides what to write and when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::agent::announce::{self, Announcement};
use crate::agent::cluster::metrics::Writes;
use crate::agent::cluster::outbox::{Next, Outbox};
use crate::agent::cluster::unwritten;
use crate::agent::request_source::{Key, StatusSink};
use crate::api::pod_ref::PodRef;
use crate::api::request::Request;
use crate::api::status::Status;
use crate::cluster::error::Error;
use crate::cluster::event::ObjectEvent;
use crate::cluster::groups::GroupRestarts;
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::failure::Class;
use crate::operation::effect::Verb;
use crate::operation::snapshot::GroupSignal;
use crate::process::backoff::Backoff;
use crate::process::clock;
use crate::process::log::chain;
use crate::process::permits::Permits;

/// The pauses after failed writes.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// The number of concurrent writes.
const MAX_WRITES: usize = 8;
/// How long a starting process waits for the first list of pods. It does not wait longer, because a container that
/// is down waits as well.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// How long the process waits for pending writes when it stops. The journal holds the statuses anyway.
const LAST_WRITES: Duration = Duration::from_secs(3);
/// How long after the end of a request a starting process writes the event of that end, which an earlier one may not have
/// written: if the pod has the status, and if it does not. API servers keep events for an hour.
const RECENT: SignedDuration = SignedDuration::from_mins(1);
const EVENTS_STAY: SignedDuration = SignedDuration::from_hours(1);

/// The pending statuses and events of all pods. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Answers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pods: NodePods,
    groups: GroupRestarts,
    writes: Writes,
    permits: Permits,
    /// Cancelled once the statuses on the pods have been compared with the journal. Nothing is written before that.
    open: CancellationToken,
    state: Mutex<State>,
    /// The number of tasks with pending writes.
    writing: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    outboxes: HashMap<PodRef, PodAnswers>,
    /// The last statuses from the journal, held until they have been compared with the statuses on the pods.
    recalled: Vec<(PodRef, Status)>,
    /// True once the statuses of group restarts on the pods have been compared with the group restarts in progress.
    groups_compared: bool,
}

#[derive(Debug, Default)]
struct PodAnswers {
    outbox: Outbox,
    /// Wakes the write task of the pod. `Some` as long as that task runs.
    task: Option<Arc<Notify>>,
}

impl Answers {
    pub(in crate::agent) fn new(pods: NodePods, groups: GroupRestarts, writes: Writes) -> Self {
        Self(Arc::new(Shared {
            pods,
            groups,
            writes,
            permits: Permits::new(MAX_WRITES),
            open: CancellationToken::new(),
            state: Mutex::default(),
            writing: watch::Sender::new(0),
        }))
    }

    /// The permits for writes to the API server; there are as many permits as concurrent writes are allowed.
    pub(super) fn permits(&self) -> Permits {
        self.0.permits.clone()
    }

    /// Compares the cache of pods with the outboxes: reports the statuses that an earlier process did not write,
    /// and drops the outboxes whose final status the pod already carries. Call it once all pods have been listed.
    pub(super) fn settle(&self) {
        let (pods, now) = (&self.0.pods, clock::now());
        if !self.0.open.is_cancelled() {
            let recalled = std::mem::take(&mut self.0.state().recalled);
            for (pod, last) in recalled {
                let Some(cached) = pods.get(&pod) else { continue };
                if !self.0.knows(&pod)
                    && unwritten::is_missing(&last, cached.status().as_ref(), requested(&cached).as_deref())
                {
                    tracing::info!(
                        %pod,
                        id = last.id,
                        "an earlier process did not write this final status: writing it now"
                    );
                    self.0.report(&pod, &last);
                    self.0.announce_end(EVENTS_STAY, &pod, &last, now);
                }
            }
            // The event follows the status: an earlier process may have written no more than that.
            for cached in pods.list() {
                if let Some(status) = cached.status() {
                    self.0.announce_end(RECENT, &cached.reference(), &status, now);
                }
            }
            self.withdraw(false, now);
            self.0.open.cancel();
        }
        if !self.0.state().groups_compared && self.0.groups.is_current() {
            self.withdraw(true, now);
            self.0.state().groups_compared = true;
        }
        let is_current = pods.is_current();
        self.0.state().outboxes.retain(|pod, entry| {
            if entry.task.is_some() {
                return true;
            }
            match pods.get(pod) {
                None => !is_current,
                Some(cached) => entry.outbox.reported().is_none_or(|reported| !has_final(&cached, reported)),
            }
        });
    }

    /// Reports the end of the requests that waited when an earlier process died, and were withdrawn since: those of group
    /// restarts or the others.
    fn withdraw(&self, in_groups: bool, now: Timestamp) {
        for cached in self.0.pods.list() {
            let (pod, status) = (cached.reference(), cached.status());
            let group = status.as_ref().and_then(|status| status.group.clone());
            let is_over = || {
                let signal = status.as_ref().map(|status| self.0.groups.signal(&status.id, &pod));
                matches!(signal, Some(GroupSignal::Over | GroupSignal::LeftOut))
            };
            if group.is_some() != in_groups || in_groups && !is_over() || self.0.knows(&pod) {
                continue;
            }
            let ended = |id: &String| status.as_ref().is_some_and(|status| status.has_ended(id));
            let requested = requested(&cached).filter(|id| !ended(id));
            if let Some(withdrawn) = unwritten::withdrawn(status.as_ref(), requested.as_deref(), now) {
                let withdrawn = Status { group, ..withdrawn };
                self.0.report(&pod, &withdrawn);
                self.0.announce_end(EVENTS_STAY, &pod, &withdrawn, now);
            }
        }
    }

    /// Waits until everything is written, at most [`LAST_WRITES`].
    pub(in crate::agent) async fn finish(&self) {
        let mut writing = self.0.writing.subscribe();
        let done = timeout(LAST_WRITES, writing.wait_for(|tasks| *tasks == 0)).await.is_ok();
        if !done {
            let left = *self.0.writing.borrow();
            tracing::warn!(
                pods = left,
                "not all statuses and events were written: the next process writes the statuses"
            );
        }
    }
}

impl StatusSink for Answers {
    fn reported(&self, key: &Key) -> Option<Status> {
        let pod = key.pod()?;
        let reported = self.0.state().outboxes.get(&pod).and_then(|entry| entry.outbox.reported().cloned());
        reported.or_else(|| self.0.pods.get(&pod)?.status())
    }

    async fn last_status_soon(&self, key: &Key) -> Option<Status> {
        let _ = timeout(FIRST_LIST, self.0.open.cancelled()).await;
        self.reported(key)
    }

    fn report(&self, key: &Key, status: &Status) {
        if let Some(pod) = key.pod() {
            self.0.report(&pod, status);
        }
    }

    fn asked(&self, key: &Key, id: &str) -> Option<bool> {
        if !self.0.pods.has_synced() {
            return None;
        }
        let cached = key.pod().and_then(|pod| self.0.pods.get(&pod));
        let asks = |pod: &Pod| requested(pod).is_some_and(|requested| requested == id);
        let reports = |pod: &Pod| pod.status().is_some_and(|status| status.id == id);
        let in_group =
            |pod: &Pod| matches!(self.0.groups.signal(id, &pod.reference()), GroupSignal::Phase(_));
        Some(cached.is_some_and(|pod| in_group(&pod) || asks(&pod) || reports(&pod)))
    }

    fn recall(&self, pod: &PodRef, last: Status) {
        self.0.state().recalled.push((pod.clone(), last));
    }

    fn count(&self, verb: Verb, effect_error: Option<Class>) {
        let writes = match verb {
            Verb::Gate => "gate",
            Verb::Respec => "image",
            _ => return,
        };
        self.0.writes.count(writes, effect_error);
    }

    fn announce(&self, key: &Key, announcement: Announcement) {
        if let Some(pod) = key.pod() {
            self.0.change(&pod, |outbox| outbox.announce(announcement));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn knows(&self, pod: &PodRef) -> bool {
        self.state().outboxes.get(pod).is_some_and(|entry| entry.outbox.reported().is_some())
    }

    fn report(self: &Arc<Self>, pod: &PodRef, status: &Status) {
        let status = as_published(status);
        // An outbox is dropped when the pod has its final status, and the end of an operation is reported twice: with its last
        // event, and as its result.
        if !self.knows(pod) && self.pods.get(pod).is_some_and(|cached| has_final(&cached, &status)) {
            return;
        }
        self.change(pod, |outbox| outbox.report(status, Instant::now()));
    }

    /// Announces the end of a request, if it ended less than `limit` ago.
    fn announce_end(self: &Arc<Self>, limit: SignedDuration, pod: &PodRef, status: &Status, now: Timestamp) {
        let is_recent = status.finished_at.is_some_and(|at| now.duration_since(at) < limit);
        if let Some(end) = announce::ended(status, now).filter(|_| is_recent) {
            self.change(pod, |outbox| outbox.announce(end));
        }
    }

    /// Changes the outbox of `pod`, and makes sure that a task writes its content.
    fn change(self: &Arc<Self>, pod: &PodRef, change: impl FnOnce(&mut Outbox)) {
        let mut state = self.state();
        let entry = state.outboxes.entry(pod.clone()).or_default();
        change(&mut entry.outbox);
        match &entry.task {
            Some(wake) => wake.notify_one(),
            None if entry.outbox.is_done() => {}
            None => {
                let wake = Arc::new(Notify::new());
                entry.task = Some(Arc::clone(&wake));
                self.writing.send_modify(|tasks| *tasks += 1);
                self.writes.pending.inc();
                tokio::spawn(Arc::clone(self).write(pod.clone(), wake));
            }
        }
    }

    /// Writes the content of the outbox of `pod` until nothing is left.
    async fn write(self: Arc<Self>, pod: PodRef, wake: Arc<Notify>) {
        self.open.cancelled().await;
        let mut backoff = BACKOFF;
        while let Some(next) = self.next(&pod) {
            let tried = match &next {
                Next::Status(status) => {
                    self.attempt("status", &pod, self.pods.write_status(&pod, status)).await
                }
                Next::Event(event) => {
                    self.attempt("event", &pod, self.pods.event(&pod, &reported(event))).await
                }
                Next::At(at) => {
                    tokio::select! {
                        () = sleep_until(*at) => {}
                        () = wake.notified() => {}
                    }
                    continue;
                }
                Next::Nothing => continue,
            };
            match tried {
                Ok(()) => {
                    backoff.reset();
                    self.done_with(&pod, &next);
                }
                Err(error) if self.is_gone(&pod, &error) => {
                    tracing::debug!(%pod, error = chain(&error), "the pod is gone: its status and events are dropped");
                    self.give_up(&pod);
                }
                // An event that the API server rejects, for example for lack of permission, is dropped: it is not
                // worth a retry.
                Err(error) if matches!(next, Next::Event(_)) && !error.class().is_unavailable() => {
                    tracing::error!(%pod, error = chain(&error), "an event cannot be written");
                    self.done_with(&pod, &next);
                }
                Err(error) => {
                    // An unreachable API server is logged once, by the watch of the pods.
                    if !error.class().is_unavailable() && backoff.is_first() {
                        tracing::error!(%pod, error = chain(&error), "a status cannot be written: retrying");
                    }
                    sleep(backoff.pause()).await;
                }
            }
        }
        self.writes.pending.dec();
        self.writing.send_modify(|tasks| *tasks -= 1);
    }

    /// Returns the next write. `None` if there is nothing to write; the task of the pod is then removed.
    fn next(&self, pod: &PodRef) -> Option<Next> {
        let mut state = self.state();
        let entry = state.outboxes.get_mut(pod)?;
        let next = entry.outbox.next(Instant::now());
        if next == Next::Nothing {
            entry.task = None;
            return None;
        }
        Some(next)
    }

    async fn attempt(
        &self,
        verb: &'static str,
        pod: &PodRef,
        write: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let _permit = self.permits.acquire(&pod.namespace).await;
        let written = write.await;
        self.writes.count(verb, written.as_ref().err().map(Error::class));
        written
    }

    /// True if the pod is gone or another pod has its name.
    fn is_gone(&self, pod: &PodRef, error: &Error) -> bool {
        match error.class() {
            Class::Gone => true,
            class if class.is_unavailable() => false,
            _ => self.pods.is_current() && self.pods.get(pod).is_none(),
        }
    }

    fn give_up(&self, pod: &PodRef) {
        if let Some(entry) = self.state().outboxes.get_mut(pod) {
            entry.outbox.give_up();
        }
    }

    fn done_with(&self, pod: &PodRef, next: &Next) {
        if let Some(entry) = self.state().outboxes.get_mut(pod) {
            match next {
                Next::Status(status) => entry.outbox.done_with(status),
                Next::Event(event) => entry.outbox.done_with_event(event),
                Next::At(_) | Next::Nothing => {}
            }
        }
    }
}

/// The id of the request in the pod's annotation.
fn requested(pod: &Pod) -> Option<String> {
    Request::parse(pod.request()).ok().flatten().map(|request| request.id)
}

/// Whether `status` is the end of a request, and the pod carries it.
fn has_final(cached: &Pod, status: &Status) -> bool {
    status.phase.is_terminal() && cached.status().as_ref() == Some(status)
}

/// Returns the status as the annotation yields it when read again: times there have three decimals.
fn as_published(status: &Status) -> Status {
    let again = serde_json::to_vec(status).and_then(|text| serde_json::from_slice(&text));
    again.unwrap_or_else(|_| status.clone())
}

fn reported(event: &Announcement) -> ObjectEvent {
    ObjectEvent {
        reason: event.reason.to_owned(),
        warning: event.warning,
        note: event.note.clone(),
        at: event.at,
    }
}
