//! containerd is killed during operations: between two calls, during a call, and together with the agent. Its
//! shims and the containers continue.

use std::{thread, time::Duration};

use crate::crash::{CrashFixture, Hits, TestedPod, Way, assert_held};

/// The duration of the outage.
const AWAY: Duration = Duration::from_secs(2);

/// The fault points at which it dies.
const HELD: [(Way, &str); 14] = [
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
enum Failure {
    /// containerd is dead when they make their next call.
    Before,
    /// It dies during that call.
    During,
    /// The agent dies too.
    WithAgent,
}

#[test]
fn killed_in_the_middle_it_delays_and_spoils_nothing() {
    let crash_fixture = CrashFixture::open();
    let mut agent = crash_fixture.agent();
    let tested_pods = crash_fixture.create_pods(&HELD.map(|(way, _)| way));
    for tested_pod in &tested_pods {
        tested_pod.lost.set(1);
    }
    let mut hits = Hits::default();
    for failure in [Failure::Before, Failure::During, Failure::WithAgent] {
        let held_operations: Vec<(&TestedPod<'_>, String)> = tested_pods
            .iter()
            .zip(HELD)
            .map(|(tested_pod, (_, point))| (tested_pod, point.to_owned()))
            .collect();
        let held_operations = crash_fixture.bring_to_points(&held_operations, &format!("{failure:?}"));
        assert_held(&held_operations);
        hits.add(&held_operations);
        if matches!(failure, Failure::During) {
            crash_fixture.holds.release();
        }
        crash_fixture.cluster.kill("containerd");
        if matches!(failure, Failure::WithAgent) {
            agent.kill();
        }
        crash_fixture.holds.release();
        if matches!(failure, Failure::WithAgent) {
            agent = crash_fixture.launch();
        }
        // Not a wait for a condition: this is the duration of the outage.
        thread::sleep(AWAY);
        crash_fixture.cluster.start("containerd");
        for held_operation in held_operations {
            // The agent does not restart an interrupted handler; a kubelet does.
            held_operation.ends(0..=2);
        }
        assert!(!agent.has_ended());
    }
    hits.assert_each_way(&HELD);
    drop(tested_pods);
    crash_fixture.close();
}
