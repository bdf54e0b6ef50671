//! Runs HookRun objects: one task for each HookRun of this runner. A loop compares the set of tasks with the watched
//! objects. Must not measure anything itself (`executor` does).
//!
//! An annotation of a HookRun ([`crate::api::annotation::RUNNER`]) names its runner: see `run_lease`. HookRuns of an
//! operation are ignored here, because the operation runs them. Completed HookRuns are ignored as well.

mod allowance;
mod metrics;
mod progress;
mod run_lease;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cluster::hooks::{HookRuns, Summary};
use crate::cluster::server::Server;
use crate::hook::executor::Executor;
use crate::hook::place::Place;
use crate::hook::runner::allowance::Allowance;
use crate::hook::runner::run_lease::HookRunLease;

pub use metrics::Metrics;

/// A HookRun of at most this many bytes has no weight: large HookRuns of one namespace do not delay small ones of
/// others.
const SMALL: usize = 8 << 10;

/// Which runner a HookRun belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// This runner's.
    Ours,
    /// Another runner's. If it runs here, or an earlier process of this runner has taken it, it is released.
    Theirs,
    /// Not yet known. If it runs here, it continues; otherwise it is not started.
    Unknown,
}

/// Decides which HookRuns are run here. The runner calls it again after each change of a HookRun, and after [`Self::changed`] returns.
pub trait RunSelection: Send {
    /// Called before each comparison of the HookRuns.
    fn begin(&mut self) {}

    /// The ownership of a HookRun.
    fn ownership(&mut self, run: &Summary) -> Ownership;

    /// The pod and namespace of its measurements, or why it must not be measured. Called only for HookRuns that are
    /// `Ours`.
    fn place(&self, run: &Summary) -> Result<Place, String>;

    /// Returns when the answers may have changed.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// The identity of a runner.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The name that is written on a HookRun: `node/NAME`, `controller`.
    pub runner: String,
    /// The machine, for events.
    pub host: String,
    /// If another runner is named on a HookRun that is ours: how long to wait for its release before taking it
    /// over.
    pub release_timeout: Duration,
}

/// The durations that ensure that exactly one runner runs a HookRun, without comparing clocks.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long an answer of the API server counts as a confirmation that the HookRun is still ours.
    pub confirm: Duration,
    /// Without a confirmation for this long, measuring stops.
    pub lapse: Duration,
    /// After a takeover from another runner, measuring starts only after this delay: longer than [`Self::lapse`].
    pub fence: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        let [confirm, lapse, fence] = [10, 25, 30].map(Duration::from_secs);
        Self { confirm, lapse, fence }
    }
}

/// The dependencies and limits of a runner.
#[derive(Clone, Debug)]
pub struct RunnerContext {
    /// The API server to which HookRuns are written.
    pub server: Server,
    /// Makes the measurements.
    pub executor: Executor,
    /// The watched HookRuns.
    pub runs: HookRuns,
    /// The identity of this runner.
    pub identity: Identity,
    /// Must be the same for all runners of a cluster.
    pub terms: Terms,
    /// Maximum number of HookRuns at the same time, shared among namespaces. The others wait; within a namespace the
    /// oldest is first.
    pub max_runs: usize,
    /// Maximum size in bytes of all large HookRuns (more than 8 KiB each) at the same time, shared among namespaces
    /// in the same way.
    pub max_bytes: usize,
    /// The metrics of this runner.
    pub metrics: Metrics,
    /// Cancelled to stop the runner.
    pub stop: CancellationToken,
}

/// Runs the HookRuns that its `selection` assigns to it.
pub struct Runner<D> {
    context: Arc<RunnerContext>,
    runs: HookRuns,
    selection: D,
    /// The HookRuns that run here, by uid. Each task is notified of changes of its HookRun, and whether it is
    /// still ours. Dropping an entry means that the HookRun is gone.
    open: HashMap<String, Hold>,
    tasks: JoinSet<()>,
}

struct Hold {
    namespace: String,
    /// Its weight, see [`RunnerContext::max_bytes`].
    weight: usize,
    version: Option<String>,
    ours: watch::Sender<bool>,
}

impl<D> std::fmt::Debug for Runner<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("identity", &self.context.identity).finish_non_exhaustive()
    }
}

impl<D: RunSelection> Runner<D> {
    /// A runner of the HookRuns that `selection` selects.
    pub fn new(context: RunnerContext, selection: D) -> Self {
        let runs = context.runs.clone();
        Self { context: Arc::new(context), runs, selection, open: HashMap::new(), tasks: JoinSet::new() }
    }

    /// Runs until `stop` is cancelled, and then until the results are written, if the API server is reachable.
    pub async fn run(mut self) {
        let stop = self.context.stop.clone();
        while !stop.is_cancelled() {
            self.compare();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.runs.changed() => {}
                () = self.selection.changed() => {}
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the task of a HookRun failed: it is started again");
                    }
                }
            }
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// Starts, notifies and ends tasks according to the watched HookRuns.
    fn compare(&mut self) {
        self.open.retain(|_, hold| !hold.ours.is_closed());
        if !self.runs.has_synced() {
            return;
        }
        let mut runs: Vec<_> = self.runs.list().into_iter().filter(|run| !run.is_of_operation()).collect();
        runs.sort_by_cached_key(|run| (run.creation_timestamp().map(|at| at.0), run.uid()));
        let there: HashMap<_, _> = runs.iter().filter_map(|run| Some((run.uid()?, run))).collect();
        self.open.retain(|uid, _| there.get(uid).is_some_and(|run| !run.is_deleting()));
        self.selection.begin();
        let ownerships: Vec<_> = runs.iter().map(|run| (self.selection.ownership(run), run)).collect();
        let (mut waiting, mut to_release) = (Vec::new(), Vec::new());
        for (ownership, run) in &ownerships {
            let Some(uid) = run.uid() else { continue };
            let is_open = !run.is_completed() && !run.is_deleting();
            if let Some(hold) = self.open.get_mut(&uid) {
                hold.report(run, *ownership != Ownership::Theirs);
            } else if *ownership == Ownership::Ours && is_open {
                waiting.push((uid, *run));
            } else if *ownership == Ownership::Theirs && is_open && self.is_named_on(run) {
                to_release.push((uid, *run));
            }
        }
        for (uid, run) in to_release {
            self.begin(uid, run, false);
        }
        let waiting = self.begin_some(waiting);
        let ours = ownerships
            .iter()
            .filter(|(ownership, _)| *ownership == Ownership::Ours)
            .map(|(_, run)| run.as_ref());
        self.context.metrics.count(ours, waiting);
    }

    /// Starts as many HookRuns as the limits allow: first from the namespaces with the fewest running, of these
    /// the oldest. Returns how many still wait.
    fn begin_some(&mut self, waiting: Vec<(String, &Arc<Summary>)>) -> i64 {
        let mut allowance = Allowance::new(self.context.max_runs, self.context.max_bytes);
        for hold in self.open.values() {
            allowance.take(&hold.namespace, hold.weight);
        }
        let mut queues: BTreeMap<String, VecDeque<_>> = BTreeMap::new();
        for (age, (uid, run)) in waiting.into_iter().enumerate() {
            queues.entry(run.namespace().unwrap_or_default()).or_default().push_back((age, uid, run));
        }
        loop {
            let first = queues.iter().filter_map(|(namespace, queue)| Some((namespace, queue.front()?)));
            let may = first.filter(|(namespace, (_, _, run))| allowance.is_for(namespace, weight(run)));
            let next = may.min_by_key(|(namespace, (age, ..))| (allowance.count(namespace), *age));
            let Some(namespace) = next.map(|(namespace, _)| namespace.clone()) else { break };
            let Some(queue) = queues.get_mut(&namespace) else { break };
            if let Some((_, uid, run)) = queue.pop_front() {
                allowance.take(&namespace, weight(run));
                self.begin(uid, run, true);
            }
        }
        queues.values().map(|queue| i64::try_from(queue.len()).unwrap_or(i64::MAX)).sum()
    }

    fn is_named_on(&self, run: &Summary) -> bool {
        run.runner() == Some(self.context.identity.runner.as_str())
    }

    /// Starts the task of a HookRun; one that is not `ours` is only released.
    fn begin(&mut self, uid: String, run: &Arc<Summary>, ours: bool) {
        let (ours, sight) = watch::channel(ours);
        let place = self.selection.place(run);
        let run_lease = HookRunLease::new(Arc::clone(&self.context), sight, run.as_ref().clone(), place);
        self.tasks.spawn(run_lease.run());
        let namespace = run.namespace().unwrap_or_default();
        let hold = Hold { namespace, weight: weight(run), version: run.resource_version(), ours };
        self.open.insert(uid, hold);
    }
}

/// The weight of a HookRun, see [`RunnerContext::max_bytes`].
fn weight(run: &Summary) -> usize {
    Some(run.bytes()).filter(|bytes| *bytes > SMALL).unwrap_or(0)
}

impl Hold {
    fn report(&mut self, run: &Summary, ours: bool) {
        let version = run.resource_version();
        if self.version != version || *self.ours.borrow() != ours {
            self.version = version;
            self.ours.send_replace(ours);
        }
    }
}
