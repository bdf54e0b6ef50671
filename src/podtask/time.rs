//! Arithmetic on times of the API. Reads no clock.

use jiff::{SignedDuration, Timestamp};

/// `time` plus `span`, at most [`Timestamp::MAX`].
pub fn later(time: Timestamp, span: SignedDuration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// `time` without its fraction of a second: the API server stores whole seconds.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
