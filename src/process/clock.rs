//! The only module that reads the clock. Decisions receive the time as an argument.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// The wall-clock time.
#[cfg(not(feature = "faults"))]
#[expect(clippy::disallowed_methods, reason = "the only module that reads the clock")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The wall-clock time, as a test has set it (see [`crate::process::fault::clock_offset`]).
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "the only module that reads the clock")]
pub fn now() -> Timestamp {
    Timestamp::now().saturating_add(super::fault::clock_offset()).unwrap_or_else(|_| Timestamp::now())
}

/// The time from now until `at`; zero if that has passed.
pub fn until(at: Timestamp) -> std::time::Duration {
    std::time::Duration::try_from(at.duration_since(now())).unwrap_or(std::time::Duration::ZERO)
}

/// How far the wall clock may deviate from the monotonic clock before the deviation counts as a jump.
const JUMP: SignedDuration = SignedDuration::from_secs(1);

/// Compares the wall clock with a monotonic clock, to detect that the wall clock was set.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    wall: Timestamp,
    steady: Instant,
}

impl Watch {
    /// Starts the comparison now.
    #[expect(clippy::disallowed_methods, reason = "the only module that reads the clock")]
    pub fn begin() -> Self {
        Self { wall: now(), steady: Instant::now() }
    }

    /// The amount by which the wall clock was set since the last call, forward or back.
    pub fn jumped(&mut self) -> Option<SignedDuration> {
        let before = std::mem::replace(self, Self::begin());
        let passed = self.steady.duration_since(before.steady);
        let jump = jump(self.wall.duration_since(before.wall), passed);
        if jump.is_none() {
            // The start is kept, so that small deviations add up.
            *self = before;
        }
        jump
    }
}

fn jump(wall: SignedDuration, passed: std::time::Duration) -> Option<SignedDuration> {
    let by = wall.saturating_sub(SignedDuration::try_from(passed).ok()?);
    (by.abs() >= JUMP).then_some(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_is_noticed_and_one_that_goes_on_is_not() {
        let (second, hour) = (std::time::Duration::from_secs(1), SignedDuration::from_hours(1));
        assert_eq!(jump(SignedDuration::from_millis(1_500), second), None);
        assert_eq!(jump(hour + SignedDuration::from_secs(1), second), Some(hour));
        assert_eq!(jump(SignedDuration::from_secs(1) - hour, second), Some(-hour));
        assert_eq!(Watch::begin().jumped(), None);
    }
}
