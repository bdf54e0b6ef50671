//! The kubelet is killed during operations, alone and together with the agent.

use std::{thread, time::Duration};

use inplace::process::clock;

use crate::crash::{CrashFixture, Hits, TestedPod, Way, assert_held, prepare};

/// The duration of the outage.
const AWAY: Duration = Duration::from_secs(3);

/// The rounds, and whether the agent dies too.
const ROUNDS: [bool; 4] = [false, true, false, true];
/// So many rounds have all points. A further one has only those that were missed until then, so it costs time only
/// on a machine on which the kubelet is often faster.
const WHOLE: usize = 2;

/// The fault points at which the kubelet dies: before and after effects that a kubelet reacts to.
const HELD: [(Way, &str); 14] = [
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
    let crash_fixture = CrashFixture::open();
    let mut agent = crash_fixture.agent();
    let tested_pods = crash_fixture.create_pods(&HELD.map(|(way, _)| way));
    // A kubelet that is killed while it starts a container loses that start.
    for tested_pod in &tested_pods {
        tested_pod.lost.set(1);
    }
    let mut hits = Hits::default();
    for (round, with_agent) in ROUNDS.into_iter().enumerate() {
        let held_operations: Vec<(&TestedPod<'_>, String)> = tested_pods
            .iter()
            .zip(HELD)
            .filter(|(_, point)| round < WHOLE || !hits.has(*point))
            .map(|(tested_pod, (_, point))| (tested_pod, point.to_owned()))
            .collect();
        if held_operations.is_empty() {
            break;
        }
        // The kubelet of this round has not started the images yet, and so delays none of them.
        if round >= WHOLE && held_operations.iter().any(|(tested_pod, _)| tested_pod.way == Way::Finish) {
            prepare(&tested_pods);
        }
        let held_operations =
            crash_fixture.bring_to_points(&held_operations, if with_agent { "both" } else { "kubelet" });
        if round < WHOLE {
            assert_held(&held_operations);
        }
        hits.add(&held_operations);
        crash_fixture.cluster.kill("kubelet");
        if with_agent {
            agent.kill();
            crash_fixture.holds.release();
            agent = crash_fixture.agent();
        } else {
            crash_fixture.holds.release();
        }
        // Not a wait for a condition: this is the duration of the outage.
        thread::sleep(AWAY);
        let since = clock::now();
        crash_fixture.cluster.start("kubelet");
        for tested_pod in &tested_pods {
            tested_pod.has_another_kubelet(since);
        }
        for held_operation in held_operations {
            held_operation.ends(stops(held_operation.tested_pod.way));
        }
    }
    hits.assert_each_way(&HELD);
    assert!(!agent.has_ended());
    drop(tested_pods);
    crash_fixture.close();
}

/// A kubelet that dies while it starts a container leaves it without the link, and no other one creates it.
#[test]
fn the_link_that_a_kubelet_did_not_create_is_there_at_the_end() {
    let crash_fixture = CrashFixture::open();
    let _agent = crash_fixture.agent();
    let tested_pods = crash_fixture.create_pods(&[Way::Stop]);
    let tested_pod = &tested_pods[0];
    let held_operations =
        crash_fixture.bring_to_points(&[(tested_pod, "after effect Stop".to_owned())], "link");
    assert_held(&held_operations);
    tested_pod.unlink_new(&held_operations[0].ask);
    crash_fixture.holds.release();
    held_operations[0].ends(stops(Way::Stop));
    drop(tested_pods);
    crash_fixture.close();
}
