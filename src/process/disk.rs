//! Calls of the file system beside the executor: each in a thread that a disk may hold up, within a limit, few at once.
//!
//! An executor with one thread stands still while a call waits for a disk. What hangs keeps its thread: no more than a few may,
//! and never two for the same purpose.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The calls of one kind; clones share the bound.
#[derive(Clone, Debug)]
pub struct Disk {
    slots: Arc<Semaphore>,
    running: Arc<Mutex<HashSet<String>>>,
}

/// The call has not ended in time; it goes on by itself, and what it returns is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the disk is slow or hangs")]
pub struct Late;

impl From<Late> for std::io::Error {
    fn from(late: Late) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, late)
    }
}

/// That a call runs; over when this is dropped.
struct Running(Arc<Mutex<HashSet<String>>>, String);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl Disk {
    /// For at most `slots` calls at once.
    pub fn new(slots: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(slots)), running: Arc::default() }
    }

    /// Runs `call` for at most `limit`; not at all while an earlier one for the same `purpose` still runs.
    ///
    /// # Errors
    /// [`Late`] when there is no result within the limit.
    pub async fn run<T: Send + 'static>(
        &self,
        purpose: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Late> {
        if !self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(purpose.to_owned()) {
            return Err(Late);
        }
        let running = Running(Arc::clone(&self.running), purpose.to_owned());
        let called = async {
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
    async fn what_hangs_holds_up_nothing_but_its_own_purpose() {
        let (go, gone) = mpsc::channel::<()>();
        let (disk, moment) = (Disk::new(2), Duration::from_millis(50));
        let hung = disk.run("a", moment, move || gone.recv().is_ok()).await;
        assert_eq!(hung, Err(Late));
        assert_eq!(disk.run("a", Duration::from_secs(9), || 1).await, Err(Late));
        assert_eq!(disk.run("b", Duration::from_secs(9), || 2).await, Ok(2));
        let (go_too, gone) = mpsc::channel::<()>();
        assert_eq!(disk.run("c", moment, move || gone.recv().is_ok()).await, Err(Late));
        assert_eq!(disk.run("b", moment, || 2).await, Err(Late), "no slot is left");
        drop((go, go_too));
        while disk.run("a", moment, || ()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(disk.run("b", Duration::from_secs(9), || 3).await, Ok(3));
    }
}
