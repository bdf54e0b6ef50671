//! Unit tests of the proof by the container's own readiness probe, and of the memory for two.

use super::*;
use crate::operation::memory::Memory;
use crate::operation::plan::Plan;
use crate::operation::preflight::Refusal;

const MIB: u64 = 1 << 20;

fn probe(initial_delay: u64, period: u64, success_threshold: u32) -> ExecProbe {
    ExecProbe {
        command: ["check".to_owned(), "--token=hunter2".to_owned()].into(),
        initial_delay: Duration::from_secs(initial_delay),
        period: Duration::from_secs(period),
        timeout: Duration::from_secs(1),
        success_threshold,
    }
}

fn probed(text: &str, probe: ExecProbe) -> Bench {
    let mut situation = situation();
    declared(&mut situation.snapshot).readiness = Some(probe);
    let mut bench = Bench::of(text, situation, Kubelet::Prompt);
    bench.listens_after = Some(300);
    bench
}

#[test]
fn the_readiness_probe_must_pass_in_the_standby_before_anything_is_touched() {
    for (passes_after, times) in [(0, 1), (2_500, 3), (20_000, 20)] {
        let mut bench = probed(SWAP, probe(0, 1, 1));
        bench.passes_after = passes_after;
        assert_eq!(without_gap(&mut bench, |_, _| Answer::Obey), Outcome::Succeeded, "{:?}", bench.log);
        let runs = &bench.probed_at;
        assert!(runs.len().abs_diff(times) <= 1, "{passes_after}: {runs:?}");
        assert!(*runs.last().unwrap() >= SignedDuration::from_millis(passes_after), "{runs:?}");
        assert!(is_clean(&bench));
    }
}

#[test]
fn a_probe_keeps_its_delay_its_period_and_its_threshold() {
    let mut bench = probed(RESTART, probe(5, 3, 3));
    assert_eq!(without_gap(&mut bench, |_, _| Answer::Obey), Outcome::Succeeded, "{:?}", bench.log);
    let runs = &bench.probed_at;
    assert_eq!(runs.len(), 3, "{runs:?}");
    assert!(runs[0] >= SignedDuration::from_secs(5), "{runs:?}");
    assert!(runs.windows(2).all(|two| two[1] - two[0] >= SignedDuration::from_secs(3)), "{runs:?}");
}

#[test]
fn a_standby_whose_probe_fails_touches_nothing() {
    for text in [RESTART, SWAP] {
        let mut bench = probed(text, probe(0, 1, 1));
        bench.passes_after = i64::MAX;
        let outcome = without_gap(&mut bench, |_, _| Answer::Obey);
        let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.reason(), "NotStartedBeside");
        let text = failure.to_string();
        assert!(
            text.contains("its readiness probe does not pass within")
                && text.contains("s: the command exited with 1"),
            "{text}"
        );
        assert!(is_clean(&bench), "{:?}", bench.log);
        assert_eq!(bench.snapshot.running("app")[0].id, "app-2");
    }
}

#[test]
fn a_failure_begins_the_count_of_passes_anew() {
    let mut standby = Standby::default();
    let results = [Ok(()), Ok(()), Err("no".to_owned()), Ok(())];
    let passed = results.map(|result| {
        standby.apply(Change::Probed(Probed { at: Timestamp::UNIX_EPOCH, result }));
        standby.probe.as_ref().unwrap().passed
    });
    assert_eq!(passed, [1, 2, 0, 1]);
}

#[test]
fn a_clock_that_is_set_moves_the_times_of_the_proof() {
    for jump in [-3_600, 3_600].map(SignedDuration::from_secs) {
        let mut bench = probed(SWAP, probe(0, 3, 2));
        while bench.operation.targets[0].standby.as_ref().is_none_or(|standby| standby.probe.is_none()) {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        bench.now += jump;
        bench.operation.shift(jump);
        for container in &mut bench.snapshot.containers {
            container.created_at += jump;
            container.started_at = container.started_at.map(|at| at + jump);
        }
        let begun = bench.now;
        while bench.operation.targets[0].standby.as_ref().unwrap().proven_at.is_none() {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        let took = bench.now.duration_since(begun);
        assert!((2_500..4_500).contains(&took.as_millis()), "{jump}: {took}");
    }
}

#[test]
fn the_deadline_includes_the_probe() {
    let text = r#"{"id":"r","containers":[{"name":"app"}],"order":"StartFirst","deadlineSeconds":120}"#;
    let mut situation = situation();
    declared(&mut situation.snapshot).readiness = Some(probe(30, 10, 2));
    assert!(ask(text, &situation).is_ok());
    declared(&mut situation.snapshot).readiness = Some(probe(90, 10, 4));
    let refusal = ask(text, &situation).unwrap_err();
    assert!(matches!(refusal, Refusal::DeadlineTooShort { .. }), "{refusal}");
}

#[test]
fn the_command_of_a_probe_is_not_printed() {
    let text = format!("{:?}", probe(0, 1, 1));
    assert!(!text.contains("hunter2") && !text.contains("check"), "{text}");
}

#[test]
fn two_that_do_not_fit_into_the_memory_of_the_pod_are_refused() {
    let mut situation = situation();
    situation.snapshot.declared.as_mut().unwrap().memory_limit = Some(256 * MIB);
    let allocated = [("app".to_owned(), 100 * MIB)].into();
    situation.memory = Some(Memory { used: 150 * MIB, allocated, available: Some(1024 * MIB) });
    assert!(ask(SWAP, &situation).is_ok());
    situation.memory.as_mut().unwrap().used = 157 * MIB;
    let refusal = ask(SWAP, &situation).unwrap_err();
    assert_eq!(refusal.reason(), "CannotStartFirst");
    let text = refusal.to_string();
    assert!(text.contains("the pod uses 157 MiB of its memory limit of 256 MiB"), "{text}");
    // The default order stops the container first.
    assert!(ask("restart app", &situation).is_ok());
}

#[test]
fn the_plan_says_what_proves_the_standby_and_what_memory_there_is() {
    let mut situation = situation();
    situation.snapshot.declared.as_mut().unwrap().memory_limit = Some(256 * MIB);
    let warnings = |situation: &Situation| Plan::of(ask(RESTART, situation).unwrap()).warnings.join("\n");
    let text = warnings(&situation);
    assert!(text.contains("the listening sockets are counted instead"), "{text}");
    assert!(text.contains("both count against the pod's memory limit of 256 MiB"), "{text}");
    declared(&mut situation.snapshot).readiness = Some(probe(0, 1, 1));
    let allocated = [("app".to_owned(), 20 * MIB)].into();
    situation.memory = Some(Memory { used: 30 * MIB, allocated, available: None });
    let text = warnings(&situation);
    assert!(text.contains("its readiness probe is run in the second one and must pass there"), "{text}");
    assert!(
        text.contains("uses 30 MiB of its memory limit of 256 MiB; a second app is expected to need 20 MiB"),
        "{text}"
    );
    assert!(!text.contains("datagrams"), "{text}");
    find(&mut situation.snapshot, "app-2").ports.push(Port::Udp(53));
    assert!(warnings(&situation).contains("datagrams to its UDP ports may reach either"));
}

#[test]
fn a_probe_is_run_only_while_the_standby_listens_and_its_last_run_counts() {
    // A command that connects to a shared port would reach the container beside it.
    let mut bench = probed(SWAP, probe(0, 1, 1));
    while bench.snapshot.standbys("app").next().is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.listens_after = Some(9_000);
    for container in bench.snapshot.containers.iter_mut().filter(|container| !container.standby) {
        container.started_at = container.started_at.map(|at| at - SignedDuration::from_secs(60));
    }
    assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
    assert!(bench.probed_at[0] >= SignedDuration::from_secs(9), "{:?}", bench.probed_at);

    let text = SWAP.replace(r#""order""#, r#""minReadySeconds":20,"readyTimeoutSeconds":5,"order""#);
    let mut bench = probed(&text, probe(0, 1, 1));
    while bench.probed_at.is_empty() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    // It passed once, and not again.
    bench.passes_after = i64::MAX;
    let outcome = bench.obey();
    let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(failure.to_string().contains("readiness probe does not pass"), "{failure}");
}
