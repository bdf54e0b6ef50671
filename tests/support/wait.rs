//! Waits for a condition, with a time limit. Retries no action: it only asks again.

#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

use std::{
    fmt::Display,
    thread,
    time::{Duration, Instant},
};

/// Longer than any step takes on a busy machine.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(180);
/// The least pause between two polls. A poll that takes longer, for example because it starts processes, pauses for three times as
/// long as it took: tests that wait leave the processors to those that work.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause after a poll that starts processes.
const LONG_PAUSE: Duration = Duration::from_millis(300);

/// Polls until `poll` returns a value.
pub(crate) fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    eventually_or(what, || poll().ok_or(""))
}

/// The same with a `poll` that returns the current state instead.
pub(crate) fn eventually_or<T, E: Display>(what: &str, poll: impl FnMut() -> Result<T, E>) -> T {
    eventually_within(WAIT_LIMIT, what, poll)
}

/// The same with a time limit.
pub(crate) fn eventually_within<T, E: Display>(
    limit: Duration,
    what: &str,
    mut poll: impl FnMut() -> Result<T, E>,
) -> T {
    let end = Instant::now() + limit;
    loop {
        let began = Instant::now();
        match poll() {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < end, "waited in vain for: {what} {instead}"),
        }
        thread::sleep(PAUSE.max(3 * began.elapsed()));
    }
}

/// For a `poll` that starts processes: polls less often, and describes the state only if the time is over.
pub(crate) fn eventually_slowly<T>(
    limit: Duration,
    what: &str,
    mut poll: impl FnMut() -> Option<T>,
    state: impl FnOnce() -> String,
) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for: {what}: {}", state());
        thread::sleep(LONG_PAUSE);
    }
}

/// [`eventually_within`] for a `poll` that is async.
pub(crate) async fn eventually_async<T, E: Display>(
    limit: Duration,
    what: &str,
    mut poll: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let end = Instant::now() + limit;
    loop {
        match poll().await {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < end, "waited in vain for: {what} {instead}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for a condition without a time limit: the caller sets one.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
