//! An update in place keeps every pod: random worlds in which only the template, the partition and the pause change, and
//! agents, hooks and pods fail. No pod that was there before the update is deleted, and only those are left after it.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::workload::fixtures::Draft;

use super::world::World;
use super::{Move, agent_moves, drafts};

/// Nothing of this is a reason to delete a pod.
fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        12 => prop_oneof![3 => Just(usize::MAX), 1 => 0..4_usize].prop_map(Move::Look),
        4 => (1..200_i64).prop_map(Move::Wait),
        8 => Just(Move::Kubelet),
        12 => (0..8_usize, agent_moves()).prop_map(|(at, how)| Move::Agent(at, how)),
        6 => (0..8_usize, prop::bool::weighted(0.7)).prop_map(|(at, well)| Move::Hook(at, well)),
        2 => (0..8_usize, any::<bool>()).prop_map(|(at, well)| Move::Break(at, well)),
        2 => (2..5_u8).prop_map(Move::Image),
        1 => (0..6_u8).prop_map(Move::Partition),
        1 => any::<bool>().prop_map(Move::Pause),
        1 => Just(Move::Retry),
    ]
}

/// With steps, and without.
fn updates() -> impl Strategy<Value = Draft> {
    (drafts(), any::<bool>()).prop_map(|(draft, canary)| {
        let draft = draft.with("/updateStrategy/type", json!("InplaceUpdate"));
        let steps = json!([{"partition": 3}, {"pause": {}}, {"partition": 1}, {"partition": 0}]);
        if canary { draft.with("/updateStrategy/canary", json!({"steps": steps})) } else { draft }
    })
}

/// Runs `check` for as many cases as `PROPTEST_CASES` says, 256 without it.
#[test]
fn every_original_pod_survives_an_update_in_place() {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let cases = (updates(), prop::collection::vec(moves(), 0..120));
    let result = runner.run(&cases, |(draft, moves)| {
        let mut world = World::new(draft);
        world.come_to_rest();
        let originals = world.uids();
        world.make(&Move::Image(2));
        for one in &moves {
            world.make(one);
            world.check_originals(&originals);
        }
        world.come_to_rest();
        world.check_originals(&originals);
        prop_assert_eq!(world.uids(), originals, "only the original pods are left");
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
