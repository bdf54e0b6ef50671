//! The API server is unavailable during operations: killed, for long, with its store killed, and while an agent
//! starts. Running operations continue from the journal; statuses are written when the API server is back.

use std::{thread, time::Duration};

use inplace::api::{annotation::GATE, status::Phase};
use serde_json::json;

use crate::{
    crash::{CrashFixture, HeldOperation, TRIES, TestedPod, Way, assert_held},
    pod::is,
    support::process::Process,
    support::wait::{eventually, eventually_or},
};

/// The durations of a short and of a long outage.
const SHORT: Duration = Duration::from_secs(5);
const LONG_AWAY: Duration = Duration::from_secs(60);

/// The fault points at which the outage starts.
const HELD: [(Way, &str); 12] = [
    (Way::Recreate, "before effect Fence"),
    (Way::Recreate, "after effect Stop"),
    (Way::Recreate, "after effect Start"),
    (Way::Drain, "before effect Gate"),
    (Way::Drain, "after effect Gate"),
    (Way::Drain, "after effect Create"),
    (Way::Respec, "before effect Respec"),
    (Way::Respec, "after effect Respec"),
    (Way::Finish, "before effect Respec"),
    (Way::Finish, "after effect Create"),
    (Way::Back, "after effect Respec"),
    (Way::Stop, "after effect Stop"),
];

/// True when the journal has the end of the request, and no open operation.
fn is_over(held_operation: &HeldOperation<'_>) -> bool {
    let journal = held_operation.tested_pod.journal();
    journal["open"].is_null() && journal["last"]["id"] == *held_operation.ask.id
}

fn held_operations<'a>(tested_pods: &'a [TestedPod<'a>]) -> Vec<(&'a TestedPod<'a>, String)> {
    tested_pods.iter().zip(HELD).map(|(tested_pod, (_, point))| (tested_pod, point.to_owned())).collect()
}

#[test]
fn away_in_the_middle_it_delays_and_spoils_nothing() {
    let crash_fixture = CrashFixture::open();
    let mut agent = crash_fixture.agent();
    let tested_pods = crash_fixture.create_pods(&HELD.map(|(way, _)| way));
    let before = Process(agent.pid()).resident();
    // After its API server is back, a kubelet may take up to a minute to observe the rollback of the spec. Until
    // then it kills the container that replaces the crashing image, and the agent retries: at once, and after 2,
    // 4, 8, 16 and 32 s.
    for tested_pod in &tested_pods {
        tested_pod.tries.set(8);
    }
    for (what, away) in [("kube-apiserver", SHORT), ("etcd", SHORT), ("kube-apiserver", LONG_AWAY)] {
        let held_operations = crash_fixture
            .bring_to_points(&held_operations(&tested_pods), &format!("{what}-{}", away.as_secs()));
        assert_held(&held_operations);
        crash_fixture.cluster.kill(what);
        crash_fixture.holds.release();
        if away == LONG_AWAY {
            // Operations that do not need the API server end without it.
            for held_operation in
                held_operations.iter().filter(|held_operation| held_operation.tested_pod.way == Way::Recreate)
            {
                eventually(&format!("the end of {:?} in the journal", held_operation.ask), || {
                    is_over(held_operation).then_some(())
                });
            }
        }
        // Not a wait for a condition: this is the duration of the outage.
        thread::sleep(away);
        crash_fixture.cluster.start(what);
        for held_operation in held_operations {
            held_operation.ends(1..=1);
            reported(&held_operation);
        }
        assert!(!agent.has_ended());
    }
    let after = Process(agent.pid()).resident();
    assert!(after < before + 8.0, "{before} MiB before, {after} MiB after");

    // An agent that starts during the outage continues at once with what is in the journal.
    let held_operations = crash_fixture.bring_to_points(&held_operations(&tested_pods), "start");
    crash_fixture.cluster.kill("kube-apiserver");
    agent.kill();
    crash_fixture.holds.release();
    agent = crash_fixture.launch();
    for held_operation in
        held_operations.iter().filter(|held_operation| held_operation.tested_pod.way == Way::Recreate)
    {
        eventually(&format!("the new instance of {:?}", held_operation.ask), || {
            held_operation.tested_pod.is_replaced(&held_operation.ask).then_some(())
        });
    }
    crash_fixture.cluster.start("kube-apiserver");
    for held_operation in held_operations {
        held_operation.ends(1..=1);
    }
    // New requests work as well.
    for tested_pod in &tested_pods {
        let ask = tested_pod.ask("later");
        tested_pod.ends(&ask, "asked later", 1..=1);
    }
    assert!(!agent.has_ended());
    drop(tested_pods);
    crash_fixture.close();
}

/// One event reports the end, too.
fn reported(held_operation: &HeldOperation<'_>) {
    let reason =
        if held_operation.tested_pod.way == Way::Back { "InPlaceRolledBack" } else { "InPlaceSucceeded" };
    eventually(&format!("the event of {:?}", held_operation.ask), || {
        let events = held_operation.tested_pod.pod.events();
        events.iter().any(|event| event.reason.as_deref() == Some(reason)).then_some(())
    });
}

#[test]
fn a_gate_that_could_not_be_opened_is_opened_when_it_is_back() {
    let crash_fixture = CrashFixture::open();
    let mut agent = crash_fixture.agent();
    let tested_pods = crash_fixture.create_pods(&[Way::Drain]);
    let [tested_pod] = tested_pods.as_slice() else { unreachable!() };
    for another_agent in [false, true] {
        // On a busy node the kubelet may be faster and start the container itself.
        let ask = (0..TRIES).find_map(|_| {
            crash_fixture.holds.set(tested_pod.uid(), "after effect Start");
            let ask = tested_pod.ask_with("owed", &json!({"deadlineSeconds": 60}));
            let held = eventually("its point or its end", || {
                let held = crash_fixture.holds.held(tested_pod.uid());
                (held.is_some() || tested_pod.has_ended(&ask)).then_some(held)
            });
            held.map(|_| ask)
        });
        let ask = ask.expect("the agent starts the container once");
        crash_fixture.cluster.kill("kube-apiserver");
        crash_fixture.holds.release();
        // Longer than the agent retries: only the gate that is still to be opened is left in the journal.
        eventually_or("the end in the journal", || {
            let journal = tested_pod.journal();
            let is_owed = journal["open"].is_null() && journal["owed_gate"] == "Open";
            if is_owed { Ok(()) } else { Err(journal) }
        });
        if another_agent {
            agent.kill();
            agent = crash_fixture.launch();
        }
        crash_fixture.cluster.start("kube-apiserver");
        tested_pod.ends(&ask, &format!("owed, by another agent: {another_agent}"), 1..=1);
    }
    assert!(!agent.has_ended());
    drop(tested_pods);
    crash_fixture.close();
}

#[test]
fn what_had_not_begun_when_it_went_ends_untouched_by_its_deadline() {
    let crash_fixture = CrashFixture::open();
    let agent = crash_fixture.agent();
    let tested_pods = crash_fixture.create_pods(&[Way::Respec, Way::Drain]);
    let points = ["before effect Respec", "before effect Gate"];
    for (tested_pod, point) in tested_pods.iter().zip(points) {
        crash_fixture.holds.set(tested_pod.uid(), point);
    }
    let asks: Vec<_> = tested_pods
        .iter()
        .map(|tested_pod| tested_pod.ask_with("short", &json!({"deadlineSeconds": 80})))
        .collect();
    for tested_pod in &tested_pods {
        eventually("its point", || crash_fixture.holds.held(tested_pod.uid()));
    }
    crash_fixture.cluster.kill("kube-apiserver");
    // A write into a connection that is not yet known to be dead might still have arrived, so the test waits
    // until the agent has noticed the outage.
    eventually("the agent knows", || (agent.metric(&["inplace_watch_connected"]) == 0.0).then_some(()));
    crash_fixture.holds.release();
    for (tested_pod, ask) in tested_pods.iter().zip(&asks) {
        eventually(&format!("the end of {ask:?} in the journal"), || {
            let journal = tested_pod.journal();
            (journal["open"].is_null() && journal["last"]["id"] == *ask.id).then_some(())
        });
    }
    crash_fixture.cluster.start("kube-apiserver");
    for (tested_pod, ask) in tested_pods.iter().zip(&asks) {
        let status = tested_pod.pod.answer(&ask.id);
        assert_eq!(
            (status.phase, status.reason.as_str()),
            (Phase::Failed, "DeadlineExceeded"),
            "{status:#?}"
        );
        // The first step of these operations never reached the API server.
        assert!(status.message.ends_with("The running containers were not touched"), "{}", status.message);
        tested_pod.is_untouched(ask);
    }
    tested_pods[1].pod.wait("its gate is open", |pod| is(pod, GATE));
    for tested_pod in &tested_pods {
        let ask = tested_pod.ask("later");
        tested_pod.ends(&ask, "asked later", 1..=1);
    }
    assert!(!agent.has_ended());
    drop(tested_pods);
    crash_fixture.close();
}
