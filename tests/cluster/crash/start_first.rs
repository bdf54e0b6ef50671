//! The agent is killed at each fault point of a restart and a swap with a standby, and containerd at those between which the
//! pod differs, while a client never stops asking. `standby` does the same with the kubelet.

use std::{
    collections::{HashMap, VecDeque},
    thread,
    time::Duration,
};

use inplace::api::status::Phase;
use serde_json::json;

use crate::{
    agent::{Agent, status},
    crash::{CrashFixture, DEADLINE, LONG, TRIES},
    pod::{Pod, is_ready},
    request::{adopted_without_lost, request},
    start_first::{Client, SHARED},
    support::wait::eventually,
};

/// The number of pods: each has a client, and the machine must have time left for the kubelet.
const PODS: usize = 4;

/// A way of replacing a container, and the name of a fault point on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Point {
    pub(super) swaps: bool,
    pub(super) name: String,
}

fn points() -> VecDeque<Point> {
    let restart = ["Fence", "Standby", "Stop", "Create", "Start", "Remove", "StopStandby"];
    let swap = ["Pull", "Fence", "Standby", "Respec", "Remove", "StopStandby"];
    let effects = restart.map(|verb| (false, verb)).into_iter().chain(swap.map(|verb| (true, verb)));
    let moments = ["before journal", "after journal", "before effect", "after effect"];
    let named = effects
        .flat_map(|(swaps, verb)| moments.map(|moment| Point { swaps, name: format!("{moment} {verb}") }));
    named.collect()
}

/// The points at which containerd is killed: while the standby is unproven, while it alone serves, and while both serve.
fn points_of_containerd() -> VecDeque<Point> {
    let restart =
        ["after effect Standby", "after effect Stop", "after effect Create", "before effect StopStandby"];
    let swap =
        ["after effect Standby", "before effect Respec", "after effect Respec", "after effect StopStandby"];
    let named = restart.map(|name| (false, name)).into_iter().chain(swap.map(|name| (true, name)));
    named.map(|(swaps, name)| Point { swaps, name: name.to_owned() }).collect()
}

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Agent,
    Containerd,
}

/// The duration of the outage of containerd.
const AWAY: Duration = Duration::from_secs(2);

#[test]
fn killed_at_every_point_of_a_start_first_something_always_serves() {
    let fixture = CrashFixture::open();
    let mut agent = fixture.agent();
    let pods: Vec<_> = (0..PODS).map(|_| Pod::create(&fixture.cluster, "served", SHARED)).collect();
    for pod in &pods {
        pod.wait_for(LONG, "it is Ready", is_ready);
    }
    let clients: Vec<_> = pods.iter().map(Client::of).collect();
    for (victim, points) in [(Victim::Agent, points()), (Victim::Containerd, points_of_containerd())] {
        let (mut left, mut missed) = (points, HashMap::<Point, usize>::new());
        while !left.is_empty() {
            let round: Vec<_> = pods.iter().map_while(|pod| Some((pod, left.pop_front()?))).collect();
            let held = hold(&fixture, round);
            agent = kill(&fixture, victim, agent);
            for operation in held {
                let Some(point) = operation.ends(&fixture) else { continue };
                let times = missed.entry(point.clone()).or_default();
                *times += 1;
                assert!(*times < TRIES, "never {point:?}");
                left.push_back(point);
            }
        }
    }
    for client in clients {
        client.was_always_served("killed at every point");
    }
    drop(pods);
    fixture.close();
}

/// An operation that is stopped at its point, or that has ended without it.
pub(super) struct Held<'a> {
    pub(super) pod: &'a Pod<'a>,
    pub(super) point: Point,
    pub(super) id: String,
    image: String,
    pub(super) name: Option<String>,
}

/// Begins an operation on each pod, and returns when each is at its point or has ended.
pub(super) fn hold<'a>(fixture: &CrashFixture, round: Vec<(&'a Pod<'a>, Point)>) -> Vec<Held<'a>> {
    let begun = round.into_iter().map(|(pod, point)| {
        let facts = pod.facts().without_lost(fixture.lost.get()).settled();
        let version = facts.running("app").version.clone();
        let other = if version == "v1" { "v2" } else { "v1" };
        let tag = if point.swaps { other } else { &version };
        let image = format!("lab/app:{tag}");
        let target = ("app", point.swaps.then_some(image.as_str()));
        fixture.holds.set(&pod.uid, &point.name);
        let more = json!({"order": "StartFirst", "deadlineSeconds": DEADLINE});
        let id = pod.request(&request(pod.cluster, &[target], more));
        Held { pod, point, id, image, name: None }
    });
    let begun: Vec<_> = begun.collect();
    let held = begun.into_iter().map(|operation| {
        let Held { pod, point, id, .. } = &operation;
        let name = eventually(&format!("{point:?}, or the end of {id}"), || {
            let name = fixture.holds.held(&pod.uid);
            let ended = pod.seen().last().and_then(status);
            let has_ended = ended.is_some_and(|status| status.id == *id && status.phase.is_terminal());
            (name.is_some() || has_ended).then_some(name)
        });
        Held { name, ..operation }
    });
    held.collect()
}

/// Kills the process, and starts it again. Returns the agent that runs then.
fn kill(fixture: &CrashFixture, victim: Victim, agent: Agent) -> Agent {
    match victim {
        Victim::Agent => {
            agent.kill();
            fixture.holds.release();
            fixture.agent()
        }
        Victim::Containerd => {
            fixture.kill("containerd");
            fixture.holds.release();
            // Not a wait for a condition: this is the duration of the outage.
            thread::sleep(AWAY);
            fixture.cluster.start("containerd");
            agent
        }
    }
}

impl Held<'_> {
    /// Asserts that the operation succeeds. Returns its point if it was missed.
    pub(super) fn ends(self, fixture: &CrashFixture) -> Option<Point> {
        let Self { pod, point, id, image, name } = self;
        let ended = pod.answer_within(LONG, &id);
        assert_eq!(ended.phase, Phase::Succeeded, "{point:?} {name:?}: {ended:#?}");
        let instance = adopted_without_lost(pod, "app", &image, fixture.lost.get());
        assert_eq!(ended.containers[0].to.as_ref().unwrap().container_id, instance.id, "{point:?}");
        name.is_none().then_some(point)
    }
}
