//! Kill points and delays for tests.
//!
//! Without the cargo feature `faults`, which release builds cannot have, a point does nothing. With it, environment
//! variables control the points of a process:
//!
//! * `INPLACE_FAULT_AT=<n>`: the process kills itself with SIGKILL at the n-th point that it passes. With
//!   `<n> <name>`, only points of that name count.
//! * `INPLACE_FAULT_TRACE=<file>`: the name of every passed point is appended to the file.
//! * `INPLACE_FAULT_HOLD=<folder>`: the work on one pod is suspended at a point as long as a file exists there, so
//!   that many pods can be brought to the same point at once.
//! * `INPLACE_FAULT_PANIC=<name>`: every point of that name panics, like a reproducible bug.
//! * `INPLACE_FAULT_CLOCK=<file>`: the wall clock of the process is set by the number of seconds in the file, forward or
//!   back, from the moment at which the file has another number.
//! * `INPLACE_FAULT_DELAY=<name>=<ms>`: [`delay`] waits for up to that long when it is called with that name.

/// Marks a point at which a test may kill the process, or suspend the work on `pod` (its uid).
#[cfg(not(feature = "faults"))]
#[inline]
pub fn point(_pod: &str, _name: impl FnOnce() -> String) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Marks a point at which a test may kill the process, or suspend the work on `pod` (its uid).
#[cfg(feature = "faults")]
pub async fn point(pod: &str, name: impl FnOnce() -> String) {
    let name = name();
    pass(&name);
    break_at(&name);
    let Some(held) = hold(pod, &name) else { return };
    while held.exists() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The interval at which suspended work checks whether it may continue.
#[cfg(feature = "faults")]
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);

/// Records that a point is passed, and kills the process there if the environment says so.
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "fault points are set through the environment")]
fn pass(name: &str) {
    use std::io::Write;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static PASSED_OF_NAME: AtomicU64 = AtomicU64::new(0);
    let this = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
    if let Ok(path) = std::env::var("INPLACE_FAULT_TRACE")
        && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{this} {name}");
    }
    let Ok(at) = std::env::var("INPLACE_FAULT_AT") else { return };
    let (at, count) = match at.split_once(' ') {
        Some((at, of)) if of == name => (at, PASSED_OF_NAME.fetch_add(1, Ordering::SeqCst) + 1),
        Some(_) => return,
        None => (at.as_str(), this),
    };
    if at.parse() == Ok(count) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    }
}

/// Panics at the point that the environment names.
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "fault points are set through the environment")]
fn break_at(name: &str) {
    if std::env::var("INPLACE_FAULT_PANIC").is_ok_and(|at| at == name) {
        std::panic::panic_any("injected by INPLACE_FAULT_PANIC");
    }
}

/// The file that suspends `pod` at this point while it exists. Before the point is reached, the file is named after
/// the pod alone and contains where to suspend: the name of a point, or the number of points from now.
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "fault points are set through the environment")]
fn hold(pod: &str, name: &str) -> Option<std::path::PathBuf> {
    let file = std::path::PathBuf::from(std::env::var_os("INPLACE_FAULT_HOLD")?).join(pod);
    let wanted = std::fs::read_to_string(&file).ok()?;
    let left: Option<u64> = wanted.parse().ok();
    if let Some(left) = left.filter(|left| *left > 1) {
        std::fs::write(&file, (left - 1).to_string()).ok()?;
        return None;
    }
    if left.is_none() && wanted != name {
        return None;
    }
    std::fs::write(&file, name).ok()?;
    let held = file.with_extension("held");
    std::fs::rename(&file, &held).ok()?;
    Some(held)
}

/// Delays the process at a point where a test observes other processes meanwhile.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn delay(_name: impl FnOnce() -> String) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Delays the process at a point where a test observes other processes meanwhile, each time for a different part of
/// the configured time.
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "fault points are set through the environment")]
pub async fn delay(name: impl FnOnce() -> String) {
    let Ok(setting) = std::env::var("INPLACE_FAULT_DELAY") else { return };
    let Some((at, longest)) = setting.split_once('=') else { return };
    if at != name() {
        return;
    }
    let longest: u64 = longest.parse().unwrap_or(0);
    let part = u64::try_from(crate::process::clock::now().subsec_nanosecond() / 1000 % 1000).unwrap_or(0);
    tokio::time::sleep(std::time::Duration::from_millis(longest * part / 1000)).await;
}

/// The time by which a test has set the wall clock of this process.
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "fault points are set through the environment")]
pub fn clock_offset() -> jiff::SignedDuration {
    static FILE: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os("INPLACE_FAULT_CLOCK").map(std::path::PathBuf::from));
    let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
    let seconds = text.and_then(|text| text.trim().parse().ok()).unwrap_or_default();
    jiff::SignedDuration::from_secs(seconds)
}
