//! `strategy: Together`: which phase of a group restart follows from which reports of the agents.

use super::*;
use crate::api::group::{GroupPhase, GroupStatus};

/// A group restart, and its pods as API objects.
struct Group {
    rollout: Rollout,
    pods: Vec<Value>,
    agents: Option<crate::rollout::reach::ReadyAgents>,
}

impl Group {
    /// The phase Prepare, begun at 1.
    fn new(pods: usize, more: &Value) -> Self {
        let mut spec = json!({"strategy": "Together"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let pods = (0..pods).map(pod).collect();
        let mut group = Self { rollout: rollout(&spec), pods, agents: None };
        let first = group.reconcile(1);
        assert!(first.labels && first.status == group.rollout.before, "the label comes first: {first:?}");
        group.rollout.is_labelled = true;
        group.rollout.before = group.reconcile(1).status;
        group
    }

    fn reconcile(&self, now: i64) -> Decision {
        let pods: Vec<Pod> = self.pods.iter().map(read).collect();
        let target = target();
        let input = RolloutInput { agents: self.agents.as_ref(), ..seen(&target, &pods, &[], at(now)) };
        decide(&self.rollout, input)
    }

    /// Reconciles and stores the status.
    fn go(&mut self, now: i64) -> GroupStatus {
        let decision = self.reconcile(now);
        assert!(decision.writes.is_empty(), "a group restart writes to no pod");
        self.rollout.before = decision.status;
        self.rollout.before.group.clone().unwrap()
    }

    /// The agent of a pod reports that it is prepared or stopped, at this second.
    fn report(&mut self, index: usize, phase: &str, prepared: Option<i64>, stopped: Option<i64>) {
        let mut report = json!({"id": UID, "phase": phase, "step": "Swap", "reason": "", "message": "said",
            "startedAt": at(1), "finishedAt": null, "containers": [], "group": {"epoch": 1}});
        for (field, second) in [("preparedAt", prepared), ("stoppedAt", stopped)] {
            if let Some(second) = second {
                report["group"][field] = json!(at(second));
            }
        }
        if !["Running", "Pending"].contains(&phase) {
            report["finishedAt"] = json!(at(20));
        }
        self.pods[index]["metadata"]["annotations"]["inplace.dev/status"] = json!(report.to_string());
    }

    fn report_all(&mut self, phase: &str, prepared: Option<i64>, stopped: Option<i64>) {
        (0..self.pods.len()).for_each(|index| self.report(index, phase, prepared, stopped));
    }

    fn phase(&self) -> (RolloutPhase, &str, &str) {
        let status = &self.rollout.before;
        (status.phase, &status.reason, &status.message)
    }
}

#[test]
fn a_group_is_prepared_stopped_and_started_together() {
    let mut group = Group::new(3, &json!({}));
    let first = group.rollout.before.group.clone().unwrap();
    assert_eq!(
        (first.epoch, first.phase, first.owners),
        (at(1).as_millisecond(), GroupPhase::Prepare, vec!["rs".to_owned()])
    );
    group.report(0, "Running", Some(2), None);
    group.report(1, "Running", Some(4), None);
    let now = group.go(5);
    assert_eq!((now.phase, now.prepared), (GroupPhase::Prepare, 2));
    assert_eq!(group.rollout.before.message, "group restart: 2 of 3 pods are prepared; waiting for web-2");
    group.report(2, "Running", Some(3), None);
    let now = group.go(6);
    assert_eq!((now.phase, now.stop_at, now.last.as_str()), (GroupPhase::Stop, Some(at(6)), "web-1"));
    group.report_all("Running", Some(3), Some(7));
    group.report(1, "Running", Some(4), None);
    assert_eq!(group.go(8).phase, GroupPhase::Stop, "one has not stopped");
    group.report(1, "Running", Some(4), Some(9));
    let now = group.go(10);
    assert_eq!((now.phase, now.stopped, now.start_at), (GroupPhase::Start, 3, Some(at(10))));
    group.report_all("Succeeded", Some(3), Some(7));
    group.go(21);
    assert_eq!(
        group.phase(),
        (RolloutPhase::Succeeded, "AllPodsDone", "group restart: 3 of 3 pods are restarted")
    );
    assert_eq!((group.rollout.before.done, group.rollout.before.finished_at), (3, Some(at(21))));
}

#[test]
fn without_a_barrier_the_start_follows_the_preparation() {
    let mut group = Group::new(2, &json!({"together": {"barrier": false}}));
    group.report_all("Running", Some(2), None);
    assert_eq!(group.go(3).phase, GroupPhase::Start);
}

#[test]
fn a_pod_that_cannot_be_prepared_ends_it_before_anything_is_stopped() {
    let mut group = Group::new(3, &json!({}));
    group.report(0, "Running", Some(2), None);
    group.report(1, "Refused", None, None);
    group.go(3);
    let (phase, reason, message) = group.phase();
    assert_eq!((phase, reason), (RolloutPhase::Failed, "PodsUnprepared"));
    assert!(message.contains("1 of 3 pods") && message.contains("web-1 (Refused: said)"), "{message}");
    assert!(message.ends_with("No container was stopped"), "{message}");
    let mut late = Group::new(2, &json!({"together": {"prepareTimeoutSeconds": 10}}));
    late.report(0, "Running", Some(2), None);
    assert_eq!(late.reconcile(10).status.phase, RolloutPhase::Running);
    late.go(11);
    assert_eq!(late.phase().1, "PodsUnprepared");
    assert!(late.phase().2.contains("web-1"), "{}", late.phase().2);
}

#[test]
fn a_pod_that_cannot_be_prepared_is_left_out_if_the_user_says_so() {
    let mut group = Group::new(3, &json!({"together": {"onUnprepared": "Skip"}}));
    group.agents =
        Some([("n".to_owned(), crate::rollout::reach::ReadyAgent { since: at(-100), at_once: 8 })].into());
    group.pods[2]["spec"]["nodeName"] = json!("dead");
    group.report(0, "Running", Some(2), None);
    group.report(1, "Refused", None, None);
    assert_eq!(group.go(3).phase, GroupPhase::Prepare, "the third pod may be prepared yet");
    assert!(group.rollout.before.message.contains("no agent is ready on node dead"), "{:?}", group.phase());
    let now = group.go(31);
    assert_eq!((now.phase, now.prepared, now.skipped), (GroupPhase::Stop, 1, 2));
    assert_eq!(now.left_out, ["u1", "u2"], "their agents do not join later");
    group.report(0, "Succeeded", Some(2), Some(32));
    // The agent comes back too late: nobody waits for it.
    group.report(2, "Running", Some(33), None);
    let now = group.go(33);
    assert_eq!((now.phase, now.skipped), (GroupPhase::Start, 2));
    group.go(34);
    let (phase, reason, message) = group.phase();
    assert_eq!((phase, reason), (RolloutPhase::Failed, "SomePodsFailed"));
    assert!(message.contains("1 of 3 pods are restarted"), "{message}");
    assert_eq!((group.rollout.before.failed, group.rollout.before.failures.len()), (2, 2));
    // The agents of all nodes receive the uids of those that are left out.
    let mut many = Group::new(300, &json!({"together": {"onUnprepared": "Skip"}}));
    (0..43).for_each(|index| many.report(index, "Running", Some(2), None));
    many.go(31);
    let (_, reason, message) = many.phase();
    assert_eq!((reason, message.contains("257 of 300 pods could not be prepared")), ("PodsUnprepared", true));
    // If none can be prepared, there is nothing to go on with.
    let mut none = Group::new(1, &json!({"together": {"onUnprepared": "Skip"}}));
    none.report(0, "Refused", None, None);
    none.go(2);
    assert_eq!(none.phase().1, "PodsUnprepared");
}

#[test]
fn the_barrier_opens_when_its_time_is_over_or_a_pod_is_gone() {
    for gone in [true, false] {
        let mut group = Group::new(2, &json!({"together": {"barrierTimeoutSeconds": 20}}));
        group.report_all("Running", Some(2), None);
        group.go(3);
        group.report(0, "Running", Some(2), Some(4));
        assert_eq!(group.go(5).phase, GroupPhase::Stop);
        if gone {
            group.pods.pop();
            assert_eq!(group.go(6).phase, GroupPhase::Start);
            group.report(0, "Succeeded", Some(2), Some(4));
            group.go(7);
            let (phase, _, message) = group.phase();
            assert_eq!(phase, RolloutPhase::Succeeded);
            assert!(message.ends_with("1 of 1 pods are restarted, 1 were deleted meanwhile"), "{message}");
        } else {
            assert_eq!(group.reconcile(22).requeue_at, Some(at(23)));
            assert_eq!(group.go(23).phase, GroupPhase::Start);
        }
    }
}

#[test]
fn a_pod_whose_end_is_never_reported_has_failed_after_its_deadline() {
    let mut group = Group::new(2, &json!({"pod": {"deadlineSeconds": 100}}));
    group.report_all("Running", Some(2), Some(4));
    group.go(3);
    group.go(5);
    group.report(0, "Succeeded", Some(2), Some(4));
    group.go(10);
    assert_eq!(group.phase().0, RolloutPhase::Running);
    group.go(135);
    assert_eq!(
        (group.phase().0, group.rollout.before.failures[0].reason.as_str()),
        (RolloutPhase::Failed, "NoReport")
    );
}

#[test]
fn a_newer_rollout_ends_the_preparation_and_nothing_after_it() {
    let newer = |group: &Group, now: i64| {
        let pods: Vec<Pod> = group.pods.iter().map(read).collect();
        let target = target();
        let input = RolloutInput { newer: Some("two"), ..seen(&target, &pods, &[], at(now)) };
        decide(&group.rollout, input).status.phase
    };
    let mut group = Group::new(1, &json!({}));
    assert_eq!(newer(&group, 2), RolloutPhase::Superseded);
    group.report(0, "Running", Some(2), None);
    group.go(3);
    assert_eq!(newer(&group, 4), RolloutPhase::Running);
}

#[test]
fn each_group_restart_has_a_higher_number_than_the_ones_of_its_pods() {
    let mut pods: Vec<_> = (0..2).map(pod).collect();
    let last = at(60).as_millisecond();
    pods[1]["metadata"]["annotations"]["inplace.dev/group-epoch"] = json!(last.to_string());
    let epoch = |pods: &[Value]| {
        let mut group =
            Group { rollout: rollout(&json!({"strategy": "Together"})), pods: pods.to_vec(), agents: None };
        group.rollout.is_labelled = true;
        group.go(1).epoch
    };
    assert_eq!(epoch(&pods), last + 1);
    // Users can write the annotation.
    for forged in ["9223372036854775807", "-3", "x"] {
        pods[0]["metadata"]["annotations"]["inplace.dev/group-epoch"] = json!(forged);
        assert_eq!(epoch(&pods), last + 1, "{forged}");
    }
}

#[test]
fn pods_that_are_created_later_are_no_members_and_numbers_are_written_once_a_second() {
    let mut group = Group::new(2, &json!({}));
    group.pods.push(pod(2));
    group.pods[2]["metadata"]["creationTimestamp"] = json!(at(2));
    group.report(0, "Running", Some(2), None);
    assert_eq!(group.go(2).prepared, 1, "a second after the last write");
    let before = group.rollout.before.clone();
    group.report(1, "Pending", None, None);
    assert_eq!(group.reconcile(2).status, before, "nothing is written");
    group.report(1, "Running", Some(2), None);
    assert_eq!(group.go(2).phase, GroupPhase::Stop, "a new phase is written at once");
    assert_eq!(group.rollout.before.pods, 2);
}

#[test]
fn among_thousands_of_agents_numbers_are_written_less_often_and_phases_at_once() {
    let mut group = Group::new(2, &json!({}));
    let agent = crate::rollout::reach::ReadyAgent { since: at(-100), at_once: 8 };
    let others = (1..5000).map(|number| (format!("other-{number}"), agent));
    group.agents = Some(others.chain([("n".to_owned(), agent)]).collect());
    group.report(0, "Running", Some(2), None);
    let waits = group.reconcile(5);
    assert_eq!((waits.status, waits.requeue_at), (group.rollout.before.clone(), Some(at(6))));
    assert_eq!(group.go(6).prepared, 1, "five seconds after the last write");
    group.report(1, "Running", Some(6), None);
    assert_eq!(group.go(6).phase, GroupPhase::Stop);
}

#[test]
fn what_a_group_restart_cannot_do_is_refused_field_by_field() {
    let problems = |more: Value| {
        let mut spec = json!({"strategy": "Together"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check::spec(&rollout(&spec).spec).join("\n")
    };
    assert_eq!(problems(json!({})), "");
    for (more, field) in [
        (json!({"containers": [{"name": "app", "image": "app:2"}]}), "spec.containers"),
        (json!({"together": {"barrierTimeoutSeconds": 301}}), "spec.together.barrierTimeoutSeconds"),
        (json!({"pod": {"deadlineSeconds": 90}}), "spec.pod.deadlineSeconds"),
        (json!({"pod": {"gracePeriodSeconds": 5}}), "spec.pod.gracePeriodSeconds"),
        (json!({"pod": {"order": "StartFirst"}}), "spec.pod.order"),
        (json!({"pod": {"eachReady": true}}), "spec.pod.eachReady"),
        (json!({"together": {"prepareTimeoutSeconds": 0}}), "spec.together.prepareTimeoutSeconds"),
        (json!({"strategy": "Rolling", "together": {}}), "spec.together"),
    ] {
        assert!(problems(more.clone()).starts_with(field), "{more}: {}", problems(more.clone()));
    }
    let without = json!({"pod": {"deadlineSeconds": 90}, "together": {"barrier": false}});
    assert_eq!(problems(without), "");
}

#[test]
fn the_barrier_waits_for_pods_whose_containers_may_still_run() {
    // One failed before its stop was reported, or is being deleted.
    for is_deleted in [false, true] {
        let mut group = Group::new(2, &json!({}));
        group.report_all("Running", Some(2), None);
        group.go(3);
        group.report(0, "Running", Some(2), Some(4));
        if is_deleted {
            group.pods[1]["metadata"]["deletionTimestamp"] = json!(at(4));
        } else {
            group.report(1, "Failed", Some(2), None);
        }
        assert_eq!(group.go(5).phase, GroupPhase::Stop, "{is_deleted}");
        assert_eq!(group.go(63).phase, GroupPhase::Start, "{is_deleted}: the time is over");
    }
}

#[test]
fn a_pause_holds_what_is_prepared() {
    let mut group = Group::new(1, &json!({}));
    group.report_all("Running", Some(2), None);
    group.rollout.spec.paused = true;
    assert_eq!(group.go(3).phase, GroupPhase::Prepare);
    let says = "group restart: 1 of 1 pods are prepared; paused by spec.paused";
    assert_eq!(group.phase(), (RolloutPhase::Paused, "Paused", says));
    group.rollout.spec.paused = false;
    assert_eq!(group.go(4).phase, GroupPhase::Stop);
    assert_eq!((group.phase().0, group.phase().1), (RolloutPhase::Running, "Stop"));
}

#[test]
fn a_pause_of_the_preparation_does_not_count_as_time_without_progress() {
    let mut group = Group::new(2, &json!({"progressDeadlineSeconds": 10}));
    group.report(0, "Running", Some(2), None);
    group.rollout.spec.paused = true;
    group.go(3);
    assert_eq!(group.phase().0, RolloutPhase::Paused);
    group.rollout.spec.paused = false;
    for now in [20, 29] {
        group.go(now);
        assert_eq!((group.phase().0, group.phase().1), (RolloutPhase::Running, "Prepare"));
    }
    group.go(30);
    assert_eq!((group.phase().0, group.phase().1), (RolloutPhase::Failed, "ProgressDeadlineExceeded"));
}

#[test]
fn a_report_that_another_request_replaced_is_not_waited_for() {
    let mut group = Group::new(1, &json!({}));
    group.report_all("Running", Some(2), None);
    group.go(3);
    group.report_all("Running", Some(2), Some(4));
    group.go(5);
    let annotations = &mut group.pods[0]["metadata"]["annotations"];
    annotations["inplace.dev/group-epoch"] = json!(at(1).as_millisecond().to_string());
    annotations["inplace.dev/status"] = json!(
        r#"{"id": "2", "phase": "Running", "reason": "", "message": "", "startedAt": null, "finishedAt": null, "containers": []}"#
    );
    group.go(6);
    assert_eq!(group.rollout.before.failures[0].reason, "ReportReplaced", "{:?}", group.phase());
}

#[test]
fn without_its_pods_a_group_restart_does_not_succeed() {
    let mut group = Group::new(1, &json!({}));
    group.report_all("Running", Some(2), None);
    group.go(3);
    group.pods.clear();
    assert_eq!(group.go(4).phase, GroupPhase::Stop, "nothing is known about them");
    group.go(63);
    group.go(64);
    assert_eq!(group.phase().0, RolloutPhase::Failed, "{:?}", group.phase());
}

#[test]
fn a_rollout_that_gets_no_label_fails() {
    let mut group =
        Group { rollout: rollout(&json!({"strategy": "Together"})), pods: vec![pod(0)], agents: None };
    assert!(group.reconcile(30).labels, "nothing has failed yet");
    group.rollout.before.reason = "WriteFailed".to_owned();
    assert!(group.reconcile(29).labels);
    group.rollout.before = group.reconcile(30).status;
    assert_eq!((group.phase().0, group.phase().1), (RolloutPhase::Failed, "PodsUnprepared"));
}

#[test]
fn after_a_group_restart_an_earlier_request_of_a_pod_is_not_in_progress() {
    let mut ended = pod(0);
    ended["metadata"]["annotations"] = json!({
        "inplace.dev/request": r#"{"id": "1", "containers": [{"name": "app"}]}"#,
        "inplace.dev/status": json!({"id": "g", "phase": "Succeeded", "reason": "", "message": "", "startedAt": null,
            "finishedAt": at(-10), "containers": [], "group": {"epoch": 1, "endedRequest": "1"}}).to_string(),
    });
    assert!(!read(&ended).base.is_taken(None));
    let mut running = ended.clone();
    let text = ended["metadata"]["annotations"]["inplace.dev/status"]
        .as_str()
        .unwrap()
        .replace("Succeeded", "Running");
    running["metadata"]["annotations"]["inplace.dev/status"] = json!(text);
    assert!(read(&running).base.is_taken(None), "a group restart is in progress");
    let decision = reconcile(&json!({}), &[ended], &[], 1);
    assert_eq!(decision.writes.len(), 1, "a later rollout takes the pod: {decision:?}");
}
