//! Two rollouts whose targets have pods in common.

use super::*;

/// A restart of the pods with a label, which are those of the other rollout too.
fn by_labels() -> Rollout {
    let mut two = rollout(&json!({"maxUnavailable": 2}));
    (two.uid, two.name) = ("r-2".to_owned(), "two".to_owned());
    two.spec.target.workload_ref = None;
    two.spec.target.selector = serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap();
    two
}

/// One reconcile of `rollout`, whose writes and status are applied.
fn look(rollout: &mut Rollout, pods: &mut [Value], now: i64) -> Decision {
    let read: Vec<Pod> = pods.iter().map(read).collect();
    let decision = decide(rollout, seen(&target(), &read, &[], at(now)));
    for write in &decision.writes {
        apply(pods.iter_mut().find(|pod| pod["metadata"]["uid"] == *write.pod.uid).unwrap(), write);
    }
    rollout.before = decision.status.clone();
    decision
}

/// Two rollouts and two pods: the first rollout has restarted `web-0` and works on `web-1`.
fn shop() -> (Rollout, Rollout, Vec<Value>) {
    let (mut one, two, mut pods) = (rollout(&json!({})), by_labels(), vec![pod(0), pod(1)]);
    look(&mut one, &mut pods, 1);
    say(&mut pods[0], "Succeeded", None);
    assert_eq!(look(&mut one, &mut pods, 2).writes.len(), 2, "an end and a begin");
    say(&mut pods[1], "Running", Some("Swap"));
    (one, two, pods)
}

#[test]
fn a_pod_that_another_rollout_restarts_afterwards_stays_done() {
    let (mut one, mut two, mut pods) = shop();
    assert_eq!(begun(&look(&mut two, &mut pods, 3)), ["web-0"]);
    say_about(&mut pods[0], "r-2", "Succeeded", None);
    look(&mut two, &mut pods, 4);
    let next = look(&mut one, &mut pods, 5);
    assert_eq!((next.writes.len(), next.status.done, next.status.busy), (0, 1, 1), "{:?}", next.writes);
    say(&mut pods[1], "Succeeded", None);
    look(&mut one, &mut pods, 6);
    assert_eq!(look(&mut one, &mut pods, 7).status.phase, RolloutPhase::Succeeded);
    look(&mut two, &mut pods, 8);
    say_about(&mut pods[1], "r-2", "RolledBack", None);
    let end = look(&mut two, &mut pods, 9).status;
    assert_eq!((end.phase, end.done, end.failed), (RolloutPhase::Failed, 1, 1), "its own failure counts");
}

#[test]
fn a_rollout_that_names_no_image_leaves_the_same_image_of_another_rollout_alone() {
    let swap = json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": true, "paused": true});
    let (mut one, mut two) = (rollout(&swap), by_labels());
    two.spec.containers.clone_from(&one.spec.containers);
    two.spec.allow_template_drift = true;
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    pods[2]["spec"]["nodeName"] = json!("m");
    assert_eq!(begun(&look(&mut two, &mut pods, 1)), ["web-0", "web-1"]);
    assert_eq!(pods[2]["metadata"]["annotations"]["inplace.dev/rollout-prefetch"], "app:2,rollout=r-2");
    for now in 2..5 {
        for rollout in [&mut one, &mut two] {
            let next = look(rollout, &mut pods, now);
            assert!(next.writes.is_empty(), "{now}: {:?}", next.writes);
        }
    }
}

#[test]
fn a_pod_that_is_done_and_that_another_client_restarts_counts_against_the_budget() {
    let (mut one, mut pods) = (rollout(&json!({})), vec![pod(0), pod(1)]);
    look(&mut one, &mut pods, 1);
    say(&mut pods[0], "Succeeded", None);
    let request = json!({"id": "mine", "containers": [{"name": "app"}]});
    pods[0]["metadata"]["annotations"]["inplace.dev/request"] = json!(request.to_string());
    for now in [2, 3] {
        let waits = look(&mut one, &mut pods, now);
        assert_eq!((begun(&waits).len(), waits.status.done), (0, 1), "{:?}", waits.writes);
        assert_eq!((waits.status.phase, &*waits.status.reason), (RolloutPhase::Running, "PodsTaken"));
    }
    say_about(&mut pods[0], "mine", "Succeeded", None);
    assert_eq!(begun(&look(&mut one, &mut pods, 4)), ["web-1"]);
}

/// The agent has not answered the second request yet: its last answer is about the first one.
#[test]
fn the_record_of_another_rollout_is_not_overwritten_by_the_answer_to_an_earlier_request() {
    for newer in [None, Some("two")] {
        let (mut one, mut two, mut pods) = shop();
        assert_eq!(begun(&look(&mut two, &mut pods, 3)), ["web-0"]);
        let before = pods[0].clone();
        let read: Vec<Pod> = pods.iter().map(read).collect();
        let target = target();
        let next = decide(&one, RolloutInput { newer, ..seen(&target, &read, &[], at(4)) });
        assert!(next.writes.iter().all(|write| write.pod.name != "web-0"), "{:?}", next.writes);
        look(&mut one, &mut pods, 5);
        assert_eq!(pods[0], before);
    }
}

#[test]
fn the_ends_on_record_are_limited() {
    let mut record = None;
    for number in 0..40 {
        let text = json!({"rollout": format!("r-{number}"), "name": "one", "stage": "Done", "at": at(0), "seconds": 1});
        let new: crate::rollout::record::PodRecord = serde_json::from_value(text).unwrap();
        record = Some(new.replacing(record.as_ref()));
    }
    let record = record.unwrap();
    assert_eq!(record.earlier.len(), 8);
    assert_eq!(record.stage_of("r-38"), record.stage_of("r-39"));
    assert_eq!((record.stage_of("r-30"), record.stage_of("r-40")), (None, None));
}
