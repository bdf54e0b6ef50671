//! The sizes of the scale tests: those of CI, or larger ones from the environment (`make scale`).

use std::time::Duration;

use crate::cluster::environment;

/// Time limit of a part for 2000 pods on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// How many objects there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Pods of the large workload (`INPLACE_SCALE_PODS`).
    pub(super) pods: u32,
    /// Pods of another namespace without an owner (`INPLACE_SCALE_FOREIGN`).
    pub(super) foreign: u32,
    /// Nodes, each with the watches of an agent (`INPLACE_SCALE_NODES`).
    pub(super) nodes: u32,
}

impl Sizes {
    pub(super) fn of_environment() -> Self {
        Self {
            pods: number("INPLACE_SCALE_PODS").unwrap_or(2000),
            foreign: number("INPLACE_SCALE_FOREIGN").unwrap_or(0),
            nodes: number("INPLACE_SCALE_NODES").unwrap_or(20),
        }
    }

    /// Ten percent of the large workload: so many of its pods may be unavailable.
    pub(super) fn budget(self) -> u32 {
        self.pods / 10
    }

    /// Time limit of a part.
    pub(super) fn long(self) -> Duration {
        LONG * self.pods.div_ceil(2000)
    }
}

/// The number in a variable of the environment.
pub(super) fn number(name: &str) -> Option<u32> {
    environment(name).map(|text| text.parse().unwrap())
}

/// Whether times are asserted too. They are not if other tests run beside this one, as in CI.
pub(super) fn asserts_times() -> bool {
    environment("INPLACE_SCALE_TIMES").is_some()
}
