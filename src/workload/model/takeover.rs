//! Takeovers from a bk-bcs operator that had begun an update in place: some pods wait for the end of their grace period, on
//! some the kubelet restarts the container, on some only the readiness gate is closed. Every pod stays, every update is
//! finished or taken back, every gate opens; and no container is restarted that needs no restart.

use proptest::prelude::*;
use serde_json::json;

use crate::workload::fixtures::{Draft, deployment};

use super::world::World;
use super::{AgentMove, ForeignMove, Move, check_all, moves as any_moves, originals, updates};

/// What the operator leaves, by index of the pod.
fn left() -> impl Strategy<Value = Vec<Move>> {
    let how = prop_oneof![
        2 => Just(ForeignMove::Graced), 2 => Just(ForeignMove::Written), 1 => Just(ForeignMove::Restarted)
    ];
    let one = (0..8_usize, how).prop_map(|(at, how)| Move::Foreign(at, how));
    (prop::collection::vec(one, 1..6), any::<bool>()).prop_map(|(mut left, first)| {
        // The status of the workload is that of the operator, which lacks what this controller keeps there.
        left.extend(first.then_some(Move::ForgetReport));
        left
    })
}

fn cases(moves: impl Strategy<Value = Move>) -> impl Strategy<Value = (Draft, Vec<Move>)> {
    let all = (updates(), left(), prop::collection::vec(moves, 0..80));
    all.prop_map(|(draft, mut left, moves)| {
        left.extend(moves);
        (draft, left)
    })
}

/// A workload whose image was changed to the second one while the operator ran.
fn changed(draft: Draft) -> World {
    let mut world = World::new(draft);
    world.come_to_rest();
    world.make(&Move::Image(2));
    world
}

/// How many of the moves are those of the operator.
fn of_operator(moves: &[Move]) -> usize {
    moves.iter().take_while(|one| matches!(one, Move::Foreign(..) | Move::ForgetReport)).count()
}

/// With everything else that happens to a workload: lost nodes, resizes, changes of labels and of `replicas`, deletions.
#[test]
fn a_takeover_ends_as_the_spec_says_whatever_else_happens() {
    let moves = prop_oneof![
        15 => any_moves(),
        3 => (0..8_usize).prop_map(Move::Restart),
    ];
    check_all(&cases(moves), |(draft, moves)| {
        let mut world = changed(draft);
        for one in &moves {
            world.make(one);
        }
        world.come_to_rest();
        world.check_rest();
        Ok(())
    });
}

#[test]
fn a_takeover_keeps_every_pod_and_ends_as_the_spec_says_whatever_happens() {
    let moves = prop_oneof![
        12 => originals::moves(),
        3 => (0..8_usize).prop_map(Move::Restart),
        1 => (0..4_usize).prop_map(Move::TakeOver),
    ];
    check_all(&cases(moves), |(draft, moves)| {
        let mut world = changed(draft);
        let originals = world.uids();
        for one in &moves {
            world.make(one);
            world.check_originals(&originals, originals.len());
        }
        world.come_to_rest();
        world.check_rest();
        prop_assert_eq!(world.uids(), originals, "only the original pods are left");
        Ok(())
    });
}

#[test]
fn a_takeover_without_a_failure_restarts_only_the_containers_with_the_old_image() {
    let moves = prop_oneof![
        6 => prop_oneof![3 => Just(usize::MAX), 1 => 0..4_usize].prop_map(Move::Reconcile),
        1 => (0..4_usize).prop_map(Move::TakeOver),
        2 => (1..60_i64).prop_map(Move::Wait),
        3 => Just(Move::Kubelet),
        6 => (0..8_usize).prop_map(|at| Move::Agent(at, AgentMove::On)),
        3 => (0..8_usize).prop_map(Move::Restart),
        3 => (0..8_usize).prop_map(|at| Move::Hook(at, true)),
    ];
    check_all(&cases(moves), |(draft, moves)| {
        // An update that is late may be aborted: its pods go back.
        let draft = draft.with("/progressDeadlineSeconds", json!(null));
        let held = draft.spec().update.partition.held_back(draft.spec().replicas);
        let mut world = changed(draft);
        let originals = world.uids();
        let (left, moves) = moves.split_at(of_operator(&moves));
        for one in left {
            world.make(one);
        }
        let (written, graced) = (world.foreign_uids(true), world.foreign_uids(false));
        for one in moves {
            world.make(one);
        }
        world.come_to_rest();
        world.check_rest();
        for uid in &originals {
            let starts = world.starts(uid);
            if written.contains(uid) {
                prop_assert_eq!(starts, 0, "{} runs the new image already", uid);
            } else if graced.contains(uid) || held == 0 {
                prop_assert_eq!(starts, 1, "{} is updated once", uid);
            }
        }
        Ok(())
    });
}

/// A takeover of an update that had not come far on one of two pods, whose request is sent.
fn taken_over() -> World {
    let strategy = json!({"type": "InplaceUpdate", "partition": 0, "maxUnavailable": 1, "maxSurge": 0, "onFailure": "Pause",
        "inPlaceUpdateStrategy": {"gracePeriodSeconds": 10, "order": "StopFirst"}});
    let draft = deployment().with("/updateStrategy", strategy).with(super::world::CPU, json!("1"));
    let mut world = changed(draft.with("/replicas", json!(2)));
    world.make(&Move::Foreign(1, ForeignMove::Graced));
    for _ in 0..3 {
        world.make(&reconcile());
    }
    world
}

fn reconcile() -> Move {
    Move::Reconcile(usize::MAX)
}

fn agent() -> Move {
    Move::Agent(1, AgentMove::On)
}

/// Found by the tests above. A controller that had given up its task did not know any more that it had closed the gate when
/// the agent came back, found the request withdrawn, and left the gate as it was.
#[test]
fn an_agent_that_comes_back_after_the_update_was_taken_back_leaves_no_gate_closed() {
    for steps in 1..3 {
        let mut world = taken_over();
        let undone = [Move::Wait(730), Move::Image(1), reconcile(), reconcile()];
        for one in (0..steps).map(|_| agent()).chain(undone) {
            world.make(&one);
        }
        world.come_to_rest();
        world.check_rest();
    }
}

/// Found by the tests above. The answer that named the failure is gone, and the pod has the image of its revision.
#[test]
fn a_gate_that_a_failure_left_closed_opens_although_the_repair_was_withdrawn() {
    let mut world = taken_over();
    let fails = [agent(), agent(), agent(), agent(), Move::Agent(1, AgentMove::Fail), Move::Image(1)];
    let repaired = [reconcile(), reconcile(), agent(), Move::Image(2), reconcile(), agent()];
    for one in fails.into_iter().chain(repaired) {
        world.make(&one);
    }
    world.come_to_rest();
    world.check_rest();
}
