//! Random workloads in a small world: pods that come up, break and fail, agents that answer, refuse or are not there, hooks,
//! users who change their minds, controllers that are killed in the middle of what they write.
//!
//! What must hold at every look: never more turns than the budget, never a pod taken that the budget does not allow, no pod
//! touched before its gate let it pass, no pod that is right deleted without need. And when the world comes to rest, the
//! workload is what its user wants.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::workload::fixtures::{Draft, deployment, stateful_set};

use world::World;

mod originals;
mod world;

/// What happens next.
#[derive(Clone, Debug)]
enum Move {
    /// The controller looks, and is killed after so many writes.
    Look(usize),
    /// So many seconds pass.
    Wait(i64),
    /// Kubelets bring pods on; pods on their way out go.
    Kubelet,
    /// The agent goes one step on with the pod at this place.
    Agent(usize, AgentMove),
    /// The hook at this place ends so.
    Hook(usize, bool),
    /// The pod at this place breaks, or is well again.
    Break(usize, bool),
    /// Somebody deletes the pod at this place.
    Kill(usize),
    /// The user wants another image.
    Image(u8),
    /// The user wants another number.
    Scale(u8),
    /// The user moves the partition.
    Partition(u8),
    /// The user pauses or goes on.
    Pause(bool),
    /// The user wants what failed to be tried again.
    Retry,
}

#[derive(Clone, Copy, Debug)]
enum AgentMove {
    /// Takes up, drains, swaps, verifies: one step.
    On,
    /// Ends in the middle with the gate closed.
    Fail,
    /// Goes back.
    RollBack,
    /// Refuses before anything is touched.
    Refuse,
}

fn agent_moves() -> impl Strategy<Value = AgentMove> {
    prop_oneof![
        8 => Just(AgentMove::On), 1 => Just(AgentMove::Fail), 1 => Just(AgentMove::RollBack), 1 => Just(AgentMove::Refuse)
    ]
}

fn moves() -> impl Strategy<Value = Move> {
    let agent = agent_moves();
    prop_oneof![
        12 => prop_oneof![3 => Just(usize::MAX), 1 => 0..4_usize].prop_map(Move::Look),
        3 => (1..200_i64).prop_map(Move::Wait),
        8 => Just(Move::Kubelet),
        12 => (0..8_usize, agent).prop_map(|(at, how)| Move::Agent(at, how)),
        6 => (0..8_usize, prop::bool::weighted(0.7)).prop_map(|(at, well)| Move::Hook(at, well)),
        2 => (0..8_usize, any::<bool>()).prop_map(|(at, well)| Move::Break(at, well)),
        1 => (0..8_usize).prop_map(Move::Kill),
        2 => (1..4_u8).prop_map(Move::Image),
        2 => (0..8_u8).prop_map(Move::Scale),
        1 => (0..6_u8).prop_map(Move::Partition),
        1 => any::<bool>().prop_map(Move::Pause),
        1 => Just(Move::Retry),
    ]
}

const PRE_DELETE: &str = "/preDeleteUpdateStrategy";
const PRE_INPLACE: &str = "/preInplaceUpdateStrategy";

fn drafts() -> impl Strategy<Value = Draft> {
    let strategy = (
        prop_oneof![3 => Just("InplaceUpdate"), 2 => Just("RollingUpdate"), 1 => Just("HotPatchUpdate")],
        0..4_u8,
        0..3_u8,
        0..3_u8,
        any::<bool>(),
        any::<bool>(),
        1..7_u8,
        prop_oneof![Just(0), Just(30)],
    );
    strategy.prop_map(|(way, unavailable, surge, hooks, set, parallel, replicas, min_ready)| {
        let in_place = json!({"gracePeriodSeconds": 10});
        let draft = if set {
            let rolling = json!({"partition": 0, "maxUnavailable": unavailable, "maxSurge": surge});
            stateful_set()
                .with("/podManagementPolicy", json!(if parallel { "Parallel" } else { "OrderedReady" }))
                .with(
                    "/updateStrategy",
                    json!({"type": way, "rollingUpdate": rolling, "inPlaceUpdateStrategy": in_place}),
                )
        } else {
            deployment().with(
                "/updateStrategy",
                json!({"type": way, "partition": 0, "maxUnavailable": unavailable, "maxSurge": surge,
                       "inPlaceUpdateStrategy": in_place}),
            )
        };
        let draft = draft.with("/replicas", json!(replicas)).with("/minReadySeconds", json!(min_ready));
        let hook = json!({"hook": {"templateName": "test"}});
        match hooks {
            0 => draft,
            1 => draft.with(PRE_DELETE, hook),
            _ => draft.with(PRE_DELETE, hook.clone()).with(PRE_INPLACE, hook),
        }
    })
}

/// Runs `check` for as many cases as `PROPTEST_CASES` says, 256 without it.
#[test]
fn budgets_hold_at_every_look_and_the_workload_always_gets_there() {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let cases = (drafts(), prop::collection::vec(moves(), 0..120));
    let result = runner.run(&cases, |(draft, moves)| {
        let mut world = World::new(draft);
        for one in &moves {
            world.make(one);
        }
        world.come_to_rest();
        world.check_rest();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
