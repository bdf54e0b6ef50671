//! Who is served when: one operation per pod, a bounded number per node, a newer wish in the place of one that has
//! touched nothing.
//!
//! Compares what is wished with what is under way, again and again; carries nothing out itself.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::agent::metrics::Metrics;
use crate::agent::pods_dir::{Key, PodsDir, Scan, Wish};
use crate::agent::results::Results;
use crate::api::request::Request;
use crate::api::status::{Phase, Status};
use crate::node::drive::{Audience, Happening, Leash};
use crate::node::{self, Node, sweep};
use crate::operation::effect::Class;
use crate::operation::outcome::Withdrawal;
use crate::operation::preflight::Refusal;
use crate::operation::report;
use crate::operation::snapshot::PodRef;
use crate::operation::state::Operation;
use crate::process::clock;
use crate::process::log::chain;

/// How often forgotten fences are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// How soon something that could not begin is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The desk.
pub(super) struct Desk {
    node: Node,
    results: Results,
    metrics: Metrics,
    max_operations: usize,
    stop: CancellationToken,
    work: HashMap<Key, Work>,
    tasks: JoinSet<(Key, Ended)>,
    /// Requests that could not begin yet.
    waiting: HashMap<(Key, String), Waiting>,
    problems: BTreeMap<String, String>,
    /// Journal files that could not be read at the start.
    damaged: usize,
}

/// A request that could not begin yet.
struct Waiting {
    /// When to try again.
    again: Instant,
    /// When its time is up.
    ends: Instant,
}

/// One pod being worked on.
struct Work {
    /// The id of the request; empty while the operation of a command that died is being ended.
    id: String,
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

impl Desk {
    pub(super) fn new(
        node: Node,
        results: Results,
        metrics: Metrics,
        max_operations: usize,
        stop: CancellationToken,
    ) -> Self {
        Self {
            node,
            results,
            metrics,
            max_operations,
            stop,
            work: HashMap::new(),
            tasks: JoinSet::new(),
            waiting: HashMap::new(),
            problems: BTreeMap::new(),
            damaged: 0,
        }
    }

    /// Serves until the process is to end, and then until nothing is in flight any more.
    pub(super) async fn run(mut self, mut pods: PodsDir) {
        self.take_up();
        let mut sweeps = interval(SWEEP);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.is_cancelled() {
            match pods.scan() {
                Ok(scan) => self.compare(scan),
                Err(error) => tracing::error!(%error, "the folder of manifests cannot be read"),
            }
            let stop = self.stop.clone();
            let times = self.waiting.values().flat_map(|waiting| [waiting.again, waiting.ends]);
            let again = times.filter(|at| *at > Instant::now()).min();
            tokio::select! {
                () = stop.cancelled() => {}
                () = pods.changed() => {}
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                _ = sweeps.tick() => self.sweep(&mut sweeps).await,
                () = until(again) => {}
            }
        }
        tracing::info!(open = self.tasks.len(), "stopping: what is in flight is brought to a safe point");
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended);
        }
    }

    /// Begins to end what an earlier process left open.
    fn take_up(&mut self) {
        let entries = match self.node.journal.all() {
            Ok(entries) => entries,
            Err(error) => {
                tracing::error!(error = chain(&error), "the journal cannot be listed");
                return;
            }
        };
        for entry in entries {
            match entry {
                Ok(entry) if entry.open.is_some() => {
                    let pod = entry.pod;
                    let key = Key { namespace: pod.namespace.clone(), name: pod.name.clone() };
                    let node = self.node.clone();
                    // One that a command began is in no annotation, and none can withdraw it.
                    let ours = |open: &Operation| {
                        let told = self.results.read(&key.file_name());
                        told.filter(|told| told.id == open.request.id).map(|told| told.id)
                    };
                    let id = entry.open.as_ref().and_then(ours).unwrap_or_default();
                    self.begin(key, id, move |leash, audience| async move {
                        match node.resume(&pod, leash, &audience).await {
                            Err(node::Error::Interrupted) => Ended::Paused,
                            Err(error) => {
                                tracing::error!(%pod, error = chain(&error), "an open operation cannot be taken up");
                                Ended::Answered
                            }
                            Ok(_) => Ended::Answered,
                        }
                    });
                }
                Ok(_) => {}
                Err(error) => {
                    self.damaged += 1;
                    tracing::error!(error = chain(&error), "nothing is done to this pod");
                }
            }
        }
    }

    /// Brings what is under way nearer to what is wished.
    fn compare(&mut self, scan: Scan) {
        self.results.catch_up();
        self.report_problems(scan.problems);
        for (key, work) in &self.work {
            let wished = scan.wishes.get(key).and_then(|wish| wish.request.as_ref().ok());
            match wished {
                _ if work.id.is_empty() => {}
                None if !scan.wishes.contains_key(key) => work.tell(Withdrawal::Deleted),
                Some(request) if request.id == work.id => {}
                None | Some(_) => work.tell(Withdrawal::Replaced),
            }
        }
        let wished: HashSet<_> = scan
            .wishes
            .iter()
            .filter_map(|(key, wish)| Some((key.clone(), wish.request.as_ref().ok()?.id.clone())))
            .collect();
        self.waiting.retain(|waiting, _| wished.contains(waiting));
        for (key, wish) in scan.wishes {
            if !self.work.contains_key(&key) {
                self.serve(key, wish);
            }
        }
        self.metrics.waiting.set(count(self.waiting.len()));
    }

    /// Takes up a wish, unless it has been answered.
    fn serve(&mut self, key: Key, wish: Wish) {
        let file = key.file_name();
        let answered = self.results.read(&file);
        let request = match wish.request {
            Ok(request) => request,
            Err(invalid) => {
                let status = report::refused("", &Refusal::Invalid(invalid), clock::now());
                if answered.is_none_or(|answered| answered.message != status.message) {
                    self.answer(&file, &status);
                }
                return;
            }
        };
        if answered.is_some_and(|status| status.id == request.id && status.phase.is_terminal()) {
            return;
        }
        let now = Instant::now();
        let waits = self.waiting.get(&(key.clone(), request.id.clone()));
        if waits.is_some_and(|waiting| waiting.again > now) {
            return;
        }
        if self.work.len() >= self.max_operations {
            self.not_yet(key, &request, now, "waits until another operation of this node ends");
            return;
        }
        let node = self.node.clone();
        let (results, metrics) = (self.results.clone(), self.metrics.clone());
        let of = key.clone();
        self.begin(key, request.id.clone(), move |leash, audience| async move {
            let ended = carry_out(&node, &of, wish.uid.as_deref(), request.clone(), leash, &audience).await;
            match ended {
                Ok(status) => {
                    // The journal may answer for a request that ended before this process began.
                    results.write(&of.file_name(), &status);
                    Ended::Answered
                }
                Err(node::Error::Interrupted) => Ended::Paused,
                Err(error @ node::Error::Runtime(_, Class::Away)) => {
                    Ended::NotYet(Box::new(request), error.to_string())
                }
                Err(error) if error.reason() == "Busy" => Ended::NotYet(Box::new(request), error.to_string()),
                Err(error) => {
                    let status =
                        report::not_begun(&request.id, Phase::Refused, error.reason(), &error, clock::now());
                    tracing::warn!(
                        pod = of.file_name(),
                        reason = status.reason,
                        message = status.message,
                        "refused"
                    );
                    metrics.ended(&status);
                    results.write(&of.file_name(), &status);
                    Ended::Answered
                }
            }
        });
    }

    fn begin<F, W>(&mut self, key: Key, id: String, work: F)
    where
        F: FnOnce(Leash, Audience) -> W,
        W: Future<Output = Ended> + Send + 'static,
    {
        let (withdraw, withdrawal) = watch::channel(None);
        let leash = Leash { withdrawal, shutdown: self.stop.clone() };
        let work = work(leash, self.audience(&key));
        self.work.insert(key.clone(), Work { id, withdraw });
        self.metrics.open.inc();
        self.tasks.spawn(async move { (key, work.await) });
    }

    fn audience(&self, key: &Key) -> Audience {
        let (results, metrics, file) = (self.results.clone(), self.metrics.clone(), key.file_name());
        Arc::new(move |happening| match happening {
            Happening::Status(status) => {
                results.write(&file, status);
                if status.phase.is_terminal() {
                    metrics.ended(status);
                    let (phase, reason) = (status.phase, &status.reason);
                    tracing::info!(pod = file, id = status.id, %phase, reason, message = status.message, "ended");
                }
            }
            Happening::Effect { verb, took, trouble, .. } => metrics.effect(verb, took, trouble),
            Happening::Progress(text) => tracing::debug!(pod = file, text, "under way"),
        })
    }

    fn ended(&mut self, ended: Result<(Key, Ended), tokio::task::JoinError>) {
        self.metrics.open.dec();
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
            Ended::NotYet(request, why) => self.not_yet(key, &request, Instant::now() + AGAIN, &why),
            Ended::Paused => {}
        }
    }

    /// A request that could not begin: `again` at the earliest, until its deadline.
    fn not_yet(&mut self, key: Key, request: &Request, again: Instant, why: &str) {
        let file = key.file_name();
        let which = (key, request.id.clone());
        let whole = Duration::from_secs(request.deadline_seconds.into());
        let ends = self.waiting.get(&which).map_or_else(|| Instant::now() + whole, |waiting| waiting.ends);
        let mut status = report::pending(request, why);
        if Instant::now() >= ends {
            self.waiting.remove(&which);
            status.phase = Phase::Failed;
            "DeadlineExceeded".clone_into(&mut status.reason);
            status.finished_at = Some(clock::now());
            status.message = format!("it could not begin before its deadline: {why}. Nothing was touched");
            self.answer(&file, &status);
            return;
        }
        self.waiting.insert(which, Waiting { again, ends });
        if self.results.read(&file).is_none_or(|told| told.id != status.id || told.message != status.message)
        {
            self.results.write(&file, &status);
        }
    }

    fn answer(&self, file: &str, status: &Status) {
        tracing::warn!(pod = file, reason = status.reason, message = status.message, "not carried out");
        self.metrics.ended(status);
        self.results.write(file, status);
    }

    fn report_problems(&mut self, problems: BTreeMap<String, String>) {
        for (file, problem) in &problems {
            if self.problems.get(file) != Some(problem) {
                tracing::error!(file, problem, "a manifest cannot be used");
                let why = format!("{file}: {problem}");
                self.results.write(
                    file,
                    &report::not_begun("", Phase::Refused, "InvalidManifest", &why, clock::now()),
                );
            }
        }
        for file in self.problems.keys().filter(|file| !problems.contains_key(*file)) {
            self.results.remove(file);
        }
        self.metrics.unreadable.set(count(self.damaged + problems.len()));
        self.problems = problems;
    }

    async fn sweep(&self, sweeps: &mut tokio::time::Interval) {
        match sweep::sweep(&self.node.client, &self.node.journal, None).await {
            Ok(removed) => {
                self.metrics.swept.inc_by(u64::try_from(removed).unwrap_or(u64::MAX));
                if let Err(error) = sweep::forget_gone(&self.node.client, &self.node.journal).await {
                    tracing::debug!(error = chain(&error), "pods that are gone are forgotten later");
                }
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "the sweep has to wait");
                sweeps.reset_after(AGAIN);
            }
        }
    }
}

impl Work {
    fn tell(&self, withdrawal: Withdrawal) {
        self.withdraw.send_if_modified(|told| told.is_none().then(|| *told = Some(withdrawal)).is_some());
    }
}

async fn carry_out(
    node: &Node,
    key: &Key,
    uid: Option<&str>,
    request: Request,
    leash: Leash,
    audience: &Audience,
) -> Result<Status, node::Error> {
    let pod: PodRef = node.find(&key.namespace, &key.name).await?;
    if uid.is_some_and(|uid| uid != pod.uid) {
        let wanted = format!("{pod} with uid {}", uid.unwrap_or_default());
        return Err(Refusal::PodNotFound(wanted).into());
    }
    node.carry_out(&pod, request, leash, audience).await
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
