//! A kubelet collects, dies and starts again while a standby and its fence run, neither of which the pod's spec names.

use std::{collections::BTreeSet, thread, time::Duration};

use inplace::api::status::Phase;
use serde_json::json;

use crate::{
    agent::status,
    crash::{CrashFixture, LONG},
    ongoing::{containers, is_fence, is_running},
    orphaned_fence::collection,
    pod::{Pod, is_ready},
    request::{adopted, request},
    start_first::{Client, SHARED},
    support::wait::eventually,
};

/// The duration of the outage.
const AWAY: Duration = Duration::from_secs(3);

/// A fault point of a restart, or of a swap if `swaps`.
#[derive(Debug)]
struct Point {
    swaps: bool,
    name: &'static str,
}

const fn restart(name: &'static str) -> Point {
    Point { swaps: false, name }
}

const fn swap(name: &'static str) -> Point {
    Point { swaps: true, name }
}

/// Before the proof, before the container is touched, and when the new instance serves beside the standby.
const STEADY: [Point; 4] = [
    restart("after effect Standby"),
    restart("before effect Stop"),
    swap("before effect Respec"),
    swap("before effect StopStandby"),
];

/// While the container is replaced: a kubelet wants to start it too, or has to do it.
const REPLACED: [Point; 4] = [
    restart("after effect Stop"),
    restart("after effect Create"),
    swap("after effect Respec"),
    restart("after effect Start"),
];

/// A pod whose operation is held at a point, and the ID of its request.
struct HeldPod<'a> {
    pod: &'a Pod<'a>,
    point: &'a Point,
    id: String,
    image: String,
}

/// Writes a request for each pod, and returns when all are held at their points.
fn bring<'a>(fixture: &CrashFixture, pods: &'a [Pod<'_>], points: &'a [Point]) -> Vec<HeldPod<'a>> {
    let begun: Vec<_> = pods
        .iter()
        .zip(points)
        .map(|(pod, point)| {
            let version = pod.facts().settled().running("app").version.clone();
            let other = if version == "v1" { "v2" } else { "v1" };
            let image = format!("lab/app:{}", if point.swaps { other } else { &version });
            fixture.holds.set(&pod.uid, point.name);
            let target = ("app", point.swaps.then_some(image.as_str()));
            let id = pod.request(&request(pod.cluster, &[target], json!({"order": "StartFirst"})));
            HeldPod { pod, point, id, image }
        })
        .collect();
    for held in &begun {
        let name = eventually(&format!("{:?}, or the end of {}", held.point, held.id), || {
            let ended = held.pod.seen().versions.last().and_then(status);
            let has_ended = ended.is_some_and(|status| status.id == held.id && status.phase.is_terminal());
            let name = fixture.holds.held(&held.pod.uid);
            (name.is_some() || has_ended).then_some(name)
        });
        assert!(name.is_some(), "never {:?}", held.point);
    }
    begun
}

/// The operation succeeds, and its instance runs.
fn ends(held: &HeldPod<'_>) {
    let ended = held.pod.answer_within(LONG, &held.id);
    assert_eq!(ended.phase, Phase::Succeeded, "{:?}: {ended:#?}", held.point);
    let instance = adopted(held.pod, "app", &held.image);
    assert_eq!(ended.containers[0].to.as_ref().unwrap().container_id, instance.id, "{:?}", held.point);
}

/// The IDs of the running containers of a pod, with its fences and standbys.
fn running(pod: &Pod<'_>) -> BTreeSet<String> {
    containers(pod).into_iter().filter(is_running).map(|container| container.id).collect()
}

#[test]
fn a_kubelet_collects_and_starts_again_and_leaves_a_standby_and_its_fence_alone() {
    let fixture = CrashFixture::open();
    let mut agent = fixture.agent();
    let pods: Vec<_> = STEADY.iter().map(|_| Pod::create(&fixture.cluster, "steady", SHARED)).collect();
    for pod in &pods {
        pod.wait_for(LONG, "it is Ready", is_ready);
    }
    let clients: Vec<_> = pods.iter().map(Client::of).collect();

    let held = bring(&fixture, &pods, &STEADY);
    let before: Vec<_> = pods.iter().map(running).collect();
    for (pod, held) in pods.iter().zip(&held) {
        let all = containers(pod);
        let counted = (all.iter().filter(|one| is_running(one)).count(), all.iter().any(is_fence));
        // The fence goes once it has counted the sockets of the new instance.
        let expected = if held.point.name.ends_with("StopStandby") { (2, false) } else { (3, true) };
        assert_eq!(counted, expected, "{:?}: {all:#?}", held.point);
    }
    let unchanged = |when: &str| {
        for ((pod, before), held) in pods.iter().zip(&before).zip(&held) {
            assert_eq!(running(pod), *before, "{when}, {:?}: {:#?}", held.point, containers(pod));
        }
    };
    for round in 1..=2 {
        collection(&fixture.cluster, round);
        unchanged("collected");
    }
    fixture.cluster.kill("kubelet");
    // Not a wait for a condition: this is the duration of the outage.
    thread::sleep(AWAY);
    fixture.cluster.start("kubelet");
    collection(&fixture.cluster, 3);
    unchanged("another kubelet");
    fixture.holds.release();
    held.iter().for_each(ends);
    drop(held);

    for with_agent in [false, true] {
        let held = bring(&fixture, &pods, &REPLACED);
        fixture.cluster.kill("kubelet");
        if with_agent {
            agent.kill();
            fixture.holds.release();
            agent = fixture.agent();
        } else {
            fixture.holds.release();
        }
        thread::sleep(AWAY);
        fixture.cluster.start("kubelet");
        held.iter().for_each(ends);
    }
    for client in clients {
        client.was_always_served("another kubelet");
    }
    assert!(!agent.has_ended());
    drop(pods);
    fixture.close();
}
