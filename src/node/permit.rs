//! Permits: how many operations may change containers at once on this node.
//!
//! An operation holds one from its beginning, gives it back while it waits and has touched nothing, takes one again before
//! it touches a container, and gives it back while it waits for its last hook. A container that is down never waits for one.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// All permits of the node.
#[derive(Clone, Debug)]
pub struct Permits {
    free: Arc<Semaphore>,
    returned: Arc<Notify>,
}

/// The permit of one operation; without a limit it is always held.
#[derive(Clone, Debug, Default)]
pub struct Permit(Option<Arc<Slot>>);

#[derive(Debug)]
struct Slot {
    permits: Permits,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Permits {
    /// So many.
    pub fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), returned: Arc::default() }
    }

    /// One for an operation that is about to begin, if there is one.
    pub fn take(&self) -> Option<Permit> {
        let held = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(self.slot(Some(held)))
    }

    /// For an operation that an earlier process has begun: it goes on, with or without.
    pub fn resume(&self) -> Permit {
        self.slot(Arc::clone(&self.free).try_acquire_owned().ok())
    }

    /// Waits until one has been given back since the last call.
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

    /// Waits for one, in the order of those who wait.
    pub(super) async fn acquire(&self) {
        let Some(slot) = self.0.as_ref().filter(|slot| slot.held().is_none()) else { return };
        // Never closed.
        if let Ok(permit) = Arc::clone(&slot.permits.free).acquire_owned().await {
            *slot.held() = Some(permit);
        }
    }

    /// Leaves it to others.
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
