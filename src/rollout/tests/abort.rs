//! `onFailure: Abort`: when an abort begins, which pods go back and how, and how it ends.

use super::*;
use crate::api::in_place_rollout::RolloutAbort;
use crate::api::request::{Order, Request};

mod others;

const BACK: &str = "r-1-back";

/// A swap to `app:2` that is aborted at the first failure.
fn swap(more: &Value) -> Rollout {
    let mut spec = json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": true,
        "onFailure": "Abort"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    rollout(&spec)
}

/// A rollout and its pods. Writes and statuses are applied as the API server does.
struct Shop {
    rollout: Rollout,
    target: TargetState,
    pods: Vec<Value>,
    budgets: Vec<Disruption>,
    now: i64,
}

impl Shop {
    fn new(count: usize, more: &Value) -> Self {
        let pods = (0..count).map(pod).collect();
        Self { rollout: swap(more), target: target(), pods, budgets: Vec::new(), now: 0 }
    }

    /// What the controller decides now.
    fn decide(&self) -> Decision {
        let pods: Vec<Pod> = self.pods.iter().map(read).collect();
        decide(&self.rollout, seen(&self.target, &pods, &self.budgets, at(self.now)))
    }

    /// One reconcile a second later.
    fn reconcile(&mut self) -> Decision {
        self.now += 1;
        let decision = self.decide();
        for write in &decision.writes {
            let pod = self.pods.iter_mut().find(|pod| pod["metadata"]["uid"] == *write.pod.uid).unwrap();
            apply(pod, write);
        }
        self.rollout.before = decision.status.clone();
        decision
    }

    /// The agent of the pod ends its request, and the controller takes notice.
    fn ends(&mut self, index: usize, phase: &str) -> Decision {
        carry_out(&mut self.pods[index], phase);
        self.reconcile()
    }

    /// The first `done` pods have the new image, the next one fails as `phase`, and the abort begins.
    fn aborting(count: usize, done: usize, phase: &str, more: &Value) -> Self {
        let mut shop = Self::new(count, more);
        shop.reconcile();
        for index in 0..done {
            shop.ends(index, "Succeeded");
        }
        let begins = shop.ends(done, phase);
        assert_eq!(begins.status.phase, RolloutPhase::Aborting, "{:?}", begins.status);
        shop
    }

    fn abort(&self) -> RolloutAbort {
        self.rollout.before.abort.clone().unwrap()
    }

    fn images(&self) -> Vec<&str> {
        self.pods.iter().map(|pod| pod["spec"]["containers"][0]["image"].as_str().unwrap()).collect()
    }

    fn phase(&self) -> (RolloutPhase, &str) {
        (self.rollout.before.phase, &self.rollout.before.reason)
    }

    fn request(&self, index: usize) -> Request {
        request(&self.pods[index]).unwrap()
    }
}

fn reasons(decision: &Decision) -> Vec<&str> {
    decision.events.iter().map(|event| event.reason).collect()
}

fn true_conditions(decision: &Decision) -> Vec<&str> {
    let all = decision.status.conditions.iter().filter(|condition| condition.status == "True");
    all.map(|condition| condition.kind.as_str()).collect()
}

#[test]
fn the_pods_that_were_swapped_go_back_one_after_the_other() {
    let mut shop = Shop::new(4, &json!({}));
    shop.reconcile();
    shop.ends(0, "Succeeded");
    shop.ends(1, "Succeeded");
    let begins = shop.ends(2, "RolledBack");
    // The status comes first.
    assert_eq!((begun(&begins).len(), begins.requeue_at), (0, Some(at(shop.now))));
    assert_eq!(reasons(&begins), ["PodFailed", "RolloutAborting"]);
    assert_eq!(true_conditions(&begins), ["Progressing", "Reconciling"]);
    assert_eq!(
        (shop.phase(), shop.abort().reason.as_str()),
        ((RolloutPhase::Aborting, "Aborting"), "FailureThreshold")
    );
    let first = shop.reconcile();
    assert_eq!(begun(&first), ["web-0"], "one at a time");
    let asked = shop.request(0);
    assert_eq!((asked.id.as_str(), asked.containers[0].image.as_deref()), (BACK, Some("app:1")));
    assert!(asked.reason.ends_with("aborted, back to the images from before"), "{}", asked.reason);
    assert_eq!((first.status.done, first.status.busy, first.status.failed), (1, 1, 1));
    assert!(begun(&shop.reconcile()).is_empty());
    let second = shop.ends(0, "Succeeded");
    assert_eq!((begun(&second), second.status.done), (vec!["web-1"], 0));
    assert_eq!((shop.abort().pods, shop.abort().returned), (2, 1));
    assert!(
        second
            .status
            .message
            .starts_with("1 of 2 pods are back at their images from before, 1 in progress; aborted: 1 pods"),
        "{}",
        second.status.message
    );
    let end = shop.ends(1, "Succeeded");
    assert_eq!(shop.phase(), (RolloutPhase::Aborted, "FailureThreshold"));
    assert_eq!((reasons(&end), shop.images()), (vec!["RolloutAborted"], vec!["app:1"; 4]));
    assert_eq!(true_conditions(&end), ["Failed", "Stalled"]);
    assert_eq!((end.status.done, end.status.failed, end.status.failures.len()), (0, 1, 1));
    assert!(end.status.finished_at.is_some() && shop.abort().started_at.is_some());
    // A pod that was never touched, and the one whose agent took it back, have no request for the way back.
    assert!(request(&shop.pods[3]).is_none() && shop.request(2).id == UID);
    assert!(shop.reconcile().writes.is_empty());
}

#[test]
fn without_the_policy_and_after_failures_below_the_threshold_the_pods_stay() {
    for (more, reason) in [
        (json!({"onFailure": "Pause"}), "FailureThreshold"),
        (json!({"failureThreshold": 2}), "SomePodsFailed"),
    ] {
        let mut shop = Shop::new(2, &more);
        shop.reconcile();
        shop.ends(0, "Succeeded");
        shop.ends(1, "RolledBack");
        assert_eq!(shop.phase(), (RolloutPhase::Failed, reason));
        assert_eq!((shop.rollout.before.abort.clone(), shop.images()), (None, vec!["app:2", "app:1"]));
    }
}

#[test]
fn an_abort_with_no_pod_to_take_back_ends_at_once() {
    let mut shop = Shop::aborting(3, 0, "RolledBack", &json!({}));
    shop.reconcile();
    assert_eq!((shop.phase().0, shop.abort().pods, shop.abort().skipped), (RolloutPhase::Aborted, 0, 0));
}

#[test]
fn a_failed_pod_that_names_the_new_image_goes_back_first_and_stays_a_failure() {
    let mut shop = Shop::new(3, &json!({"pod": {"onFailure": "Keep"}}));
    shop.reconcile();
    shop.ends(0, "Succeeded");
    shop.pods[1]["spec"]["containers"][0]["image"] = json!("app:2");
    ready(&mut shop.pods[1], false, at(0));
    shop.ends(1, "Failed");
    assert_eq!(begun(&shop.reconcile()), ["web-1"]);
    let next = shop.ends(1, "Succeeded");
    assert_eq!((next.status.failed, next.status.failures.len()), (1, 1), "{:?}", next.status);
    assert!(begun(&next).is_empty(), "it is not available yet");
    ready(&mut shop.pods[1], true, at(shop.now));
    assert_eq!(begun(&shop.reconcile()), ["web-0"]);
    shop.ends(0, "Succeeded");
    assert_eq!((shop.phase().0, shop.images()), (RolloutPhase::Aborted, vec!["app:1"; 3]));
}

#[test]
fn what_is_in_progress_ends_first_and_what_is_not_touched_is_withdrawn() {
    let mut shop = Shop::new(4, &json!({"maxUnavailable": 3}));
    shop.reconcile();
    say(&mut shop.pods[1], "Running", Some("Swap"));
    let begins = shop.ends(0, "Failed");
    let recalled: Vec<_> = begins.writes.iter().filter(|write| write.what == What::Recall).collect();
    assert_eq!((recalled.len(), &*recalled[0].pod.name, begins.status.busy), (1, "web-2", 2));
    let waits = shop.reconcile();
    assert!(begun(&waits).is_empty(), "web-1 is still on its way to the new image");
    assert_eq!((shop.phase().0, waits.status.busy), (RolloutPhase::Aborting, 1));
    let ended = shop.ends(1, "Succeeded");
    assert!(begun(&ended).is_empty() && !ended.status.phase.is_terminal(), "its end is recorded first");
    assert_eq!((ended.status.done, begun(&shop.reconcile())), (1, vec!["web-1"]));
    shop.ends(1, "Succeeded");
    assert_eq!((shop.phase().0, shop.images()), (RolloutPhase::Aborted, vec!["app:1"; 4]));
    // A request that could not be withdrawn before the abort was on record is withdrawn after it.
    let mut late = Shop::new(2, &json!({"maxUnavailable": 2}));
    late.reconcile();
    carry_out(&mut late.pods[0], "Failed");
    late.rollout.before = late.decide().status;
    assert!(late.reconcile().writes.iter().any(|write| write.what == What::Recall));
}

#[test]
fn a_pod_that_fails_after_the_abort_began_counts_and_goes_back_if_it_has_the_new_image() {
    let mut shop = Shop::new(2, &json!({"maxUnavailable": 2, "failureThreshold": 1}));
    shop.reconcile();
    say(&mut shop.pods[1], "Running", Some("Verify"));
    shop.ends(0, "RolledBack");
    shop.pods[1]["spec"]["containers"][0]["image"] = json!("app:2");
    let failed = shop.ends(1, "Failed");
    assert_eq!((failed.status.failed, reasons(&failed)), (2, vec!["PodFailed"]));
    assert_eq!(begun(&shop.reconcile()), ["web-1"]);
    assert_eq!(shop.rollout.before.failures.len(), 2);
}

#[test]
fn pods_that_others_changed_or_created_are_left_alone() {
    let mut shop = Shop::aborting(7, 5, "RolledBack", &json!({}));
    // Another image; a record of an earlier release; no valid image; a new pod of the same name; another client works on it.
    shop.pods[0]["spec"]["containers"][0]["image"] = json!("app:3");
    let change = |pod: &mut Value, from: &str, to: &str| {
        let record = &mut pod["metadata"]["annotations"]["inplace.dev/rollout"];
        let text = record.as_str().unwrap().to_owned();
        assert!(text.contains(from), "{text}");
        *record = json!(text.replace(from, to));
    };
    change(&mut shop.pods[1], r#","images":{"app":"app:1"}"#, "");
    change(&mut shop.pods[2], "app:1", "App:1 x");
    shop.pods[3] = pod(3);
    shop.pods[3]["metadata"]["uid"] = json!("new");
    shop.pods[3]["spec"]["containers"][0]["image"] = json!("app:2");
    shop.pods[4]["metadata"]["annotations"]["inplace.dev/request"] = json!("restart app #mine");
    let waits = shop.reconcile();
    assert!(begun(&waits).is_empty(), "{:?}", waits.writes);
    assert_eq!((shop.phase(), shop.abort().skipped), ((RolloutPhase::Aborting, "PodsTaken"), 3));
    shop.pods[4]["metadata"]["annotations"].as_object_mut().unwrap().remove("inplace.dev/request");
    assert_eq!(begun(&shop.reconcile()), ["web-4"]);
    shop.ends(4, "Succeeded");
    assert_eq!((shop.phase().0, shop.abort().returned), (RolloutPhase::Aborted, 1));
    assert!(shop.rollout.before.message.contains("3 left as they are"), "{}", shop.rollout.before.message);
    assert_eq!(shop.images(), ["app:3", "app:2", "app:2", "app:2", "app:1", "app:1", "app:1"]);
}

#[test]
fn only_the_containers_with_a_new_image_go_back() {
    let containers =
        json!([{"name": "app", "image": "app:2"}, {"name": "side"}, {"name": "log", "image": "log:1"}]);
    let mut shop = Shop::new(1, &json!({"containers": containers}));
    let all = shop.pods[0]["spec"]["containers"].as_array_mut().unwrap();
    all.extend([json!({"name": "side", "image": "side:1"}), json!({"name": "log", "image": "log:1"})]);
    shop.pods.push(pod(1));
    shop.reconcile();
    shop.ends(0, "Succeeded");
    shop.ends(1, "Refused");
    shop.reconcile();
    let asked: Vec<_> = shop.request(0).containers.into_iter().map(|one| (one.name, one.image)).collect();
    assert_eq!(asked, [("app".to_owned(), Some("app:1".to_owned()))]);
}

#[test]
fn a_record_can_only_name_images_of_containers_of_the_rollout() {
    let mut shop = Shop::aborting(2, 1, "RolledBack", &json!({}));
    let record = &mut shop.pods[0]["metadata"]["annotations"]["inplace.dev/rollout"];
    *record =
        json!(record.as_str().unwrap().replace(r#"{"app":"app:1"}"#, r#"{"app":"app:9","side":"evil:1"}"#));
    shop.reconcile();
    let asked = shop.request(0);
    assert_eq!((asked.containers.len(), asked.containers[0].image.as_deref()), (1, Some("app:9")));
}

#[test]
fn pods_that_do_not_come_back_stop_the_way_back_at_the_threshold() {
    let mut shop = Shop::aborting(4, 3, "RolledBack", &json!({}));
    shop.reconcile();
    let end = shop.ends(0, "Failed");
    assert_eq!(shop.phase(), (RolloutPhase::AbortFailed, "FailureThreshold"));
    assert_eq!(reasons(&end), ["PodNotReturned", "RolloutAbortFailed"]);
    assert_eq!(true_conditions(&end), ["Failed", "Stalled"]);
    let abort = shop.abort();
    assert_eq!((abort.failed, abort.pods, &*abort.failures[0].pod), (1, 3, "web-0"));
    assert_eq!((end.status.failed, end.status.done), (1, 2), "the swap of web-0 did not fail");
    // Below the threshold the others go back.
    let mut shop = Shop::new(4, &json!({"failureThreshold": 2, "maxUnavailable": 2}));
    shop.reconcile();
    shop.ends(0, "Succeeded");
    shop.ends(1, "Succeeded");
    shop.ends(2, "RolledBack");
    shop.ends(3, "RolledBack");
    shop.reconcile();
    shop.ends(0, "Failed");
    let end = shop.ends(1, "Succeeded");
    assert_eq!(shop.phase(), (RolloutPhase::AbortFailed, "SomePodsFailed"));
    assert_eq!((shop.abort().returned, reasons(&end)), (1, vec!["RolloutAbortFailed"]));
}

#[test]
fn a_pod_without_an_answer_has_not_come_back_and_is_not_asked_again() {
    let mut shop = Shop::aborting(2, 1, "RolledBack", &json!({"failureThreshold": 1}));
    shop.reconcile();
    shop.now += 200;
    shop.reconcile();
    assert_eq!((shop.phase().0, &*shop.abort().failures[0].reason), (RolloutPhase::AbortFailed, "NoAgent"));
    assert!(request(&shop.pods[0]).is_none());
}

#[test]
fn too_little_progress_aborts_and_the_deadlines_count_again_on_the_way_back() {
    let mut shop = Shop::new(3, &json!({"progressDeadlineSeconds": 60, "deadlineSeconds": 100}));
    shop.reconcile();
    shop.ends(0, "Succeeded");
    say(&mut shop.pods[1], "Running", Some("Pull"));
    shop.now = 80;
    shop.reconcile();
    assert_eq!((shop.phase().0, &*shop.abort().reason), (RolloutPhase::Aborting, "ProgressDeadlineExceeded"));
    say(&mut shop.pods[1], "Cancelled", None);
    assert_eq!(begun(&shop.reconcile()), ["web-0"]);
    say_about(&mut shop.pods[0], BACK, "Running", Some("Pull"));
    let mut slow =
        Shop { rollout: shop.rollout.clone(), pods: shop.pods.clone(), ..Shop::new(0, &json!({})) };
    shop.now = 181;
    let late = shop.reconcile();
    assert_eq!(
        (shop.phase(), late.writes[0].what.clone()),
        ((RolloutPhase::Aborting, "DeadlineExceeded"), What::Recall)
    );
    say_about(&mut shop.pods[0], BACK, "Cancelled", None);
    shop.reconcile();
    assert_eq!(shop.phase(), (RolloutPhase::AbortFailed, "DeadlineExceeded"));
    slow.rollout.spec.deadline_seconds = None;
    slow.now = 150;
    slow.reconcile();
    assert_eq!(slow.phase(), (RolloutPhase::Aborting, "ProgressDeadlineExceeded"));
}

#[test]
fn other_ends_of_a_rollout_take_no_pod_back() {
    let end = |change: &dyn Fn(&mut Shop)| {
        let mut shop = Shop::new(2, &json!({"deadlineSeconds": 60}));
        shop.reconcile();
        shop.ends(0, "Succeeded");
        say(&mut shop.pods[1], "Cancelled", None);
        change(&mut shop);
        shop.reconcile();
        (shop.rollout.before.phase, shop.rollout.before.reason.clone(), shop.rollout.before.abort.is_some())
    };
    let failed = |reason: &str| (RolloutPhase::Failed, reason.to_owned(), false);
    assert_eq!(end(&|shop| shop.now = 60), failed("DeadlineExceeded"));
    assert_eq!(end(&|shop| shop.target = TargetState::Absent), failed("TargetGone"));
    assert_eq!(end(&|shop| shop.rollout.spec.allow_template_drift = false), failed("TemplateDrift"));
}

#[test]
fn a_newer_rollout_and_a_deleted_target_end_the_way_back() {
    let mut shop = Shop::aborting(3, 2, "RolledBack", &json!({}));
    let pods: Vec<Pod> = shop.pods.iter().map(read).collect();
    let newer = RolloutInput { newer: Some("two"), ..seen(&shop.target, &pods, &[], at(shop.now)) };
    let superseded = decide(&shop.rollout, newer);
    assert_eq!((superseded.status.phase, superseded.writes.len()), (RolloutPhase::Superseded, 0));
    assert_eq!(reasons(&superseded), ["RolloutSuperseded"]);
    shop.target = TargetState::Absent;
    shop.reconcile();
    assert_eq!(shop.phase(), (RolloutPhase::AbortFailed, "TargetGone"));
}

#[test]
fn the_template_does_not_stop_the_way_back_and_a_new_pod_of_it_is_warned_of() {
    let mut shop = Shop::new(2, &json!({"allowTemplateDrift": false}));
    let TargetState::Present { templates, .. } = &mut shop.target else { unreachable!() };
    templates[0].images.insert("app".to_owned(), "app:2".to_owned());
    shop.reconcile();
    shop.ends(0, "Succeeded");
    let begins = shop.ends(1, "RolledBack");
    let says = "the template of Deployment/web names app:2 for container app, so a pod that it creates from now on has app:2";
    let event = begins.events.iter().find(|event| event.reason == "RolloutAborting").unwrap();
    assert!(event.message.contains(says) && event.warning, "{}", event.message);
    assert_eq!(begun(&shop.reconcile()), ["web-0"]);
    // The user changes the template back: that is no drift either.
    shop.target = target();
    shop.ends(0, "Succeeded");
    assert_eq!((shop.phase().0, shop.images()), (RolloutPhase::Aborted, vec!["app:1", "app:1"]));
    assert!(shop.rollout.before.message.contains(says), "{}", shop.rollout.before.message);
    assert!(!Shop::aborting(2, 1, "RolledBack", &json!({})).abort().message.contains("template"));
}

#[test]
fn a_pause_holds_the_way_back() {
    let mut shop = Shop::new(3, &json!({}));
    shop.reconcile();
    shop.ends(0, "Succeeded");
    shop.rollout.spec.paused = true;
    shop.ends(1, "RolledBack");
    assert_eq!((shop.phase(), shop.abort().failed), ((RolloutPhase::Paused, "Paused"), 0));
    let held = shop.reconcile();
    assert_eq!((begun(&held).len(), shop.phase().0), (0, RolloutPhase::Paused));
    shop.rollout.spec.paused = false;
    assert_eq!(begun(&shop.reconcile()), ["web-0"]);
}

#[test]
fn the_way_back_claims_at_the_budgets_and_ignores_the_partition() {
    let mut shop = Shop::aborting(5, 3, "RolledBack", &json!({"partition": 1, "maxUnavailable": 2}));
    shop.rollout.spec.partition = k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(5);
    // web-4, which was begun beside web-3, is back in any case.
    shop.budgets = vec![budget(0)];
    let waits = shop.reconcile();
    assert!(begun(&waits).is_empty());
    assert_eq!(shop.phase(), (RolloutPhase::Aborting, "PodDisruptionBudget"));
    shop.budgets = vec![budget(1)];
    let one = shop.reconcile();
    assert_eq!(
        one.writes.iter().find(|write| write.claims()).unwrap().what,
        What::Begin(vec!["pdb".to_owned()])
    );
    shop.budgets.clear();
    assert_eq!(begun(&shop.reconcile()).len(), 1, "two at once");
}

#[test]
fn a_job_that_would_end_its_pods_is_not_restarted_further() {
    let mut shop = Shop::aborting(3, 2, "RolledBack", &json!({}));
    let TargetState::Present { gives_up_at, .. } = &mut shop.target else { unreachable!() };
    *gives_up_at = Some(2);
    shop.reconcile();
    assert_eq!(shop.phase(), (RolloutPhase::AbortFailed, "BackoffLimit"));
}

#[test]
fn a_pod_that_is_not_ready_is_repaired_and_one_that_is_starts_first() {
    let mut shop =
        Shop::aborting(4, 2, "RolledBack", &json!({"pod": {"order": "StartFirst"}, "maxUnavailable": 2}));
    ready(&mut shop.pods[0], false, at(0));
    shop.pods[0]["status"]["containerStatuses"] = json!([{"name": "app", "ready": false, "state": {"running": {}},
        "restartCount": 0, "image": "", "imageID": ""}]);
    shop.reconcile();
    assert_eq!((shop.request(0).order, shop.request(1).order), (Order::StopFirst, Order::StartFirst));
}

#[test]
fn whoever_removes_the_record_does_not_make_a_pod_go_back_twice() {
    let mut shop = Shop::aborting(2, 1, "RolledBack", &json!({}));
    shop.reconcile();
    shop.pods[0]["metadata"]["annotations"].as_object_mut().unwrap().remove("inplace.dev/rollout");
    let without = shop.reconcile();
    assert_eq!((begun(&without).len(), without.status.busy), (0, 1));
    shop.ends(0, "Succeeded");
    assert_eq!((shop.phase().0, shop.abort().returned), (RolloutPhase::Aborted, 1));
    // Removed while the pod had the new image: nothing says what it had before.
    let mut shop = Shop::aborting(2, 1, "RolledBack", &json!({}));
    shop.pods[0]["metadata"]["annotations"].as_object_mut().unwrap().remove("inplace.dev/rollout");
    shop.reconcile();
    shop.reconcile();
    assert_eq!((shop.phase().0, shop.abort().skipped), (RolloutPhase::Aborted, 1));
    // A status that lost the abort begins no pod and calls none done.
    let mut shop = Shop::aborting(3, 2, "RolledBack", &json!({}));
    shop.reconcile();
    carry_out(&mut shop.pods[0], "Succeeded");
    shop.reconcile();
    shop.rollout.before.abort = None;
    shop.rollout.spec.failure_threshold = k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(3);
    let lost = shop.decide();
    assert_eq!(begun(&lost).len(), 0, "{:?}", lost.status);
}

#[test]
fn a_restart_has_nothing_to_take_back() {
    let problems = |containers: Value| {
        let spec = swap(&json!({"containers": containers})).spec;
        check::spec(&spec).join("; ")
    };
    assert!(problems(json!([{"name": "app"}])).starts_with("spec.onFailure: a restart leaves nothing"));
    assert_eq!(problems(json!([{"name": "app"}, {"name": "side", "image": "side:2"}])), "");
}

#[test]
fn an_orphan_of_an_abort_is_closed_with_its_own_request() {
    let mut shop = Shop::aborting(2, 1, "RolledBack", &json!({}));
    shop.reconcile();
    let (write, _) = crate::rollout::orphan::orphan(&read(&shop.pods[0]), at(shop.now));
    let write = write.unwrap();
    assert_eq!(write.what, What::Recall);
    apply(&mut shop.pods[0], &write);
    assert!(request(&shop.pods[0]).is_none());
    assert!(
        shop.pods[0]["metadata"]["annotations"]["inplace.dev/rollout"]
            .as_str()
            .unwrap()
            .contains(r#""back":true"#)
    );
}
