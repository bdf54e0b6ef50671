//! The parameters of a world without an API server, and how they are chosen at random.

use proptest::prelude::*;

use crate::model::hooks::{self, Script};
use crate::model::rarely;

/// All parameters of a world. Smaller values mean fewer disturbances.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct Scenario {
    /// One entry per container: true for a swap.
    pub(super) swaps: Vec<bool>,
    pub(super) keep: bool,
    pub(super) kubelet: bool,
    pub(super) cleans_up: bool,
    pub(super) pre_stop: bool,
    pub(super) grace: u64,
    pub(super) min_ready: u32,
    pub(super) deadline: u32,
    /// Percentage of runtime calls that fail.
    pub(super) faults: u64,
    /// Percentage of steps in which the agent is killed.
    pub(super) kills: u64,
    pub(super) new_image: Image,
    pub(super) old_image: Image,
    /// The millisecond in which a container exits by itself.
    pub(super) dies_at: Option<i64>,
    pub(super) withdrawn_at: Option<i64>,
    pub(super) sandbox: Option<(i64, Fate)>,
    /// True when the runtime refuses every removal.
    pub(super) stubborn: bool,
    /// When another program, unaware of the agent, starts another instance of a container that is down.
    pub(super) meddled_at: Option<i64>,
    /// When another program removes exited containers.
    pub(super) swept_at: Option<i64>,
    /// From when and for how long the runtime cannot report whether a container runs.
    pub(super) fog: Option<(i64, i64)>,
    /// True when the kubelet's spec already names the new image.
    pub(super) ahead: bool,
    /// From when and for how long the runtime does not respond.
    pub(super) away: Option<(i64, i64)>,
    pub(super) pre_hook: Option<Script>,
    pub(super) post_hook: Option<Script>,
    pub(super) seed: u64,
}

/// The behaviour of an image's containers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Image {
    Good,
    DiesAfter(i64),
    NeverStarts,
    CannotBeCreated,
    CannotBePulled,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    Gone,
    NotReady,
    Another,
}

pub(super) fn image() -> impl Strategy<Value = Image> {
    prop_oneof![
        4 => Just(Image::Good),
        2 => (0_i64..3000).prop_map(Image::DiesAfter),
        1 => Just(Image::NeverStarts),
        1 => Just(Image::CannotBeCreated),
        1 => Just(Image::CannotBePulled),
    ]
}

pub(super) fn scenario() -> impl Strategy<Value = Scenario> {
    let old = prop_oneof![
        6 => Just(Image::Good),
        1 => (0_i64..3000).prop_map(Image::DiesAfter),
        1 => Just(Image::NeverStarts),
    ];
    let fate = prop_oneof![Just(Fate::Gone), Just(Fate::NotReady), Just(Fate::Another)];
    (
        (
            proptest::collection::vec(any::<bool>(), 1..4),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            rarely(0_i64..4000),
            rarely((1_i64..3000, prop_oneof![3 => 0_i64..3000, 1 => 0_i64..20_000])),
        ),
        (
            0_u64..4,
            0_u32..3,
            34_u32..90,
            prop_oneof![4 => Just(0_u64), 4 => 0_u64..40, 1 => 40_u64..95],
            prop_oneof![Just(0_u64), 0_u64..15],
            proptest::bool::weighted(0.05),
            rarely(0_i64..3000),
        ),
        (
            image(),
            old,
            rarely(0_i64..3000),
            rarely(0_i64..500),
            rarely((0_i64..5000, fate)),
            rarely((0_i64..3000, 0_i64..120_000)),
            any::<u64>(),
        ),
        (rarely(hooks::script()), rarely(hooks::script())),
    )
        .prop_map(|(shape, numbers, others, (pre_hook, post_hook))| {
            let (swaps, keep, kubelet, cleans_up, pre_stop, ahead, swept_at, fog) = shape;
            let (grace, min_ready, deadline, faults, kills, stubborn, meddled_at) = numbers;
            let (new_image, old_image, dies_at, withdrawn_at, sandbox, away, seed) = others;
            Scenario {
                swaps,
                keep,
                kubelet,
                // A pod of `node run` has no kubelet.
                cleans_up: cleans_up && !kubelet,
                pre_stop,
                grace,
                min_ready,
                deadline,
                faults,
                kills,
                new_image,
                old_image,
                dies_at,
                withdrawn_at,
                sandbox,
                stubborn,
                meddled_at,
                swept_at,
                fog,
                ahead,
                away,
                pre_hook,
                post_hook,
                seed,
            }
        })
}
