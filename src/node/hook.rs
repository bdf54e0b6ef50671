//! Runs the hooks of the operations on this node: reads their templates, and measures the hook that an operation
//! currently waits for.
//!
//! Decides nothing about an operation: `operation::hook` decides which hook is awaited, and what follows from its
//! verdict. A separate task measures each hook; its results are applied between two observations of the pod.

mod admission;
mod leftover;
mod mirror;
mod restore;
mod template_cache;

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus};
use crate::api::hook_template::{Argument, HookTemplateSpec};
use crate::cluster::error::Error;
use crate::cluster::hooks::HookRuns;
use crate::cluster::pods::NodePods;
use crate::cluster::server::Server;
use crate::hook::executor::Executor;
use crate::hook::place::{HookPod, Place};
use crate::hook::program::Program;
use crate::hook::runner::Metrics;
use crate::node::Node;
use crate::node::hook::mirror::Mirror;
use crate::node::hook::restore::restore;
use crate::node::journal::Journal;
use crate::operation::hook::{Hook, Moment};
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::snapshot::Origin;
use crate::operation::state::Operation;
use crate::process::clock;

pub use leftover::LeftoverHookRuns;
pub use template_cache::TemplateCache;

/// The interval of progress reports for observers to which each report is a write.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// What running hooks requires.
#[derive(Clone, Debug)]
pub struct Hooks {
    /// Makes the measurements.
    pub executor: Executor,
    /// The source of hook templates.
    pub templates: Templates,
    /// Records how long the hooks take.
    pub metrics: Metrics,
}

/// The source of hook templates.
#[derive(Clone, Debug)]
pub enum Templates {
    /// An API server. Runs are published there as HookRuns, too.
    Cluster {
        /// The API server.
        server: Server,
        /// The HookRuns of this node.
        runs: HookRuns,
    },
    /// Files.
    Files(TemplateCache),
}

impl Templates {
    /// Returns the template of this name, if it exists.
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<HookTemplateSpec>, Error> {
        Ok(match self {
            Self::Files(files) => files.get(namespace, name),
            Self::Cluster { server, .. } => {
                server.hook_template(namespace, name).await?.map(|template| template.spec)
            }
        })
    }
}

/// The hooks of one operation, while a process carries it out.
pub(super) struct HookSession {
    hooks: Option<Hooks>,
    journal: Journal,
    mirrors: Vec<Mirror>,
    pods: Option<NodePods>,
    origin: Origin,
    under_way: Option<UnderWay>,
    reported: Instant,
}

/// The run of the awaited hook. Dropping it stops the run.
struct UnderWay {
    moment: Moment,
    round: u32,
    status: watch::Receiver<HookRunStatus>,
    /// The spec with its providers, once it is known.
    spec: watch::Receiver<Option<HookRunSpec>>,
    _task: JoinSet<()>,
}

/// The result of applying new measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HookProgress {
    /// New measurements have arrived.
    pub(super) any: bool,
    /// Measurements have finished that must not be repeated: they must be journalled.
    pub(super) finished: bool,
    /// A progress report is due to observers to which each report is a write.
    pub(super) is_due: bool,
}

impl HookSession {
    pub(super) fn new(node: &Node, operation: &Operation) -> Self {
        let pods = node.cluster.as_ref();
        let origin = pods.map_or(Origin::Unknown, |pods| pods.origin(&operation.pod));
        let mut hook_session = Self {
            hooks: node.hooks.clone(),
            journal: node.journal.clone(),
            mirrors: Vec::new(),
            pods: pods.cloned(),
            origin,
            under_way: None,
            reported: Instant::now(),
        };
        hook_session.publish_started(operation);
        hook_session
    }

    /// Publishes the hooks that an earlier process has started, so that their HookRuns are cleaned up at the end.
    fn publish_started(&mut self, operation: &Operation) {
        for moment in Moment::ALL {
            if let Some(hook) = operation.hook(moment).filter(|hook| hook.status.started_at.is_some()) {
                self.publish(operation, hook);
            }
        }
    }

    /// Ensures that the awaited hook is measured, and no other.
    pub(super) fn measure_awaited(&mut self, operation: &Operation) {
        let Some(hook) = operation.awaited_hook() else {
            self.under_way = None;
            return;
        };
        let is_same = |under_way: &UnderWay| (under_way.moment, under_way.round) == (hook.moment, hook.round);
        if self.under_way.as_ref().is_some_and(is_same) {
            self.publish(operation, hook);
            return;
        }
        // Another process has admitted the operation. Without hooks in this process the operation waits for its
        // deadline.
        let Some(hooks) = self.hooks.clone() else { return };
        self.publish(operation, hook);
        self.reported = Instant::now();
        let (sender, status) = watch::channel(hook.status.clone());
        let (name, uid) = (operation.pod.name.clone(), operation.pod.uid.clone());
        let pod = HookPod { name, uid, origin: self.origin };
        let mut place =
            Place { namespace: operation.pod.namespace.clone(), pod: Some(pod), standbys: Vec::new() };
        if hook.moment == Moment::Handover {
            place.standbys = operation.targets.iter().map(|target| target.name.clone()).collect();
        }
        let mut task = JoinSet::new();
        let hook = self.with_addresses(operation, hook);
        let (moment, round) = (hook.moment, hook.round);
        let (restored, spec) = watch::channel(None);
        let run = Box::pin(run(hooks, hook.clone(), place, sender, restored));
        task.spawn(self.journal.note_panics(&operation.pod, &operation.request.id, run));
        tracing::info!(pod = %operation.pod, hook = hook.template, run = hook.run, "waiting for a hook");
        self.under_way = Some(UnderWay { moment, round, status, spec, _task: task });
    }

    /// The hook with the addresses that the pod has now: in a new sandbox it has another one.
    fn with_addresses(&self, operation: &Operation, hook: &Hook) -> Hook {
        let mut hook = hook.clone();
        if let Some(pod) = self.pods.as_ref().and_then(|pods| pods.get(&operation.pod)) {
            let (pod_ip, host_ip) = pod.addresses();
            for (name, address) in [("PodIP", pod_ip), ("HostIP", host_ip)] {
                let same =
                    |arg: &&mut Argument| arg.name == name && arg.value.is_some() && !address.is_empty();
                hook.spec.args.iter_mut().filter(same).for_each(|arg| arg.value = Some(address.to_owned()));
            }
        }
        hook
    }

    /// Applies the measurements since the last call to the operation.
    pub(super) fn take_in(&mut self, operation: &mut Operation) -> HookProgress {
        let Some(UnderWay { moment, round, status, .. }) = &mut self.under_way else {
            return HookProgress::default();
        };
        let (moment, round, status) = (*moment, *round, status.borrow_and_update().clone());
        let before = operation.hook(moment).map(|hook| &hook.status);
        if before == Some(&status) {
            return HookProgress::default();
        }
        let finished = before.map(finished) != Some(finished(&status));
        operation.measured((moment, round), status);
        if let Some(hook) = operation.hook(moment) {
            self.mirrors
                .iter()
                .filter(|mirror| mirror.is_of(hook))
                .for_each(|mirror| mirror.publish(&hook.status));
        }
        let is_due = self.reported.elapsed() >= REPORT_EVERY;
        if is_due {
            self.reported = Instant::now();
        }
        HookProgress { any: true, finished, is_due }
    }

    /// Waits until there are new measurements.
    pub(super) async fn updates(&mut self) {
        if let Some(under_way) = &mut self.under_way
            && under_way.status.changed().await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// Removes the HookRuns of the ended operation; those of failed hooks stay.
    pub(super) fn close(mut self, operation: &Operation, outcome: &Outcome) {
        self.under_way = None;
        // The pod may not have been in the cache at the begin.
        self.publish_started(operation);
        for moment in Moment::ALL {
            let Some(hook) = operation.hook(moment) else { continue };
            for mirror in self.mirrors.iter().filter(|mirror| mirror.is_of(hook)) {
                match hook.verdict() {
                    Some(HookPhase::Successful) => mirror.delete(),
                    Some(_) => mirror.keep(&hook.status),
                    None if is_late(outcome) => {
                        let message = "the deadline of the operation passed".to_owned();
                        let phase = Some(HookPhase::Failed);
                        mirror.keep(&HookRunStatus { phase, message, ..finished(&hook.status) });
                    }
                    None => mirror.delete(),
                }
            }
        }
    }

    /// Publishes a hook at the API server, if there is one.
    fn publish(&mut self, operation: &Operation, hook: &Hook) {
        let Some(Hooks { templates: Templates::Cluster { server, runs }, .. }) = &self.hooks else { return };
        if self.mirrors.iter().any(|mirror| mirror.is_of(hook)) {
            return;
        }
        // Without its owner it would not be collected with the pod. After a restart the cache may not have the pod yet.
        let Some(pods) = &self.pods else { return };
        let Some(pod) = pods.get(&operation.pod) else { return };
        let restored = self.under_way.as_ref().filter(|under_way| under_way.moment == hook.moment);
        let restored = restored.and_then(|under_way| under_way.spec.borrow().clone());
        let spec = match restored {
            Some(spec) => spec,
            // An earlier process may have created it. One without providers is not created.
            None if !hook.lacks_providers() || hook.status.started_at.is_some() => hook.spec.clone(),
            None => return,
        };
        let object = mirror::object(operation, hook, spec, pods.node(), pod.api_uid());
        self.mirrors.push(Mirror::open(server.clone(), runs.clone(), object, &hook.status));
    }
}

/// True if the deadline of the operation has passed.
fn is_late(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Failed { failure, .. } | Outcome::RolledBack(failure) => {
            matches!(failure, Failure::Deadline { .. })
        }
        Outcome::Succeeded | Outcome::Refused(_) | Outcome::Cancelled(_) => false,
    }
}

/// The part of `status` that must not be measured again.
fn finished(status: &HookRunStatus) -> HookRunStatus {
    let mut status = status.clone();
    for result in &mut status.metric_results {
        result.measurements.retain(|measurement| measurement.finished_at.is_some());
    }
    status
}

/// Runs a hook until it has a verdict, either measured or given by a person.
async fn run(
    hooks: Hooks,
    hook: Hook,
    place: Place,
    reported: watch::Sender<HookRunStatus>,
    restored: watch::Sender<Option<HookRunSpec>>,
) {
    let spec = match restore(&hooks.templates, &hook, &place.namespace).await {
        Ok(spec) => spec,
        Err(message) => {
            reported.send_replace(HookRunStatus { phase: Some(HookPhase::Error), message, ..hook.status });
            return;
        }
    };
    restored.send_replace(Some(spec.clone()));
    let report = |status: &HookRunStatus| drop(reported.send_replace(status.clone()));
    let ended = tokio::select! {
        status = hooks.executor.run(&spec, hook.status, &place, report) => status,
        status = by_hand(&hooks.templates, &spec, &place.namespace, &hook.run, &reported) => status,
    };
    hooks.metrics.ended(&ended, clock::now());
    reported.send_replace(ended);
}

/// Waits until a person approves or terminates the run; returns the resulting status.
async fn by_hand(
    templates: &Templates,
    spec: &HookRunSpec,
    namespace: &str,
    name: &str,
    reported: &watch::Sender<HookRunStatus>,
) -> HookRunStatus {
    let (Templates::Cluster { runs, .. }, Ok(program)) = (templates, Program::compile(spec)) else {
        return std::future::pending().await;
    };
    let mut runs = runs.clone();
    loop {
        if let Some(cached) = runs.get(namespace, name).filter(|cached| cached.is_of_operation()) {
            let mut status = reported.borrow().clone();
            if cached.is_approved() {
                program.approve(&mut status, clock::now());
                return status;
            }
            if cached.is_terminated() {
                program.terminate(&mut status, clock::now());
                return status;
            }
        }
        runs.changed().await;
    }
}
