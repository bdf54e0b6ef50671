//! Unit tests of the counted sockets: what a count proves that fails, comes too early, or never stays the same.

use super::*;

/// When the new instance started, once it runs.
fn new_since(bench: &Bench) -> Option<Timestamp> {
    let is_new = |container: &&Container| container.is_instance() && container.image_id == "sha:v2";
    bench.snapshot.containers.iter().find(is_new).and_then(|new| new.started_at)
}

fn standby(bench: &Bench) -> &Standby {
    bench.operation.targets[0].standby.as_ref().unwrap()
}

/// Its kubelet calls it Ready all the time, because the standby answers the probe.
#[test]
fn a_count_that_fails_is_repeated_while_the_new_instance_loads() {
    let mut bench = bench(SWAP, Kubelet::Prompt);
    let mut steps = 0_u32;
    let outcome = loop {
        let loads =
            new_since(&bench).is_some_and(|since| bench.now < later(since, SignedDuration::from_secs(30)));
        bench.deaf_instance = loads.then(|| "sha:v2".to_owned());
        steps += 1;
        bench.count_fails = steps.is_multiple_of(3);
        let step = bench.step(&mut |_, _| Answer::Obey);
        let is_stopped = bench.log.iter().any(|effect| effect.starts_with("StopStandby"));
        assert!(!loads || !is_stopped, "{:?}", bench.log);
        if let Some(outcome) = step {
            break outcome;
        }
    };
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    assert!(is_clean(&bench), "{:?}", bench.log);
}

/// The fence may be gone: nothing counts any more. The time in which nobody observed the pod does not count.
#[test]
fn without_any_count_the_new_instance_gets_some_time() {
    let mut bench = bench(SWAP, Kubelet::Prompt);
    let mut resumed_at = None;
    let outcome = loop {
        bench.count_fails = new_since(&bench).is_some();
        let since = standby(&bench).uncounted_since;
        if let Some(since) = since.filter(|since| bench.now >= later(*since, COUNTED_WITHIN / 2))
            && resumed_at.is_none()
        {
            assert!(bench.now < later(since, COUNTED_WITHIN), "{:?}", bench.log);
            bench.operation.resume(bench.now);
            resumed_at = Some(bench.now);
        }
        if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
            break outcome;
        }
    };
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    assert!(bench.now >= later(resumed_at.unwrap(), COUNTED_WITHIN), "{:?}", bench.log);
}

/// The processes of a server load one after the other. A socket that opens later would be taken for one of the new instance.
#[test]
fn a_standby_with_fewer_sockets_than_the_container_is_observed_longer() {
    let seconds = SignedDuration::from_secs;
    for (all_after, expected) in [(3, 4), (i64::MAX, 1)] {
        let mut bench = bench(RESTART, Kubelet::Watching);
        while standby(&bench).proven_at.is_none() {
            let age = standby(&bench).begun_at.map_or(seconds(0), |begun| bench.now.duration_since(begun));
            bench.sockets = [4, if age < seconds(all_after) { 1 } else { 4 }];
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
        }
        let took = standby(&bench).took().as_secs();
        assert_eq!(standby(&bench).added, Listeners::from([(Port::Tcp(8080), expected)]), "{took} s");
        assert!((if expected == 4 { 3..6 } else { 10..14 }).contains(&took), "{took} s");
        assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
    }
}

#[test]
fn sockets_that_never_stay_the_same_are_no_reason_to_wait_for_the_deadline() {
    let text = RESTART.replace(r#""order""#, r#""readyTimeoutSeconds":5,"order""#);
    for from_the_start in [true, false] {
        let mut bench = bench(&text, Kubelet::Watching);
        let outcome = loop {
            if from_the_start || bench.snapshot.standbys("app").next().is_some() {
                // It changes between two observations.
                let more = bench.now.as_millisecond() / 200 % 2;
                bench.sockets = [1 + u32::try_from(more).unwrap(), 1];
            }
            if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
                break outcome;
            }
        };
        let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.reason(), "NotStartedBeside");
        assert!(failure.to_string().contains("do not stay the same within 5 s"), "{failure}");
        let took = bench.now.duration_since(at(0)).as_secs();
        assert!(is_clean(&bench) && took < 15, "{took} s: {:?}", bench.log);
    }
}

/// A count that fails for long, and then succeeds, shows no change. Neither does the first one after an absence of the agent.
#[test]
fn the_first_count_after_the_time_fails_nothing() {
    let text = RESTART.replace(r#""order""#, r#""readyTimeoutSeconds":5,"order""#);
    let seconds = SignedDuration::from_secs;
    for beside in [false, true] {
        let mut bench = bench(&text, Kubelet::Watching);
        let mut since = None;
        let outcome = loop {
            let is_waited_for = |one: &Container| if beside { one.standby } else { one.fence };
            if bench.snapshot.containers.iter().any(is_waited_for) {
                since.get_or_insert(bench.now);
            }
            bench.count_fails = since.is_some_and(|since| bench.now < later(since, seconds(8)));
            if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
                break outcome;
            }
        };
        assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
        assert!(is_clean(&bench), "{:?}", bench.log);
    }
    let mut bench = bench(&text, Kubelet::Watching);
    while standby(&bench).counted.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
    }
    bench.now += seconds(20);
    bench.sockets = [2, 2];
    bench.operation.resume(bench.now);
    assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
}

#[test]
fn only_the_sockets_on_ports_that_decide_have_to_stay_the_same() {
    let of = |ports: &[(u16, u32)]| ports.iter().map(|&(port, count)| (Port::Tcp(port), count)).collect();
    let counted: Listeners = of(&[(80, 2), (90, 1), (40_000, 1)]);
    let before: Listeners = of(&[(80, 1), (90, 1)]);
    assert_eq!(deciding(&counted, &[Port::Tcp(80)], Some(&before)), of(&[(80, 2)]));
    assert_eq!(deciding(&counted, &[], Some(&before)), of(&[(80, 2), (90, 1)]));
    assert_eq!(deciding(&counted, &[], None), counted);
}
