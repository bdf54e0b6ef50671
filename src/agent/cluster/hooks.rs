//! Decides which HookRuns the agent runs: those that carry the label of its node, for pods of that node only.
//!
//! Must not run anything for a pod of another node or of another namespace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api::pod_ref::PodRef;
use crate::cluster::hooks::{HookRuns, Subject, Summary};
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::cluster::server::Server;
use crate::hook::executor::Executor;
use crate::hook::place::{HookPod, Place};
use crate::hook::runner::{Identity, Metrics, Ownership, RunSelection, Runner, RunnerContext, Terms};

/// The number of concurrent HookRuns. Most of them only wait for their next measurement.
const MAX_RUNS: usize = 512;
/// The total size in bytes of large HookRuns at once. Together with what their measurements need, this is a third
/// of the memory that an agent may use.
const MAX_BYTES: usize = 8 << 20;
/// How long another runner may take to release a HookRun before this agent takes it over. A controller that ran it
/// while the node had no agent releases it as soon as it sees this agent ready. A controller that is gone for good
/// never does.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the watch of the pods may take to deliver a pod that a HookRun names.
const WATCH_DELAY: Duration = Duration::from_secs(5);

/// Runs the HookRuns in `runs` that belong to the node of `pods`, until `stop`.
pub(in crate::agent) fn runner(
    (server, executor, runs): (Server, Executor, HookRuns),
    pods: NodePods,
    metrics: Metrics,
    stop: CancellationToken,
) -> Runner<impl RunSelection> {
    let node = pods.node().to_owned();
    let identity = Identity { runner: format!("node/{node}"), host: node, release_timeout: RELEASE_TIMEOUT };
    let context = RunnerContext {
        server,
        executor,
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

/// Accepts all HookRuns of the node except those for the controller (which set annotations), once the node's pods
/// have been listed.
struct OwnNode {
    pods: NodePods,
    /// HookRuns of pods that the cache does not hold, and the time until which the watch of the pods may deliver
    /// them.
    awaited: HashMap<String, Instant>,
}

impl RunSelection for OwnNode {
    fn ownership(&mut self, run: &Summary) -> Ownership {
        if run.is_for_controller() {
            return Ownership::Theirs;
        }
        if !self.pods.has_synced() {
            return Ownership::Unknown;
        }
        let key = run.uid().unwrap_or_default();
        if run.is_completed()
            || subject(run).is_none_or(|(namespace, name)| self.cached_pod(&namespace, name).is_some())
        {
            self.awaited.remove(&key);
            return Ownership::Ours;
        }
        let now = Instant::now();
        self.awaited.retain(|_, until| *until + WATCH_DELAY > now);
        let until = *self.awaited.entry(key).or_insert(now + WATCH_DELAY);
        if until > now || !self.pods.is_current() { Ownership::Unknown } else { Ownership::Ours }
    }

    /// Returns the pod that the arguments name. It must be in the run's own namespace and on this node, because a
    /// hook must not reach any other pod. A run that names another pod is not run at all.
    fn place(&self, run: &Summary) -> Result<Place, String> {
        let namespace = run.namespace().unwrap_or_default();
        // Without this check, the author of a run could choose the node from whose network its requests are sent.
        let Some((of, name)) = subject(run) else {
            return Err("the HookRun names no pod: set the argument PodName to a pod of this node, an agent runs no other HookRuns"
                .to_owned());
        };
        if of != namespace {
            return Err(format!("PodNamespace is {of}, but the HookRun is in namespace {namespace}"));
        }
        let pod = self.cached_pod(&namespace, name);
        let Some(pod) = pod else {
            let node = self.pods.node();
            return Err(format!(
                "pod {namespace}/{name} is not on node {node}, whose agent runs this HookRun"
            ));
        };
        let others = |owner: &OwnerReference| owner.kind == "Pod" && owner.uid != pod.api_uid();
        if run.owner_references().iter().any(others) {
            return Err(format!(
                "the HookRun belongs to an earlier pod with the name {namespace}/{name}, not to the current one"
            ));
        }
        let (origin, PodRef { name, uid, .. }) = (pod.origin(), pod.reference());
        Ok(Place { namespace, pod: Some(HookPod { name, uid, origin }), ..Place::default() })
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
    fn cached_pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.list().into_iter().find(|pod| {
            let PodRef { namespace: of, name: called, .. } = pod.reference();
            of == namespace && called == name
        })
    }
}

/// The namespace and name of the pod that the arguments name. Without a namespace argument, the namespace is that
/// of the run.
fn subject(run: &Summary) -> Option<(String, &str)> {
    let Subject { namespace, name } = run.subject()?;
    Some((namespace.clone().or_else(|| run.namespace()).unwrap_or_default(), name))
}
