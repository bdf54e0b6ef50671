//! Kill points for the crash tests.
//!
//! With the cargo feature `faults`, a process started with `INPLACE_FAULT_AT=<n>` kills itself with SIGKILL when it
//! passes its n-th point, and `INPLACE_FAULT_TRACE=<file>` gets the name of every point it passes. Without the feature,
//! which release builds cannot have, a point is nothing.

/// Marks a moment at which the process may die in a test.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn point(_name: impl FnOnce() -> String) {}

/// Marks a moment at which the process may die in a test.
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "fault points are set through the environment")]
pub fn point(name: impl FnOnce() -> String) {
    use std::io::Write;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    let this = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
    if let Ok(path) = std::env::var("INPLACE_FAULT_TRACE")
        && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{this} {}", name());
    }
    if std::env::var("INPLACE_FAULT_AT").ok().and_then(|at| at.parse().ok()) == Some(this) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    }
}
