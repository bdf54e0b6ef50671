//! A start that takes its time: whoever takes the fence away meanwhile, as a kubelet's collection of what is dead does once
//! a minute, it is there again before the kubelet can make use of its name.

use inplace::{
    api::annotation::{CONTAINER_NAME, FENCE_NAME},
    cri::{client::Client, endpoint::Endpoint},
};

use crate::{
    cluster::block_on,
    crash::{Theatre, Way, assert_held},
    pod::{Pod, eventually},
    scene::containers,
};

/// The id of the fence in a pod.
fn fence(pod: &Pod<'_>) -> Option<String> {
    let is_fence = |name: Option<&String>| name.is_some_and(|name| name == FENCE_NAME);
    containers(pod).into_iter().find(|c| is_fence(c.labels.get(CONTAINER_NAME))).map(|fence| fence.id)
}

#[test]
fn the_fence_is_looked_after_until_the_container_runs() {
    let theatre = Theatre::open();
    let _agent = theatre.agent();
    let subjects = theatre.cast(&[Way::Recreate, Way::Drain]);
    let scenes: Vec<_> = subjects.iter().map(|subject| (subject, "before effect Start".to_owned())).collect();
    let scenes = theatre.bring(&scenes, "collected");
    assert_held(&scenes);
    let endpoint = Endpoint::parse(&theatre.cluster.node().endpoint).unwrap();
    for scene in &scenes {
        let pod = &scene.subject.pod;
        let first = fence(pod).unwrap();
        block_on(async { Client::new(&endpoint, None).remove(&first).await.unwrap() });
        let second = eventually("a new fence", || fence(pod));
        assert_ne!(first, second);
    }
    theatre.holds.release();
    for scene in scenes {
        scene.ends(0..=1);
    }
    drop(subjects);
    theatre.close();
}
