//! The only place that reads the clock. Decisions get the time as an argument.

use jiff::Timestamp;

/// The time of day.
#[expect(clippy::disallowed_methods, reason = "this is the room of the clock")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// How long from now until `at`; zero when that has passed.
pub fn until(at: Timestamp) -> std::time::Duration {
    std::time::Duration::try_from(at.duration_since(now())).unwrap_or(std::time::Duration::ZERO)
}
