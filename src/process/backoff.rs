//! The pause between attempts: the first one, doubled with each attempt up to the longest one. Must not sleep.
//!
//! Not backon's iterators: an iterator yields an `Option`, says nothing of the attempts before it, and starts again
//! only if it is built again; here a success resets it, the first failure of a row is the one that is logged, and
//! those that store a number of failures compute the pause from it. The operations keep such a number in the
//! journal and compute their pauses themselves, because decisions import nothing of a process.

use std::time::Duration;

/// The pauses of one row of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    attempts: u32,
}

impl Backoff {
    /// No attempt has failed yet.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, attempts: 0 }
    }

    /// Counts a failed attempt, and returns the pause before the next one.
    pub fn pause(&mut self) -> Duration {
        let pause = self.after(self.attempts);
        self.attempts = self.attempts.saturating_add(1);
        pause
    }

    /// The pause after a failed attempt with `before` other ones before it, in one row.
    pub fn after(&self, before: u32) -> Duration {
        let factor = 1_u32.checked_shl(before).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// An attempt has succeeded.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// True if no attempt has failed since the start or the last success.
    pub fn is_first(&self) -> bool {
        self.attempts == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_twice_the_one_before_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        assert!(backoff.is_first());
        let pauses: Vec<_> = (0..6).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert!(!backoff.is_first());
        backoff.reset();
        assert!(backoff.is_first());
        assert_eq!(backoff.pause(), Duration::from_millis(100));
        assert_eq!(backoff.after(u32::MAX), Duration::from_secs(1));
    }
}
