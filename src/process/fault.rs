//! Kill points and delays for the tests.
//!
//! With the cargo feature `faults`, a process started with `INPLACE_FAULT_AT=<n>` kills itself with SIGKILL when it
//! passes its n-th point, and `INPLACE_FAULT_TRACE=<file>` gets the name of every point it passes. Without the feature,
//! which release builds cannot have, a point is nothing. `INPLACE_FAULT_HOLD=<folder>` holds the work on one pod up at a
//! point, as long as a file is there, so that many can be brought to the middle of something at once.
//! `INPLACE_FAULT_PANIC=<name>` panics at every point of that name, as a bug does that is met each time.
//! `INPLACE_FAULT_DELAY=<name>=<ms>` makes [`delay`] wait for up to that long where it is given that name.

/// Marks a moment at which the process may die, or the work on `pod` (its uid) be held up, in a test.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn point(_pod: &str, _name: impl FnOnce() -> String) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Marks a moment at which the process may die, or the work on `pod` (its uid) be held up, in a test.
#[cfg(feature = "faults")]
pub async fn point(pod: &str, name: impl FnOnce() -> String) {
    let name = name();
    pass(&name);
    break_at(&name);
    let Some(held) = hold(pod, &name) else { return };
    while held.exists() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How soon work that is held up looks whether it may go on.
#[cfg(feature = "faults")]
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(5);

/// Notes that a point is passed, and dies there if that was asked for.
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "fault points are set through the environment")]
fn pass(name: &str) {
    use std::io::Write;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    let this = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
    if let Ok(path) = std::env::var("INPLACE_FAULT_TRACE")
        && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{this} {name}");
    }
    if std::env::var("INPLACE_FAULT_AT").ok().and_then(|at| at.parse().ok()) == Some(this) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    }
}

/// Panics where that was asked for.
#[cfg(feature = "faults")]
#[expect(clippy::disallowed_methods, reason = "fault points are set through the environment")]
fn break_at(name: &str) {
    if std::env::var("INPLACE_FAULT_PANIC").is_ok_and(|at| at == name) {
        std::panic::panic_any("planted");
    }
}

/// The file that holds `pod` up at this point while it is there. Until then it is named after the pod alone, and says
/// where: the name of a point, or how many points from now.
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

/// Holds the process up where a test wants to see what others do meanwhile.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn delay(_name: impl FnOnce() -> String) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Holds the process up where a test wants to see what others do meanwhile: for another part of the time each time.
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
