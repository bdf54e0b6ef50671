//! Unit tests of `hook`: what each verdict does to the operation, and what the journal and the log may hold.

use super::*;
use crate::api::hook_run::{HookRunSpec, Measurement};
use crate::api::hook_template::{Argument, Provider, Web};
use crate::api::status::Phase;
use crate::api::status::Step::{Drain, PostHook, PreHook, Pull, Ready, Swap, Verify};
use crate::operation::effect::Effect;
use crate::operation::fixtures::{Answer, Bench, Kubelet, ask, at, find, pod, pod_in_cluster, situation};
use crate::operation::outcome::{Outcome, Withdrawal};
use crate::operation::plan::Plan;
use crate::operation::preflight::{BadHook, Hooks, Situation};
use crate::operation::report;
use crate::operation::snapshot::{Owner, State};

const GATED: &str = r#"{"id":"g","containers":[{"name":"app"}],"preHook":{"templateName":"drain"},
    "postHook":{"templateName":"check"},"deadlineSeconds":100}"#;
const SWAPPED: &str = r#"{"id":"g","containers":[{"name":"app","image":"repo/app:v2"}],
    "preHook":{"templateName":"drain"},"postHook":{"templateName":"check"},"deadlineSeconds":100}"#;

fn metric(name: &str) -> Metric {
    Metric {
        name: name.into(),
        interval: Some("1s".into()),
        initial_delay: None,
        count: None,
        success_condition: None,
        failure_condition: None,
        failure_limit: None,
        successful_limit: Some(3),
        inconclusive_limit: None,
        consecutive_error_limit: None,
        consecutive_successful_limit: None,
        provider: Provider::default(),
    }
}

fn spec() -> HookRunSpec {
    let args = vec![Argument { name: "token".into(), value: Some("hunter2".into()) }];
    HookRunSpec { metrics: vec![metric("webtest")], args, terminate: false, policy: None }
}

fn result(phase: HookPhase, successful: i32) -> MetricResult {
    MetricResult {
        name: "webtest".into(),
        phase,
        message: String::new(),
        count: successful,
        successful,
        failed: 0,
        inconclusive: 0,
        error: 0,
        consecutive_error: 0,
        consecutive_successful: successful,
        measurements: Vec::new(),
    }
}

fn reported(phase: HookPhase) -> HookRunStatus {
    HookRunStatus { phase: Some(phase), metric_results: vec![result(phase, 1)], ..HookRunStatus::default() }
}

fn with_hooks(snapshot: crate::operation::snapshot::Snapshot) -> Situation {
    let hooks = Hooks { pre: Some(Ok(spec())), post: Some(Ok(spec())) };
    Situation { hooks, ..situation(snapshot) }
}

fn bench(text: &str) -> Bench {
    Bench::of(text, with_hooks(pod(Owner::Nobody)), Kubelet::Silent)
}

/// Runs to the end. Each hook gets its verdict when the operation waits for it; `None` keeps it running forever.
fn play(bench: &mut Bench, before: Option<HookPhase>, after: Option<HookPhase>) -> Outcome {
    for _ in 0..10_000 {
        if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
            bench.operation.finish(outcome.clone(), bench.now);
            return outcome;
        }
        if let Some(moment) = bench.operation.awaited_hook().map(|hook| hook.moment) {
            let verdict = if moment == Moment::Before { before } else { after };
            bench
                .operation
                .measured((moment, round(&bench.operation)), reported(verdict.unwrap_or(HookPhase::Running)));
        }
    }
    panic!("no end: {:?}", bench.operation);
}

#[test]
fn nothing_but_a_pull_comes_before_the_hook_and_only_readiness_after_the_other() {
    let good = Some(HookPhase::Successful);
    for (text, before) in [(GATED, &[][..]), (SWAPPED, &["Pull repo/app:v2".to_owned()][..])] {
        let mut bench = bench(text);
        while bench.operation.awaited_hook().is_none() {
            bench.step(&mut |_, _| Answer::Obey);
        }
        assert_eq!((bench.log.as_slice(), bench.operation.step), (before, Step::PreHook));
        assert_eq!(
            play(&mut bench, good, None).phase(),
            if text == GATED { Phase::Failed } else { Phase::RolledBack }
        );
        let mut through = self::bench(text);
        assert_eq!(play(&mut through, good, good), Outcome::Succeeded);
        assert_eq!(through.log.len(), 5 + before.len(), "{:?}", through.log);
    }
}

/// The state of the new container stays unknown until the hook has passed: that one is created again.
#[test]
fn what_was_measured_of_an_instance_does_not_count_for_the_next_one() {
    let mut bench = Bench::of(GATED, with_hooks(pod(Owner::NodeRun)), Kubelet::Silent);
    let (mut hides, mut measured) = (false, 0);
    let outcome = loop {
        if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
            break outcome;
        }
        let Some(moment) = bench.operation.awaited_hook().map(|hook| hook.moment) else { continue };
        if moment == Moment::After && !hides {
            hides = true;
            find(&mut bench.snapshot, "app-3").state = State::Unknown;
        }
        measured += u32::from(moment == Moment::After);
        bench.operation.measured((moment, round(&bench.operation)), reported(HookPhase::Successful));
    };
    assert_eq!(outcome, Outcome::Succeeded);
    let removed = bench.log.iter().filter(|line| *line == "Remove app-3").count();
    assert_eq!((removed, measured), (1, 2), "{:?}", bench.log);
}

fn round(operation: &Operation) -> u32 {
    operation.awaited_hook().map_or(0, |hook| hook.round)
}

/// The address of the pod is nobody's until its kubelet has made a new sandbox, and then another one.
#[test]
fn nothing_is_measured_while_the_sandbox_is_gone_and_all_is_measured_again_in_the_next_one() {
    let mut situation = with_hooks(pod_in_cluster());
    situation
        .sources
        .values_mut()
        .for_each(|source| source.alias = Some(crate::operation::fixtures::ALIAS.into()));
    let mut bench = Bench::of(GATED, situation, Kubelet::Watching);
    while bench.operation.step != PostHook {
        bench.step(&mut |_, _| Answer::Obey);
        if bench.operation.awaited_hook().is_some_and(|hook| hook.moment == Moment::Before) {
            bench.operation.measured((Moment::Before, 0), reported(HookPhase::Successful));
        }
    }
    let begun = (Moment::After, round(&bench.operation));
    bench.operation.measured(begun, reported(HookPhase::Running));
    bench.snapshot.sandbox.as_mut().unwrap().ready = false;
    for _ in 0..10 {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    assert_eq!(bench.operation.awaited_hook(), None, "{:?}", bench.operation.step);
    bench.operation.measured(begun, reported(HookPhase::Error));
    crate::operation::next::interference::move_pod(&mut bench.snapshot, "sha:v1");
    while bench.operation.awaited_hook().is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    let hook = bench.operation.awaited_hook().unwrap();
    assert_eq!((hook.moment, &hook.status), (Moment::After, &HookRunStatus::default()));
    // What the process that measured before the loss reports now is about the old sandbox.
    bench.operation.measured(begun, reported(HookPhase::Error));
    assert_eq!(bench.operation.awaited_hook().map(Hook::verdict), Some(None));
    let good = Some(HookPhase::Successful);
    assert_eq!(play(&mut bench, good, good), Outcome::Succeeded);
}

#[test]
fn the_drain_begins_when_the_hook_has_passed_and_traffic_comes_after_the_other() {
    let text = SWAPPED.replace(r#""deadlineSeconds""#, r#""gracePeriodSeconds":2,"deadlineSeconds""#);
    let mut situation = with_hooks(pod_in_cluster());
    situation
        .sources
        .values_mut()
        .for_each(|source| source.alias = Some(crate::operation::fixtures::ALIAS.into()));
    let plan = Plan::of(ask(&text, &situation).unwrap());
    assert_eq!(plan.steps, [Pull, PreHook, Drain, Swap, Verify, PostHook, Ready]);
    assert_eq!(plan.hooks.iter().map(|hook| hook.template.as_str()).collect::<Vec<_>>(), ["drain", "check"]);
    let mut bench = Bench::of(&text, situation, Kubelet::Prompt);
    let mut steps = vec![bench.operation.step];
    let good = Some(HookPhase::Successful);
    while bench.operation.ending.is_none() {
        bench.step(&mut |_, _| Answer::Obey);
        if let Some(moment) = bench.operation.awaited_hook().map(|hook| hook.moment) {
            let closed = bench.log.contains(&"Gate Drain".to_owned());
            assert_eq!(closed, moment == Moment::After, "{:?}", bench.log);
            bench.operation.measured((moment, round(&bench.operation)), reported(HookPhase::Successful));
        }
        if steps.last() != Some(&bench.operation.step) {
            steps.push(bench.operation.step);
        }
    }
    assert_eq!(play(&mut bench, good, good), Outcome::Succeeded);
    assert_eq!(steps, [Pull, PreHook, Drain, Swap, Verify, PostHook, Ready]);
    assert_eq!(bench.log.last().unwrap(), "Gate Open");
}

#[test]
fn whatever_but_success_ends_it_with_nothing_touched() {
    for phase in [HookPhase::Failed, HookPhase::Error, HookPhase::Inconclusive] {
        for text in [GATED, SWAPPED] {
            let mut bench = bench(text);
            let outcome = play(&mut bench, Some(phase), None);
            assert!(matches!(outcome, Outcome::Failed { touched: false, then: None, .. }), "{outcome:?}");
            assert_eq!((outcome.phase(), outcome.reason()), (Phase::Failed, "PreHookFailed"));
            assert_eq!(bench.snapshot, pod(Owner::Nobody), "{:?}", bench.log);
            let message = report::status(&bench.operation).message;
            let says = format!(
                "hook drain did not pass: metric webtest is {phase:?}. The running containers were not touched"
            );
            assert_eq!(message, says);
        }
    }
}

#[test]
fn a_failed_hook_afterwards_leads_back_where_there_is_a_way() {
    let keep = SWAPPED.replace(r#""deadlineSeconds""#, r#""onFailure":"Keep","deadlineSeconds""#);
    for (text, phase, image) in [
        (GATED, Phase::Failed, "sha:v1"),
        (SWAPPED, Phase::RolledBack, "sha:v1"),
        (keep.as_str(), Phase::Failed, "sha:v2"),
    ] {
        let mut bench = bench(text);
        let outcome = play(&mut bench, Some(HookPhase::Successful), Some(HookPhase::Failed));
        assert_eq!((outcome.phase(), outcome.reason()), (phase, "PostHookFailed"), "{text}");
        assert_eq!(bench.snapshot.running("app")[0].image_id, image);
        assert_eq!(bench.snapshot.fences("app").count(), 0);
        assert!(bench.operation.touched());
    }
}

#[test]
fn one_that_never_ends_is_ended_in_time_and_says_how_far_it_was() {
    let mut before = bench(GATED);
    let outcome = play(&mut before, None, None);
    assert_eq!(outcome.reason(), "DeadlineExceeded");
    assert!(matches!(outcome, Outcome::Failed { touched: false, .. }), "{outcome:?}");
    let message = report::status(&before.operation).message;
    assert!(message.contains("waiting for hook drain: webtest: 1 of 3 successful"), "{message}");
    assert!(before.now <= before.operation.deadline_at);

    for (text, phase) in [(GATED, Phase::Failed), (SWAPPED, Phase::RolledBack)] {
        let mut after = bench(text);
        let outcome = play(&mut after, Some(HookPhase::Successful), None);
        assert_eq!((outcome.phase(), outcome.reason()), (phase, "DeadlineExceeded"));
        let message = report::status(&after.operation).message;
        assert!(message.contains("waiting for hook check: webtest: 1 of 3"), "{message}");
    }
}

#[test]
fn while_a_hook_runs_the_operation_can_be_withdrawn_and_the_pod_is_watched() {
    let awaiting = |text: &str| {
        let mut bench = bench(text);
        while bench.operation.awaited_hook().is_none() {
            bench.step(&mut |_, _| Answer::Obey);
        }
        bench
    };
    let mut withdrawn = awaiting(GATED);
    withdrawn.operation.withdraw(Withdrawal::Replaced);
    assert_eq!(play(&mut withdrawn, None, None), Outcome::Cancelled(Withdrawal::Replaced));
    assert_eq!(withdrawn.operation.awaited_hook(), None);

    let mut dies = bench(SWAPPED);
    dies.dies = Some(("sha:v2", 5_000));
    let outcome = play(&mut dies, Some(HookPhase::Successful), None);
    assert_eq!((outcome.phase(), outcome.reason()), (Phase::RolledBack, "Exited"));
}

#[test]
fn what_comes_too_late_changes_nothing() {
    let mut bench = bench(GATED);
    bench.operation.measured((Moment::After, 0), reported(HookPhase::Successful));
    assert_eq!(bench.operation.post_hook.as_ref().unwrap().verdict(), None);
    while bench.operation.awaited_hook().is_none() {
        bench.step(&mut |_, _| Answer::Obey);
    }
    bench.operation.measured((Moment::Before, 0), reported(HookPhase::Failed));
    bench.operation.measured((Moment::Before, 0), reported(HookPhase::Successful));
    assert_eq!(play(&mut bench, None, None).reason(), "PreHookFailed");
}

#[test]
fn a_hook_that_was_passed_is_not_run_again_by_the_next_process() {
    let mut bench = bench(GATED);
    let stopped = |effect: &Effect| matches!(effect, Effect::Stop { .. });
    let mut died = false;
    while !died {
        bench.step(&mut |effect, _| {
            died |= stopped(effect);
            Answer::Obey
        });
        if let Some(moment) = bench.operation.awaited_hook().map(|hook| hook.moment) {
            bench.operation.measured((moment, round(&bench.operation)), reported(HookPhase::Successful));
        }
    }
    let journal = serde_json::to_string(&bench.operation).unwrap();
    bench.operation = serde_json::from_str(&journal).unwrap();
    bench.operation.resume(bench.now);
    let good = Some(HookPhase::Successful);
    assert_eq!(play(&mut bench, Some(HookPhase::Failed), good), Outcome::Succeeded);
    assert_eq!(bench.snapshot.by_id("app-3").unwrap().state, State::Running);
}

#[test]
fn a_template_that_cannot_be_run_is_refused() {
    let refuse = |pre: Option<Result<HookRunSpec, BadHook>>| {
        let hooks = Hooks { pre, post: Some(Ok(spec())) };
        let refusal = ask(GATED, &Situation { hooks, ..situation(pod(Owner::Nobody)) }).unwrap_err();
        (refusal.reason(), refusal.to_string())
    };
    let (reason, text) = refuse(Some(Err(BadHook::Missing)));
    assert_eq!(reason, "HookTemplateMissing");
    assert!(
        text.contains("HookTemplate drain, which does not exist: create it in namespace default"),
        "{text}"
    );
    let (reason, text) = refuse(Some(Err(BadHook::Invalid("args.url was not resolved".into()))));
    assert_eq!(reason, "HookTemplateInvalid");
    assert!(text.contains("drain cannot be run for pod default/web: args.url was not resolved"), "{text}");
    assert_eq!(refuse(None).0, "HooksUnavailable");
}

#[test]
fn a_line_reports_the_progress_of_each_metric() {
    let of = |change: fn(&mut Metric, &mut MetricResult)| {
        let (mut metric, mut result) = (metric("m"), result(HookPhase::Running, 2));
        change(&mut metric, &mut result);
        progress(&metric, Some(&result))
    };
    assert_eq!(progress(&metric("m"), None), "m: not started");
    assert_eq!(of(|_, _| ()), "m: 2 of 3 successful");
    assert_eq!(
        of(|_, result| (result.failed, result.error) = (4, 1)),
        "m: 2 of 3 successful, 4 failed, 1 errors"
    );
    assert_eq!(of(|_, result| result.phase = HookPhase::Failed), "m: Failed");
    assert_eq!(of(|m, _| (m.successful_limit, m.count) = (None, Some(5))), "m: 2 of 5 measured");
    assert_eq!(of(|m, _| (m.successful_limit, m.count) = (None, Some(0))), "m: 2 measured");
    let in_a_row = of(|m, _| (m.successful_limit, m.consecutive_successful_limit) = (None, Some(4)));
    assert_eq!(in_a_row, "m: 2 of 4 successful in a row");
    let metrics = ["a", "b", "c", "d", "e"].map(metric).into();
    let spec = HookRunSpec { metrics, ..spec() };
    let hook = Hook::new(Moment::Before, "web", "1", "t", spec);
    assert_eq!(hook.progress(), "a: not started; b: not started; c: not started; and 2 more");
}

#[test]
fn the_worst_metric_is_named_with_what_it_said_last() {
    let mut hook = Hook::new(Moment::Before, "web", "1", "t", spec());
    hook.status = reported(HookPhase::Failed);
    let measured = |message: &str| Measurement {
        phase: HookPhase::Failed,
        message: message.into(),
        started_at: at(0),
        finished_at: Some(at(1)),
        value: "4".into(),
    };
    hook.status.metric_results[0].measurements = vec![measured("first"), measured("last"), measured("")];
    hook.status.metric_results.push(MetricResult { name: "other".into(), ..result(HookPhase::Error, 0) });
    assert_eq!(hook.why(), "metric webtest is Failed: last");
    hook.status =
        HookRunStatus { phase: Some(HookPhase::Error), message: "bad".into(), ..reported(HookPhase::Error) };
    hook.status.metric_results.clear();
    assert_eq!(hook.why(), "bad");
}

#[test]
fn a_run_is_named_after_pod_request_and_template_and_never_too_long() {
    let name = |pod: &str, id: &str, template: &str| run_name(Moment::Before, pod, id, template);
    let plain = name("web-0", "a", "drain");
    let mark = plain.strip_prefix("pre-inplace-hook-web-0-").unwrap().strip_suffix("-drain").unwrap();
    assert!(mark.len() == 8 && mark.chars().all(|c| c.is_ascii_hexdigit()), "{plain}");
    assert!(run_name(Moment::After, "web-0", "a", "drain").starts_with("post-inplace-hook-web-0-"));
    assert_ne!(plain, name("web-0", "b", "drain"));
    let long = "a".repeat(99) + "." + &"b".repeat(150);
    let (one, two) = (name(&long, "a", &long), name(&long, "a", &format!("{long}c")));
    assert!(one.len() <= 253 && crate::api::request::is_dns_subdomain(&one), "{one}");
    assert_ne!(one, two);
}

#[test]
fn what_an_argument_holds_is_not_in_what_is_printed() {
    let shown = format!("{:?}", bench(GATED).operation);
    assert!(shown.contains("pre-inplace-hook-web-") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn whom_it_asks_is_not_written_down_and_comes_from_a_template_that_says_the_same() {
    let url = "http://pod/?token=s3cret".to_owned();
    let web = Web { url, ..Web::default() };
    let mut asking = metric("webtest");
    asking.provider.web = Some(web);
    let spec = HookRunSpec { metrics: vec![asking.clone()], ..spec() };
    let hook = Hook::new(Moment::Before, "web", "1", "t", spec.clone());
    assert!(!hook.lacks_providers());
    let text = serde_json::to_string(&hook).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    let read: Hook = serde_json::from_str(&text).unwrap();
    assert!(read.lacks_providers());
    let template = HookTemplateSpec { metrics: vec![asking], args: Vec::new(), policy: None };
    assert_eq!(read.restored(&template), Some(spec));
    let mut other = template.clone();
    other.metrics[0].successful_limit = Some(1);
    assert_eq!(read.restored(&other), None);
    let mut elsewhere = template.clone();
    elsewhere.metrics[0].provider.web.as_mut().unwrap().url = "http://pod/?token=other".to_owned();
    assert_eq!(read.restored(&elsewhere), None, "what was measured there does not count here");
    let ordered = HookTemplateSpec { policy: Some(Policy::Ordered), ..template };
    assert_eq!(read.restored(&ordered), None);
}
