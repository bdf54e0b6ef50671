//! The parameters of a world with an API server and a kubelet, and their random choice. Contains no behaviour.

use inplace::api::request::RequestedEngine;
use inplace::operation::snapshot::RestartPolicy;
use proptest::prelude::*;

use crate::model::rarely;

/// The parameters of one world. Smaller values mean fewer disturbances.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct Scenario {
    /// One entry per container: true for a swap.
    pub(super) swaps: Vec<bool>,
    pub(super) engine: RequestedEngine,
    /// True when a standby is started first.
    pub(super) start_first: bool,
    pub(super) policy: RestartPolicy,
    pub(super) keep: bool,
    /// True for a kubelet whose spec hash no other program can compute.
    pub(super) old_kubelet: bool,
    /// True when the hashes that it wrote earlier are remembered.
    pub(super) remembered: bool,
    pub(super) cloneable: bool,
    pub(super) alias: bool,
    pub(super) pre_stop: bool,
    /// The containers' grace period for a stop, in seconds.
    pub(super) grace: u64,
    /// The grace period of the drain in seconds.
    pub(super) drain: u32,
    pub(super) min_ready: u32,
    pub(super) ready_timeout: u32,
    /// The deadline in seconds, in addition to the time that everything else takes.
    pub(super) deadline: u32,
    /// Percentage of runtime calls that fail.
    pub(super) faults: u64,
    /// Percentage of API server calls that fail.
    pub(super) api_faults: u64,
    /// Percentage of steps in which the agent is killed.
    pub(super) kills: u64,
    pub(super) old_image: Image,
    pub(super) new_image: Image,
    /// Milliseconds from a start until the kubelet's probe succeeds.
    pub(super) ready_after: i64,
    /// Seconds since the instance before the present one ended.
    pub(super) last_exit: i64,
    /// The kubelet's current back-off in seconds for the old image, its alias, and the new image.
    pub(super) back_off: [Option<i64>; 3],
    /// True when the container to be swapped has just crashed.
    pub(super) down: bool,
    /// The maximum delay of the agent's data from the API server.
    pub(super) lag: i64,
    /// The same for the kubelet.
    pub(super) kubelet_lag: i64,
    /// The longest time between two observations of the runtime by the kubelet.
    pub(super) relist: i64,
    /// From when and for how long the API server does not respond.
    pub(super) api_away: Option<(i64, i64)>,
    /// The same for the kubelet.
    pub(super) kubelet_away: Option<(i64, i64)>,
    /// When the first container crashes by itself.
    pub(super) dies_at: Option<i64>,
    pub(super) withdrawn_at: Option<i64>,
    pub(super) deleted_at: Option<i64>,
    /// When the kubelet removes exited containers that it does not need.
    pub(super) swept_at: Option<i64>,
    /// How long the kubelet may query the registry before each start (imagePullPolicy Always).
    pub(super) pull: Option<i64>,
    /// The period of the startup probe in milliseconds.
    pub(super) startup_probe: Option<i64>,
    pub(super) seed: u64,
}

/// The behaviour of an image's containers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Image {
    Good,
    DiesAfter(i64),
    NeverReady,
    NeverStarts,
    CannotBeCreated,
    CannotBePulled,
}

#[expect(clippy::too_many_lines, reason = "one list")]
pub(super) fn scenario() -> impl Strategy<Value = Scenario> {
    let engine = prop_oneof![
        5 => Just(RequestedEngine::Auto),
        2 => Just(RequestedEngine::Respec),
        1 => Just(RequestedEngine::Recreate),
        1 => Just(RequestedEngine::Stop),
    ];
    let policy = prop_oneof![
        4 => Just(RestartPolicy::Always),
        1 => Just(RestartPolicy::OnFailure),
        1 => Just(RestartPolicy::Never),
    ];
    let new_image = prop_oneof![
        5 => Just(Image::Good),
        2 => (0_i64..3000).prop_map(Image::DiesAfter),
        1 => Just(Image::NeverReady),
        1 => Just(Image::NeverStarts),
        1 => Just(Image::CannotBeCreated),
        1 => Just(Image::CannotBePulled),
    ];
    let old_image = prop_oneof![
        8 => Just(Image::Good),
        1 => (0_i64..3000).prop_map(Image::DiesAfter),
        1 => Just(Image::NeverReady),
    ];
    let back_off = || proptest::option::weighted(0.3, prop_oneof![Just(10_i64), Just(20), Just(40)]);
    (
        (
            proptest::collection::vec(any::<bool>(), 1..3),
            engine,
            policy,
            any::<bool>(),
            (proptest::bool::weighted(0.4), any::<bool>()),
            proptest::bool::weighted(0.7),
            proptest::bool::weighted(0.8),
            any::<bool>(),
        ),
        (
            0_u64..4,
            prop_oneof![2 => Just(0_u32), 1 => 1_u32..6],
            0_u32..3,
            1_u32..15,
            5_u32..60,
            prop_oneof![4 => Just(0_u64), 3 => 0_u64..40, 1 => 40_u64..95],
            prop_oneof![4 => Just(0_u64), 3 => 0_u64..40, 1 => 40_u64..95],
            prop_oneof![Just(0_u64), 0_u64..15],
        ),
        (
            old_image,
            new_image,
            0_i64..2000,
            prop_oneof![1_i64..60, 1_i64..700],
            [back_off(), back_off(), back_off()],
            proptest::bool::weighted(0.15),
            0_i64..600,
            prop_oneof![3 => 0_i64..30, 1 => 0_i64..1500],
            20_i64..1200,
        ),
        (
            rarely((0_i64..8000, 0_i64..90_000)),
            rarely((0_i64..4000, 0_i64..20_000)),
            rarely(0_i64..6000),
            rarely(0_i64..6000),
            rarely(0_i64..6000),
            rarely(0_i64..4000),
            rarely(0_i64..3000),
            any::<u64>(),
        ),
    )
        .prop_map(|(shape, numbers, images, events)| {
            let (swaps, engine, policy, keep, (old_kubelet, remembered), cloneable, alias, pre_stop) = shape;
            let (grace, drain, min_ready, ready_timeout, deadline, faults, api_faults, kills) = numbers;
            let (old_image, new_image, ready_after, last_exit, back_off, down, lag, kubelet_lag, relist) =
                images;
            let (api_away, kubelet_away, dies_at, withdrawn_at, deleted_at, swept_at, pull, seed) = events;
            // Not drawn, so that the other parameters of a seed stay what they were.
            let startup_probe = seed.is_multiple_of(4).then(|| 100 + i64::from(seed.to_le_bytes()[4]) * 8);
            Scenario {
                swaps,
                engine,
                start_first: false,
                policy,
                keep,
                old_kubelet,
                remembered,
                cloneable,
                alias,
                pre_stop,
                grace,
                drain,
                min_ready,
                ready_timeout,
                deadline,
                faults,
                api_faults,
                kills,
                old_image,
                new_image,
                ready_after,
                last_exit,
                back_off,
                down,
                lag,
                kubelet_lag,
                relist,
                api_away,
                kubelet_away,
                dies_at,
                withdrawn_at,
                deleted_at,
                swept_at,
                pull,
                startup_probe,
                seed,
            }
        })
}
