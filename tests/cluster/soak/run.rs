//! What the operations, the faults and the checks of a run share: the cluster, its processes, what was observed, the
//! report. Waits without a panic: that something does not happen is a result.

use std::{collections::BTreeMap, sync::Mutex, thread, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use super::{
    checker::changed_since,
    history::{FaultSpan, Instance, Last, Settled},
    plan::{Move, node_of},
    report::Report,
    time_limit::TimeLimit,
    watch::{Watch, clock},
};
use crate::{
    agent::{Agent, Setup},
    cluster::{Cluster, Node},
    guard::fixture::controller,
    pod::{container, is_ready},
    request::spec_image,
    support::hook_server::HookServer,
    traffic::now,
};

/// Longer than an undisturbed step takes on a busy machine, and than the kubelet's delays.
pub(super) const LIMIT: Duration = Duration::from_secs(150);
const PAUSE: Duration = Duration::from_millis(40);

pub(super) struct Run<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) nodes: Vec<Node>,
    pub(super) agents: Vec<Mutex<Option<Agent>>>,
    pub(super) controller: Mutex<Option<Agent>>,
    pub(super) watch: Watch,
    pub(super) hooks: HookServer,
    pub(super) faults: Mutex<Vec<FaultSpan>>,
    pub(super) report: Mutex<Report>,
    pub(super) moves: Mutex<Vec<Move>>,
    /// With so many violations the run ends, and nothing is waited for any more.
    pub(super) most_violations: usize,
    /// The pods as they were after their last operation, by name.
    pub(super) last: Mutex<BTreeMap<String, Last>>,
}

impl Run<'_> {
    /// Polls until there is a value; `None` when the time limit is over, or when the run ends early.
    pub(super) fn within<T>(&self, limit: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        let mut limit = TimeLimit::new(limit);
        loop {
            let (began, is_disturbed) = (clock(), self.is_disturbed());
            if let Some(found) = poll() {
                return Some(found);
            }
            if limit.is_over() || self.ends_early() {
                return None;
            }
            thread::sleep(PAUSE);
            limit.add(Duration::from_nanos((clock() - began).unsigned_abs()), is_disturbed);
        }
    }

    /// True while a fault lasts.
    pub(super) fn is_disturbed(&self) -> bool {
        self.faults.lock().unwrap().iter().any(|span| span.ended.is_none())
    }

    pub(super) fn faults(&self) -> Vec<FaultSpan> {
        self.faults.lock().unwrap().clone()
    }

    pub(super) fn violation(&self, what: String) {
        let mut report = self.report.lock().unwrap();
        let violation = report.violation(now().to_string(), what, &self.moves.lock().unwrap());
        if !report.violations.iter().any(|known| known.what == violation.what) {
            eprintln!("soak: violation at {}: {}", violation.at, violation.what);
            report.violations.push(violation);
        }
    }

    /// Compares the pod on that node with what it was after its last operation.
    pub(super) fn compare(&self, pod: &str, node: usize, now: &Settled) {
        let last = self.last.lock().unwrap().remove(pod);
        if let Some(what) = last.and_then(|last| changed_since(pod, node, &last, now, &self.faults())) {
            self.violation(what);
        }
    }

    /// True if there are so many violations that the run ends.
    pub(super) fn ends_early(&self) -> bool {
        self.report.lock().unwrap().violations.len() >= self.most_violations
    }

    /// Records what did not come to an end. What was not waited for any more is not recorded.
    pub(super) fn stuck(&self, what: String) {
        if self.ends_early() {
            return;
        }
        let mut report = self.report.lock().unwrap();
        let stuck = report.violation(now().to_string(), what, &self.moves.lock().unwrap());
        eprintln!("soak: stuck at {}: {}", stuck.at, stuck.what);
        report.stuck.push(stuck);
    }

    /// Waits until the pod is settled; otherwise the last reason why it is not.
    pub(super) fn settled(&self, pod: usize) -> Result<Settled, String> {
        let mut last = String::new();
        let settled = self.within(LIMIT, || self.is_settled(&name_of(pod)).map_err(|why| last = why).ok());
        settled.ok_or(last)
    }

    pub(super) fn is_settled(&self, name: &str) -> Result<Settled, String> {
        let object = self.watch.pod(name).ok_or("it is not there")?;
        if object.metadata.deletion_timestamp.is_some() {
            return Err("it is being deleted".to_owned());
        }
        if !is_ready(&object) {
            return Err(format!("it is not Ready: {:?}", object.status.and_then(|status| status.conditions)));
        }
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let id = app_id(&object).ok_or("its container has no id")?;
        let history = self.watch.history.lock().unwrap();
        let running: Vec<&Instance> = history.present(&uid, "app").filter(|one| one.is_running).collect();
        if running.len() != 1 || id != running[0].id {
            return Err(format!("{id} is reported, and these run: {running:?}"));
        }
        let other =
            |one: &&Instance| one.gone.is_none() && (one.is_fence || one.is_standby || one.is_created);
        if let Some(other) = history.instances.values().filter(|one| one.uid == uid).find(other) {
            return Err(format!("this is left: {other:?}"));
        }
        drop(history);
        Ok(Settled { uid, id, image: spec_image(&object, "app") })
    }

    /// Starts an agent on the node. It listens when this returns, and may not be ready.
    pub(super) fn launch_agent(&self, node: usize) {
        let clock = clock_file(&self.nodes[node]);
        let setup = Setup { env: &[("INPLACE_FAULT_CLOCK", clock.as_str())], ..Setup::default() };
        let agent = Agent::launch(self.cluster, &self.nodes[node], &setup);
        *self.agents[node].lock().unwrap() = Some(agent);
    }

    pub(super) fn launch_controller(&self) {
        *self.controller.lock().unwrap() = Some(controller(self.cluster, "soak"));
    }
}

/// The file with the number of seconds by which the clock of the node's agent is set.
pub(super) fn clock_file(node: &Node) -> String {
    node.dir.join("clock").to_str().unwrap().to_owned()
}

/// The runtime's ID of the pod's container `app`.
fn app_id(object: &Pod) -> Option<String> {
    let id = container(object, "app")?.container_id.as_ref()?;
    id.split_once("://").map(|(_, id)| id.to_owned())
}

pub(super) fn name_of(pod: usize) -> String {
    format!("soak-{}-{pod}", node_of(pod) + 1)
}
