//! The API server is unavailable during operations: killed, for long, with its store killed, and while an agent
//! starts. Running operations continue from the journal; statuses are written when the API server is back.

use std::{fs, thread, time::Duration};

use inplace::api::{annotation::GATE, status::Phase};
use serde_json::json;

use crate::{
    agent::Agent,
    crash::{Scene, Subject, Theatre, Way, assert_held},
    pod::{eventually, eventually_or, is},
};

/// The durations of a short and of a long outage.
const SHORT: Duration = Duration::from_secs(5);
const LONG_AWAY: Duration = Duration::from_secs(60);

/// The fault points at which the outage starts.
const SCENES: [(Way, &str); 12] = [
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

/// Resident memory of a process in kibibytes.
fn resident(agent: &Agent) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// True when the journal has the end of the request, and no open operation.
fn is_over(scene: &Scene<'_>) -> bool {
    let journal = scene.subject.journal();
    journal["open"].is_null() && journal["last"]["id"] == *scene.ask.id
}

fn scenes<'a>(subjects: &'a [Subject<'a>]) -> Vec<(&'a Subject<'a>, String)> {
    subjects.iter().zip(SCENES).map(|(subject, (_, point))| (subject, point.to_owned())).collect()
}

#[test]
fn away_in_the_middle_it_delays_and_spoils_nothing() {
    let theatre = Theatre::open();
    let mut agent = theatre.agent();
    let subjects = theatre.cast(&SCENES.map(|(way, _)| way));
    let before = resident(&agent);
    // After its API server is back, a kubelet may take up to a minute to observe the rollback of the spec. Until
    // then it kills the container that replaces the crashing image, and the agent retries: at once, and after 2,
    // 4, 8, 16 and 32 s.
    for subject in &subjects {
        subject.tries.set(8);
    }
    for (what, away) in [("kube-apiserver", SHORT), ("etcd", SHORT), ("kube-apiserver", LONG_AWAY)] {
        let scenes = theatre.bring(&scenes(&subjects), &format!("{what}-{}", away.as_secs()));
        assert_held(&scenes);
        theatre.cluster.kill(what);
        theatre.holds.release();
        if away == LONG_AWAY {
            // Operations that do not need the API server end without it.
            for scene in scenes.iter().filter(|scene| scene.subject.way == Way::Recreate) {
                eventually(&format!("the end of {:?} in the journal", scene.ask), || {
                    is_over(scene).then_some(())
                });
            }
        }
        // Not a wait for a condition: this is the duration of the outage.
        thread::sleep(away);
        theatre.cluster.start(what);
        for scene in scenes {
            scene.ends(1..=1);
            told(&scene);
        }
        assert!(!agent.has_ended());
    }
    let after = resident(&agent);
    assert!(after < before + 8 * 1024, "{before} kB before, {after} kB after");

    // An agent that starts during the outage continues at once with what is in the journal.
    let scenes = theatre.bring(&scenes(&subjects), "start");
    theatre.cluster.kill("kube-apiserver");
    agent.kill();
    theatre.holds.release();
    agent = theatre.launch();
    for scene in scenes.iter().filter(|scene| scene.subject.way == Way::Recreate) {
        eventually(&format!("the new life of {:?}", scene.ask), || {
            scene.subject.is_replaced(&scene.ask).then_some(())
        });
    }
    theatre.cluster.start("kube-apiserver");
    for scene in scenes {
        scene.ends(1..=1);
    }
    // New requests work as well.
    for subject in &subjects {
        let ask = subject.ask("later");
        subject.ends(&ask, "asked later", 1..=1);
    }
    assert!(!agent.has_ended());
    drop(subjects);
    theatre.close();
}

/// One event reports the end, too.
fn told(scene: &Scene<'_>) {
    let reason = if scene.subject.way == Way::Back { "InPlaceRolledBack" } else { "InPlaceSucceeded" };
    eventually(&format!("the event of {:?}", scene.ask), || {
        let events = scene.subject.pod.events();
        events.iter().any(|event| event.reason.as_deref() == Some(reason)).then_some(())
    });
}

#[test]
fn a_gate_that_could_not_be_opened_is_opened_when_it_is_back() {
    let theatre = Theatre::open();
    let mut agent = theatre.agent();
    let subjects = theatre.cast(&[Way::Drain]);
    let [subject] = subjects.as_slice() else { unreachable!() };
    for another_agent in [false, true] {
        theatre.holds.set(subject.uid(), "after effect Start");
        let ask = subject.ask_with("owed", &json!({"deadlineSeconds": 30}));
        eventually("its point", || theatre.holds.held(subject.uid()));
        theatre.cluster.kill("kube-apiserver");
        theatre.holds.release();
        // Longer than the agent retries: only the gate that is still to be opened is left in the journal.
        eventually_or("the end in the journal", || {
            let journal = subject.journal();
            let is_owed = journal["open"].is_null() && journal["owed_gate"] == "Open";
            if is_owed { Ok(()) } else { Err(journal) }
        });
        if another_agent {
            agent.kill();
            agent = theatre.launch();
        }
        theatre.cluster.start("kube-apiserver");
        subject.ends(&ask, &format!("owed, by another agent: {another_agent}"), 1..=1);
    }
    assert!(!agent.has_ended());
    drop(subjects);
    theatre.close();
}

#[test]
fn what_had_not_begun_when_it_went_ends_untouched_by_its_deadline() {
    let theatre = Theatre::open();
    let agent = theatre.agent();
    let subjects = theatre.cast(&[Way::Respec, Way::Drain]);
    let points = ["before effect Respec", "before effect Gate"];
    for (subject, point) in subjects.iter().zip(points) {
        theatre.holds.set(subject.uid(), point);
    }
    let asks: Vec<_> =
        subjects.iter().map(|subject| subject.ask_with("short", &json!({"deadlineSeconds": 25}))).collect();
    for subject in &subjects {
        eventually("its point", || theatre.holds.held(subject.uid()));
    }
    theatre.cluster.kill("kube-apiserver");
    // A write into a connection that is not yet known to be dead might still have arrived, so the test waits
    // until the agent has noticed the outage.
    eventually("the agent knows", || (agent.metric(&["inplace_watch_connected"]) == 0.0).then_some(()));
    theatre.holds.release();
    for (subject, ask) in subjects.iter().zip(&asks) {
        eventually(&format!("the end of {ask:?} in the journal"), || {
            let journal = subject.journal();
            (journal["open"].is_null() && journal["last"]["id"] == *ask.id).then_some(())
        });
    }
    theatre.cluster.start("kube-apiserver");
    for (subject, ask) in subjects.iter().zip(&asks) {
        let status = subject.pod.answer(&ask.id);
        assert_eq!(
            (status.phase, status.reason.as_str()),
            (Phase::Failed, "DeadlineExceeded"),
            "{status:#?}"
        );
        // The first step of these operations never reached the API server.
        assert!(status.message.ends_with("The running containers were not touched"), "{}", status.message);
        subject.is_untouched(ask);
    }
    subjects[1].pod.wait("its gate is open", |pod| is(pod, GATE));
    for subject in &subjects {
        let ask = subject.ask("later");
        subject.ends(&ask, "asked later", 1..=1);
    }
    assert!(!agent.has_ended());
    drop(subjects);
    theatre.close();
}
