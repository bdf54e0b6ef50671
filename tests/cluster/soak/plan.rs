//! The moves of a run as a function of its seed alone: the same seed gives the same moves, whatever happens in the
//! cluster. Does nothing itself.

/// The seed's numbers (SplitMix64): a release of a crate must not change what an old seed does.
#[derive(Clone, Debug)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of the choices, by its weight.
    fn choose<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let mut left = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for &(weight, choice) in choices {
            match left.checked_sub(weight) {
                None => return choice,
                Some(less) => left = less,
            }
        }
        unreachable!("the number is below the sum of the weights")
    }
}

/// What the containers of a pod can do, and so which operations it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum PodKind {
    /// Two containers without ports.
    Plain,
    /// The same with the readiness gate and hooks.
    Gated,
    /// A server that can run twice in its pod: only operations with the order `StartFirst`, and a client that must never
    /// be refused.
    Served,
}

/// The pods of a run on each of its nodes.
pub(super) const PODS_OF_NODE: [PodKind; 3] = [PodKind::Plain, PodKind::Gated, PodKind::Served];
pub(super) const NODES: usize = 2;
/// The number of pods that get operations of their own.
pub(super) const PODS: usize = PODS_OF_NODE.len() * NODES;
/// The number of the workload whose pods are operated on together, after those of the pods.
pub(super) const WORKLOAD: usize = PODS;

pub(super) fn node_of(pod: usize) -> usize {
    pod / PODS_OF_NODE.len()
}

pub(super) fn kind_of(pod: usize) -> PodKind {
    PODS_OF_NODE[pod % PODS_OF_NODE.len()]
}

/// What a user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Operation {
    Restart,
    Swap,
    /// A swap to an image that exits at once.
    SwapToCrash,
    /// A swap to an image that no registry has.
    SwapToMissing,
    /// A restart by the engine `Stop`: the kubelet starts the container again.
    Stop,
    /// A request for a container that the pod does not have.
    Unknown,
    /// A restart, and another one at once: the first is replaced by it, or carried out before it.
    Replaced,
    /// A restart with a drain.
    Drain,
    /// A restart whose hook before it passes.
    HookPasses,
    /// A restart whose hook before it fails.
    HookFails,
    StartFirstRestart,
    StartFirstSwap,
    StartFirstCrash,
    /// The pod is deleted, and created again.
    Delete,
    /// The same by an eviction.
    Evict,
    /// The pod is deleted under the delete guard, whose hook refuses at first.
    Guard,
    /// A rollout over a workload.
    Rollout,
    /// A rollout to an image that exits at once, with the order to return to the image from before.
    Abort,
    /// A change of the configuration of the workload, which restarts on change.
    Configure,
}

/// A part of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Part {
    Agent,
    Controller,
    Kubelet,
    Containerd,
    Etcd,
    ApiServer,
    Registry,
}

/// What is done, until it is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Fault {
    /// SIGKILL; the part is started again at the end.
    Kill(Part),
    /// SIGTERM; the part is started again at the end.
    Stop(Part),
    /// SIGSTOP; SIGCONT at the end.
    Freeze(Part),
    /// The part gets a tenth of the time.
    Slow(Part),
    /// The disk of the agent's journal is full.
    FullDisk,
    /// The agent's clock is set forward or back by this number of seconds.
    Clock(i64),
    /// The kubelet, the agent, containerd and all containers of the node are killed at the same time.
    Reboot,
}

impl Fault {
    /// True if the fault of a node can be felt on another one: that of the control plane or of the registry.
    pub(super) fn is_everywhere(self) -> bool {
        let (Self::Kill(part) | Self::Stop(part) | Self::Freeze(part) | Self::Slow(part)) = self else {
            return false;
        };
        matches!(part, Part::Controller | Part::Etcd | Part::ApiServer | Part::Registry)
    }
}

/// One move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// An operation on the pod or workload with this number, after those that wait for it.
    Operate { target: usize, operation: Operation },
    /// A fault on a node (a part of the control plane has none) for this time. It waits for the end of the previous fault.
    Disturb { fault: Fault, node: usize, milliseconds: u64 },
    /// Nothing for this time.
    Pause { milliseconds: u64 },
}

/// The operations of a target, by weight.
fn operations(target: usize) -> &'static [(u64, Operation)] {
    use Operation as Op;
    if target == WORKLOAD {
        return &[(6, Op::Rollout), (2, Op::Abort), (3, Op::Configure)];
    }
    match kind_of(target) {
        PodKind::Plain => &[
            (10, Op::Restart),
            (6, Op::Swap),
            (2, Op::SwapToCrash),
            (1, Op::SwapToMissing),
            (2, Op::Stop),
            (2, Op::Unknown),
            (3, Op::Replaced),
            (1, Op::Delete),
            (1, Op::Evict),
            (1, Op::Guard),
        ],
        PodKind::Gated => &[
            (6, Op::Drain),
            (4, Op::Restart),
            (4, Op::Swap),
            (4, Op::HookPasses),
            (3, Op::HookFails),
            (1, Op::SwapToCrash),
            (1, Op::Delete),
            (1, Op::Guard),
        ],
        PodKind::Served => {
            &[(8, Op::StartFirstRestart), (8, Op::StartFirstSwap), (3, Op::StartFirstCrash), (1, Op::Unknown)]
        }
    }
}

/// The faults, by weight.
const FAULTS: [(u64, Fault); 23] = [
    (8, Fault::Kill(Part::Agent)),
    (4, Fault::Stop(Part::Agent)),
    (5, Fault::Freeze(Part::Agent)),
    (3, Fault::Slow(Part::Agent)),
    (3, Fault::Kill(Part::Controller)),
    (3, Fault::Freeze(Part::Controller)),
    (5, Fault::Kill(Part::Kubelet)),
    (2, Fault::Stop(Part::Kubelet)),
    (4, Fault::Freeze(Part::Kubelet)),
    (2, Fault::Slow(Part::Kubelet)),
    (4, Fault::Kill(Part::Containerd)),
    (2, Fault::Stop(Part::Containerd)),
    (4, Fault::Freeze(Part::Containerd)),
    (2, Fault::Slow(Part::Containerd)),
    (2, Fault::Kill(Part::Etcd)),
    (2, Fault::Freeze(Part::Etcd)),
    (3, Fault::Kill(Part::ApiServer)),
    (2, Fault::Freeze(Part::ApiServer)),
    (3, Fault::Slow(Part::Registry)),
    (3, Fault::FullDisk),
    (2, Fault::Clock(3_600)),
    (2, Fault::Clock(-3_600)),
    (2, Fault::Reboot),
];

/// The longest fault.
const LONGEST_FAULT: u64 = 12_000;
/// The shortest fault.
const SHORTEST_FAULT: u64 = 500;
/// The longest pause.
const LONGEST_PAUSE: u64 = 800;

/// The endless sequence of moves of a seed.
pub(super) struct Plan(Numbers);

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        Self(Numbers::new(seed))
    }
}

impl Iterator for Plan {
    type Item = Move;

    fn next(&mut self) -> Option<Move> {
        let numbers = &mut self.0;
        Some(match numbers.below(100) {
            0..=59 => {
                let target = usize::try_from(numbers.below(1 + PODS as u64)).unwrap();
                Move::Operate { target, operation: numbers.choose(operations(target)) }
            }
            60..=65 => Move::Disturb {
                fault: numbers.choose(&FAULTS),
                node: usize::try_from(numbers.below(NODES as u64)).unwrap(),
                milliseconds: SHORTEST_FAULT + numbers.below(LONGEST_FAULT - SHORTEST_FAULT),
            },
            _ => Move::Pause { milliseconds: numbers.below(LONGEST_PAUSE) },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn moves(seed: u64, count: usize) -> Vec<Move> {
        Plan::new(seed).take(count).collect()
    }

    #[test]
    fn a_seed_gives_the_same_moves_again_and_another_seed_others() {
        assert_eq!(moves(7, 1_000), moves(7, 1_000));
        assert_ne!(moves(7, 100), moves(8, 100));
    }

    /// A change of the weights, or of the generator, changes what the seeds of earlier failures do: change this text with it.
    #[test]
    fn the_first_moves_of_seed_1_are_these() {
        assert_eq!(
            format!("{:?}", moves(1, 6)),
            "[Disturb { fault: Kill(Agent), node: 0, milliseconds: 5235 }, \
             Disturb { fault: Stop(Kubelet), node: 1, milliseconds: 4033 }, \
             Operate { target: 4, operation: Restart }, Pause { milliseconds: 384 }, \
             Operate { target: 3, operation: Restart }, Operate { target: 5, operation: StartFirstSwap }]"
        );
    }

    #[test]
    fn every_operation_and_every_fault_occurs_and_only_where_it_is_possible() {
        let all = moves(1, 20_000);
        let mut operated = BTreeSet::new();
        let mut disturbed = BTreeSet::new();
        for made in all {
            match made {
                Move::Operate { target, operation } => {
                    assert!(operations(target).iter().any(|(_, possible)| *possible == operation));
                    operated.insert((target, operation));
                }
                Move::Disturb { fault, node, milliseconds } => {
                    assert!(node < NODES && milliseconds < LONGEST_FAULT);
                    disturbed.insert(fault);
                }
                Move::Pause { milliseconds } => assert!(milliseconds < LONGEST_PAUSE),
            }
        }
        assert_eq!(operated.len(), (0..=WORKLOAD).map(|target| operations(target).len()).sum::<usize>());
        assert_eq!(disturbed.len(), FAULTS.len());
    }
}
