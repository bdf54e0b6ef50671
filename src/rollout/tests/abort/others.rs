//! The abort of a rollout whose records other rollouts replaced, whose own operations were lost, or whose writes fail.

use super::*;
use crate::rollout::failed_write;

/// Another rollout, which selects its pods by labels, writes its record on a pod, and its request ends.
fn other_rollout(pod: &mut Value, begun: i64) {
    let record = json!({"rollout": "r-2", "name": "two", "stage": "Done", "at": at(begun), "seconds": 600});
    pod["metadata"]["annotations"]["inplace.dev/rollout"] = json!(record.to_string());
    pod["metadata"]["annotations"]["inplace.dev/request"] =
        json!(r#"{"id":"r-2","containers":[{"name":"app"}]}"#);
    say_about(pod, "r-2", "Succeeded", None);
}

#[test]
fn a_pod_whose_record_another_rollout_replaced_counts_as_skipped() {
    let mut shop = Shop::aborting(3, 2, "RolledBack", &json!({}));
    other_rollout(&mut shop.pods[0], shop.now);
    let next = shop.reconcile();
    assert_eq!((begun(&next), shop.abort().pods, shop.abort().skipped), (vec!["web-1"], 1, 1));
    shop.ends(1, "Succeeded");
    assert_eq!((shop.phase().0, shop.images()), (RolloutPhase::Aborted, vec!["app:2", "app:1", "app:1"]));
    assert!(shop.rollout.before.message.contains("1 left as they are"), "{}", shop.rollout.before.message);
}

#[test]
fn a_pod_that_had_the_new_image_before_the_rollout_is_not_skipped() {
    let mut shop = Shop::new(3, &json!({}));
    shop.pods[0]["spec"]["containers"][0]["image"] = json!("app:2");
    other_rollout(&mut shop.pods[0], -100);
    shop.reconcile();
    shop.ends(1, "RolledBack");
    shop.reconcile();
    assert_eq!((shop.phase().0, shop.abort().skipped), (RolloutPhase::Aborted, 0));
    // Replaced while the pod had the image from before.
    let mut shop = Shop::aborting(3, 1, "RolledBack", &json!({}));
    other_rollout(&mut shop.pods[1], shop.now);
    shop.reconcile();
    assert_eq!((begun(&shop.decide()).len(), shop.abort().pods, shop.abort().skipped), (0, 1, 0));
}

/// A rollout whose agent began with `web-1` and reported nothing more. The pod names `image`.
fn lost(image: &str) -> Shop {
    let mut shop = Shop::new(3, &json!({}));
    shop.reconcile();
    shop.ends(0, "Succeeded");
    say(&mut shop.pods[1], "Running", Some("Swap"));
    shop.pods[1]["spec"]["containers"][0]["image"] = json!(image);
    shop.now = 1000;
    shop.reconcile();
    assert_eq!(
        (shop.phase().0, &*shop.rollout.before.failures[0].reason),
        (RolloutPhase::Aborting, "AgentLost")
    );
    shop
}

#[test]
fn a_lost_operation_of_the_rollout_itself_does_not_block_the_way_back() {
    let mut shop = lost("app:1");
    assert_eq!(begun(&shop.reconcile()), ["web-0"], "{}", shop.rollout.before.message);
    shop.ends(0, "Succeeded");
    assert_eq!((shop.phase().0, shop.images()), (RolloutPhase::Aborted, vec!["app:1"; 3]));
    // The pod itself goes back if it names the new image.
    let mut shop = lost("app:2");
    ready(&mut shop.pods[1], false, at(shop.now));
    assert_eq!(begun(&shop.reconcile()), ["web-1"], "{}", shop.rollout.before.message);
    // It is lost on the way back, too.
    say_about(&mut shop.pods[1], BACK, "Running", Some("Swap"));
    ready(&mut shop.pods[1], true, at(shop.now));
    shop.rollout.spec.failure_threshold = k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(2);
    shop.now = 2000;
    assert_eq!(begun(&shop.reconcile()), ["web-0"], "{}", shop.rollout.before.message);
}

#[test]
fn the_message_of_a_deadline_on_the_way_back_does_not_grow() {
    let mut shop = Shop::aborting(2, 1, "RolledBack", &json!({"deadlineSeconds": 100}));
    shop.reconcile();
    say_about(&mut shop.pods[0], BACK, "Running", Some("Swap"));
    shop.now = 200;
    shop.reconcile();
    assert_eq!(shop.phase(), (RolloutPhase::Aborting, "DeadlineExceeded"));
    let message = shop.rollout.before.message.clone();
    shop.reconcile();
    assert_eq!(shop.rollout.before.message, message);
}

#[test]
fn pods_that_are_back_are_back_although_the_end_of_the_last_one_is_recorded_later() {
    let mut shop = Shop::new(2, &json!({"progressDeadlineSeconds": 60}));
    shop.reconcile();
    shop.ends(0, "Succeeded");
    shop.now = 80;
    shop.reconcile();
    assert_eq!((shop.phase().0, &*shop.abort().reason), (RolloutPhase::Aborting, "ProgressDeadlineExceeded"));
    assert_eq!(begun(&shop.reconcile()), ["web-0"]);
    carry_out(&mut shop.pods[0], "Succeeded");
    let decision = shop.decide();
    assert_eq!(decision.status.phase, RolloutPhase::Aborted);
    shop.rollout.before = failed_write::after(&shop.rollout, decision, "not allowed", at(shop.now)).0;
    assert_eq!(shop.phase(), (RolloutPhase::Aborting, "WriteFailed"));
    shop.reconcile();
    assert_eq!(shop.phase(), (RolloutPhase::Aborted, "ProgressDeadlineExceeded"));
}
