//! Pauses that differ, so that many who lost the same server do not come back as one.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

/// Between the half of `whole` and the whole.
pub(super) fn half_at_least(whole: Duration) -> Duration {
    whole / 2 + part(whole / 2)
}

/// Between `whole` and a half more.
pub(super) fn up_to_half_more(whole: Duration) -> Duration {
    whole + part(whole / 2)
}

/// Between nothing and `whole`.
fn part(whole: Duration) -> Duration {
    // The seeds of the standard hash maps are the one source of chance that is always at hand.
    let jitter = std::hash::RandomState::new().build_hasher().finish();
    let millis = u64::try_from(whole.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    Duration::from_millis(jitter % millis)
}
