//! A slow start, beside a kubelet that collects exited containers once a minute: the fence runs, and stays. If
//! the fence is removed all the same, the agent creates another one.

use inplace::cri::{
    client::Client,
    endpoint::Endpoint,
    proto::v1::{Container, ContainerState},
};

use crate::{
    cluster::block_on,
    crash::{LONG, Scene, Theatre, Way, assert_held},
    pod::{eventually, eventually_within},
    scene::{containers, running_fence},
};

/// The id of the pod's running fence.
fn fence(scene: &Scene<'_>) -> Option<String> {
    running_fence(&scene.subject.pod).map(|fence| fence.id)
}

/// The ids of the exited containers.
fn dead(scene: &Scene<'_>) -> Vec<String> {
    let is_dead = |container: &Container| container.state() == ContainerState::ContainerExited;
    containers(&scene.subject.pod).into_iter().filter(is_dead).map(|container| container.id).collect()
}

#[test]
fn the_fence_stays_until_the_container_runs() {
    let theatre = Theatre::open();
    let _agent = theatre.agent();
    let subjects = theatre.cast(&[Way::Recreate, Way::Drain, Way::Recreate, Way::Drain]);
    let scenes: Vec<_> = subjects.iter().map(|subject| (subject, "before effect Start".to_owned())).collect();
    let scenes = theatre.bring(&scenes, "collected");
    assert_held(&scenes);
    let held: Vec<_> = scenes.iter().filter(|scene| scene.held_at.is_some()).collect();
    let fences = || held.iter().map(|scene| fence(scene).unwrap()).collect::<Vec<_>>();
    let first = fences();
    eventually_within(LONG, "the kubelet to collect the old lives", || {
        let left: Vec<_> = held.iter().flat_map(|scene| dead(scene)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert_eq!(fences(), first);

    let endpoint = Endpoint::parse(&theatre.cluster.node().endpoint).unwrap();
    // The kubelet is stopped, because it could use the free name before the agent does; that is not the subject
    // of this test.
    theatre.cluster.kill("kubelet");
    for (scene, first) in held.iter().zip(&first) {
        block_on(async { Client::new(&endpoint, None).remove(first).await.unwrap() });
        let second = eventually("a new fence", || fence(scene));
        assert_ne!(*first, second);
    }
    theatre.cluster.start("kubelet");
    theatre.holds.release();
    for scene in scenes {
        scene.ends(0..=1);
    }
    drop(subjects);
    theatre.close();
}
