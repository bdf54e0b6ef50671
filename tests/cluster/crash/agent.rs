//! The agent is killed at each of its fault points, with every way of replacing a container.

use std::collections::{HashMap, VecDeque};

use crate::crash::{Scene, Subject, Theatre, Way};

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

/// How often a point may be missed: the kubelet's timing decides which effects a replacement needs.
const TRIES: usize = 4;

/// The names of a way's fault points.
fn points(way: Way) -> VecDeque<String> {
    let moments = ["before journal", "after journal", "before effect", "after effect"];
    let named =
        effects(way).iter().flat_map(|verb| moments.iter().map(move |moment| format!("{moment} {verb}")));
    named.collect()
}

#[test]
fn killed_at_every_point_it_goes_on_as_if_nothing_had_happened() {
    let theatre = Theatre::open();
    let mut agent = theatre.agent();
    let ways: Vec<_> = PODS.iter().flat_map(|(way, pods)| std::iter::repeat_n(*way, *pods)).collect();
    let subjects = theatre.cast(&ways);
    let mut left: HashMap<Way, VecDeque<String>> =
        Way::ALL.into_iter().map(|way| (way, points(way))).collect();
    let mut missed = HashMap::<(Way, String), usize>::new();
    for round in 0.. {
        let scenes: Vec<(&Subject<'_>, String)> = subjects
            .iter()
            .filter_map(|subject| Some((subject, left.get_mut(&subject.way)?.pop_front()?)))
            .collect();
        if scenes.is_empty() {
            break;
        }
        let wanted: Vec<String> = scenes.iter().map(|(_, point)| point.clone()).collect();
        let scenes = theatre.bring(&scenes, &round.to_string());
        agent.kill();
        theatre.holds.release();
        agent = theatre.agent();
        for (scene, point) in scenes.into_iter().zip(wanted) {
            scene.ends(stops(&scene));
            if scene.held_at.is_none() {
                let way = scene.subject.way;
                let times = missed.entry((way, point.clone())).or_default();
                *times += 1;
                assert!(*times < TRIES, "{way:?}: never {point}");
                left.entry(way).or_default().push_back(point);
            }
        }
    }
    drop(subjects);
    theatre.close();
}

/// The number of preStop runs: once the journal records that the handler has been started, it is not started
/// again.
fn stops(scene: &Scene<'_>) -> std::ops::RangeInclusive<usize> {
    match scene.held_at.as_deref() {
        Some("after journal PreStop" | "before effect PreStop") => 0..=0,
        _ => 1..=1,
    }
}
