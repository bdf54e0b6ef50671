//! A kubelet collects, dies and starts again while a standby and its fence run, neither of which the pod's spec names.

use std::{collections::BTreeSet, thread, time::Duration};

use inplace::{api::annotation, api::status::Phase, cri::proto::v1};
use serde_json::json;

use crate::{
    agent::status,
    crash::start_first::{Held, Point, hold},
    crash::{CrashFixture, LONG, TRIES},
    ongoing::{containers, end_process, is_fence, is_running},
    orphaned_fence::collection,
    pod::{Pod, is_ready},
    start_first::{Client, SHARED, start_first},
    support::wait::eventually_within,
};

/// The duration of the outage.
const AWAY: Duration = Duration::from_secs(3);

/// Fault points of restarts, and of swaps where that is true: before the proof, before the container is touched, and when
/// the new instance serves beside the standby.
const STEADY: [(bool, &str); 4] = [
    (false, "after effect Standby"),
    (false, "before effect Stop"),
    (true, "before effect Respec"),
    (true, "before effect StopStandby"),
];

/// While the container is replaced: a kubelet wants to start it too, or has to do it.
const REPLACED: [(bool, &str); 4] = [
    (false, "after effect Stop"),
    (false, "after effect Create"),
    (true, "after effect Respec"),
    (false, "after effect Start"),
];

/// Begins an operation on each pod, and returns when all are held at their points.
fn bring<'a>(fixture: &CrashFixture, pods: &'a [Pod<'_>], points: [(bool, &str); 4]) -> Vec<Held<'a>> {
    let points = points.map(|(swaps, name)| Point { swaps, name: name.to_owned() });
    let held = hold(fixture, pods.iter().zip(points).collect());
    held.into_iter().map(|held| again(fixture, held)).collect()
}

/// Repeats an operation that has missed its point: the kubelet may start the new instance first.
fn again<'a>(fixture: &CrashFixture, mut held: Held<'a>) -> Held<'a> {
    for _ in 1..TRIES {
        if held.name.is_some() {
            break;
        }
        let pod = held.pod;
        let Some(point) = held.ends(fixture) else { unreachable!("it has missed its point") };
        held = hold(fixture, vec![(pod, point)]).remove(0);
    }
    assert!(held.name.is_some(), "never {:?}", held.point);
    held
}

fn end(fixture: &CrashFixture, held: Vec<Held<'_>>) {
    for held in held {
        held.ends(fixture);
    }
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

    let held = bring(&fixture, &pods, STEADY);
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
    collection(&fixture.cluster, 1);
    unchanged("collected");
    fixture.kill("kubelet");
    // Not a wait for a condition: this is the duration of the outage.
    thread::sleep(AWAY);
    fixture.cluster.start("kubelet");
    collection(&fixture.cluster, 2);
    unchanged("another kubelet");
    fixture.holds.release();
    end(&fixture, held);

    for with_agent in [false, true] {
        let held = bring(&fixture, &pods, REPLACED);
        fixture.kill("kubelet");
        if with_agent {
            agent.kill();
            fixture.holds.release();
            agent = fixture.agent();
        } else {
            fixture.holds.release();
        }
        thread::sleep(AWAY);
        fixture.cluster.start("kubelet");
        end(&fixture, held);
    }
    for client in clients {
        client.was_always_served("another kubelet");
    }
    assert!(!agent.has_ended());
    drop(pods);
    fixture.close();
}

/// The points at which the node restarts.
const RESTARTED: [(bool, &str); 4] = [
    (false, "after effect Standby"),
    (false, "after effect Stop"),
    (true, "after effect Respec"),
    (true, "before effect StopStandby"),
];

#[test]
fn a_node_that_restarts_ends_the_operation_and_leaves_one_container() {
    let fixture = CrashFixture::open();
    let agent = fixture.agent();
    let pods: Vec<_> = RESTARTED.iter().map(|_| Pod::create(&fixture.cluster, "restarted", SHARED)).collect();
    for pod in &pods {
        pod.wait_for(LONG, "it is Ready", is_ready);
    }
    let held = bring(&fixture, &pods, RESTARTED);
    let sandboxes: Vec<_> = pods.iter().map(|pod| pod.facts().sandbox).collect();
    let processes = pods.iter().flat_map(|pod| running(pod));
    let processes: Vec<_> = processes.chain(sandboxes.iter().cloned()).collect();

    agent.kill();
    fixture.cluster.kill("kubelet");
    for id in &processes {
        end_process(&fixture.cluster, id);
    }
    fixture.holds.release();
    fixture.cluster.start("kubelet");
    let _next = fixture.agent();

    for ((pod, held), before) in pods.iter().zip(&held).zip(sandboxes) {
        let object = pod.wait_for(LONG, "its operation has ended", |object| {
            status(object).is_some_and(|status| status.id == held.id && status.phase.is_terminal())
        });
        let status = status(&object).unwrap();
        let left = eventually_within(
            LONG,
            &format!("{:?} to leave one container in another sandbox: {status:?}", held.point),
            || {
                let all = containers(pod);
                let running: Vec<_> = all.iter().filter(|one| is_running(one)).collect();
                let is_ours =
                    |one: &v1::Container| is_fence(one) || one.labels.contains_key(annotation::STANDBY);
                match running[..] {
                    [only] if only.pod_sandbox_id != before && !all.iter().any(is_ours) => {
                        Ok(only.id.clone())
                    }
                    _ => Err(format!("{all:#?}")),
                }
            },
        );
        // Until its kubelet has reported the new container, the pod counts as Ready from the time before.
        pod.wait_for(LONG, "its new container is Ready", |object| {
            let reported = object.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            let mut ids = reported.filter_map(|container| container.container_id.as_deref());
            is_ready(object) && ids.any(|id| id.ends_with(&left))
        });
        start_first(pod, ("app", None), json!({}), Phase::Succeeded);
    }
    drop(pods);
    fixture.close();
}
