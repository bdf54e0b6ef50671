//! Parts C and D: swaps to images that are not on the node yet, and the rollback from an image that crashes.

use std::process::Command;

use inplace::api::pod_ref::PodRef;
use inplace::api::status::Phase;
use inplace::cri::proto::v1::ContainerState;
use inplace::operation::effect::Verb;

use crate::Scale;
use crate::parts::{self, Parts};
use crate::report::{Report, Samples};
use crate::support::lab::run;
use crate::test_node::{TestNode, What, between};

/// Tolerance of "independent of the image size": for medians of few samples, on a machine that just wrote the
/// image.
const SAME: f64 = 1.5;
/// Budget in milliseconds from the death of the new container until the old image runs again.
const BACK: f64 = 500.0;

/// Part C: swaps to a small and to a large image, each removed from the node before.
pub(crate) async fn sizes(test_node: &TestNode, scale: &Scale, report: &mut Report) {
    report.title(&format!("C. Swaps to an image that is not on the node: app:v2 and {} MB", scale.image_mb));
    let made = tempfile::tempdir().unwrap();
    let maker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/big-image.sh");
    run(Command::new("bash").arg(maker).arg(made.path()).arg(scale.image_mb.to_string()));
    test_node.lab.push(&made.path().join("big-v1.tar"), "big:v1");
    let pod = test_node.pod("sizes", &test_node.lab.image("app:v1")).await.pod;
    let mut seen = [Sized::default(), Sized::default()];
    for _ in 0..scale.swaps {
        for (image, seen) in ["app:v2", "big:v1"].iter().zip(&mut seen) {
            clear(test_node, &pod, &test_node.lab.image(image)).await;
            let line = format!("swap app={}", test_node.lab.image(image));
            let (status, events) = test_node.carry_out(&pod, &line, Phase::Succeeded).await;
            let pull = events.iter().find(|event| event.what == What::Call("PullImage"));
            seen.pull.add(pull.expect("the image was on the node").took);
            let container = &status.containers[0];
            let old = test_node.instance(&container.from.container_id).await;
            let new = test_node.instance(&container.to.as_ref().unwrap().container_id).await;
            seen.downtime.add_ms(between(old, new));
            seen.parts.add(&events, old, new);
            let back = format!("swap app={}", test_node.lab.image("app:v1"));
            test_node.carry_out(&pod, &back, Phase::Succeeded).await;
        }
    }
    let [small, large] = &seen;
    report.distributions(
        "sizes",
        &[
            ("small: old finished -> new started", &small.downtime),
            ("large: old finished -> new started", &large.downtime),
            ("small: pull", &small.pull),
            ("large: pull", &large.pull),
        ],
    );
    report.title("   Where the downtime goes");
    parts::compare(report, "sizes breakdown", &[("small", &small.parts), ("large", &large.parts)]);
    let ratio = large.downtime.p50() / small.downtime.p50();
    report.budget("C swap: p50, large image x small image", ratio, SAME);
    test_node.remove(&pod).await;
    clear(test_node, &pod, &test_node.lab.image("big:v1")).await;
}

#[derive(Default)]
struct Sized {
    downtime: Samples,
    pull: Samples,
    parts: Parts,
}

/// Removes an image from the node, with the exited containers that hold its layers.
async fn clear(test_node: &TestNode, pod: &PodRef, reference: &str) {
    for container in test_node.containers(pod).await {
        if container.state == i32::from(ContainerState::ContainerExited) {
            test_node.client.remove(&container.id).await.unwrap();
        }
    }
    let Some(found) = test_node.client.image(reference, false).await.unwrap() else { return };
    let image = found.image.unwrap();
    let mut remove = vec!["images".to_owned(), "rm".to_owned(), "--sync".to_owned()];
    remove.extend(image.repo_tags.into_iter().chain(image.repo_digests).chain([image.id]));
    test_node.lab.ctr(&remove);
    while test_node.client.image(reference, false).await.unwrap().is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Part D: swaps to an image that exits at once.
pub(crate) async fn back(test_node: &TestNode, scale: &Scale, report: &mut Report) {
    report.title("D. Swaps to an image that crashes, and back");
    let pod = test_node.pod("back", &test_node.lab.image("app:v1")).await.pod;
    let line = format!("swap app={}", test_node.lab.image("app:crash"));
    let [mut back, mut whole, mut crashed, mut fence] = <[Samples; 4]>::default();
    for _ in 0..scale.rollbacks {
        let (status, events) = test_node.carry_out(&pod, &line, Phase::RolledBack).await;
        let to = status.containers[0].to.as_ref().unwrap();
        let all = test_node.containers(&pod).await;
        let attempt = |number| {
            let has = |container: &&inplace::cri::proto::v1::Container| {
                container.metadata.as_ref().is_some_and(|metadata| metadata.attempt == number)
            };
            all.iter().find(has).unwrap().id.clone()
        };
        let old = test_node.instance(&status.containers[0].from.container_id).await;
        let crash = test_node.instance(&attempt(to.attempt - 1)).await;
        let new = test_node.instance(&to.container_id).await;
        back.add_ms(between(crash, new));
        whole.add_ms(between(old, new));
        crashed.add_ms(between(old, crash));
        let mut fences = events.iter().filter(|event| event.what == What::Effect(Verb::Fence));
        fence.add(fences.next_back().unwrap().took);
    }
    report.distributions(
        "rollback",
        &[
            ("crash -> old image runs", &back),
            ("old finished -> crashing one started", &crashed),
            ("old finished -> old image runs", &whole),
            ("the fence of the way back, within the first", &fence),
        ],
    );
    report.budget("D rollback: slowest, ms from crash to old image running", back.max(), BACK);
    test_node.remove(&pod).await;
}
