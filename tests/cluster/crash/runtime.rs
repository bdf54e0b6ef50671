//! containerd is killed during operations: between two calls, during a call, and together with the agent. Its
//! shims and the containers continue.

use std::{thread, time::Duration};

use crate::crash::{Subject, Theatre, Way, assert_held};

/// The duration of the outage.
const AWAY: Duration = Duration::from_secs(2);

/// The fault points at which it dies.
const SCENES: [(Way, &str); 14] = [
    (Way::Recreate, "before effect Fence"),
    (Way::Recreate, "before effect Stop"),
    (Way::Recreate, "before effect Create"),
    (Way::Recreate, "before effect Start"),
    (Way::Drain, "after effect Gate"),
    (Way::Drain, "before effect PreStop"),
    (Way::Respec, "before effect Pull"),
    (Way::Respec, "before effect Respec"),
    (Way::Finish, "before effect Respec"),
    (Way::Finish, "before effect Start"),
    (Way::Back, "before effect Respec"),
    (Way::Back, "after effect Respec"),
    (Way::Stop, "before effect Stop"),
    (Way::Stop, "after effect Stop"),
];

/// What dies, and when the operations continue.
#[derive(Clone, Copy, Debug)]
enum Blow {
    /// containerd is dead when they make their next call.
    Before,
    /// It dies during that call.
    During,
    /// The agent dies too.
    WithAgent,
}

#[test]
fn killed_in_the_middle_it_delays_and_spoils_nothing() {
    let theatre = Theatre::open();
    let mut agent = theatre.agent();
    let subjects = theatre.cast(&SCENES.map(|(way, _)| way));
    for subject in &subjects {
        subject.lost.set(1);
    }
    for blow in [Blow::Before, Blow::During, Blow::WithAgent] {
        let scenes: Vec<(&Subject<'_>, String)> =
            subjects.iter().zip(SCENES).map(|(subject, (_, point))| (subject, point.to_owned())).collect();
        let scenes = theatre.bring(&scenes, &format!("{blow:?}"));
        assert_held(&scenes);
        if matches!(blow, Blow::During) {
            theatre.holds.release();
        }
        theatre.cluster.kill("containerd");
        if matches!(blow, Blow::WithAgent) {
            agent.kill();
        }
        theatre.holds.release();
        if matches!(blow, Blow::WithAgent) {
            agent = theatre.launch();
        }
        // Not a wait for a condition: this is the duration of the outage.
        thread::sleep(AWAY);
        theatre.cluster.start("containerd");
        for scene in scenes {
            // The agent does not restart an interrupted handler; a kubelet does.
            scene.ends(0..=2);
        }
        assert!(!agent.has_ended());
    }
    drop(subjects);
    theatre.close();
}
