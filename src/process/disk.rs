//! Runs file system calls outside the executor: each in a thread that a disk may block, with a time limit, and few
//! at once.
//!
//! A single-threaded executor stops while a call waits for a disk. A call that hangs occupies its thread, so the
//! number of calls is bounded, and at most one call per file runs at a time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout};

/// The calls of one kind; clones share the bound.
#[derive(Clone, Debug)]
pub struct Disk {
    slots: Arc<Semaphore>,
    running: Arc<Calls>,
}

/// The files with a call in progress, and the time at which each call began.
#[derive(Debug, Default)]
struct Calls {
    files: Mutex<HashMap<String, Instant>>,
    ended: Notify,
}

/// The call has not ended in time. It continues in the background, and its result is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the disk is slow or hangs")]
pub struct Late;

impl From<Late> for std::io::Error {
    fn from(late: Late) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, late)
    }
}

/// Registers a call in progress; dropping it removes the registration.
struct Running(Arc<Calls>, String);

impl Running {
    /// Waits until no other call concerns `file`. Does not wait for a call that has already taken longer than
    /// `limit`: it hangs.
    async fn begin(calls: &Arc<Calls>, file: &str, limit: Duration) -> Result<Self, Late> {
        loop {
            // Registered before the check, so that an end right after it is not missed.
            let mut ended = std::pin::pin!(calls.ended.notified());
            ended.as_mut().enable();
            match calls.files().entry(file.to_owned()) {
                Entry::Vacant(vacant) => {
                    vacant.insert(Instant::now());
                    return Ok(Self(Arc::clone(calls), file.to_owned()));
                }
                Entry::Occupied(running) if running.get().elapsed() > limit => return Err(Late),
                Entry::Occupied(_) => {}
            }
            ended.await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.files().remove(&self.1);
        self.0.ended.notify_waiters();
    }
}

impl Calls {
    fn files(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// Allows at most `slots` calls at once.
    pub fn new(slots: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(slots)), running: Arc::default() }
    }

    /// Runs `call`, which concerns `file`, for at most `limit`, and not before an earlier call on the same file has
    /// ended: a file that hangs occupies one slot only.
    ///
    /// # Errors
    /// [`Late`] when there is no result within the limit.
    pub async fn run<T: Send + 'static>(
        &self,
        file: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Late> {
        let called = async {
            let running = Running::begin(&self.running, file, limit).await?;
            let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|_| Late)?;
            let called = tokio::task::spawn_blocking(move || {
                let _held = (slot, running);
                call()
            });
            called.await.map_err(|_| Late)
        };
        timeout(limit, called).await.unwrap_or(Err(Late))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_hangs_holds_up_nothing_but_its_own_file() {
        let (go, gone) = mpsc::channel::<()>();
        let (disk, moment) = (Disk::new(2), Duration::from_millis(50));
        let hung = disk.run("a", moment, move || gone.recv().is_ok()).await;
        assert_eq!(hung, Err(Late));
        assert_eq!(disk.run("a", moment, || 1).await, Err(Late), "nobody waits for what hangs");
        assert_eq!(disk.run("b", Duration::from_secs(9), || 2).await, Ok(2));
        let (go_too, gone) = mpsc::channel::<()>();
        assert_eq!(disk.run("c", moment, move || gone.recv().is_ok()).await, Err(Late));
        assert_eq!(disk.run("b", moment, || 2).await, Err(Late), "no slot is left");
        let waits = disk.run("a", Duration::from_secs(9), || 1);
        let lets_go = async { drop((go, go_too)) };
        assert_eq!(tokio::join!(waits, lets_go).0, Ok(1), "it waits for the one before");
        assert_eq!(disk.run("b", Duration::from_secs(9), || 3).await, Ok(3));
    }
}
