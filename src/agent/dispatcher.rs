//! Decides when each request starts: one operation per pod, and a bounded number per node that change containers at
//! once. A newer request replaces an operation that has touched nothing yet.
//!
//! Compares the requests with the running operations whenever something changes. Does not carry out anything
//! itself.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::agent::announce::{self, Announcement};
use crate::agent::metrics::Metrics;
use crate::agent::request_source::{CurrentRequests, Key, PodRequest, RequestSource, StatusSink};
use crate::agent::traces::{Recorder, Traces};
use crate::agent::work::{Begin, Ended, Postponed, Work};
use crate::api::group::{GroupProgress, GroupTask};
use crate::api::pod_ref::PodRef;
use crate::api::request::Request;
use crate::api::status::{Phase, Status};
use crate::cri::error::Error;
use crate::node::drive::{ControlHandle, Observer, OperationEvent};
use crate::node::journal::{Entry, JournalError};
use crate::node::permit::{Permit, Permits};
use crate::node::slot::Slots;
use crate::node::{self, Node, sweep};
use crate::operation::outcome::Withdrawal;
use crate::operation::preflight::Refusal;
use crate::operation::report;
use crate::process::backoff::Backoff;
use crate::process::clock;
use crate::process::log::chain;

/// The interval of the sweep for orphans, and for journals of deleted pods.
const SWEEP: Duration = Duration::from_secs(60);
/// The pause before something that could not start is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// The pauses before resuming an open operation is tried again after a journal error.
const RESUME: Backoff = Backoff::new(Duration::from_millis(20), AGAIN);
/// The pauses before unreadable journal files are read again.
const REREAD: Backoff = Backoff::new(AGAIN, Duration::from_secs(60));

/// Starts, withdraws and retries the operations of one node.
pub(super) struct Dispatcher<B> {
    node: Node,
    sink: B,
    metrics: Metrics,
    traces: Traces,
    /// Limits how many operations change containers at once.
    permits: Permits,
    /// Limits how many of them create and start containers at the same moment.
    slots: Slots,
    stop: CancellationToken,
    work: HashMap<Key, Work>,
    postponed: Postponed,
    tasks: JoinSet<(Key, Ended)>,
    /// The sweep in progress. It runs as a task, because removing a container that the runtime does not release may
    /// take long.
    sweeping: JoinSet<Result<usize, Error>>,
    /// Requests that could not start yet, including those that wait for another operation of their pod to end.
    waiting: HashMap<(Key, String), Waiting>,
    /// The listing of the journal in progress. It runs as a task, because a slow disk may delay it.
    listing: JoinSet<Listed>,
    /// Whether a listing has ended, with or without success. No request starts before that.
    has_listed: bool,
    /// The number of journal files that could not be read in the last listing.
    damaged: usize,
}

/// The content of all journal files.
type Listed = Result<Vec<Result<Entry, JournalError>>, JournalError>;

/// A request that could not start yet.
struct Waiting {
    /// When the request was first seen.
    since: Instant,
    /// The earliest time of the next attempt.
    again: Instant,
    /// The deadline of the request.
    ends: Instant,
}

impl Waiting {
    /// The state of a request that is seen for the first time.
    fn of(request: &Request) -> Self {
        let now = Instant::now();
        Self { since: now, again: now, ends: now + Duration::from_secs(request.deadline_seconds.into()) }
    }
}

/// The status of a request that has not begun, with the group restart that the request is part of.
fn in_group(status: Status, group: Option<&GroupTask>) -> Status {
    Status { group: group.map(GroupProgress::of), ..status }
}

impl<B: StatusSink> Dispatcher<B> {
    pub(super) fn new(
        node: Node,
        sink: B,
        metrics: Metrics,
        traces: Traces,
        max_operations: usize,
        stop: CancellationToken,
    ) -> Self {
        Self {
            node,
            sink,
            metrics,
            traces,
            permits: Permits::new(max_operations),
            slots: Slots::of_node(),
            stop,
            work: HashMap::new(),
            postponed: Postponed::default(),
            tasks: JoinSet::new(),
            sweeping: JoinSet::new(),
            waiting: HashMap::new(),
            listing: JoinSet::new(),
            has_listed: false,
            damaged: 0,
        }
    }

    /// Runs until the process has to stop, and then until every operation in progress has reached a safe point.
    pub(super) async fn run(mut self, mut requests: impl RequestSource) {
        let (mut backoff, mut unread) = (REREAD, None);
        self.list();
        let mut sweeps = interval(SWEEP);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.is_cancelled() {
            if unread.take_if(|at| *at <= Instant::now()).is_some() {
                self.list();
            }
            // Not before the listing: the statuses in the journal decide which statuses are written now.
            if self.has_listed
                && let Some(view) = requests.current()
            {
                self.compare(view);
            }
            let maintain = requests.maintain(&|key| self.work.contains_key(key));
            let (stop, permits) = (self.stop.clone(), self.permits.clone());
            let times = self.waiting.values().flat_map(|waiting| [waiting.again, waiting.ends]);
            let again = times.chain(maintain).chain(unread).filter(|at| *at > Instant::now()).min();
            tokio::select! {
                () = stop.cancelled() => {}
                () = requests.changed() => {}
                () = permits.returned() => {}
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                Some(listed) = self.listing.join_next() => {
                    if self.listed(listed, &requests) {
                        unread = Some(Instant::now() + backoff.pause());
                    }
                }
                _ = sweeps.tick(), if self.sweeping.is_empty() => self.sweep(),
                Some(swept) = self.sweeping.join_next() => self.swept(swept, &mut sweeps),
                () = until(again) => {}
            }
        }
        self.sweeping.abort_all();
        self.listing.abort_all();
        tracing::info!(open = self.tasks.len(), "stopping: running operations continue to a safe point");
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended);
        }
    }

    fn list(&mut self) {
        let journal = self.node.journal.clone();
        self.listing.spawn(async move { journal.all().await });
    }

    /// Processes a listing. Returns true if the journal has to be listed again because the disk could not be read.
    fn listed(&mut self, listed: Result<Listed, JoinError>, requests: &impl RequestSource) -> bool {
        let is_first = !std::mem::replace(&mut self.has_listed, true);
        match listed {
            Ok(Ok(entries)) => self.take_up(entries, requests, is_first),
            Ok(Err(error)) => {
                tracing::error!(error = chain(&error), "the journal cannot be listed: retrying");
                true
            }
            Err(error) => {
                tracing::error!(%error, "the task that lists the journal failed: the agent exits to be restarted");
                self.stop.cancel();
                false
            }
        }
    }

    /// Resumes the operations that an earlier process left open. Returns true if some entries have to be read
    /// again. `first`: no request has started before.
    fn take_up(
        &mut self,
        entries: Vec<Result<Entry, JournalError>>,
        requests: &impl RequestSource,
        first: bool,
    ) -> bool {
        let mut again = false;
        self.damaged = 0;
        for entry in entries {
            match entry {
                Ok(Entry { pod, open: Some(open), .. }) => {
                    // A command on the node has no API server: an annotation held this request.
                    let asked = open.in_cluster.then_some(true);
                    let begun = Begin::again(open.request.id, asked, open.group.is_some());
                    self.resume(requests.key(&pod), pod, begun);
                }
                Ok(Entry { pod, foreign: Some(foreign), .. }) => {
                    self.resume(requests.key(&pod), pod, Begin::again(foreign.id, None, false));
                }
                Ok(Entry { pod, last: Some(last), .. }) if first => self.sink.recall(&pod, last),
                Ok(_) => {}
                Err(copy @ JournalError::OtherName { .. }) => tracing::warn!("{copy}"),
                Err(error) => {
                    self.damaged += 1;
                    again |= error.may_pass();
                    tracing::error!(
                        error = chain(&error),
                        "the journal of a pod cannot be read: no request is executed on this pod"
                    );
                }
            }
        }
        again
    }

    fn resume(&mut self, key: Key, pod: PodRef, mut begun: Begin) {
        if self.work.contains_key(&key) {
            self.postponed.add(key, pod, begun);
            return;
        }
        begun.asked = begun.asked.or_else(|| self.sink.asked(&key, &begun.id));
        let (node, sink, of) =
            (self.node_with(self.permits.resume(&pod.namespace)), self.sink.clone(), key.clone());
        self.begin(key, begun, node, move |node, control, observer| async move {
            let node = Node { answered: sink.last_status_soon(&of).await, ..node };
            let mut backoff = RESUME;
            loop {
                match node.resume(&pod, control.clone(), &observer).await {
                    Err(node::Error::Interrupted) => return Ended::Paused,
                    Err(node::Error::Journal(error)) if error.may_pass() => {
                        tracing::warn!(%pod, error = chain(&error), "an open operation cannot be resumed yet: retrying");
                    }
                    Err(error) => {
                        tracing::error!(%pod, error = chain(&error), "an open operation cannot be resumed");
                        return Ended::Answered;
                    }
                    Ok(_) => return Ended::Answered,
                }
                if control.shutdown.run_until_cancelled(sleep(backoff.pause())).await.is_none() {
                    return Ended::Paused;
                }
            }
        });
    }

    /// Compares the running operations with the requests; starts and withdraws operations accordingly.
    fn compare(&mut self, view: CurrentRequests) {
        self.metrics.unreadable.set(count(self.damaged + view.unreadable));
        for (key, work) in &mut self.work {
            let pod_request = view.requests.get(key);
            let requested = pod_request.and_then(|pod_request| pod_request.request.as_ref().ok());
            if work.asked.is_none() {
                work.asked = self.sink.asked(key, &work.id);
            }
            // A group restart waits until another operation on the pod has ended.
            let waits = pod_request.is_some_and(|pod_request| pod_request.group.is_some());
            match requested {
                Some(request) if request.id == work.id => work.asked = Some(true),
                _ if work.in_group || waits => {}
                _ if work.asked != Some(true) => {}
                None if pod_request.is_none() && !view.current => {}
                None if pod_request.is_none() => work.report(Withdrawal::Deleted),
                None | Some(_) => work.report(Withdrawal::Replaced),
            }
        }
        if view.current {
            self.drop_withdrawn(&view);
        }
        for (key, pod_request) in view.requests {
            if !view.current || pod_request.held {
                continue;
            }
            match (self.work.get(&key), &pod_request.request) {
                (None, _) => self.serve(key, pod_request),
                (Some(work), Ok(request)) if request.id != work.id => {
                    let which = (key, request.id.clone());
                    self.waiting.entry(which).or_insert_with(|| Waiting::of(request));
                }
                (Some(_), _) => {}
            }
        }
        self.metrics.waiting.set(count(self.waiting.len()));
        self.metrics.oldest.set(self.waiting.values().map(|waiting| waiting.since).min());
    }

    /// Drops the waiting requests that no annotation holds any more.
    fn drop_withdrawn(&mut self, view: &CurrentRequests) {
        let requested: HashSet<_> = view
            .requests
            .iter()
            .filter_map(|(key, pod_request)| {
                Some((key.clone(), pod_request.request.as_ref().ok()?.id.clone()))
            })
            .collect();
        let gone: Vec<_> =
            self.waiting.keys().filter(|waiting| !requested.contains(*waiting)).cloned().collect();
        for (key, id) in gone {
            self.waiting.remove(&(key.clone(), id.clone()));
            let reported = self.sink.reported(&key);
            let has_ended = |request: &Request| {
                reported.as_ref().is_some_and(|status| status.id == id && status.has_ended(&request.id))
            };
            let next = view.requests.get(&key).map(|pod_request| pod_request.request.as_ref());
            // A request that replaced the dropped one gets a status of its own.
            let is_replaced = next.is_some_and(|next| !next.is_ok_and(has_ended));
            if !is_replaced && !self.work.contains_key(&key) {
                let (reason, why) =
                    (Withdrawal::Deleted.reason(), "the request was withdrawn while it waited");
                let status = report::not_begun(&id, Phase::Cancelled, reason, &why, clock::now());
                self.answer(&key, &Status { group: reported.and_then(|status| status.group), ..status });
            }
        }
    }

    /// Starts a request, unless it already has a final status.
    fn serve(&mut self, key: Key, pod_request: PodRequest) {
        let answered = self.sink.reported(&key);
        let request = match pod_request.request {
            Ok(request) => request,
            Err(invalid) => {
                let status = report::refused("", &Refusal::Invalid(invalid), clock::now());
                if answered.is_none_or(|answered| answered.message != status.message) {
                    self.answer(&key, &status);
                }
                return;
            }
        };
        if answered.as_ref().is_some_and(|status| status.has_ended(&request.id)) {
            return;
        }
        let now = Instant::now();
        let waits = self.waiting.get(&(key.clone(), request.id.clone()));
        if waits.is_some_and(|waiting| waiting.again > now) {
            return;
        }
        if waits.is_some_and(|waiting| waiting.ends <= now) {
            let why = "another operation on this pod or node had not ended";
            self.not_yet(&key, &request, pod_request.group.as_ref(), now, why);
            return;
        }
        let Some(permit) = self.permits.take(&key.namespace) else {
            let why = "waiting for another operation on this node to end";
            self.not_yet(&key, &request, pod_request.group.as_ref(), now, why);
            return;
        };
        let waited = waits.map_or(Duration::ZERO, |waiting| now.duration_since(waiting.since));
        let group = pod_request.group;
        let node = Node { answered, waited, group: group.clone(), ..self.node_with(permit) };
        let (sink, metrics) = (self.sink.clone(), self.metrics.clone());
        let of = key.clone();
        let event = announce::begun(&request, clock::now()).filter(|_| group.is_none());
        let begun = Begin { id: request.id.clone(), asked: Some(true), in_group: group.is_some(), event };
        self.begin(key, begun, node, move |node, control, observer| async move {
            let ended =
                carry_out(&node, &of, pod_request.uid.as_deref(), request.clone(), control, &observer).await;
            match ended {
                Ok(status) => {
                    // The journal may hold the final status of a request that ended before this process started.
                    sink.report(&of, &status);
                    Ended::Answered
                }
                Err(node::Error::Interrupted) => Ended::Paused,
                Err(error) if may_pass(&error, &of) => {
                    Ended::NotYet(Box::new(request), group, error.to_string())
                }
                Err(error) => {
                    let status =
                        report::not_begun(&request.id, Phase::Refused, error.reason(), &error, clock::now());
                    answer(&sink, &metrics, &of, &in_group(status, group.as_ref()));
                    Ended::Answered
                }
            }
        });
    }

    /// The node for one operation, with its permit and its slot.
    fn node_with(&self, permit: Permit) -> Node {
        Node { permit, slot: self.slots.slot(), ..self.node.clone() }
    }

    fn begin<F, W>(&mut self, key: Key, begun: Begin, node: Node, work: F)
    where
        F: FnOnce(Node, ControlHandle, Observer) -> W,
        W: Future<Output = Ended> + Send + 'static,
    {
        let (withdraw, withdrawal) = watch::channel(None);
        let control = ControlHandle { withdrawal, shutdown: self.stop.clone() };
        let (permit, open) = (node.permit.clone(), self.metrics.open.clone());
        let Begin { id, asked, in_group, event } = begun;
        let work = work(node, control, self.observer(&key, event));
        self.work.insert(key.clone(), Work { id, asked, in_group, withdraw });
        open.inc();
        self.tasks.spawn(async move {
            let ended = work.await;
            // Decrement before the permit is released, so that the metric never exceeds the limit.
            open.dec();
            drop(permit);
            (key, ended)
        });
    }

    /// Returns an observer that forwards the events of an operation. `begun` is announced with the first status,
    /// that is, when the operation has really started.
    fn observer(&self, key: &Key, begun: Option<Announcement>) -> Observer {
        let (sink, metrics, key) = (self.sink.clone(), self.metrics.clone(), key.clone());
        let trace = Recorder::new(self.traces.clone());
        let (begun, has_begun) = (Mutex::new(begun), AtomicBool::new(false));
        Arc::new(move |operation_event| match operation_event {
            OperationEvent::Status(status) => {
                sink.report(&key, status);
                if !has_begun.swap(true, Ordering::Relaxed) {
                    tracing::info!(pod = %key, id = status.id, "operation started");
                    if let Some(begun) = begun.lock().unwrap_or_else(PoisonError::into_inner).take() {
                        sink.announce(&key, begun);
                    }
                }
                if status.phase.is_terminal() {
                    if let Some(end) = announce::ended(status, clock::now()) {
                        sink.announce(&key, end);
                    }
                    metrics.ended(status);
                    trace.ended(&key, status);
                    let (phase, reason) = (status.phase, &status.reason);
                    tracing::info!(pod = %key, id = status.id, %phase, reason, message = status.message, "operation ended");
                }
            }
            OperationEvent::Effect { verb, container, took, effect_error } => {
                trace.effect(verb, container, took, effect_error);
                metrics.effect(verb, took, effect_error);
                sink.count(verb, effect_error);
            }
            OperationEvent::Progress(text) => tracing::debug!(pod = %key, text, "operation in progress"),
        })
    }

    fn ended(&mut self, ended: Result<(Key, Ended), JoinError>) {
        let (key, ended) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // This is a bug. The journal holds the operation; a new process resumes it.
                tracing::error!(%error, "the task of an operation failed: the agent exits to be restarted");
                self.stop.cancel();
                return;
            }
        };
        let Some(work) = self.work.remove(&key) else { return };
        let postponed = self.postponed.take(&key).filter(|_| !self.stop.is_cancelled());
        match ended {
            Ended::Answered => {
                self.waiting.remove(&(key, work.id));
            }
            Ended::NotYet(request, group, why) => {
                self.not_yet(&key, &request, group.as_ref(), Instant::now() + AGAIN, &why);
            }
            Ended::Paused => {}
        }
        if let Some((key, pod, begun)) = postponed {
            self.resume(key, pod, begun);
        }
    }

    /// Records a request that could not start: it is tried again at `again` at the earliest, until its deadline.
    fn not_yet(
        &mut self,
        key: &Key,
        request: &Request,
        group: Option<&GroupTask>,
        again: Instant,
        why: &str,
    ) {
        let which = (key.clone(), request.id.clone());
        let waiting = self.waiting.remove(&which).unwrap_or_else(|| Waiting::of(request));
        let mut status = in_group(report::pending(request, why), group);
        if Instant::now() >= waiting.ends {
            status.phase = Phase::Failed;
            "DeadlineExceeded".clone_into(&mut status.reason);
            status.finished_at = Some(clock::now());
            status.message =
                format!("the request could not start before its deadline: {why}. Nothing was touched");
            self.answer(key, &status);
            return;
        }
        self.waiting.insert(which, Waiting { again, ..waiting });
        if self
            .sink
            .reported(key)
            .is_none_or(|reported| reported.id != status.id || reported.message != status.message)
        {
            self.sink.report(key, &status);
        }
    }

    fn answer(&self, key: &Key, status: &Status) {
        answer(&self.sink, &self.metrics, key, status);
    }

    fn sweep(&mut self) {
        let (client, journal) = (self.node.client.clone(), self.node.journal.clone());
        self.sweeping.spawn(async move {
            let removed = sweep::sweep(&client, &journal, None).await?;
            if let Err(error) = sweep::remove_gone(&client, &journal).await {
                tracing::debug!(error = chain(&error), "the journals of deleted pods are removed later");
            }
            Ok(removed)
        });
    }

    fn swept(&mut self, swept: Result<Result<usize, Error>, JoinError>, sweeps: &mut Interval) {
        match swept {
            Ok(Ok(removed)) => {
                self.metrics.swept.inc_by(u64::try_from(removed).unwrap_or(u64::MAX));
            }
            Ok(Err(error)) => {
                tracing::debug!(error = chain(&error), "the sweep failed: retrying later");
                sweeps.reset_after(AGAIN);
            }
            Err(error) => {
                tracing::error!(%error, "the task of a sweep failed: the agent exits to be restarted");
                self.stop.cancel();
            }
        }
    }
}

/// Reports the final status of a request that ended before it started.
fn answer(sink: &impl StatusSink, metrics: &Metrics, key: &Key, status: &Status) {
    let (phase, reason) = (status.phase, &status.reason);
    tracing::warn!(pod = %key, id = status.id, %phase, reason, message = status.message, "request not executed");
    metrics.ended(status);
    sink.report(key, status);
    if let Some(end) = announce::ended(status, clock::now()) {
        sink.announce(key, end);
    }
}

async fn carry_out(
    node: &Node,
    key: &Key,
    uid: Option<&str>,
    request: Request,
    control: ControlHandle,
    observer: &Observer,
) -> Result<Status, node::Error> {
    let pod = match key.pod() {
        Some(pod) => pod,
        None => node.find(&key.namespace, &key.name).await?,
    };
    if uid.is_some_and(|uid| uid != pod.uid) {
        let wanted = format!("{pod} with uid {}", uid.unwrap_or_default());
        return Err(Refusal::PodNotFound(wanted).into());
    }
    node.carry_out(&pod, request, control, observer).await
}

/// True for errors that may not occur in a later attempt: the runtime is away, a command holds the lock, the disk
/// fails, or a pod that is known to be bound to this node has not started yet.
fn may_pass(error: &node::Error, key: &Key) -> bool {
    match error {
        node::Error::Runtime(error) => error.class.is_unavailable(),
        node::Error::Effect(error) => error.class.is_unavailable(),
        node::Error::Hook(error) => error.class().is_unavailable(),
        node::Error::Journal(error) => error.may_pass(),
        node::Error::Refused(Refusal::PodNotFound(_) | Refusal::SandboxNotReady(_)) => key.uid.is_some(),
        _ => false,
    }
}

/// Converts a number for a gauge.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
