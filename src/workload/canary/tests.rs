//! Tests of canary steps.

use serde_json::json;

use super::*;
use crate::api::hook_run::HookPhase;
use crate::workload::fixtures::{KnownTemplates, at};
use crate::workload::hooks::TemplateState;

/// A rollout that is reconciled repeatedly.
struct Rollout {
    canary: Canary,
    update: &'static str,
    all_updated: bool,
    has_served: bool,
    /// Every partition that holds back at least this many pods is reached.
    reached: Option<usize>,
    paused: bool,
    resume: Option<&'static str>,
    runs: Vec<Run>,
    now: i64,
    steps: Steps,
}

fn rollout(steps: &serde_json::Value) -> Rollout {
    Rollout {
        canary: serde_json::from_value(json!({"steps": steps})).unwrap(),
        update: "web-2",
        all_updated: false,
        has_served: true,
        reached: None,
        paused: false,
        resume: None,
        runs: Vec::new(),
        now: 0,
        steps: Steps {
            canary: crate::api::workload::CanaryStatus { revision: "web-1".into(), ..Default::default() },
            ..Steps::default()
        },
    }
}

impl Rollout {
    /// One reconcile; its writes are applied.
    fn decide(&mut self) -> Step {
        let (reached, all_updated) = (self.reached, self.all_updated);
        let step = decide(
            &CanaryInput {
                canary: &self.canary,
                update: self.update,
                all_updated: self.all_updated,
                has_served: self.has_served,
                reached: &move |held| match held {
                    Held::All => true,
                    Held::Part(amount) => reached.is_some_and(|reached| amount.held_back(10) >= reached),
                },
                is_rolled_out: &move || all_updated && reached == Some(0),
                paused: self.paused,
                resume: self.resume,
                runs: &self.runs,
                templates: &KnownTemplates::from([("test".to_owned(), TemplateState::Valid)]),
                now: at(self.now),
            },
            &self.steps,
        );
        self.steps = step.steps.clone();
        for action in &step.actions {
            match action {
                Action::ClearResume => self.resume = None,
                Action::CreateRun(run) => self.runs.push(Run {
                    name: run.name.clone(),
                    kind: HookType::Canary,
                    key: run.annotations["inplace.dev/task"].clone(),
                    pod_uid: String::new(),
                    phase: HookPhase::Running,
                    approved: false,
                    created: None,
                    deleting: false,
                }),
                Action::DeleteRun(name) => self.runs.retain(|run| run.name != *name),
                _ => {}
            }
        }
        step
    }

    fn index(&mut self) -> usize {
        self.decide();
        self.steps.index.unwrap()
    }
}

fn part(count: u32) -> Held {
    Held::Part(Amount::Count(count))
}

#[test]
fn a_step_ends_when_its_partition_is_reached_also_when_more_than_that_is() {
    let mut rollout = rollout(&json!([{"partition": 8}, {"partition": 5}]));
    assert_eq!((rollout.index(), rollout.decide().held), (0, part(8)));
    rollout.reached = Some(3);
    assert_eq!(rollout.index(), 1, "19: overshoot completes");
    assert_eq!(rollout.decide().held, part(5));
    assert_eq!(rollout.index(), 2);
    assert_eq!(rollout.decide().held, part(0));
}

#[test]
fn before_the_first_partition_nothing_moves() {
    let mut rollout = rollout(&json!([{"pause": {}}, {"partition": 5}]));
    assert_eq!(rollout.decide().held, Held::All);
}

#[test]
fn a_pause_without_an_end_is_ended_by_the_user() {
    let mut rollout = rollout(&json!([{"pause": {}}, {"partition": 5}]));
    rollout.decide();
    rollout.decide();
    assert_eq!(rollout.steps.pauses[0].reason, PauseReason::PausedByCanaryPauseStep);
    assert_eq!(rollout.steps.canary.pause_start_time, Some(at(0)));
    rollout.now = 100_000;
    assert_eq!(rollout.index(), 0);
    rollout.resume = Some("web-2/0");
    // The status may not be written: then the approval is still there.
    let unwritten = rollout.steps.clone();
    assert_eq!((rollout.index(), rollout.resume), (1, Some("web-2/0")));
    rollout.steps = unwritten;
    assert_eq!((rollout.index(), rollout.resume), (1, Some("web-2/0")));
    assert!(rollout.steps.pauses.is_empty());
    assert_eq!(rollout.steps.canary.pause_start_time, None);
    assert_eq!((rollout.index(), rollout.resume), (1, None));
}

/// What makes a manifest that is applied again no resume: only a change from true to false is one, and only when the
/// true was observed while the step pauses.
#[test]
fn paused_resumes_a_step_only_after_it_was_seen_as_true_during_the_pause() {
    let mut rollout = rollout(&json!([{"pause": {}}, {"pause": {}}, {"partition": 5}]));
    rollout.paused = true;
    for _ in 0..3 {
        rollout.decide();
        assert!(rollout.steps.pauses.is_empty(), "the user's own pause comes first");
    }
    rollout.paused = false;
    for _ in 0..3 {
        assert_eq!(rollout.index(), 0);
    }
    assert!(!rollout.steps.pauses[0].user_paused);
    for step in [0, 1] {
        assert_eq!(rollout.index(), step);
        rollout.decide();
        rollout.paused = true;
        assert_eq!(rollout.index(), step);
        assert!(rollout.steps.pauses[0].user_paused, "{step}");
        rollout.paused = false;
        assert_eq!(rollout.index(), step + 1);
    }
}

#[test]
fn an_approval_is_for_one_step_of_one_revision_and_is_used_once() {
    let mut rollout = rollout(&json!([{"pause": {}}, {"pause": {}}, {"pause": {}}]));
    // Before the step pauses, an approval does nothing.
    rollout.resume = Some("web-2/0");
    assert_eq!((rollout.index(), rollout.resume), (0, None));
    for stale in ["web-1/0", "web-2/1", "web-2/", "web-2", "0", "", "true"] {
        rollout.decide();
        rollout.resume = Some(stale);
        assert_eq!((rollout.index(), rollout.resume), (0, None), "{stale}");
        assert_eq!(rollout.steps.pauses.len(), 1, "{stale}");
    }
    rollout.resume = Some("web-2/0");
    assert_eq!(rollout.index(), 1);
    assert_eq!((rollout.index(), rollout.resume), (1, None));
    rollout.decide();
    // The same approval once more, as a client writes it that repeats its call.
    rollout.resume = Some("web-2/0");
    assert_eq!((rollout.index(), rollout.resume), (1, None));
    // Other steps begin again, and an approval of the old ones does nothing.
    rollout.canary.steps.pop();
    rollout.resume = Some("web-2/1");
    assert_eq!((rollout.index(), rollout.resume), (0, None));
    assert!(rollout.steps.pauses.is_empty());
}

#[test]
fn an_approval_waits_until_the_partition_is_reached_again() {
    let mut rollout = rollout(&json!([{"partition": 8, "pause": {}}, {"partition": 5}]));
    rollout.reached = Some(8);
    rollout.decide();
    rollout.decide();
    assert_eq!(rollout.steps.pauses.len(), 1);
    // A pod of the canary is not available any more.
    rollout.reached = None;
    rollout.resume = Some("web-2/0");
    assert!(!rollout.decide().waits, "the pods that the partition lacks are updated");
    assert_eq!((rollout.index(), rollout.resume), (0, Some("web-2/0")));
    rollout.reached = Some(8);
    assert!(rollout.decide().waits, "until the status has the end of the wait");
    assert_eq!((rollout.index(), rollout.resume), (1, None));
}

#[test]
fn a_pause_that_an_earlier_release_wrote_into_the_spec_is_resumed_there() {
    for reason in [PauseReason::PausedByCanaryPauseStep, PauseReason::PausedByStepBasedHook] {
        let mut rollout =
            rollout(&json!([{"hook": {"templateName": "test"}, "pause": {}}, {"partition": 5}]));
        rollout.decide();
        // The status of that release has no record of `paused`.
        rollout.steps.pauses = vec![PauseCondition { reason, start_time: at(0), user_paused: false }];
        if let Some(run) = rollout.runs.first_mut() {
            run.phase = HookPhase::Failed;
        }
        rollout.paused = true;
        assert_eq!(rollout.index(), 0);
        rollout.paused = false;
        assert_eq!(rollout.index(), 1, "{reason:?}");
    }
}

#[test]
fn a_pause_with_an_end_ends_by_itself_also_while_the_user_pauses() {
    for paused in [false, true] {
        let mut rollout = rollout(&json!([{"pause": {"duration": 60}}, {"partition": 5}]));
        rollout.decide();
        rollout.decide();
        rollout.paused = paused;
        let step = rollout.decide();
        assert_eq!(step.requeue_at, Some(at(60)));
        rollout.now = 59;
        assert_eq!(rollout.decide().requeue_at, Some(at(60)));
        rollout.now = 60;
        assert_eq!((rollout.index(), rollout.paused), (1, paused));
    }
}

#[test]
fn a_hook_lets_the_step_pass_and_goes() {
    let mut rollout = rollout(&json!([{"hook": {"templateName": "test"}}, {"partition": 5}]));
    rollout.decide();
    rollout.decide();
    assert_eq!(rollout.runs[0].name, "canary-web-2-0-test");
    assert_eq!(rollout.steps.canary.current_step_hook_run, "canary-web-2-0-test");
    assert_eq!(rollout.index(), 0);
    rollout.runs[0].phase = HookPhase::Successful;
    assert_eq!(rollout.index(), 1);
    assert_eq!(rollout.runs.len(), 1, "the status with the next step may not be written");
    rollout.decide();
    assert!(rollout.runs.is_empty());
}

#[test]
fn a_hook_gets_the_arguments_that_have_a_value_and_no_others() {
    let args = json!([{"name": "service-name", "value": "svc"}, {"name": "of-the-template"}]);
    let mut rollout = rollout(&json!([{"hook": {"templateName": "test", "args": args}}, {"partition": 5}]));
    let created: Vec<_> = (0..2).flat_map(|_| rollout.decide().actions).collect();
    let [Action::CreateRun(run)] = &created[..] else { panic!("{created:?}") };
    let args: Vec<_> = run.args.iter().map(|arg| (arg.name.as_str(), arg.value.as_str())).collect();
    assert_eq!(args, [("service-name", "svc")]);
}

#[test]
fn a_hook_that_fails_pauses_until_the_user_goes_on() {
    let mut rollout = rollout(&json!([{"hook": {"templateName": "test"}}, {"partition": 5}]));
    rollout.decide();
    rollout.decide();
    rollout.runs[0].phase = HookPhase::Failed;
    rollout.decide();
    rollout.decide();
    assert_eq!(rollout.steps.pauses[0].reason, PauseReason::PausedByStepBasedHook);
    assert_eq!(rollout.index(), 0);
    rollout.resume = Some("web-2/0");
    assert_eq!(rollout.index(), 1);
    assert_eq!((rollout.index(), rollout.resume), (1, None));
}

#[test]
fn an_approved_hook_run_ends_no_pause_of_its_step() {
    let mut rollout = rollout(&json!([{"hook": {"templateName": "test"}, "pause": {}}, {"partition": 5}]));
    rollout.decide();
    rollout.decide();
    rollout.runs[0].phase = HookPhase::Failed;
    rollout.decide();
    rollout.paused = true;
    rollout.decide();
    rollout.runs[0].approved = true;
    rollout.decide();
    rollout.paused = false;
    for _ in 0..3 {
        assert_eq!(rollout.index(), 0);
    }
    assert_eq!(rollout.steps.pauses[0].reason, PauseReason::PausedByCanaryPauseStep);
}

#[test]
fn a_step_with_a_hook_that_failed_and_a_pause_is_passed() {
    for (pause, waits) in [(json!({}), false), (json!({"duration": 60}), true)] {
        let mut rollout =
            rollout(&json!([{"hook": {"templateName": "test"}, "pause": pause.clone()}, {"partition": 5}]));
        rollout.decide();
        rollout.decide();
        rollout.runs[0].phase = HookPhase::Failed;
        rollout.decide();
        rollout.decide();
        rollout.resume = Some("web-2/0");
        assert_eq!(rollout.index(), usize::from(!waits), "{pause}");
        assert_eq!((rollout.index(), rollout.resume), (usize::from(!waits), None), "{pause}");
        if waits {
            assert_eq!(rollout.index(), 0, "the pause of the step is not over");
            assert_eq!(rollout.steps.pauses[0].reason, PauseReason::PausedByCanaryPauseStep);
            rollout.now += 61;
            assert_eq!(rollout.index(), 1);
        }
    }
}

#[test]
fn the_pause_after_a_failed_hook_ends_when_the_hook_is_approved() {
    let mut rollout = rollout(&json!([{"hook": {"templateName": "test"}}, {"partition": 5}]));
    rollout.decide();
    rollout.decide();
    rollout.runs[0].phase = HookPhase::Failed;
    rollout.decide();
    rollout.decide();
    assert_eq!(rollout.steps.pauses.len(), 1);
    rollout.runs[0].approved = true;
    assert_eq!(rollout.index(), 1);
    assert!(rollout.steps.pauses.is_empty());
}

#[test]
fn another_template_or_other_steps_begin_anew_and_end_an_own_pause() {
    let mut rollout = rollout(&json!([{"partition": 8}, {"pause": {}}]));
    rollout.reached = Some(8);
    for _ in 0..4 {
        rollout.decide();
    }
    assert!(rollout.steps.index == Some(1) && !rollout.steps.pauses.is_empty());
    rollout.update = "web-3";
    rollout.reached = None;
    assert_eq!(rollout.index(), 0);
    assert!(rollout.steps.pauses.is_empty());
    let before = rollout.steps.hash.clone();
    rollout.canary.steps.pop();
    rollout.decide();
    assert_ne!(rollout.steps.hash, before);
}

#[test]
fn the_first_rollout_and_the_way_back_have_no_steps() {
    let mut first = rollout(&json!([{"partition": 8}]));
    first.steps.canary.revision.clear();
    first.all_updated = true;
    assert_eq!(first.index(), 1);
    first.reached = Some(0);
    first.decide();
    assert_eq!(first.steps.canary.revision, "web-2");
    let mut back = rollout(&json!([{"partition": 8}]));
    back.update = "web-1";
    assert_eq!((back.index(), back.decide().held), (1, part(0)));
}

#[test]
fn the_repair_of_a_first_rollout_has_no_steps_unless_an_earlier_revision_served() {
    for has_served in [false, true] {
        let mut first = rollout(&json!([{"partition": 8}, {"pause": {}}]));
        first.steps.canary.revision.clear();
        (first.all_updated, first.has_served) = (true, has_served);
        assert_eq!(first.index(), 2);
        // A pod is not available at the revision, and the next template follows.
        (first.update, first.all_updated) = ("web-3", false);
        let (index, held) = if has_served { (0, part(8)) } else { (2, part(0)) };
        for _ in 0..2 {
            assert_eq!((first.index(), first.decide().held), (index, held), "{has_served}");
        }
    }
}

#[test]
fn a_manifest_that_is_applied_again_does_not_end_a_pause() {
    // A program applies a manifest with `paused: false` after each decision, or some time later.
    for each_time in [true, false] {
        let mut rollout = rollout(&json!([{"pause": {}}, {"partition": 5}]));
        for _ in 0..4 {
            rollout.decide();
            rollout.paused &= !each_time;
        }
        rollout.paused = false;
        assert_eq!(rollout.index(), 0, "the step still pauses");
        assert_eq!(rollout.steps.pauses.len(), 1);
    }
}
