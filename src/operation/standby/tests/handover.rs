//! Unit tests of the hook at the handover: it runs once the standby can serve, and decides whether anything is touched.

use super::*;
use crate::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus};
use crate::api::request::Request;
use crate::api::status::Step;
use crate::operation::hook::Moment;
use crate::operation::preflight::Hooks;

const TEXT: &str = r#"{"id":"r","containers":[{"name":"app","image":"repo/app:v2"}],"order":"StartFirst",
    "preHook":{"templateName":"warm","phase":"Handover"}}"#;

fn hooked() -> Bench {
    let spec = HookRunSpec { metrics: Vec::new(), args: Vec::new(), terminate: false, policy: None };
    let hooks = Hooks { pre: Some(Ok(spec)), post: None };
    let mut bench = Bench::of(TEXT, Situation { hooks, ..situation() }, Kubelet::Prompt);
    bench.listens_after = Some(300);
    bench
}

/// Runs until the operation waits for the hook.
fn at_handover() -> Bench {
    let mut bench = hooked();
    while bench.operation.awaited_hook().is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench
}

fn verdict(phase: HookPhase) -> HookRunStatus {
    HookRunStatus { phase: Some(phase), message: "cold".into(), ..HookRunStatus::default() }
}

#[test]
fn the_hook_runs_once_the_standby_can_serve_and_before_anything_is_touched() {
    let mut bench = at_handover();
    assert_eq!(bench.log, ["Pull repo/app:v2", "Fence app 4", "Standby app of sha:v2"]);
    assert_eq!((bench.operation.step, serving(&bench)), (Step::Handover, 2));
    assert!(bench.operation.targets[0].standby.as_ref().unwrap().proven_at.is_some());
    assert_eq!(bench.operation.awaited_hook().unwrap().moment, Moment::Handover);
    bench.operation.measured((Moment::Handover, 0), verdict(HookPhase::Successful));
    assert_eq!(without_gap(&mut bench, |_, _| Answer::Obey), Outcome::Succeeded);
    assert!(is_clean(&bench));
}

#[test]
fn a_hook_that_does_not_pass_at_the_handover_touches_nothing() {
    for phase in [HookPhase::Failed, HookPhase::Inconclusive, HookPhase::Error] {
        let mut bench = at_handover();
        bench.operation.measured((Moment::Handover, 0), verdict(phase));
        let outcome = without_gap(&mut bench, |_, _| Answer::Obey);
        let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.reason(), "NotStartedBeside");
        assert!(failure.to_string().contains("hook warm"), "{failure}");
        assert!(is_clean(&bench), "{:?}", bench.log);
        assert_eq!(bench.snapshot.running("app")[0].id, "app-2");
    }
}

#[test]
fn a_standby_that_ends_while_the_hook_runs_ends_the_operation() {
    let mut bench = at_handover();
    let now = bench.now;
    let standby = find(&mut bench.snapshot, "app-standby");
    (standby.state, standby.exit_code, standby.finished_at) = (State::Exited, 7, Some(now));
    bench.operation.measured((Moment::Handover, 0), verdict(HookPhase::Successful));
    let outcome = without_gap(&mut bench, |_, _| Answer::Obey);
    let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(failure.to_string().contains("exited with code 7"), "{failure}");
}

#[test]
fn only_a_pre_hook_of_a_request_that_starts_first_runs_at_the_handover() {
    let parse = |text: &str| Request::parse(Some(text));
    assert!(parse(TEXT).is_ok());
    assert_eq!(parse(TEXT).unwrap().unwrap().modified_for_pre_hook(), ["app"]);
    for (old, new, said) in [
        (r#""order":"StartFirst","#, "", "preHook.phase"),
        ("preHook", "postHook", "postHook.phase"),
        ("Handover", "Later", "Handover"),
    ] {
        let error = parse(&TEXT.replace(old, new)).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
