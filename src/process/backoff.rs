//! Computes the pauses between attempts: each is twice the previous one, up to a maximum. Must not sleep.
//!
//! This is not the crate `backon`, a dependency of kube. Its iterators do not return the number of attempts so far, and
//! must be built again to start over. Here a success resets the pauses, the caller can see the first failure in a row, which
//! it logs, and a caller that stores a number of failures can compute the pause from it. The operations store such a number
//! in the journal and compute their pauses themselves (`delay_retry` in `operation/next.rs`), because `operation` imports nothing of `process`.

use std::time::Duration;

/// The pauses between consecutive attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    attempts: u32,
}

impl Backoff {
    /// A back-off without a failed attempt.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, attempts: 0 }
    }

    /// Counts a failed attempt, and returns the pause before the next one.
    pub fn pause(&mut self) -> Duration {
        let pause = self.after(self.attempts);
        self.attempts = self.attempts.saturating_add(1);
        pause
    }

    /// The pause after a failed attempt that follows `before` other consecutive failures.
    pub fn after(&self, before: u32) -> Duration {
        let factor = 1_u32.checked_shl(before).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// Records that an attempt has succeeded.
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
