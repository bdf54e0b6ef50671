//! Processes are killed during operations: the agent, the kubelet, the runtime, the API server, and two of them
//! at once. Every operation must end as if nothing had happened.
//! The moment does not depend on luck: a fault point stops the work on each pod where the test wants it (see
//! [`Holds`]), and the process is killed when all pods are there.

mod agent;
mod api_server;
mod back_off;
mod kubelet;
mod monitor;
mod probe;
mod runtime;
mod slow_start;
mod standby;
mod start_first;
mod tested_pod;

use std::{
    cell::Cell,
    io::{self, Write as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    agent::{Agent, Setup},
    cluster::{Cluster, Lease},
    ongoing::Shown,
    support::{hold::Holds, wait::eventually_or},
};
use monitor::ContainerMonitor;
use tested_pod::{Ask, TestedPod, Way, prepare};

/// Time limit of a disturbed operation: a kubelet may be in back-off, or has to restart itself.
const LONG: Duration = Duration::from_secs(300);

/// The deadline of a request, in seconds: operations are held while others are repeated, and until a kubelet has collected twice.
const DEADLINE: u32 = 1800;

/// How often an operation is repeated that missed its point: the kubelet's timing decides which effects a replacement needs, and
/// which container a probe ends. Only a point that is missed costs another one.
const TRIES: usize = 12;

/// A cluster whose processes are killed.
struct CrashFixture {
    holds: Holds,
    monitor: ContainerMonitor,
    cluster: Lease,
    /// Maximum number of containers of each pod that were lost so far, see [`Self::kill`].
    lost: Cell<u32>,
    _alone: MutexGuard<'static, ()>,
}

impl CrashFixture {
    fn open() -> Self {
        // One cluster at a time, even if the previous test panicked: their limits leave no room for a second one on two
        // cores.
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Cluster::leased();
        let node = cluster.node();
        Self {
            holds: Holds::below(&node.dir),
            monitor: ContainerMonitor::of(&node.endpoint),
            cluster,
            lost: Cell::new(0),
            _alone: alone,
        }
    }

    /// Starts an agent with fault points. It is ready when this returns.
    fn agent(&self) -> Agent {
        let agent = self.launch();
        agent.wait_ready();
        agent
    }

    /// The same without waiting until the agent is ready.
    fn launch(&self) -> Agent {
        let env = [("INPLACE_FAULT_HOLD", self.holds.folder())];
        Agent::launch(&self.cluster, &self.cluster.node(), &Setup { env: &env, ..Setup::default() })
    }

    /// Kills the kubelet or the runtime: a container that the kubelet was about to start is lost.
    fn kill(&self, what: &str) {
        self.cluster.kill(what);
        self.lost.set(self.lost.get() + 1);
    }

    /// Creates pods for these ways, ready for the first request.
    fn create_pods<'a>(&'a self, ways: &[Way]) -> Vec<TestedPod<'a>> {
        let tested_pods: Vec<_> =
            ways.iter().map(|way| TestedPod::create(&self.cluster, *way, self.monitor.seen())).collect();
        tested_pods.iter().for_each(TestedPod::wait_ready);
        prepare(&tested_pods);
        tested_pods
    }

    /// Writes a request for each of the subjects, and returns when all of them are stopped at their points. An
    /// operation without that point has ended by then; its name is `None`.
    fn bring_to_points<'a>(
        &self,
        held_operations: &[(&'a TestedPod<'a>, String)],
        round: &str,
    ) -> Vec<HeldOperation<'a>> {
        for (tested_pod, point) in held_operations {
            self.holds.set(tested_pod.uid(), point);
        }
        let asks: Vec<_> =
            held_operations.iter().map(|(tested_pod, _)| (*tested_pod, tested_pod.ask(round))).collect();
        let brought = asks.into_iter().map(|(tested_pod, ask)| {
            let held_at = eventually_or(&format!("{ask:?} to come to its point or to end"), || {
                let held = self.holds.held(tested_pod.uid());
                let is_there = held.is_some() || tested_pod.has_ended(&ask);
                if is_there { Ok(held) } else { Err(Shown(&tested_pod.pod)) }
            });
            HeldOperation { tested_pod, ask, held_at }
        });
        brought.collect()
    }

    /// Asserts that the monitor saw no forbidden state. The cluster stays with this test until its agent has ended.
    fn close(&self) {
        self.monitor.assert_clean();
    }
}

/// One operation that is disturbed.
struct HeldOperation<'a> {
    tested_pod: &'a TestedPod<'a>,
    ask: Ask,
    /// The name of the point at which it is stopped.
    held_at: Option<String>,
}

impl HeldOperation<'_> {
    /// Asserts that it ends as if nothing had happened, with a number of preStop runs in the range.
    fn ends(&self, stops: std::ops::RangeInclusive<usize>) {
        let what = format!("{:?} held at {:?}", self.ask, self.held_at);
        self.tested_pod.ends(&self.ask, &what, stops);
    }
}

/// Asserts that most operations are stopped at their points. Some may have missed the point because a kubelet was
/// faster.
fn assert_held(held_operations: &[HeldOperation<'_>]) {
    let missed: Vec<_> = held_operations
        .iter()
        .filter(|held_operation| held_operation.held_at.is_none())
        .map(|held_operation| &held_operation.ask)
        .collect();
    assert!(missed.len() * 3 <= held_operations.len(), "too many were not held up: {missed:?}");
}

/// The points at which operations were stopped, over the rounds of a test.
#[derive(Default)]
struct Hits(Vec<(Way, String)>);

impl Hits {
    /// Takes in the operations of a round.
    fn add(&mut self, held_operations: &[HeldOperation<'_>]) {
        let hit = |held: &HeldOperation<'_>| held.held_at.clone().map(|point| (held.tested_pod.way, point));
        self.0.extend(held_operations.iter().filter_map(hit));
    }

    fn has(&self, (way, point): (Way, &str)) -> bool {
        self.0.iter().any(|(held_way, held_at)| *held_way == way && held_at == point)
    }

    /// The points at which no operation was stopped in any round.
    fn missed<'a>(&self, points: &[(Way, &'a str)]) -> Vec<(Way, &'a str)> {
        points.iter().copied().filter(|point| !self.has(*point)).collect()
    }

    /// Asserts that an operation of each way was stopped. Prints the points that were missed, also when the test
    /// passes: whether a kubelet is faster depends on the machine.
    fn assert_each_way(&self, points: &[(Way, &str)]) {
        let missed = self.missed(points);
        for (way, _) in points {
            assert!(self.0.iter().any(|(held_way, _)| held_way == way), "{way:?} never held up: {missed:?}");
        }
        if !missed.is_empty() {
            // The test framework shows what `eprintln!` prints only of a test that fails.
            let reported = format!("\nNOT EXERCISED: never held up at {missed:?}\n");
            io::stderr().write_all(reported.as_bytes()).unwrap();
        }
    }
}

#[test]
fn a_point_is_missed_unless_an_operation_of_its_way_was_stopped_there() {
    let hits = Hits(vec![(Way::Stop, "after effect Stop".to_owned())]);
    let points = [(Way::Stop, "after effect Stop"), (Way::Drain, "after effect Stop")];
    assert_eq!(hits.missed(&points), [points[1]]);
    assert!(hits.missed(&points[..1]).is_empty());
}
