//! Random pauses, so that many clients of one server do not reconnect at the same moment.

use std::time::Duration;

use crate::process::random;

/// Between half of `whole` and `whole`.
pub(super) fn half_at_least(whole: Duration) -> Duration {
    whole / 2 + part(whole / 2)
}

/// Between `whole` and one and a half times `whole`.
pub(super) fn up_to_half_more(whole: Duration) -> Duration {
    whole + part(whole / 2)
}

/// Between zero and `whole`.
fn part(whole: Duration) -> Duration {
    // Without a random number, the pause is only not spread.
    let jitter = random::number().unwrap_or_default();
    let millis = u64::try_from(whole.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    Duration::from_millis(jitter % millis)
}
