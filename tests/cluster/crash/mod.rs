//! Processes are killed during operations: the agent, the kubelet, the runtime, the API server, and two of them
//! at once. Every operation must end as if nothing had happened.
//! The moment does not depend on luck: a fault point stops the work on each pod where the test wants it (see
//! [`hold::Holds`]), and the process is killed when all pods are there.

mod agent;
mod api_server;
mod back_off;
pub(crate) mod hold;
mod kubelet;
mod runtime;
mod slow_start;
mod subject;
mod witness;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    agent::{Agent, Setup},
    cluster::Cluster,
    pod::eventually_or,
    scene::Shown,
};
use hold::Holds;
use subject::{Ask, Subject, Way, prepare};
use witness::Witness;

/// Time limit of a disturbed operation: a kubelet may be in back-off, or has to restart itself.
const LONG: Duration = Duration::from_secs(150);

/// A private cluster whose processes are killed.
struct Theatre {
    holds: Holds,
    witness: Witness,
    cluster: Cluster,
    _alone: MutexGuard<'static, ()>,
}

impl Theatre {
    fn open() -> Self {
        // One cluster at a time, even if the previous test panicked.
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Cluster::own();
        let node = cluster.node();
        Self { holds: Holds::below(&node.dir), witness: Witness::of(&node.endpoint), cluster, _alone: alone }
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

    /// Creates pods for these ways, ready for the first request.
    fn cast<'a>(&'a self, ways: &[Way]) -> Vec<Subject<'a>> {
        let subjects: Vec<_> = ways.iter().map(|way| Subject::create(&self.cluster, *way)).collect();
        subjects.iter().for_each(Subject::wait_ready);
        prepare(&subjects);
        subjects
    }

    /// Writes a request for each of the subjects, and returns when all of them are stopped at their points. An
    /// operation without that point has ended by then; its name is `None`.
    fn bring<'a>(&self, scenes: &[(&'a Subject<'a>, String)], round: &str) -> Vec<Scene<'a>> {
        for (subject, point) in scenes {
            self.holds.set(subject.uid(), point);
        }
        let asks: Vec<_> = scenes.iter().map(|(subject, _)| (*subject, subject.ask(round))).collect();
        let brought = asks.into_iter().map(|(subject, ask)| {
            let held_at = eventually_or(&format!("{ask:?} to come to its point or to end"), || {
                let held = self.holds.held(subject.uid());
                let is_there = held.is_some() || subject.has_ended(&ask);
                if is_there { Ok(held) } else { Err(Shown(&subject.pod)) }
            });
            Scene { subject, ask, held_at }
        });
        brought.collect()
    }

    /// Asserts that the witness saw no forbidden state.
    fn close(self) {
        self.witness.assert_clean();
    }
}

/// One operation that is disturbed.
struct Scene<'a> {
    subject: &'a Subject<'a>,
    ask: Ask,
    /// The name of the point at which it is stopped.
    held_at: Option<String>,
}

impl Scene<'_> {
    /// Asserts that it ends as if nothing had happened, with a number of preStop runs in the range.
    fn ends(&self, stops: std::ops::RangeInclusive<usize>) {
        let what = format!("{:?} held at {:?}", self.ask, self.held_at);
        self.subject.ends(&self.ask, &what, stops);
    }
}

/// Asserts that most operations are stopped at their points. Some may have missed the point because a kubelet was
/// faster.
fn assert_held(scenes: &[Scene<'_>]) {
    let missed: Vec<_> =
        scenes.iter().filter(|scene| scene.held_at.is_none()).map(|scene| &scene.ask).collect();
    assert!(missed.len() * 3 <= scenes.len(), "too many were not held up: {missed:?}");
}
