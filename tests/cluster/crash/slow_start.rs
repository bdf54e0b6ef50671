//! A slow start, beside a kubelet that collects exited containers once a minute: the fence runs, and stays. If
//! the fence is removed all the same, the agent creates another one.

use inplace::cri::{
    client::Client,
    endpoint::Endpoint,
    proto::v1::{Container, ContainerState},
};

use crate::{
    cluster::block_on,
    crash::{CrashFixture, HeldOperation, LONG, TRIES, TestedPod, Way},
    ongoing::{containers, running_fence},
    support::wait::{eventually, eventually_within},
};

/// The id of the pod's running fence.
fn fence(held_operation: &HeldOperation<'_>) -> Option<String> {
    running_fence(&held_operation.tested_pod.pod).map(|fence| fence.id)
}

/// The ids of the exited containers.
fn dead(held_operation: &HeldOperation<'_>) -> Vec<String> {
    let is_dead = |container: &Container| container.state() == ContainerState::ContainerExited;
    containers(&held_operation.tested_pod.pod)
        .into_iter()
        .filter(is_dead)
        .map(|container| container.id)
        .collect()
}

#[test]
fn the_fence_stays_until_the_container_runs() {
    let crash_fixture = CrashFixture::open();
    let _agent = crash_fixture.agent();
    let tested_pods = crash_fixture.create_pods(&[Way::Recreate, Way::Drain, Way::Recreate, Way::Drain]);
    // A kubelet that is faster than the agent creates and starts the container itself.
    let (mut held, mut tries) = (Vec::<HeldOperation<'_>>::new(), 0);
    while held.len() < tested_pods.len() {
        tries += 1;
        assert!(tries <= TRIES, "the kubelet was faster too often: {} are held", held.len());
        let is_held = |pod: &TestedPod<'_>| held.iter().any(|one| std::ptr::eq(one.tested_pod, pod));
        let missing: Vec<_> = tested_pods
            .iter()
            .filter(|tested_pod| !is_held(tested_pod))
            .map(|tested_pod| (tested_pod, "before effect Start".to_owned()))
            .collect();
        for operation in crash_fixture.bring_to_points(&missing, &format!("collected-{tries}")) {
            if operation.held_at.is_some() {
                held.push(operation);
            } else {
                operation.ends(1..=1);
            }
        }
    }
    let fences = || held.iter().map(|held_operation| fence(held_operation).unwrap()).collect::<Vec<_>>();
    let first = fences();
    eventually_within(LONG, "the kubelet to collect the old instances", || {
        let left: Vec<_> = held.iter().flat_map(|held_operation| dead(held_operation)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert_eq!(fences(), first);

    let endpoint = Endpoint::parse(&crash_fixture.cluster.node().endpoint).unwrap();
    // The kubelet is stopped, because it could use the free name before the agent does; that is not the subject
    // of this test.
    crash_fixture.cluster.kill("kubelet");
    for (held_operation, first) in held.iter().zip(&first) {
        block_on(async { Client::new(&endpoint, None).remove(first).await.unwrap() });
        let second = eventually("a new fence", || fence(held_operation));
        assert_ne!(*first, second);
    }
    crash_fixture.cluster.start("kubelet");
    crash_fixture.holds.release();
    for held_operation in held {
        held_operation.ends(0..=1);
    }
    drop(tested_pods);
    crash_fixture.close();
}
