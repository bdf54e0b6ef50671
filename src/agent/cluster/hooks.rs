//! Which HookRuns an agent runs: those that carry the name of its node, with the pods of that node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::cluster::hooks::{HookRuns, Subject, Summary};
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::cluster::server::Server;
use crate::hook::engine::Engine;
use crate::hook::place::{HookPod, Place};
use crate::hook::runner::{Duty, Identity, Metrics, Ownership, Runner, RunnerContext, Terms};
use crate::operation::snapshot::PodRef;

/// HookRuns at once; most of them only wait for the next measurement.
const MAX_RUNS: usize = 512;
/// Bytes of large HookRuns at once: with what measuring them takes, a third of what an agent may have.
const MAX_BYTES: usize = 8 << 20;
/// A controller that took over while no agent was here lets go as soon as it sees this one ready. One that is gone for
/// good does not.
const PATIENCE: Duration = Duration::from_secs(300);
/// What the watch of the pods may take to bring a pod that a run names.
const SHOWS: Duration = Duration::from_secs(5);

/// Runs the HookRuns of the node of `pods`, which `runs` shows, until `stop`.
pub(in crate::agent) fn runner(
    (server, engine, runs): (Server, Engine, HookRuns),
    pods: NodePods,
    metrics: Metrics,
    stop: CancellationToken,
) -> Runner<impl Duty> {
    let node = pods.node().to_owned();
    let identity = Identity { runner: format!("node/{node}"), host: node, patience: PATIENCE };
    let context = RunnerContext {
        server,
        engine,
        runs,
        identity,
        terms: Terms::default(),
        max_runs: MAX_RUNS,
        max_bytes: MAX_BYTES,
        metrics,
        stop,
    };
    Runner::new(context, OwnNode { pods, awaited: HashMap::new() })
}

/// All of them but those that set annotations, once the node's pods are known.
struct OwnNode {
    pods: NodePods,
    /// Runs of pods that the node does not show: until when the watch of the pods is given the time to bring them.
    awaited: HashMap<String, Instant>,
}

impl Duty for OwnNode {
    fn ownership(&mut self, run: &Summary) -> Ownership {
        if run.is_for_controller() {
            return Ownership::Theirs;
        }
        if !self.pods.has_synced() {
            return Ownership::Unknown;
        }
        let key = run.uid().unwrap_or_default();
        if run.is_completed()
            || subject(run).is_none_or(|(namespace, name)| self.shown(&namespace, name).is_some())
        {
            self.awaited.remove(&key);
            return Ownership::Ours;
        }
        let now = Instant::now();
        self.awaited.retain(|_, until| *until + SHOWS > now);
        let until = *self.awaited.entry(key).or_insert(now + SHOWS);
        if until > now || !self.pods.is_current() { Ownership::Unknown } else { Ownership::Ours }
    }

    /// The pod that the arguments name, in the run's own namespace and on this node: a hook reaches no other. One that
    /// names another is not run at all.
    fn place(&self, run: &Summary) -> Result<Place, String> {
        let namespace = run.namespace().unwrap_or_default();
        // Without this, whoever makes runs would choose the node from whose network they ask.
        let Some((of, name)) = subject(run) else {
            return Err("it names no pod: what the agent of a node runs needs the argument PodName, a pod of that node"
                .to_owned());
        };
        if of != namespace {
            return Err(format!("PodNamespace is {of}, but the HookRun is in namespace {namespace}"));
        }
        let shown = self.shown(&namespace, name);
        let Some(shown) = shown else {
            let node = self.pods.node();
            return Err(format!(
                "there is no pod {namespace}/{name} on node {node}, whose agent is to run this"
            ));
        };
        let others = |owner: &OwnerReference| owner.kind == "Pod" && owner.uid != shown.api_uid();
        if run.owner_references().iter().any(others) {
            return Err(format!("the HookRun belongs to another pod than the {namespace}/{name} of now"));
        }
        let (origin, PodRef { name, uid, .. }) = (shown.origin(), shown.reference());
        Ok(Place { namespace, pod: Some(HookPod { name, uid, origin }) })
    }

    async fn changed(&mut self) {
        let now = Instant::now();
        let next = self.awaited.values().filter(|until| **until > now).min().copied();
        if self.pods.has_synced() && self.awaited.is_empty() {
            return std::future::pending().await;
        }
        tokio::select! {
            () = self.pods.changed() => {}
            () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
        }
    }
}

impl OwnNode {
    fn shown(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.list().into_iter().find(|pod| {
            let PodRef { namespace: of, name: called, .. } = pod.reference();
            of == namespace && called == name
        })
    }
}

/// Namespace and name of the pod that the arguments name, of the run's namespace unless they say another one.
fn subject(run: &Summary) -> Option<(String, &str)> {
    let Subject { namespace, name } = run.subject()?;
    Some((namespace.clone().or_else(|| run.namespace()).unwrap_or_default(), name))
}
