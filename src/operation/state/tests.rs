//! Unit tests of `state`: deadlines and the journal, and what a process restart or a clock change does to them.

use super::*;
use crate::failure::Class;
use crate::operation::effect::Leftover;
use crate::operation::effect::Verb;
use crate::operation::fixtures::{Answer, Bench, at, pod};
use crate::operation::last_failure::LastFailure;
use crate::operation::note::Note;
use crate::operation::snapshot::Owner;

fn operation(text: &str) -> Operation {
    Bench::new(text, pod(Owner::Nobody)).operation
}

fn stop() -> Effect {
    Effect::Stop { container: "app".into(), id: "app-2".into(), timeout_seconds: 30 }
}

fn pre_stop() -> Effect {
    Effect::PreStop { container: "app".into(), id: "app-2".into(), budget_seconds: 30 }
}

/// A journal file outlives an update of the program, in both directions.
#[test]
fn the_journal_keeps_the_names_of_its_fields() {
    let mut operation = operation(r#"{"containers":[{"name":"app"}]}"#);
    let effect_error = EffectError { class: Class::Unavailable, message: "away".into() };
    let (verb, container) = (Verb::Stop, "app".to_owned());
    operation.last_failure = Some(LastFailure { verb, container, count: 1, at: at(0), effect_error });
    let exited = Failure::Exited { container: "app".to_owned(), code: 1, uptime_ms: 600 };
    operation.rollback_cause = Some(exited);
    let json = serde_json::to_value(&operation).unwrap();
    assert_eq!(json["turned_back"]["Exited"]["lived_ms"], 600, "{json:#}");
    assert_eq!(json["setback"]["trouble"]["message"], "away", "{json:#}");
    let refused = Failure::TestCreation { container: "app".to_owned(), message: "no".to_owned() };
    assert_eq!(serde_json::to_value(&refused).unwrap()["Rehearsal"]["message"], "no");
    let (container, source) = ("app".to_owned(), "app-2".to_owned());
    let fence =
        Effect::Fence { container, source, attempt: 4, image: None, test_create: true, by_process: false };
    assert_eq!(serde_json::to_value(&fence).unwrap()["Fence"]["rehearse"], true);
}

#[test]
fn only_what_a_container_may_feel_touches_it() {
    let image = None;
    let (container, source, id) = ("app".to_owned(), "app-2".to_owned(), "app-2".to_owned());
    let fence = Effect::Fence {
        by_process: false,
        container: container.clone(),
        source: source.clone(),
        attempt: 4,
        image,
        test_create: true,
    };
    let create =
        Effect::Create { container: container.clone(), source, attempt: 3, image: None, limits: None };
    let start = Effect::Start { container: container.clone(), id: id.clone() };
    let remove = Effect::Remove { container, id, what: Leftover::Fence };
    for (effect, touches) in
        [(fence, false), (remove, false), (pre_stop(), true), (stop(), true), (create, true), (start, true)]
    {
        let mut operation = operation("restart app");
        operation.begin(&effect, at(0));
        assert_eq!(operation.touched(), touches, "{effect:?}");
    }
}

#[test]
fn the_journal_gives_back_what_was_written() {
    let mut written = operation("swap app=repo/app:v2");
    written.begin(&pre_stop(), at(1));
    written.record(&stop(), Err(EffectError { class: Class::Unavailable, message: "m".into() }), at(2));
    written.note(Note::RollBack(Failure::Deadline { during: "Swap".into() }));
    let text = serde_json::to_string(&written).unwrap();
    assert_eq!(serde_json::from_str::<Operation>(&text).unwrap(), written);
    let older = text.replace(r#","stuck":[]"#, "");
    assert_ne!(older, text);
    assert_eq!(serde_json::from_str::<Operation>(&older).unwrap(), written);
}

#[test]
fn the_time_nobody_was_there_counts_for_an_untouched_pod_only() {
    let mut idle = operation("restart app");
    let deadline = idle.deadline_at;
    let back_at = later(deadline, SignedDuration::from_hours(1));
    idle.resume(back_at);
    assert_eq!(idle.deadline_at, deadline);
    let mut touched = operation("restart app");
    touched.begin(&pre_stop(), at(0));
    touched.resume(back_at);
    assert_eq!(touched.deadline_at, later(back_at, SignedDuration::from_secs(32 + 60)));
    // It does not count against the grace period either: the stop may take as long as if
    // the handler had begun just now.
    assert_eq!(touched.targets[0].forward.pre_stop_at, Some(back_at));
    touched.resume(at(0));
    assert_eq!(touched.deadline_at, later(back_at, SignedDuration::from_secs(32 + 60)), "never earlier");
}

#[test]
fn time_for_the_way_back_is_kept_where_there_is_one() {
    let long = SignedDuration::from_secs(600);
    for (text, kept, begins) in [("restart app", 0, 32), ("swap app=repo/app:v2", 42, 32)] {
        let operation = operation(text);
        assert_eq!(operation.forward_until(), later(at(0), long - SignedDuration::from_secs(kept)));
        assert_eq!(
            operation.touch_until(),
            later(operation.forward_until(), -SignedDuration::from_secs(begins))
        );
    }
}

#[test]
fn a_server_is_doubted_as_often_however_long_it_was_away() {
    let mut operation = operation("swap app=a:v2");
    let respec = Effect::Respec { container: "app".into(), from: "a:v1".into(), to: "a:v2".into() };
    let mut reported = |class, seconds| {
        let effect_error = EffectError { class, message: "m".into() };
        operation.record(&respec, Err(effect_error), at(seconds));
        (operation.last_failure.as_ref().unwrap().count, operation.given_up(Verb::Respec, "app").is_some())
    };
    for second in 0..60 {
        assert!(!reported(Class::NotSent, second).1);
    }
    for second in 60..67 {
        assert!(!reported(Class::Denied, second).1);
    }
    assert_eq!(reported(Class::Denied, 67), (8, true));
    assert!(!reported(Class::NotSent, 68).1);
    assert_eq!(reported(Class::Denied, 69), (1, false));
}

#[test]
fn repeating_loses_its_sense_after_so_many_times() {
    use Class::{Denied, Final, Gone, NameTaken, NotSent, Refused, Unavailable};
    for (class, verb, text, tries) in [
        (Final, Verb::Pull, "swap app=a:v2", Some(1)),
        (Refused, Verb::Pull, "swap app=a:v2", Some(3)),
        (Unavailable, Verb::Pull, "swap app=a:v2", None),
        (Refused, Verb::Fence, "restart app", Some(3)),
        (NameTaken, Verb::Fence, "restart app", Some(8)),
        (NameTaken, Verb::Create, "restart app", None),
        (Refused, Verb::Create, "restart app", Some(5)),
        (Refused, Verb::Create, "swap app=a:v2", Some(1)),
        (Gone, Verb::Stop, "restart app", Some(5)),
        (Unavailable, Verb::Stop, "restart app", None),
        (Refused, Verb::Start, "restart app", Some(3)),
        (NotSent, Verb::Respec, "restart app", None),
        (Denied, Verb::Respec, "restart app", Some(8)),
        (Final, Verb::Respec, "restart app", Some(1)),
    ] {
        let mut operation = operation(text);
        operation.targets[0].touched = true;
        for count in 1..=20 {
            let effect_error = EffectError { class, message: "m".into() };
            operation.last_failure =
                Some(LastFailure { verb, container: "app".into(), count, at: at(0), effect_error });
            let given_up = operation.given_up(verb, "app").is_some();
            assert_eq!(given_up, tries.is_some_and(|tries| count >= tries), "{class:?} {verb:?} {count}");
            assert_eq!(operation.given_up(verb, "side"), None);
        }
    }
}

#[test]
fn setbacks_count_in_a_row_and_end_with_a_success() {
    let mut operation = operation("restart app");
    let effect_error = || Err(EffectError { class: Class::Unavailable, message: "m".into() });
    let count =
        |operation: &Operation| operation.last_failure.as_ref().map(|last_failure| last_failure.count);
    operation.record(&stop(), effect_error(), at(0));
    operation.record(&stop(), effect_error(), at(1));
    assert_eq!(count(&operation), Some(2));
    operation.record(&pre_stop(), effect_error(), at(2));
    assert_eq!(
        (count(&operation), operation.remarks.as_slice()),
        (Some(2), &["preStop of app: m".to_owned()][..])
    );
    operation.record(&stop(), Ok(EffectOutput::Nothing), at(3));
    assert_eq!(count(&operation), None);
    for _ in 0..20 {
        operation.record(&stop(), Ok(EffectOutput::Remark("r".into())), at(4));
    }
    assert_eq!(operation.remarks.len(), MAX_REMARKS);
}

/// A bench whose container was touched.
fn stopped(owner: Owner) -> Bench {
    let mut bench = Bench::new("restart app", pod(owner));
    while !bench.operation.touched() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench
}

#[test]
fn time_in_which_nobody_could_act_counts_only_where_somebody_else_starts_containers() {
    let lost = SignedDuration::from_mins(5);
    for (owner, gets) in [(Owner::NodeRun, lost), (Owner::Kubelet, SignedDuration::ZERO)] {
        let mut untouched = Bench::new("restart app", pod(owner)).operation;
        let deadline = untouched.deadline_at;
        untouched.regain(lost);
        assert_eq!(untouched.deadline_at, deadline, "{owner:?}");
        let mut touched = stopped(owner).operation;
        touched.regain(lost);
        assert_eq!(touched.deadline_at, later(deadline, gets), "{owner:?}");
    }
}

#[test]
fn a_clock_that_was_set_back_while_no_process_ran_leaves_no_deadline_far_away() {
    let mut operation = stopped(Owner::NodeRun).operation;
    let whole = operation.deadline_at.duration_since(operation.begun_at);
    let now = later(operation.begun_at, SignedDuration::from_hours(-5));
    operation.resume(now);
    let left = operation.deadline_at.duration_since(now);
    assert!((SignedDuration::ZERO..=whole.max(SignedDuration::from_secs(92))).contains(&left), "{left}");
    assert!(operation.forward_until() <= operation.deadline_at);
}
