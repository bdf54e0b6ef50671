//! Unit tests of `standby`: what serves at each moment, and what is left when a standby cannot run.

mod counts;
mod ends;
mod handover;
mod proof;

use super::*;
use crate::api::status::Phase;
use crate::failure::Class;
use crate::operation::fixtures::{
    Answer, Bench, Kubelet, ask, at, declared, find, pod_in_cluster, situation_in_cluster,
};
use crate::operation::outcome::{Outcome, Withdrawal};
use crate::operation::preflight::Situation;
use crate::operation::snapshot::{Owner, RestartPolicy};

const RESTART: &str = r#"{"id":"r","containers":[{"name":"app"}],"order":"StartFirst"}"#;
const SWAP: &str = r#"{"id":"r","containers":[{"name":"app","image":"repo/app:v2"}],"order":"StartFirst"}"#;

/// A pod whose container declares the port 8080 and shares it.
fn situation() -> Situation {
    let mut pod = pod_in_cluster();
    find(&mut pod, "app-2").ports = vec![Port::Tcp(8080)];
    situation_in_cluster(pod)
}

fn bench(text: &str, kubelet: Kubelet) -> Bench {
    let mut bench = Bench::of(text, situation(), kubelet);
    bench.listens_after = Some(300);
    bench
}

/// How many containers of `app` would answer a request now.
fn serving(bench: &Bench) -> usize {
    let serves = |container: &&Container| {
        let since = container.started_at.filter(|_| container.state == State::Running && !container.fence);
        let after = SignedDuration::from_millis(bench.listens_after.unwrap_or(0));
        container.name == "app" && since.is_some_and(|since| bench.now >= later(since, after))
    };
    bench.snapshot.containers.iter().filter(serves).count()
}

/// Runs to the end, and asserts that at every moment one container or another serves.
fn without_gap(bench: &mut Bench, mut world: impl FnMut(&Effect, &mut Snapshot) -> Answer) -> Outcome {
    for _ in 0..10_000 {
        assert!(serving(bench) > 0, "nothing serves after {:?}", bench.log);
        if let Some(outcome) = bench.step(&mut world) {
            bench.operation.finish(outcome.clone(), bench.now);
            return outcome;
        }
    }
    panic!("no end: {:?}", bench.log);
}

fn is_clean(bench: &Bench) -> bool {
    !bench.snapshot.containers.iter().any(|container| container.fence || container.standby)
}

#[test]
fn something_serves_at_every_moment_of_a_restart_and_of_a_swap() {
    for (text, kubelet) in
        [(RESTART, Kubelet::Watching), (SWAP, Kubelet::Prompt), (SWAP, Kubelet::HoldingBack)]
    {
        for listens_after in [0, 300, 20_000] {
            let mut bench = bench(text, kubelet);
            bench.listens_after = Some(listens_after);
            let outcome = without_gap(&mut bench, |_, _| Answer::Obey);
            assert_eq!(outcome, Outcome::Succeeded, "{text} {listens_after}: {:?}", bench.log);
            assert!(is_clean(&bench), "{:?}", bench.log);
            assert_eq!(bench.snapshot.running("app").len(), 1);
        }
    }
}

#[test]
fn the_order_of_a_restart_is_golden() {
    let mut bench = bench(RESTART, Kubelet::Watching);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(
        bench.log,
        [
            "Fence app 4",
            "Standby app",
            "Stop app-2",
            "Create app 3",
            "Start app-3",
            "Remove app-fence-4",
            "StopStandby app-standby",
            "Remove app-standby",
        ]
    );
}

#[test]
fn what_cannot_run_beside_the_container_touches_nothing() {
    for text in [RESTART, SWAP] {
        // It ends by itself, is refused by the runtime, or never listens.
        for (dies, refused, listens_after, reason) in [
            (true, false, Some(300), "exited with code 3"),
            (false, true, Some(300), "the runtime said so"),
            (false, false, None, "port 8080"),
        ] {
            let mut bench = bench(text, Kubelet::Prompt);
            bench.listens_after = Some(0);
            let outcome = bench.play_until_standby(listens_after, dies, refused);
            let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
            assert_eq!(failure.reason(), "NotStartedBeside");
            assert!(failure.to_string().contains(reason), "{failure}");
            assert!(is_clean(&bench), "{:?}", bench.log);
            let running = bench.snapshot.running("app");
            assert_eq!((running.len(), running[0].id.as_str()), (1, "app-2"));
            assert!(!bench.log.iter().any(|effect| effect.starts_with("Stop app")), "{:?}", bench.log);
        }
    }
}

impl Bench {
    /// Runs to the end with a standby that ends at once, is refused, or listens after another time than the container.
    fn play_until_standby(&mut self, listens_after: Option<i64>, dies: bool, refused: bool) -> Outcome {
        for _ in 0..10_000 {
            let created = self.snapshot.standbys("app").next().is_some();
            if created {
                self.listens_after = listens_after.map(|after| after.max(0));
            }
            let now = self.now;
            if let Some(standby) =
                self.snapshot.containers.iter_mut().find(|container| container.standby && dies)
                && standby.state == State::Running
            {
                (standby.state, standby.exit_code, standby.finished_at) = (State::Exited, 3, Some(now));
            }
            let answer = |effect: &Effect, _: &mut Snapshot| match effect {
                Effect::Standby { .. } if refused => Answer::No(Class::Refused),
                _ => Answer::Obey,
            };
            // The running container listens all the time; only the standby does not.
            if let Some(outcome) = self.step(&mut { answer }) {
                self.operation.finish(outcome.clone(), self.now);
                return outcome;
            }
        }
        panic!("no end: {:?}", self.log);
    }
}

#[test]
fn an_image_that_fails_later_is_rolled_back_while_the_standby_serves() {
    let mut bench = bench(SWAP, Kubelet::HoldingBack);
    let mut ended = false;
    let outcome = loop {
        assert!(serving(&bench) > 0, "{:?}", bench.log);
        // The new instance ends although the standby of the same image runs.
        let now = bench.now;
        let is_new = |container: &&mut Container| {
            let old_enough = |at: Timestamp| now >= later(at, SignedDuration::from_millis(100));
            let is_instance = container.is_instance() && container.state == State::Running;
            container.image_id == "sha:v2" && is_instance && container.started_at.is_some_and(old_enough)
        };
        for new in bench.snapshot.containers.iter_mut().filter(is_new) {
            (new.state, new.exit_code, new.finished_at) = (State::Exited, 3, Some(now));
            ended = true;
        }
        if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
            break outcome;
        }
    };
    assert!(ended);
    assert_eq!(outcome.phase(), Phase::RolledBack, "{:?}", bench.log);
    assert!(is_clean(&bench));
}

#[test]
fn a_standby_whose_start_got_no_answer_is_used() {
    let mut bench = bench(RESTART, Kubelet::Watching);
    let mut lost = 0;
    let outcome = without_gap(&mut bench, |effect, _| match effect {
        Effect::Standby { .. } => {
            lost += 1;
            Answer::Lost
        }
        _ => Answer::Obey,
    });
    assert_eq!((outcome, lost), (Outcome::Succeeded, 1));
    assert!(is_clean(&bench));
}

/// The next agent, or the same one when the runtime is back, finds a standby that ended before it started.
#[test]
fn a_standby_whose_start_was_cut_off_is_created_again() {
    let mut it = bench(SWAP, Kubelet::Prompt);
    let mut starts = 0;
    let outcome = it.play(|effect, snapshot| match effect {
        Effect::Standby { container, source, .. } if starts < 2 => {
            starts += 1;
            let mut lost = snapshot.by_id(source).unwrap().clone();
            (lost.id, lost.standby, lost.operation) = (format!("{container}-lost"), true, Some("r".into()));
            (lost.state, lost.started_at, lost.exit_code) = (State::Exited, None, 128);
            snapshot.containers.push(lost);
            Answer::No(Class::Unavailable)
        }
        _ => Answer::Obey,
    });
    assert_eq!((outcome, starts), (Outcome::Succeeded, 2), "{:?}", it.log);
    assert!(is_clean(&it), "{:?}", it.log);
}

#[test]
fn a_request_that_is_withdrawn_leaves_no_standby() {
    let mut bench = bench(RESTART, Kubelet::Watching);
    while bench.snapshot.standbys("app").next().is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.operation.withdraw(Withdrawal::Deleted);
    assert_eq!(bench.obey(), Outcome::Cancelled(Withdrawal::Deleted));
    assert!(is_clean(&bench));
    assert_eq!(bench.snapshot.running("app")[0].id, "app-2");
}

#[test]
fn a_pre_stop_handler_of_a_standby_runs_once_even_if_the_process_dies() {
    let mut with_handler = situation();
    let app = find(&mut with_handler.snapshot, "app-2");
    app.has_pre_stop = true;
    let mut bench = Bench::of(RESTART, with_handler, Kubelet::Watching);
    bench.listens_after = Some(0);
    let mut handlers = Vec::new();
    let outcome = bench.play(|effect, _| match effect {
        Effect::StopStandby { pre_stop, .. } => {
            handlers.push(*pre_stop);
            if handlers.len() < 3 { Answer::No(Class::Unavailable) } else { Answer::Obey }
        }
        _ => Answer::Obey,
    });
    assert_eq!((outcome, handlers), (Outcome::Succeeded, vec![true, false, false]));
}

/// As that of the container, whose stop has no grace period either.
#[test]
fn without_a_grace_period_no_pre_stop_handler_runs() {
    for (grace, runs) in [(0, false), (5, true)] {
        let mut with_handler = situation();
        find(&mut with_handler.snapshot, "app-2").has_pre_stop = true;
        let text = format!(
            r#"{{"id":"r","containers":[{{"name":"app"}}],"order":"StartFirst","terminationGracePeriodSeconds":{grace}}}"#
        );
        let mut bench = Bench::of(&text, with_handler, Kubelet::Watching);
        bench.listens_after = Some(0);
        let mut handlers = 0;
        let outcome = bench.play(|effect, _| {
            let is_handler =
                matches!(effect, Effect::PreStop { .. } | Effect::StopStandby { pre_stop: true, .. });
            handlers += usize::from(is_handler);
            Answer::Obey
        });
        assert_eq!((outcome, handlers > 0), (Outcome::Succeeded, runs), "{:?}", bench.log);
    }
}

#[test]
fn containers_that_cannot_have_a_standby_are_refused() {
    type Change = fn(&mut Situation);
    let cases: [(Change, &str); 8] = [
        (|s| s.snapshot.declared = None, "it needs a cluster"),
        (|s| declared(&mut s.snapshot).restart_policy = RestartPolicy::Never, "restartPolicy is not Always"),
        (|s| declared(&mut s.snapshot).devices = vec!["gpu.example/card".into()], "gpu.example/card"),
        (|s| s.runtime.name = "cri-o".into(), "containerd only"),
        (|s| declared(&mut s.snapshot).ready = false, "it is not Ready"),
        (
            |s| s.sources.values_mut().for_each(|source| source.uses_host_network = true),
            "the network of the node",
        ),
        (
            |s| s.sources.values_mut().for_each(|source| source.uses_devices = true),
            "devices or block volumes",
        ),
        (
            |s| s.sources.values_mut().for_each(|source| source.asks_own_pod = true),
            "its preStop handler connects to the pod",
        ),
    ];
    for (change, why) in cases {
        let mut situation = situation();
        change(&mut situation);
        let refusal = ask(RESTART, &situation).unwrap_err();
        assert!(refusal.to_string().contains(why), "{refusal}");
    }
}

#[test]
fn several_containers_are_asked_for_one_after_the_other() {
    let both = r#"{"id":"r","containers":[{"name":"app"},{"name":"side"}],"order":"StartFirst"}"#;
    let refusal = ask(both, &situation()).unwrap_err();
    assert!(refusal.to_string().contains("request one after the other"), "{refusal}");
}

/// The standby may hold the port that the container needs to start again.
#[test]
fn a_standby_does_not_outlive_a_container_that_ends_beside_it_before_anything_was_touched() {
    for proven in [false, true] {
        let mut bench = bench(SWAP, Kubelet::HoldingBack);
        let is_there = |bench: &Bench| {
            let own = bench.operation.targets[0].standby.as_ref();
            let is_proven = own.is_some_and(|own| own.proven_at.is_some());
            if proven { is_proven } else { bench.snapshot.standbys("app").next().is_some() }
        };
        while !is_there(&bench) {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        let now = bench.now;
        let app = find(&mut bench.snapshot, "app-2");
        (app.state, app.exit_code, app.finished_at) = (State::Exited, 1, Some(now));
        let outcome = bench.obey();
        let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.reason(), "NotStartedBeside");
        assert!(failure.to_string().contains("ended meanwhile"), "{failure}");
        let took = bench.now.duration_since(now).as_secs();
        assert!(is_clean(&bench) && took < 10, "{took} s: {:?}", bench.log);
    }
}

/// Ends the new instance, while the standby of the same image runs.
fn fail_new_image(bench: &mut Bench) {
    let now = bench.now;
    let is_new = |container: &&mut Container| {
        let is_instance = container.is_instance() && container.state == State::Running;
        container.image_id == "sha:v2" && is_instance
    };
    for new in bench.snapshot.containers.iter_mut().filter(is_new) {
        (new.state, new.exit_code, new.finished_at) = (State::Exited, 3, Some(now));
    }
}

/// Beside the instance that is back, the image that failed would answer a part of the requests.
#[test]
fn a_standby_of_an_image_that_failed_stops_before_the_old_image_is_verified() {
    let mut bench = bench(SWAP, Kubelet::Prompt);
    let mut stopped_before_the_end = false;
    let outcome = loop {
        fail_new_image(&mut bench);
        if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
            break outcome;
        }
        let is_stopping = bench.log.last().is_some_and(|effect| effect.starts_with("StopStandby"));
        stopped_before_the_end |= is_stopping && bench.operation.ending.is_none();
    };
    assert_eq!(outcome.phase(), Phase::RolledBack, "{:?}", bench.log);
    assert!(stopped_before_the_end && is_clean(&bench), "{:?}", bench.log);
}

/// Many servers retry for some seconds when a port is in use.
#[test]
fn a_standby_that_adds_no_socket_is_observed_longer() {
    let mut situation = situation();
    find(&mut situation.snapshot, "app-2").ports = Vec::new();
    for (listens, least) in [(true, 1), (false, 6)] {
        let mut bench = Bench::of(RESTART, situation.clone(), Kubelet::Watching);
        bench.listens_after = Some(0);
        let began = bench.now;
        while bench.operation.targets[0].standby.as_ref().is_some_and(|own| own.proven_at.is_none()) {
            if !listens && bench.snapshot.standbys("app").next().is_some() {
                bench.deaf_standby = true;
            }
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
        }
        let took = bench.now.duration_since(began).as_secs();
        assert!((least..least + 2).contains(&took), "{took} s: {:?}", bench.log);
    }
}

/// All sockets of a pod with a single container are its own.
#[test]
fn a_standby_that_shares_no_port_of_the_only_container_has_no_proof() {
    let mut situation = situation();
    situation.snapshot.containers.retain(|container| container.name == "app");
    situation.snapshot.declared.as_mut().unwrap().containers.retain(|container| container.name == "app");
    find(&mut situation.snapshot, "app-2").ports = Vec::new();
    let mut bench = Bench::of(RESTART, situation, Kubelet::Watching);
    bench.listens_after = Some(300);
    bench.deaf_standby = true;
    let outcome = without_gap(&mut bench, |_, _| Answer::Obey);
    let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(failure.to_string().contains("does not listen on port 8080"), "{failure:?}");
    assert!(!bench.operation.touched() && is_clean(&bench), "{:?}", bench.log);
}

#[test]
fn sockets_on_ports_that_the_container_does_not_declare_prove_nothing() {
    let of = |ports: &[(u16, u32)]| ports.iter().map(|&(port, count)| (Port::Tcp(port), count)).collect();
    let (before, now): (Listeners, Listeners) = (of(&[(80, 1), (90, 1)]), of(&[(80, 2), (90, 2), (99, 1)]));
    assert_eq!(sockets::added(&before, &now, &[Port::Tcp(80), Port::Tcp(443)]), of(&[(80, 1)]));
    assert_eq!(sockets::added(&before, &now, &[]), of(&[(80, 1), (90, 1)]));
}

/// A name server listens on a UDP port, and a client that it asks answers on another one.
#[test]
fn of_the_udp_sockets_only_those_on_declared_ports_count() {
    let mut pod = situation().snapshot;
    find(&mut pod, "app-2").ports = vec![Port::Udp(53)];
    let counted = Listeners::from([(Port::Udp(53), 1), (Port::Udp(40_000), 1), (Port::Tcp(80), 1)]);
    let relevant = sockets::relevant(counted, &pod);
    assert_eq!(relevant, Listeners::from([(Port::Udp(53), 1), (Port::Tcp(80), 1)]));
}

/// A pod that leaves gives its standby no time to wait for the container.
#[test]
fn a_pod_that_is_deleted_keeps_no_standby() {
    let mut bench = bench(SWAP, Kubelet::HoldingBack);
    while !bench.operation.touched() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.snapshot.declared.as_mut().unwrap().deleting = true;
    let began = bench.now;
    bench.obey();
    let took = bench.now.duration_since(began).as_secs();
    assert!(is_clean(&bench) && took < 15, "{took} s: {:?}", bench.log);
}

/// The mirror pod of a static pod is absent for a moment when somebody deletes it.
#[test]
fn only_the_standbys_of_a_pod_that_ends_are_stopped_at_once() {
    let mut bench = bench(RESTART, Kubelet::Watching);
    while !bench.log.iter().any(|line| line.starts_with("Stop app")) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.snapshot.absent = true;
    let terminated = |bench: &Bench| terminated(&bench.operation, &bench.snapshot, bench.now).len();
    assert_eq!(terminated(&bench), 1);
    bench.snapshot.sandbox.as_mut().unwrap().owner = Owner::KubeletStatic;
    assert_eq!(terminated(&bench), 0);
}

#[test]
fn the_engine_stop_has_no_standby() {
    let stop = RESTART.replace(r#""id":"r""#, r#""id":"r","engine":"Stop""#);
    let refusal = ask(&stop, &situation()).unwrap_err();
    assert!(refusal.to_string().contains("the engine Stop"), "{refusal}");
}

/// A process opens its sockets one after the other: one observation, read twice, shows nothing.
#[test]
fn one_count_of_the_sockets_proves_nothing() {
    let mut bench = bench(RESTART, Kubelet::Watching);
    while bench.snapshot.listeners.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    let standby = |bench: &Bench| bench.operation.targets[0].standby.clone().unwrap();
    let counted = Standby {
        counted: bench.snapshot.listeners.clone(),
        counted_at: Some(bench.now),
        ..Standby::default()
    };
    bench.operation.targets[0].standby = Some(counted);
    let next = prove(&bench.operation, &bench.snapshot, bench.now);
    assert!(matches!(next, Some(Next::Wait(_))), "{next:?}");
    assert_eq!(standby(&bench).before, None);
    let next = prove(&bench.operation, &bench.snapshot, later(bench.now, REQUEUE));
    assert!(matches!(next, Some(Next::Note(Note::Standby(_, Change::Before(..))))), "{next:?}");
}

/// Its kubelet calls it Ready, because the standby answers the probe.
#[test]
fn a_standby_stays_while_the_new_instance_does_not_listen() {
    let mut bench = bench(SWAP, Kubelet::Prompt);
    let outcome = loop {
        let new = bench
            .snapshot
            .containers
            .iter()
            .any(|container| container.is_instance() && container.image_id == "sha:v2");
        bench.deaf_instance = new.then(|| "sha:v2".to_owned());
        if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
            break outcome;
        }
    };
    assert_eq!(outcome.phase(), Phase::RolledBack, "{outcome:?}: {:?}", bench.log);
    assert!(is_clean(&bench), "{:?}", bench.log);
}

#[test]
fn a_fence_that_does_not_stay_up_ends_the_proof() {
    let mut bench = bench(RESTART, Kubelet::Watching);
    let outcome = loop {
        for fence in bench.snapshot.containers.iter_mut().filter(|container| container.fence) {
            fence.state = State::Exited;
        }
        if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
            break outcome;
        }
    };
    let Outcome::Failed { failure, touched: false, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(failure.to_string().contains("does not stay up"), "{failure}");
    let fences = bench.log.iter().filter(|effect| effect.starts_with("Fence")).count();
    assert_eq!(fences, usize::try_from(FENCES).unwrap(), "{:?}", bench.log);
}

#[test]
fn a_standby_that_ran_when_it_was_observed_may_have_exited_since() {
    let mut bench = bench(RESTART, Kubelet::Watching);
    let is_proven = |bench: &Bench| {
        bench.operation.targets[0].standby.as_ref().is_some_and(|standby| standby.proven_at.is_some())
    };
    while bench.snapshot.standbys("app").next().is_none_or(|own| own.state != State::Running) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.snapshot.observed_at = Some(bench.now);
    let until = later(bench.now, SignedDuration::from_secs(8));
    while bench.now < until {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        assert!(!is_proven(&bench), "{:?}", bench.log);
    }
    bench.snapshot.observed_at = None;
    while !is_proven(&bench) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        assert!(bench.now < later(until, SETTLES), "{:?}", bench.log);
    }
}

/// The answer of the runtime took longer than the standby has run: it started after its observation had begun.
#[test]
fn a_standby_that_started_during_its_observation_has_not_stayed_up() {
    let snapshot = Snapshot { observed_at: Some(at(0)), ..pod_in_cluster() };
    let has_lasted = |started, now| has_lasted(&snapshot, at(started), SETTLES, at(now));
    assert!(!has_lasted(1200, 1500));
    assert!(!has_lasted(-900, 1500) && has_lasted(-1000, 1500));
    // The runtime's clock was set back after the start.
    assert!(has_lasted(9000, 1500));
}

/// Nothing else serves then, although the time in which the old image should have come up is over.
#[test]
fn a_standby_of_an_image_that_failed_stays_while_the_old_image_does_not_run() {
    let mut bench = bench(SWAP, Kubelet::Prompt);
    let is_back = |bench: &Bench| {
        bench.operation.rollback_cause.is_some() && bench.operation.targets[0].reached.is_some()
    };
    while !is_back(&bench) {
        fail_new_image(&mut bench);
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
    }
    let standby = bench.operation.targets[0].standby.as_mut().unwrap();
    standby.uncounted_since = Some(bench.now);
    let (operation, late) = (&bench.operation, later(bench.now, SignedDuration::from_secs(60)));
    let id = operation.targets[0].reached.as_ref().unwrap().to.container_id.clone();
    let stops = |state| {
        let mut snapshot = Snapshot { listeners: None, ..bench.snapshot.clone() };
        find(&mut snapshot, &id).state = state;
        matches!(make_way(operation, &operation.targets[0], &snapshot, late), Some(Next::Do(_)))
    };
    assert_eq!([State::Running, State::Exited].map(stops), [true, false]);
}
