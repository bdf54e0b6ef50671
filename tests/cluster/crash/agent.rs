//! The agent is killed at each of its fault points, with every way of replacing a container.

use std::collections::{HashMap, VecDeque};

use crate::crash::{CrashFixture, HeldOperation, TRIES, TestedPod, Way};

/// The number of pods per way, so that each has only a few points.
const PODS: [(Way, usize); 6] =
    [(Way::Recreate, 3), (Way::Drain, 4), (Way::Respec, 1), (Way::Finish, 4), (Way::Back, 5), (Way::Stop, 2)];

/// The effects that must have been in progress when the agent died, at four moments each.
fn effects(way: Way) -> &'static [&'static str] {
    match way {
        Way::Recreate => &["Fence", "PreStop", "Stop", "Create", "Start", "Remove"],
        Way::Drain => &["Gate", "Fence", "PreStop", "Stop", "Create", "Start", "Remove"],
        Way::Respec | Way::Back => &["Pull", "Respec"],
        Way::Finish => &["Pull", "Respec", "Fence", "Create", "Start", "Remove"],
        Way::Stop => &["PreStop", "Stop"],
    }
}

/// The names of a way's fault points.
fn points(way: Way) -> VecDeque<String> {
    let moments = ["before journal", "after journal", "before effect", "after effect"];
    let named =
        effects(way).iter().flat_map(|verb| moments.iter().map(move |moment| format!("{moment} {verb}")));
    named.collect()
}

#[test]
fn killed_at_every_point_it_goes_on_as_if_nothing_had_happened() {
    let crash_fixture = CrashFixture::open();
    let mut agent = crash_fixture.agent();
    let ways: Vec<_> = PODS.iter().flat_map(|(way, pods)| std::iter::repeat_n(*way, *pods)).collect();
    let tested_pods = crash_fixture.create_pods(&ways);
    let mut left: HashMap<Way, VecDeque<String>> =
        Way::ALL.into_iter().map(|way| (way, points(way))).collect();
    let mut missed = HashMap::<(Way, String), usize>::new();
    for round in 0.. {
        let held_operations: Vec<(&TestedPod<'_>, String)> = tested_pods
            .iter()
            .filter_map(|tested_pod| Some((tested_pod, left.get_mut(&tested_pod.way)?.pop_front()?)))
            .collect();
        if held_operations.is_empty() {
            break;
        }
        let wanted: Vec<String> = held_operations.iter().map(|(_, point)| point.clone()).collect();
        let held_operations = crash_fixture.bring_to_points(&held_operations, &round.to_string());
        agent.kill();
        crash_fixture.holds.release();
        agent = crash_fixture.agent();
        for (held_operation, point) in held_operations.into_iter().zip(wanted) {
            held_operation.ends(stops(&held_operation));
            if held_operation.held_at.is_none() {
                let way = held_operation.tested_pod.way;
                let times = missed.entry((way, point.clone())).or_default();
                *times += 1;
                assert!(*times < TRIES, "{way:?}: never {point}");
                left.entry(way).or_default().push_back(point);
            }
        }
    }
    drop(tested_pods);
    crash_fixture.close();
}

/// The number of preStop runs: once the journal records that the handler has been started, it is not started
/// again.
fn stops(held_operation: &HeldOperation<'_>) -> std::ops::RangeInclusive<usize> {
    match held_operation.held_at.as_deref() {
        Some("after journal PreStop" | "before effect PreStop") => 0..=0,
        _ => 1..=1,
    }
}
