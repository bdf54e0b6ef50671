//! Which HookRuns an agent runs: those that carry the name of its node, with the pods of that node.

use std::time::Duration;

use kube::ResourceExt as _;
use tokio_util::sync::CancellationToken;

use crate::api::hook_template::Argument;
use crate::cluster::hooks::{HookRuns, Run};
use crate::cluster::pods::NodePods;
use crate::cluster::server::Server;
use crate::hook::engine::Engine;
use crate::hook::place::{HookPod, Place};
use crate::hook::runner::{Duty, Identity, Metrics, Office, Runner, Terms, Turn};

/// HookRuns at once; most of them only wait for the next measurement.
const MAX_RUNS: usize = 512;
/// A controller that took over while no agent was here lets go as soon as it sees this one ready. One that is gone for
/// good does not.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs the HookRuns of the node of `pods`, which `runs` shows, until `stop`.
pub(in crate::agent) fn runner(
    (server, engine, runs): (Server, Engine, HookRuns),
    pods: NodePods,
    metrics: Metrics,
    stop: CancellationToken,
) -> Runner<impl Duty> {
    let node = pods.node().to_owned();
    let identity = Identity { runner: format!("node/{node}"), host: node, patience: PATIENCE };
    let office =
        Office { server, engine, runs, identity, terms: Terms::default(), max_runs: MAX_RUNS, metrics, stop };
    Runner::new(office, OwnNode { pods })
}

/// All of them, once the node's pods are known.
struct OwnNode {
    pods: NodePods,
}

impl Duty for OwnNode {
    fn turn(&mut self, _run: &Run) -> Turn {
        if self.pods.has_synced() { Turn::Ours } else { Turn::Unknown }
    }

    /// The pod that the arguments name, if it is on this node and in the run's own namespace: a hook reaches no other.
    fn place(&self, run: &Run) -> Place {
        let namespace = run.namespace().unwrap_or_default();
        let args = run.spec().map(|spec| spec.args.as_slice()).unwrap_or_default();
        let pod = named(args, &namespace).and_then(|name| {
            let pods = self.pods.list().into_iter().map(|pod| pod.reference());
            let mut found = pods.filter(|pod| pod.namespace == namespace && pod.name == name);
            found.next().map(|pod| HookPod { name: pod.name, uid: pod.uid })
        });
        Place { namespace, pod }
    }

    async fn changed(&mut self) {
        if self.pods.has_synced() {
            return std::future::pending().await;
        }
        self.pods.changed().await;
    }
}

/// The pod that the arguments name; none when they name one of another namespace.
fn named<'a>(args: &'a [Argument], namespace: &str) -> Option<&'a str> {
    let value = |name: &str| {
        let found = args.iter().find(|arg| arg.name == name)?;
        found.value.as_deref().filter(|value| !value.is_empty())
    };
    if value("PodNamespace").is_some_and(|of| of != namespace) {
        return None;
    }
    value("PodName")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_of_another_namespace_is_not_the_hooks() {
        let arg = |name: &str, value: &str| Argument { name: name.into(), value: Some(value.into()) };
        let of = |args: &[Argument]| named(args, "shop").map(str::to_owned);
        assert_eq!(of(&[arg("PodName", "web")]).as_deref(), Some("web"));
        assert_eq!(of(&[arg("PodName", "web"), arg("PodNamespace", "shop")]).as_deref(), Some("web"));
        assert_eq!(of(&[arg("PodName", "web"), arg("PodNamespace", "kube-system")]), None);
        assert_eq!(of(&[arg("PodName", "")]), None);
        assert_eq!(of(&[Argument { name: "PodName".into(), value: None }]), None);
    }
}
