//! Permits limit how many operations may change containers at once on this node. Image pulls have limits of their
//! own, in `pulls`.
//!
//! An operation holds a permit from its beginning, returns it while it waits and has touched no container, acquires
//! one again before it touches a container, and returns it while it waits for its last hook. A container that is
//! down never waits for a permit.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// All permits of the node. Clones share them.
#[derive(Clone, Debug)]
pub struct Permits {
    free: Arc<Semaphore>,
    returned: Arc<Notify>,
}

/// The permit of one operation. Without a limit it is always held.
#[derive(Clone, Debug, Default)]
pub struct Permit(Option<Arc<Slot>>);

#[derive(Debug)]
struct Slot {
    permits: Permits,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Permits {
    /// Creates `count` permits.
    pub fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), returned: Arc::default() }
    }

    /// A permit for an operation that is about to begin, if one is free.
    pub fn take(&self) -> Option<Permit> {
        let held = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(self.slot(Some(held)))
    }

    /// A permit for an operation that an earlier process has begun: the operation continues even if none is free.
    pub fn resume(&self) -> Permit {
        self.slot(Arc::clone(&self.free).try_acquire_owned().ok())
    }

    /// Waits until a permit has been returned since the last call.
    pub async fn returned(&self) {
        self.returned.notified().await;
    }

    fn slot(&self, held: Option<OwnedSemaphorePermit>) -> Permit {
        Permit(Some(Arc::new(Slot { permits: self.clone(), held: Mutex::new(held) })))
    }
}

impl Permit {
    /// Whether the operation may touch a container now.
    pub(super) fn is_held(&self) -> bool {
        self.0.as_ref().is_none_or(|slot| slot.held().is_some())
    }

    /// Waits for a permit, in first-come order.
    pub(super) async fn acquire(&self) {
        let Some(slot) = self.0.as_ref().filter(|slot| slot.held().is_none()) else { return };
        // The semaphore is never closed.
        if let Ok(permit) = Arc::clone(&slot.permits.free).acquire_owned().await {
            *slot.held() = Some(permit);
        }
    }

    /// Returns the permit for other operations.
    pub(super) fn give_back(&self) {
        if let Some(slot) = &self.0 {
            slot.give_back();
        }
    }
}

impl Slot {
    fn held(&self) -> std::sync::MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self) {
        if self.held().take().is_some() {
            self.permits.returned.notify_one();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_given_back_goes_to_who_waits_first() {
        let permits = Permits::new(1);
        let first = permits.take().unwrap();
        assert!(permits.take().is_none() && first.is_held());
        let second = permits.resume();
        assert!(!second.is_held());
        let waits = tokio::spawn({
            let second = second.clone();
            async move { second.acquire().await }
        });
        tokio::task::yield_now().await;
        first.give_back();
        permits.returned().await;
        waits.await.unwrap();
        assert!(second.is_held() && !first.is_held() && permits.take().is_none());
        drop(second);
        permits.returned().await;
        assert!(permits.take().is_some());
        assert!(Permit::default().is_held());
    }
}
