//! When something that is waited for is stuck. Time during a fault does not count, up to a multiple of the limit. No clock of
//! its own.

use std::time::Duration;

/// How many times longer a disturbed step may take.
const DISTURBED: u32 = 3;

#[derive(Clone, Debug)]
pub(super) struct TimeLimit {
    limit: Duration,
    /// All time so far, and the undisturbed part of it.
    all: Duration,
    undisturbed: Duration,
}

impl TimeLimit {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, all: Duration::ZERO, undisturbed: Duration::ZERO }
    }

    /// Time passes.
    pub(super) fn add(&mut self, time: Duration, is_disturbed: bool) {
        self.all += time;
        if !is_disturbed {
            self.undisturbed += time;
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.undisturbed > self.limit || self.all > self.limit * DISTURBED
    }
}

#[test]
fn what_never_ends_is_stuck_after_the_limit_and_faults_prolong_it_three_times_at_most() {
    let limit = Duration::from_secs(10);
    // A request that never ends: the number of seconds until it is stuck, while a fault lasts in the given part of each ten.
    for (disturbed, stuck) in [(0, 11), (5, 26), (9, 31), (10, 31)] {
        let mut left = TimeLimit::new(limit);
        let mut seconds = 0;
        while !left.is_over() {
            left.add(Duration::from_secs(1), seconds % 10 < disturbed);
            seconds += 1;
        }
        assert_eq!(seconds, stuck, "{disturbed}");
    }
}
