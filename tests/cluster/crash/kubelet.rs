//! The kubelet is killed during operations, alone and together with the agent.

use std::{thread, time::Duration};

use inplace::process::clock;

use crate::crash::{Subject, Theatre, Way, assert_held};

/// The duration of the outage.
const AWAY: Duration = Duration::from_secs(3);

/// The fault points at which the kubelet dies: before and after effects that a kubelet reacts to.
const SCENES: [(Way, &str); 14] = [
    (Way::Recreate, "after effect Fence"),
    (Way::Recreate, "after effect Stop"),
    (Way::Recreate, "after effect Create"),
    (Way::Recreate, "after effect Start"),
    (Way::Drain, "after effect Gate"),
    (Way::Drain, "after effect Stop"),
    (Way::Respec, "before effect Respec"),
    (Way::Respec, "after effect Respec"),
    (Way::Finish, "before effect Respec"),
    (Way::Finish, "after effect Create"),
    (Way::Back, "before effect Respec"),
    (Way::Back, "after effect Respec"),
    (Way::Stop, "before effect Stop"),
    (Way::Stop, "after effect Stop"),
];

/// The number of preStop runs: a kubelet that dies during a handler runs it again.
fn stops(way: Way) -> std::ops::RangeInclusive<usize> {
    match way {
        Way::Recreate | Way::Drain | Way::Stop => 1..=1,
        Way::Respec | Way::Finish | Way::Back => 1..=2,
    }
}

#[test]
fn killed_in_the_middle_it_delays_and_spoils_nothing() {
    let theatre = Theatre::open();
    let mut agent = theatre.agent();
    let subjects = theatre.cast(&SCENES.map(|(way, _)| way));
    for with_agent in [false, true] {
        let scenes: Vec<(&Subject<'_>, String)> =
            subjects.iter().zip(SCENES).map(|(subject, (_, point))| (subject, point.to_owned())).collect();
        let scenes = theatre.bring(&scenes, if with_agent { "both" } else { "kubelet" });
        assert_held(&scenes);
        theatre.cluster.kill("kubelet");
        if with_agent {
            agent.kill();
            theatre.holds.release();
            agent = theatre.agent();
        } else {
            theatre.holds.release();
        }
        // Not a wait for a condition: this is the duration of the outage.
        thread::sleep(AWAY);
        let since = clock::now();
        theatre.cluster.start("kubelet");
        for subject in &subjects {
            subject.has_another_kubelet(since);
        }
        for scene in scenes {
            scene.ends(stops(scene.subject.way));
        }
    }
    assert!(!agent.has_ended());
    drop(subjects);
    theatre.close();
}
