//! The agent is killed at each fault point of a restart and a swap with a standby, while a client never stops asking.

use std::collections::{HashMap, VecDeque};

use inplace::api::status::Phase;
use serde_json::json;

use crate::{
    agent::status,
    crash::{CrashFixture, LONG},
    pod::{Pod, is_ready},
    request::{adopted, request},
    start_first::{Client, SHARED},
    support::wait::eventually,
};

/// The number of pods: each has a client, and the machine must have time left for the kubelet.
const PODS: usize = 4;
/// How often a point may be missed: the kubelet's timing decides which effects a replacement needs.
const TRIES: usize = 4;

/// A way of replacing a container, and the name of a fault point on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Point {
    swaps: bool,
    name: String,
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

#[test]
fn killed_at_every_point_of_a_start_first_something_always_serves() {
    let fixture = CrashFixture::open();
    let mut agent = fixture.agent();
    let pods: Vec<_> = (0..PODS).map(|_| Pod::create(&fixture.cluster, "served", SHARED)).collect();
    for pod in &pods {
        pod.wait_for(LONG, "it is Ready", is_ready);
    }
    let clients: Vec<_> = pods.iter().map(Client::of).collect();
    let (mut left, mut missed) = (points(), HashMap::<Point, usize>::new());
    while !left.is_empty() {
        let round: Vec<_> = pods.iter().map_while(|pod| Some((pod, left.pop_front()?))).collect();
        let begun: Vec<_> = round
            .into_iter()
            .map(|(pod, point)| {
                let version = pod.facts().settled().running("app").version.clone();
                let other = if version == "v1" { "v2" } else { "v1" };
                let tag = if point.swaps { other } else { &version };
                let image = format!("lab/app:{tag}");
                let target = ("app", point.swaps.then_some(image.as_str()));
                fixture.holds.set(&pod.uid, &point.name);
                let id = pod.request(&request(pod.cluster, &[target], json!({"order": "StartFirst"})));
                (pod, point, id, image)
            })
            .collect();
        let mut held = Vec::new();
        for (pod, point, id, _) in &begun {
            held.push(eventually(&format!("{point:?}, or the end of {id}"), || {
                let name = fixture.holds.held(&pod.uid);
                let ended = pod.seen().versions.last().and_then(status);
                let has_ended = ended.is_some_and(|status| status.id == *id && status.phase.is_terminal());
                (name.is_some() || has_ended).then_some(name)
            }));
        }
        agent.kill();
        fixture.holds.release();
        agent = fixture.agent();
        for ((pod, point, id, image), held) in begun.into_iter().zip(held) {
            let ended = pod.answer_within(LONG, &id);
            assert_eq!(ended.phase, Phase::Succeeded, "{point:?} {held:?}: {ended:#?}");
            let instance = adopted(pod, "app", &image);
            assert_eq!(ended.containers[0].to.as_ref().unwrap().container_id, instance.id, "{point:?}");
            if held.is_none() {
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
