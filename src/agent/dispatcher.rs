//! Who is served when: one operation per pod, a bounded number per node that change containers, a newer wish in the place of
//! one that has touched nothing.
//!
//! Compares what is wished with what is under way, again and again; carries nothing out itself.

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
use crate::agent::request_source::{Key, PodRequest, RequestSource, StatusSink, View};
use crate::api::request::Request;
use crate::api::status::{Phase, Status};
use crate::cri::error::Error;
use crate::node::drive::{ControlHandle, Observer, OperationEvent};
use crate::node::journal::{Entry, JournalError};
use crate::node::permit::{Permit, Permits};
use crate::node::{self, Node, sweep};
use crate::operation::outcome::Withdrawal;
use crate::operation::preflight::Refusal;
use crate::operation::report;
use crate::operation::snapshot::PodRef;
use crate::process::clock;
use crate::process::log::chain;

/// How often forgotten fences are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// How soon something that could not begin is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// The first pause before an open operation is tried again whose journal says no; doubled up to [`AGAIN`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause before journal files are tried again that cannot be read.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The desk.
pub(super) struct Dispatcher<B> {
    node: Node,
    sink: B,
    metrics: Metrics,
    /// How many operations may change containers at once.
    permits: Permits,
    stop: CancellationToken,
    work: HashMap<Key, Work>,
    tasks: JoinSet<(Key, Ended)>,
    /// The sweep under way. It holds up nothing: removing what a runtime does not let go may take long.
    sweeping: JoinSet<Result<usize, Error>>,
    /// Requests that could not begin yet, those too that wait until another one of their pod has ended.
    waiting: HashMap<(Key, String), Waiting>,
    /// The listing of the journal under way: a disk may hold it up.
    listing: JoinSet<Listed>,
    /// Whether a listing has ended, however: no request begins before.
    has_listed: bool,
    /// Journal files that could not be read at the start.
    damaged: usize,
}

/// What all files of the journal hold.
type Listed = Result<Vec<Result<Entry, JournalError>>, JournalError>;

/// A request that could not begin yet.
struct Waiting {
    /// Since when it waits.
    since: Instant,
    /// When to try again.
    again: Instant,
    /// When its time is up.
    ends: Instant,
}

impl Waiting {
    /// For a request that is seen for the first time.
    fn of(request: &Request) -> Self {
        let now = Instant::now();
        Self { since: now, again: now, ends: now + Duration::from_secs(request.deadline_seconds.into()) }
    }
}

/// One pod being worked on.
struct Work {
    /// The id of the request.
    id: String,
    /// False when a command on the node that died began it: it is in no annotation, and none can withdraw it. `None`
    /// while that cannot be told.
    asked: Option<bool>,
    withdraw: watch::Sender<Option<Withdrawal>>,
}

/// How the work on a pod ended.
enum Ended {
    /// Answered.
    Answered,
    /// It could not begin; the message says why.
    NotYet(Box<Request>, String),
    /// The process is to end.
    Paused,
}

impl<B: StatusSink> Dispatcher<B> {
    pub(super) fn new(
        node: Node,
        sink: B,
        metrics: Metrics,
        max_operations: usize,
        stop: CancellationToken,
    ) -> Self {
        Self {
            node,
            sink,
            metrics,
            permits: Permits::new(max_operations),
            stop,
            work: HashMap::new(),
            tasks: JoinSet::new(),
            sweeping: JoinSet::new(),
            waiting: HashMap::new(),
            listing: JoinSet::new(),
            has_listed: false,
            damaged: 0,
        }
    }

    /// Serves until the process is to end, and then until nothing is in flight any more.
    pub(super) async fn run(mut self, mut requests: impl RequestSource) {
        let (mut pause, mut unread) = (AGAIN, None);
        self.list();
        let mut sweeps = interval(SWEEP);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.is_cancelled() {
            if unread.take_if(|at| *at <= Instant::now()).is_some() {
                self.list();
            }
            // Not before: what the journal knows as told decides what the pods are told now.
            if self.has_listed
                && let Some(view) = requests.look()
            {
                self.compare(view);
            }
            let tend = requests.tend(&|key| self.work.contains_key(key));
            let (stop, permits) = (self.stop.clone(), self.permits.clone());
            let times = self.waiting.values().flat_map(|waiting| [waiting.again, waiting.ends]);
            let again = times.chain(tend).chain(unread).filter(|at| *at > Instant::now()).min();
            tokio::select! {
                () = stop.cancelled() => {}
                () = requests.changed() => {}
                () = permits.returned() => {}
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                Some(listed) = self.listing.join_next() => {
                    if self.listed(listed, &requests) {
                        unread = Some(Instant::now() + pause);
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
                _ = sweeps.tick(), if self.sweeping.is_empty() => self.sweep(),
                Some(swept) = self.sweeping.join_next() => self.swept(swept, &mut sweeps),
                () = until(again) => {}
            }
        }
        self.sweeping.abort_all();
        self.listing.abort_all();
        tracing::info!(open = self.tasks.len(), "stopping: what is in flight is brought to a safe point");
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended);
        }
    }

    /// Begins to list the journal.
    fn list(&mut self) {
        let journal = self.node.journal.clone();
        self.listing.spawn(async move { journal.all().await });
    }

    /// Takes a listing in, and says whether it is to be tried again because the disk does not let it read.
    fn listed(&mut self, listed: Result<Listed, JoinError>, requests: &impl RequestSource) -> bool {
        let is_first = !std::mem::replace(&mut self.has_listed, true);
        match listed {
            Ok(Ok(entries)) => self.take_up(entries, requests, is_first),
            Ok(Err(error)) => {
                tracing::error!(error = chain(&error), "the journal cannot be listed, trying again");
                true
            }
            Err(error) => {
                tracing::error!(%error, "the listing of the journal broke off: stopping, to be started again");
                self.stop.cancel();
                false
            }
        }
    }

    /// Begins to end what an earlier process left open, and says whether some of it is to be read again. `first`: no request
    /// has begun before.
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
                    self.resume(requests.key(&pod), pod, &open.request.id);
                }
                Ok(Entry { pod, foreign: Some(foreign), .. }) => {
                    self.resume(requests.key(&pod), pod, &foreign.id);
                }
                Ok(Entry { pod, last: Some(last), .. }) if first => self.sink.recall(&pod, last),
                Ok(_) => {}
                Err(error) => {
                    self.damaged += 1;
                    again |= error.may_pass();
                    tracing::error!(error = chain(&error), "nothing is done to this pod");
                }
            }
        }
        again
    }

    fn resume(&mut self, key: Key, pod: PodRef, id: &str) {
        if self.work.contains_key(&key) {
            return;
        }
        let asked = self.sink.asked(&key, id);
        let (node, sink, of) = (self.node_with(self.permits.resume()), self.sink.clone(), key.clone());
        // Its begin was announced by the process that died.
        self.begin(key, id.to_owned(), asked, None, node, move |node, control, observer| async move {
            let node = Node { answered: sink.last_status_soon(&of).await, ..node };
            let mut pause = FIRST_PAUSE;
            loop {
                match node.resume(&pod, control.clone(), &observer).await {
                    Err(node::Error::Interrupted) => return Ended::Paused,
                    Err(node::Error::Journal(error)) if error.may_pass() => {
                        tracing::warn!(%pod, error = chain(&error), "an open operation cannot be taken up yet");
                    }
                    Err(error) => {
                        tracing::error!(%pod, error = chain(&error), "an open operation cannot be taken up");
                        return Ended::Answered;
                    }
                    Ok(_) => return Ended::Answered,
                }
                if control.shutdown.run_until_cancelled(sleep(pause)).await.is_none() {
                    return Ended::Paused;
                }
                pause = (pause * 2).min(AGAIN);
            }
        });
    }

    /// Brings what is under way nearer to what is wished.
    fn compare(&mut self, view: View) {
        self.metrics.unreadable.set(count(self.damaged + view.unreadable));
        for (key, work) in &mut self.work {
            let pod_request = view.requests.get(key);
            let requested = pod_request.and_then(|pod_request| pod_request.request.as_ref().ok());
            if work.asked.is_none() {
                work.asked = self.sink.asked(key, &work.id);
            }
            match requested {
                Some(request) if request.id == work.id => work.asked = Some(true),
                _ if work.asked != Some(true) => {}
                None if pod_request.is_none() && !view.current => {}
                None if pod_request.is_none() => work.report(Withdrawal::Deleted),
                None | Some(_) => work.report(Withdrawal::Replaced),
            }
        }
        if view.current {
            self.forget_waiting(&view);
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
    }

    /// Ends the waiting of what is not wished any more.
    fn forget_waiting(&mut self, view: &View) {
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
            // What took its place gets an answer of its own.
            if !view.requests.contains_key(&key) && !self.work.contains_key(&key) {
                let (reason, why) =
                    (Withdrawal::Deleted.reason(), "the request was withdrawn while it waited");
                self.answer(&key, &report::not_begun(&id, Phase::Cancelled, reason, &why, clock::now()));
            }
        }
    }

    /// Takes up a wish, unless it has been answered.
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
        if answered.as_ref().is_some_and(|status| status.id == request.id && status.phase.is_terminal()) {
            return;
        }
        let now = Instant::now();
        let waits = self.waiting.get(&(key.clone(), request.id.clone()));
        if waits.is_some_and(|waiting| waiting.again > now) {
            return;
        }
        if waits.is_some_and(|waiting| waiting.ends <= now) {
            self.not_yet(&key, &request, now, "another operation of this pod or node had not ended");
            return;
        }
        let Some(permit) = self.permits.take() else {
            self.not_yet(&key, &request, now, "waits until another operation of this node ends");
            return;
        };
        let waited = waits.map_or(Duration::ZERO, |waiting| now.duration_since(waiting.since));
        let node = Node { answered, waited, ..self.node_with(permit) };
        let (sink, metrics) = (self.sink.clone(), self.metrics.clone());
        let (of, id, begun) = (key.clone(), request.id.clone(), announce::begun(&request, clock::now()));
        self.begin(key, id, Some(true), begun, node, move |node, control, observer| async move {
            let ended =
                carry_out(&node, &of, pod_request.uid.as_deref(), request.clone(), control, &observer).await;
            match ended {
                Ok(status) => {
                    // The journal may answer for a request that ended before this process began.
                    sink.report(&of, &status);
                    Ended::Answered
                }
                Err(node::Error::Interrupted) => Ended::Paused,
                Err(error) if may_pass(&error, &of) => Ended::NotYet(Box::new(request), error.to_string()),
                Err(error) => {
                    let status =
                        report::not_begun(&request.id, Phase::Refused, error.reason(), &error, clock::now());
                    answer(&sink, &metrics, &of, &status);
                    Ended::Answered
                }
            }
        });
    }

    /// The engine for one operation.
    fn node_with(&self, permit: Permit) -> Node {
        Node { permit, ..self.node.clone() }
    }

    fn begin<F, W>(
        &mut self,
        key: Key,
        id: String,
        asked: Option<bool>,
        begun: Option<Announcement>,
        node: Node,
        work: F,
    ) where
        F: FnOnce(Node, ControlHandle, Observer) -> W,
        W: Future<Output = Ended> + Send + 'static,
    {
        let (withdraw, withdrawal) = watch::channel(None);
        let control = ControlHandle { withdrawal, shutdown: self.stop.clone() };
        let (permit, open) = (node.permit.clone(), self.metrics.open.clone());
        let work = work(node, control, self.observer(&key, begun));
        self.work.insert(key.clone(), Work { id, asked, withdraw });
        open.inc();
        self.tasks.spawn(async move {
            let ended = work.await;
            // Before its permit goes to the next one: never more are shown than may be open.
            open.dec();
            drop(permit);
            (key, ended)
        });
    }

    /// Passes on what happens; `begun` is told when the work has really begun.
    fn observer(&self, key: &Key, begun: Option<Announcement>) -> Observer {
        let (sink, metrics, key) = (self.sink.clone(), self.metrics.clone(), key.clone());
        let (begun, has_begun) = (Mutex::new(begun), AtomicBool::new(false));
        Arc::new(move |operation_event| match operation_event {
            OperationEvent::Status(status) => {
                sink.report(&key, status);
                if !has_begun.swap(true, Ordering::Relaxed) {
                    tracing::info!(pod = %key, id = status.id, "begun");
                    if let Some(begun) = begun.lock().unwrap_or_else(PoisonError::into_inner).take() {
                        sink.announce(&key, begun);
                    }
                }
                if let Some(end) = announce::ended(status, clock::now()) {
                    sink.announce(&key, end);
                    metrics.ended(status);
                    let (phase, reason) = (status.phase, &status.reason);
                    tracing::info!(pod = %key, id = status.id, %phase, reason, message = status.message, "ended");
                }
            }
            OperationEvent::Effect { verb, took, effect_error, .. } => {
                metrics.effect(verb, took, effect_error);
                sink.count(verb, effect_error);
            }
            OperationEvent::Progress(text) => tracing::debug!(pod = %key, text, "under way"),
        })
    }

    fn ended(&mut self, ended: Result<(Key, Ended), JoinError>) {
        let (key, ended) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // A bug. The journal holds the operation; a new process takes it up.
                tracing::error!(%error, "the work on a pod broke off: stopping, to be started again");
                self.stop.cancel();
                return;
            }
        };
        let Some(work) = self.work.remove(&key) else { return };
        match ended {
            Ended::Answered => {
                self.waiting.remove(&(key, work.id));
            }
            Ended::NotYet(request, why) => self.not_yet(&key, &request, Instant::now() + AGAIN, &why),
            Ended::Paused => {}
        }
    }

    /// A request that could not begin: `again` at the earliest, until its deadline.
    fn not_yet(&mut self, key: &Key, request: &Request, again: Instant, why: &str) {
        let which = (key.clone(), request.id.clone());
        let waiting = self.waiting.remove(&which).unwrap_or_else(|| Waiting::of(request));
        let mut status = report::pending(request, why);
        if Instant::now() >= waiting.ends {
            status.phase = Phase::Failed;
            "DeadlineExceeded".clone_into(&mut status.reason);
            status.finished_at = Some(clock::now());
            status.message = format!("it could not begin before its deadline: {why}. Nothing was touched");
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
            if let Err(error) = sweep::forget_gone(&client, &journal).await {
                tracing::debug!(error = chain(&error), "pods that are gone are forgotten later");
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
                tracing::debug!(error = chain(&error), "the sweep has to wait");
                sweeps.reset_after(AGAIN);
            }
            Err(error) => {
                tracing::error!(%error, "a sweep broke off: stopping, to be started again");
                self.stop.cancel();
            }
        }
    }
}

impl Work {
    fn report(&self, withdrawal: Withdrawal) {
        self.withdraw
            .send_if_modified(|reported| reported.is_none().then(|| *reported = Some(withdrawal)).is_some());
    }
}

/// The answer to a request that ended before it began.
fn answer(sink: &impl StatusSink, metrics: &Metrics, key: &Key, status: &Status) {
    let (phase, reason) = (status.phase, &status.reason);
    tracing::warn!(pod = %key, id = status.id, %phase, reason, message = status.message, "not carried out");
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

/// True for what another moment may bring: the runtime is away, a command is at work, the disk says no, or a pod that is known to be
/// meant for this node has not come up yet.
fn may_pass(error: &node::Error, key: &Key) -> bool {
    match error {
        node::Error::Runtime(_, class) | node::Error::Hook(_, class) => class.is_away(),
        node::Error::Journal(error) => error.may_pass(),
        node::Error::Refused(Refusal::PodNotFound(_) | Refusal::SandboxNotReady(_)) => key.uid.is_some(),
        _ => false,
    }
}

/// As a gauge wants it.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
