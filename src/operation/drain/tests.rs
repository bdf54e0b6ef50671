//! Unit tests of `drain`: when the grace period counts, and the state of the gate at each end.

use super::*;
use crate::failure::Class;
use crate::operation::effect::EffectOutput;
use crate::operation::fixtures::{Answer, Bench, Kubelet, at, pod};
use crate::operation::outcome::Withdrawal;
use crate::operation::snapshot::{Declared, Gate, Owner};

const DRAINED: &str = r#"{"id":"r","containers":[{"name":"app"}],"gracePeriodSeconds":20,"deadlineSeconds":90,"engine":"Recreate"}"#;

fn bench() -> Bench {
    Bench::beside(Kubelet::Watching, DRAINED)
}

fn is_drain(effect: &Effect) -> bool {
    matches!(effect, Effect::Gate { gate: GateAction::Drain })
}

fn gate(bench: &Bench) -> Gate {
    bench.snapshot.declared.as_ref().unwrap().gate.clone()
}

/// A bench with a closed gate, after a part of the grace period.
fn draining() -> Bench {
    let mut bench = bench();
    while bench.operation.drain.as_ref().unwrap().left_at.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.now = at(12_000);
    bench
}

#[test]
fn the_grace_is_waited_out_in_full_after_the_gate_was_closed() {
    let mut bench = bench();
    let mut touched = None;
    let outcome = bench.play(|effect, snapshot| {
        let closed = matches!(&snapshot.declared.as_ref().unwrap().gate, Gate::Closed { reason } if reason == "InPlaceDrain");
        assert!(closed || is_drain(effect), "{effect:?}");
        touched = touched.or((effect.verb() == Verb::Fence).then_some(()));
        Answer::Obey
    });
    assert_eq!(outcome, Outcome::Succeeded);
    assert_eq!(touched, Some(()));
    assert_eq!(gate(&bench), Gate::Open);
    let line = [
        "Gate Drain",
        "Fence app 4",
        "Stop app-2",
        "Create app 3",
        "Start app-3",
        "Remove app-fence-4",
        "Gate Open",
    ];
    assert_eq!(bench.log, line);
    let down = bench.operation.targets[0].stopped_at.unwrap();
    let closed = bench.operation.drain.as_ref().unwrap().closed_at.unwrap();
    let drained = down.duration_since(closed).as_millis();
    assert!((20_000..20_100).contains(&drained), "{drained}");
}

#[test]
fn withdrawn_while_it_drains_the_gate_is_opened_again() {
    let mut bench = draining();
    bench.operation.withdraw(Withdrawal::Deleted);
    assert_eq!(bench.obey(), Outcome::Cancelled(Withdrawal::Deleted));
    assert_eq!(bench.log, ["Gate Drain", "Gate Open"]);
    assert_eq!((gate(&bench), bench.operation.owed_gate(None)), (Gate::Open, None));
    assert!(bench.now < at(12_100));
}

#[test]
fn an_agent_that_comes_back_while_it_drains_waits_for_the_rest() {
    let mut bench = draining();
    let journal = serde_json::to_string(&bench.operation).unwrap();
    bench.operation = serde_json::from_str(&journal).unwrap();
    bench.operation.resume(bench.now);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let stopped = bench.operation.targets[0].stopped_at.unwrap();
    assert!((at(20_000)..at(20_100)).contains(&stopped), "{stopped}");
}

#[test]
fn where_the_gate_cannot_be_closed_nothing_is_touched() {
    for (class, tries, reason) in [
        (Class::Unavailable, 0, "DeadlineExceeded"),
        (Class::Final, 1, "GateFailed"),
        (Class::Gone, 1, "GateFailed"),
        (Class::Refused, 3, "GateFailed"),
    ] {
        let mut bench = bench();
        let outcome = bench.play(|effect, _| if is_drain(effect) { Answer::No(class) } else { Answer::Obey });
        assert!(matches!(outcome, Outcome::Failed { touched: false, .. }), "{outcome:?}");
        assert_eq!(outcome.reason(), reason, "{class:?}");
        assert!(bench.now <= bench.operation.deadline_at, "{class:?}");
        let drains = bench.log.iter().filter(|line| *line == "Gate Drain").count();
        assert!(tries == drains || (tries == 0 && drains > 5), "{class:?}: {drains}");
        // A response may have been lost, so the gate is opened in any case.
        assert_eq!(bench.log.last().unwrap(), "Gate Open", "{class:?}");
        assert!(bench.log.iter().all(|line| line.starts_with("Gate")), "{:?}", bench.log);
    }
}

#[test]
fn an_api_server_that_is_away_at_the_end_is_asked_again_and_owed_when_time_is_up() {
    let opens = |effect: &Effect| matches!(effect, Effect::Gate { gate: GateAction::Open });
    let (mut brief, mut times) = (bench(), 0);
    let outcome = brief.play(|effect, _| {
        times += i32::from(opens(effect));
        if opens(effect) && times < 5 { Answer::No(Class::Unavailable) } else { Answer::Obey }
    });
    assert_eq!((outcome, times), (Outcome::Succeeded, 5));
    assert_eq!((gate(&brief), brief.operation.owed_gate(None)), (Gate::Open, None));
    let mut long = bench();
    let outcome =
        long.play(|effect, _| if opens(effect) { Answer::No(Class::Unavailable) } else { Answer::Obey });
    assert_eq!(outcome, Outcome::Succeeded);
    assert_eq!(long.operation.owed_gate(None), Some(GateAction::Open));
    let over = long.now.duration_since(long.operation.deadline_at).as_secs();
    assert!((15..25).contains(&over), "{over}");
}

#[test]
fn what_failed_in_the_middle_stays_out_of_traffic_and_says_so() {
    let mut bench = bench();
    let outcome = bench.play(|effect, _| match effect.verb() {
        Verb::Create => Answer::No(Class::Final),
        _ => Answer::Obey,
    });
    assert!(matches!(outcome, Outcome::Failed { touched: true, .. }), "{outcome:?}");
    assert_eq!(gate(&bench), Gate::Closed { reason: "InPlaceFailed".into() });
    assert_eq!(bench.log.last().unwrap(), "Gate Failed");
}

#[test]
fn what_failed_before_it_was_touched_takes_traffic_again() {
    let mut bench = bench();
    let outcome = bench.play(|effect, _| match effect.verb() {
        Verb::Fence => Answer::No(Class::Final),
        _ => Answer::Obey,
    });
    assert!(matches!(outcome, Outcome::Failed { touched: false, .. }), "{outcome:?}");
    assert_eq!(gate(&bench), Gate::Open);
}

#[test]
fn a_pod_on_its_way_out_gets_no_traffic_again() {
    let mut bench = draining();
    bench.snapshot.declared.as_mut().unwrap().deleting = true;
    let outcome = bench.obey();
    assert!(matches!(outcome, Outcome::Failed { touched: false, .. }), "{outcome:?}");
    assert_eq!(bench.log, ["Gate Drain"]);
}

#[test]
fn the_grace_period_counts_from_when_the_kubelet_has_taken_the_gate_in() {
    let mut bench = Bench::new("restart app", pod(Owner::Kubelet));
    let (operation, snapshot) = (&mut bench.operation, &mut bench.snapshot);
    operation.request.grace_period_seconds = 3;
    operation.drain = Some(Drain::default());
    operation.step = Step::Drain;
    let declared = |unready_since| {
        let gate = Gate::Closed { reason: "InPlaceDrain".into() };
        let (deleting, ending, has_pull_secrets, containers) = (false, None, false, Vec::new());
        Some(Declared {
            current: true,
            deleting,
            ending,
            gate,
            unready_since,
            has_pull_secrets,
            memory_limit: None,
            containers,
        })
    };
    snapshot.declared = declared(None);
    let shut = Effect::Gate { gate: GateAction::Drain };
    assert_eq!(close(operation, snapshot, at(0)), Some(Next::Do(shut.clone())));
    operation.begin(&shut, at(0));
    // A process that died before the response arrived finds the gate closed with its first snapshot.
    operation.in_cluster = true;
    let seen = snapshot.declared.take();
    assert!(
        matches!(close(operation, snapshot, at(9000)), Some(Next::Wait(waiting)) if waiting.until == at(9050))
    );
    snapshot.declared = seen;
    snapshot.declared = declared(Some(at(2000)));
    assert_eq!(close(operation, snapshot, at(9000)), Some(Next::Note(Note::Drained(at(3000)))));
    snapshot.declared = declared(None);
    assert_eq!(close(operation, snapshot, at(9000)), Some(Next::Do(shut.clone())));
    operation.record(&shut, Ok(EffectOutput::Nothing), at(10));
    let until = |operation: &Operation, snapshot: &Snapshot, now| match close(operation, snapshot, now) {
        Some(Next::Wait(waiting)) => waiting.until,
        other => panic!("{other:?}"),
    };
    assert_eq!(until(operation, snapshot, at(10)), at(60));
    assert_eq!(until(operation, snapshot, at(5000)), at(5010));
    // A kubelet that does not run is not waited for.
    assert_eq!(close(operation, snapshot, at(7000)), Some(Next::Note(Note::Drained(at(5010)))));
    // The kubelet reports whole seconds; a process that was away observes it later.
    for (unready_since, now, left_at) in [
        (at(0), at(900), at(900)),
        (at(1000), at(1900), at(1900)),
        (at(1000), at(4900), at(2000)),
        (at(-9000), at(20), at(10)),
    ] {
        snapshot.declared = declared(Some(unready_since));
        assert_eq!(close(operation, snapshot, now), Some(Next::Note(Note::Drained(left_at))));
    }
    operation.note(Note::Drained(at(900)));
    assert_eq!(until(operation, snapshot, at(900)), at(3900));
    assert_eq!(close(operation, snapshot, at(3900)), None);
}

#[test]
fn a_gate_that_another_client_opens_is_closed_again_and_the_grace_starts_again() {
    let mut bench = draining();
    bench.snapshot.declared.as_mut().unwrap().gate = Gate::Open;
    let opened_at = bench.now;
    // A state that may be out of date says nothing.
    bench.snapshot.declared.as_mut().unwrap().current = false;
    assert!(matches!(close(&bench.operation, &bench.snapshot, opened_at), Some(Next::Wait(_))));
    // The same after the grace period, right before the first stop.
    bench.snapshot.declared.as_mut().unwrap().current = true;
    assert_eq!(close(&bench.operation, &bench.snapshot, at(80_000)), Some(Next::Note(Note::Reopened)));
    let mut touched_with = None;
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() == Verb::Fence {
            touched_with.get_or_insert_with(|| snapshot.declared.as_ref().unwrap().gate.clone());
        }
        Answer::Obey
    });
    assert_eq!(
        (outcome, touched_with),
        (Outcome::Succeeded, Some(Gate::Closed { reason: "InPlaceDrain".into() }))
    );
    assert_eq!(bench.log.iter().filter(|line| *line == "Gate Drain").count(), 2, "{:?}", bench.log);
    let down = bench.operation.targets[0].stopped_at.unwrap();
    assert!(down.duration_since(opened_at).as_secs() >= 20, "the whole grace period again");
}

#[test]
fn what_was_closed_is_opened_and_what_a_failure_left_closed_only_after_a_success() {
    let failure = || Failure::Gate { message: String::new() };
    let failed = |touched| Outcome::Failed { failure: failure(), then: None, touched };
    let cancelled = Outcome::Cancelled(Withdrawal::Deleted);
    let begun = Drain { begun: true, ..Drain::default() };
    let closed = Drain { closed_at: Some(Timestamp::UNIX_EPOCH), ..begun.clone() };
    let inherited = |drain: &Drain| Drain { inherited: true, ..drain.clone() };
    let idle = Drain::default();
    for (drain, turns) in [
        (&idle, [None; 5]),
        (&begun, [Some(GateAction::Open); 5]),
        (
            &closed,
            [
                Some(GateAction::Open),
                Some(GateAction::Open),
                Some(GateAction::Failed),
                Some(GateAction::Open),
                Some(GateAction::Open),
            ],
        ),
        (&inherited(&idle), [Some(GateAction::Open), Some(GateAction::Open), None, None, None]),
        (
            &inherited(&closed),
            [
                Some(GateAction::Open),
                Some(GateAction::Open),
                Some(GateAction::Failed),
                Some(GateAction::Failed),
                Some(GateAction::Failed),
            ],
        ),
        (&Drain { settled: true, ..inherited(&closed) }, [None; 5]),
    ] {
        let outcomes =
            [&Outcome::Succeeded, &Outcome::RolledBack(failure()), &failed(true), &failed(false), &cancelled];
        assert_eq!(outcomes.map(|outcome| last_gate_action(drain, outcome)), turns, "{drain:?}");
    }
}

/// The gate is closed, with the reason of a drain or of a failure, and the API server was away when it was to be set.
#[test]
fn what_an_earlier_operation_left_to_be_done_stays_to_be_done_until_the_gate_is_set() {
    let failure = || Failure::Gate { message: String::new() };
    let failed = || Outcome::Failed { failure: failure(), then: None, touched: true };
    let cancelled = || Outcome::Cancelled(Withdrawal::Deleted);
    let none = Drain::default();
    let inherited = Drain { inherited: true, ..none.clone() };
    let settled = Drain { settled: true, ..inherited.clone() };
    let closed = Drain { begun: true, closed_at: Some(at(0)), ..none.clone() };
    let (open, keep) = (Some(GateAction::Open), Some(GateAction::Failed));
    for (before, drain, outcome, owed) in [
        (open, None, failed(), open),
        (open, None, Outcome::Succeeded, open),
        (open, Some(&none), cancelled(), open),
        (keep, Some(&inherited), cancelled(), keep),
        (keep, Some(&inherited), failed(), keep),
        (keep, Some(&inherited), Outcome::Succeeded, open),
        (keep, Some(&settled), Outcome::Succeeded, None),
        (open, Some(&closed), failed(), keep),
        (keep, Some(&closed), cancelled(), open),
        (None, None, failed(), None),
    ] {
        let mut operation = bench().operation;
        operation.drain = drain.cloned();
        operation.outcome = Some(outcome);
        assert_eq!(operation.owed_gate(before), owed, "{before:?} {drain:?} {:?}", operation.outcome);
    }
}

/// The end was published, and is not in the journal.
#[test]
fn a_drained_pod_that_failed_stays_closed_although_its_end_was_lost() {
    let mut operation = bench().operation;
    let drained = Drain { begun: true, closed_at: Some(at(0)), ..Drain::default() };
    for (touched, settled, phase, owed) in [
        (true, false, Phase::Failed, Some(GateAction::Failed)),
        (false, false, Phase::Failed, None),
        (true, true, Phase::Failed, None),
        (true, false, Phase::Succeeded, None),
    ] {
        operation.targets[0].touched = touched;
        operation.drain = Some(Drain { settled, ..drained.clone() });
        assert_eq!(operation.owed_gate_after(phase, None), owed, "{touched} {settled} {phase:?}");
    }
}

const CONFIRMED: &str = r#"{"id":"r","containers":[{"name":"app"}],"gracePeriodSeconds":20,"drain":"Confirmed","deadlineSeconds":90,"engine":"Recreate"}"#;

fn slices(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A bench whose kubelet reports the pod as not ready, and to which `serving` sends traffic.
fn confirming(text: &str, serving: Option<Vec<String>>) -> Bench {
    let mut bench = Bench::beside(Kubelet::Watching, text);
    bench.snapshot.serving = serving;
    while bench.operation.drain.as_ref().unwrap().left_at.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    assert!(bench.operation.awaits_slices());
    bench
}

/// Lets time pass; no effect may happen.
fn wait_until(bench: &mut Bench, ms: i64) {
    while bench.now < at(ms) {
        assert_eq!(bench.step(&mut |effect, _| panic!("{effect:?}")), None);
    }
}

fn stopped(bench: &Bench) -> Timestamp {
    assert!(!bench.operation.awaits_slices());
    bench.operation.targets[0].stopped_at.unwrap()
}

#[test]
fn a_confirmed_drain_counts_from_when_nothing_sends_traffic_any_more() {
    // At once after it is no longer Ready when no slice lists it, also without a grace period.
    for (text, stops) in
        [(CONFIRMED.to_owned(), 20_000), (CONFIRMED.replace("Seconds\":20", "Seconds\":0"), 0)]
    {
        let mut bench = confirming(&text, Some(slices(&[])));
        assert_eq!(bench.obey(), Outcome::Succeeded);
        let stopped = stopped(&bench);
        assert!((at(stops)..at(stops + 200)).contains(&stopped), "{stopped}");
        assert_eq!(gate(&bench), Gate::Open);
        assert_eq!(bench.log[0], "Gate Drain");
    }
    // An unknown state confirms nothing, nor does a slice that still sends traffic.
    let mut bench = confirming(CONFIRMED, None);
    wait_until(&mut bench, 9000);
    bench.snapshot.serving = Some(slices(&["web-a"]));
    wait_until(&mut bench, 18_000);
    bench.snapshot.serving = Some(slices(&[]));
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let stopped = stopped(&bench);
    assert!((at(38_000)..at(38_500)).contains(&stopped), "{stopped}");
}

#[test]
fn traffic_that_comes_back_has_it_count_anew_and_silence_does_not() {
    let mut bench = confirming(CONFIRMED, Some(slices(&[])));
    bench.step(&mut |_, _| Answer::Obey);
    assert!(bench.operation.drain.as_ref().unwrap().confirmed_at.is_some());
    bench.now = at(15_000);
    bench.snapshot.serving = Some(slices(&["web-a", "web-b"]));
    wait_until(&mut bench, 16_000);
    // A confirmation persists across a restart of the process.
    let journal = serde_json::to_string(&bench.operation).unwrap();
    bench.operation = serde_json::from_str(&journal).unwrap();
    bench.operation.resume(bench.now);
    bench.snapshot.serving = Some(slices(&[]));
    bench.step(&mut |_, _| Answer::Obey);
    bench.snapshot.serving = None;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let stopped = stopped(&bench);
    assert!((at(36_000)..at(36_500)).contains(&stopped), "{stopped}");
}

#[test]
fn a_drain_that_is_not_confirmed_in_time_touches_nothing_and_names_what_still_sends() {
    let many: Vec<_> = (0..9).map(|number| format!("web-{number}")).collect();
    for (serving, says, hides) in [
        (Some(slices(&["web-a", "web-b"])), "EndpointSlice web-a, web-b still sends it traffic", "and more"),
        (Some(many), "web-3, web-4 and more still", "web-5"),
        (None, "cannot be read: the API server is unreachable", "publishNotReadyAddresses"),
    ] {
        let mut bench = confirming(CONFIRMED, serving);
        let outcome = bench.obey();
        assert!(matches!(outcome, Outcome::Failed { touched: false, .. }), "{outcome:?}");
        assert_eq!(outcome.reason(), "DrainNotConfirmed");
        let Outcome::Failed { failure, .. } = &outcome else { unreachable!() };
        let message = failure.to_string();
        assert!(message.contains(says) && !message.contains(hides), "{message}");
        assert_eq!(bench.log, ["Gate Drain", "Gate Open"]);
        assert_eq!((gate(&bench), bench.operation.owed_gate(None)), (Gate::Open, None));
        // The remaining time must suffice for the grace period and the stop.
        assert!(bench.now < at(90_000 - 20_000 - 30_000), "{}", bench.now);
    }
    // A cancellation during the drain is not a failure.
    let mut bench = confirming(CONFIRMED, Some(slices(&["web-a"])));
    bench.operation.withdraw(Withdrawal::Deleted);
    assert_eq!(bench.obey(), Outcome::Cancelled(Withdrawal::Deleted));
}
