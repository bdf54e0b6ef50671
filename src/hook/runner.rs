//! Runs HookRun objects: those that are its own, one task each, again and again compared with what the API server shows.
//!
//! Who runs one is written on it ([`crate::api::annotation::RUNNER`]): see [`run_lease`](self). HookRuns of an operation are
//! driven by that operation and left alone here, completed ones are history.

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
use crate::hook::engine::Engine;
use crate::hook::place::Place;
use crate::hook::runner::allowance::Allowance;
use crate::hook::runner::run_lease::HookRunLease;

pub use metrics::Metrics;

/// A run of so many bytes counts for nothing but a place: large runs of some hold up no small runs of others.
const SMALL: usize = 8 << 10;

/// Whose a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// To be run here.
    Ours,
    /// Somebody else's: what runs here is let go.
    Theirs,
    /// It cannot be told yet: what runs here goes on, nothing is begun.
    Unknown,
}

/// Which runs are run here. Asked again whenever a run has changed, or the duty itself.
pub trait Duty: Send {
    /// The runs are about to be compared.
    fn begin(&mut self) {}

    /// Whose it is.
    fn ownership(&mut self, run: &Summary) -> Ownership;

    /// Where its measurements are made, or why none may be made. Only for those that are ours.
    fn place(&self, run: &Summary) -> Result<Place, String>;

    /// Returns when some answers may be others than before.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// Who runs them.
#[derive(Clone, Debug)]
pub struct Identity {
    /// As it is written on a run: `node/NAME`, `controller`.
    pub runner: String,
    /// The machine, for events.
    pub host: String,
    /// How long another runner that is named on a run of ours is given to let it go by itself.
    pub patience: Duration,
}

/// How exactly one runs a run, without comparing clocks.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long the last word of the API server counts before it is asked again whether the run is still ours.
    pub confirm: Duration,
    /// Without a word for so long nothing is measured any more.
    pub lapse: Duration,
    /// What was taken from another runner is not measured for so long: longer than [`Self::lapse`].
    pub fence: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        let [confirm, lapse, fence] = [10, 25, 30].map(Duration::from_secs);
        Self { confirm, lapse, fence }
    }
}

/// What a runner works with.
#[derive(Clone, Debug)]
pub struct RunnerContext {
    /// Where runs are written.
    pub server: Server,
    /// Makes the measurements.
    pub engine: Engine,
    /// The runs to choose from.
    pub runs: HookRuns,
    /// Who this is.
    pub identity: Identity,
    /// The same for all runners of a cluster.
    pub terms: Terms,
    /// Runs at a time, shared by namespaces; the others wait, of a namespace the oldest first.
    pub max_runs: usize,
    /// Bytes of large runs (more than 8 KiB each) at a time, shared by namespaces in the same way.
    pub max_bytes: usize,
    /// What is counted.
    pub metrics: Metrics,
    /// Ends it.
    pub stop: CancellationToken,
}

/// The runner.
pub struct Runner<D> {
    context: Arc<RunnerContext>,
    runs: HookRuns,
    duty: D,
    /// By uid; each hears of changes of its run, and whether it is still ours. One that is dropped has no run any more.
    open: HashMap<String, Hold>,
    tasks: JoinSet<()>,
}

struct Hold {
    namespace: String,
    /// What it counts for, see [`RunnerContext::max_bytes`].
    weight: usize,
    version: Option<String>,
    ours: watch::Sender<bool>,
}

impl<D> std::fmt::Debug for Runner<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("identity", &self.context.identity).finish_non_exhaustive()
    }
}

impl<D: Duty> Runner<D> {
    /// Runs those that `duty` says.
    pub fn new(context: RunnerContext, duty: D) -> Self {
        let runs = context.runs.clone();
        Self { context: Arc::new(context), runs, duty, open: HashMap::new(), tasks: JoinSet::new() }
    }

    /// Runs them until told to stop, and then until what was measured is written, as far as the API server is there.
    pub async fn run(mut self) {
        let stop = self.context.stop.clone();
        while !stop.is_cancelled() {
            self.compare();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.runs.changed() => {}
                () = self.duty.changed() => {}
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the work on a HookRun broke off, it is taken up again");
                    }
                }
            }
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// Brings what is run nearer to what there is to run.
    fn compare(&mut self) {
        self.open.retain(|_, hold| !hold.ours.is_closed());
        if !self.runs.has_synced() {
            return;
        }
        let mut runs: Vec<_> = self.runs.list().into_iter().filter(|run| !run.is_of_operation()).collect();
        runs.sort_by_cached_key(|run| (run.creation_timestamp().map(|at| at.0), run.uid()));
        let there: HashMap<_, _> = runs.iter().filter_map(|run| Some((run.uid()?, run))).collect();
        self.open.retain(|uid, _| there.get(uid).is_some_and(|run| !run.is_deleting()));
        self.duty.begin();
        let ownerships: Vec<_> = runs.iter().map(|run| (self.duty.ownership(run), run)).collect();
        let mut waiting = Vec::new();
        for (ownership, run) in &ownerships {
            let Some(uid) = run.uid() else { continue };
            if let Some(hold) = self.open.get_mut(&uid) {
                hold.report(run, *ownership != Ownership::Theirs);
            } else if *ownership == Ownership::Ours && !run.is_completed() && !run.is_deleting() {
                waiting.push((uid, *run));
            }
        }
        let waiting = self.begin_some(waiting);
        let ours = ownerships
            .iter()
            .filter(|(ownership, _)| *ownership == Ownership::Ours)
            .map(|(_, run)| run.as_ref());
        self.context.metrics.count(ours, waiting);
    }

    /// Begins as many as there is room for: of the namespaces that have the fewest under way, the oldest first. Gives how
    /// many are left.
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
                self.begin(uid, run);
            }
        }
        queues.values().map(|queue| i64::try_from(queue.len()).unwrap_or(i64::MAX)).sum()
    }

    fn begin(&mut self, uid: String, run: &Arc<Summary>) {
        let (ours, sight) = watch::channel(true);
        let place = self.duty.place(run);
        let run_lease = HookRunLease::new(Arc::clone(&self.context), sight, run.as_ref().clone(), place);
        self.tasks.spawn(run_lease.keep());
        let namespace = run.namespace().unwrap_or_default();
        let hold = Hold { namespace, weight: weight(run), version: run.resource_version(), ours };
        self.open.insert(uid, hold);
    }
}

/// What a run counts for, see [`RunnerContext::max_bytes`].
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
