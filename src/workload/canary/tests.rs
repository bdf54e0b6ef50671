//! Tests of canary steps.

use serde_json::json;

use super::*;
use crate::api::hook_run::HookPhase;
use crate::workload::fixtures::at;

/// A rollout that is reconciled repeatedly.
struct Rollout {
    canary: Canary,
    update: &'static str,
    all_updated: bool,
    /// Every partition that holds back at least this many pods is reached.
    reached: Option<usize>,
    paused: bool,
    runs: Vec<Run>,
    now: i64,
    steps: Steps,
}

fn rollout(steps: &serde_json::Value) -> Rollout {
    Rollout {
        canary: serde_json::from_value(json!({"steps": steps})).unwrap(),
        update: "web-2",
        all_updated: false,
        reached: None,
        paused: false,
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
        let reached = self.reached;
        let step = decide(
            &CanaryInput {
                canary: &self.canary,
                update: self.update,
                all_updated: self.all_updated,
                reached: &move |held| match held {
                    Held::All => true,
                    Held::Part(amount) => reached.is_some_and(|reached| amount.held_back(10) >= reached),
                },
                paused: self.paused,
                runs: &self.runs,
                templates: &[("test".to_owned(), TemplateState::Valid)].into(),
                now: at(self.now),
            },
            &self.steps,
        );
        self.steps = step.steps.clone();
        for action in &step.actions {
            match action {
                Action::SetPaused(paused) => self.paused = *paused,
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
    assert!(rollout.paused && rollout.steps.pauses.is_empty(), "begun once paused is seen");
    rollout.decide();
    assert_eq!(rollout.steps.pauses[0].reason, PauseReason::PausedByCanaryPauseStep);
    assert_eq!(rollout.steps.canary.pause_start_time, None, "`pauseConditions` has the time");
    rollout.now = 100_000;
    assert_eq!(rollout.index(), 0);
    rollout.paused = false;
    assert_eq!(rollout.index(), 1);
    assert!(rollout.steps.pauses.is_empty() && !rollout.paused);
}

#[test]
fn a_pause_with_an_end_ends_by_itself() {
    let mut rollout = rollout(&json!([{"pause": {"duration": 60}}, {"partition": 5}]));
    rollout.decide();
    rollout.decide();
    let step = rollout.decide();
    assert_eq!(step.requeue_at, Some(at(60)));
    rollout.now = 59;
    assert_eq!(rollout.decide().requeue_at, Some(at(60)));
    rollout.now = 60;
    rollout.decide();
    assert!(!rollout.paused);
    assert_eq!(rollout.index(), 1);
}

#[test]
fn paused_by_the_user_is_never_set_back() {
    let mut rollout = rollout(&json!([{"partition": 8}, {"partition": 5}]));
    rollout.paused = true;
    rollout.reached = Some(8);
    for _ in 0..3 {
        let step = rollout.decide();
        assert!(!step.actions.iter().any(|action| matches!(action, Action::SetPaused(_))), "{step:?}");
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
    assert!(rollout.paused);
    assert_eq!(rollout.steps.pauses[0].reason, PauseReason::PausedByStepBasedHook);
    assert_eq!(rollout.index(), 0);
    rollout.paused = false;
    assert_eq!(rollout.index(), 1);
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
        assert!(rollout.paused);
        rollout.paused = false;
        assert_eq!((rollout.index(), rollout.paused), (usize::from(!waits), waits), "{pause}");
        if waits {
            assert_eq!(rollout.index(), 0, "the pause of the step is not over");
            assert_eq!(rollout.steps.pauses[0].reason, PauseReason::PausedByCanaryPauseStep);
            rollout.now += 61;
            rollout.decide();
            assert_eq!((rollout.index(), rollout.paused), (1, false));
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
    assert!(rollout.paused);
    rollout.runs[0].approved = true;
    assert_eq!((rollout.index(), rollout.paused), (1, false));
}

#[test]
fn another_template_or_other_steps_begin_anew_and_end_an_own_pause() {
    let mut rollout = rollout(&json!([{"partition": 8}, {"pause": {}}]));
    rollout.reached = Some(8);
    for _ in 0..4 {
        rollout.decide();
    }
    assert!(rollout.paused && rollout.steps.index == Some(1) && !rollout.steps.pauses.is_empty());
    rollout.update = "web-3";
    rollout.reached = None;
    assert_eq!(rollout.index(), 0);
    assert!(!rollout.paused && rollout.steps.pauses.is_empty());
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
