//! Permits limit how many operations may change containers at once on this node. A namespace may hold all of them, and some
//! more are for the others. Image pulls have limits of their own, in `pulls`.
//!
//! An operation holds a permit from its beginning, returns it while it waits and has touched no container, acquires
//! one again before it touches a container, unless its pod stops together with others, and returns it while it waits for
//! its last hook. A container that is down never waits for a permit.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::process::permits;

/// All permits of the node. Clones share them.
#[derive(Clone, Debug)]
pub struct Permits {
    free: permits::Permits,
    returned: Arc<Notify>,
}

/// The permit of one operation. Without a limit it is always held.
#[derive(Clone, Debug, Default)]
pub struct Permit(Option<Arc<Slot>>);

#[derive(Debug)]
struct Slot {
    permits: Permits,
    namespace: String,
    held: Mutex<Option<permits::Permit>>,
}

impl Permits {
    /// Creates `count` permits, and a quarter more for namespaces that hold few.
    pub fn new(count: usize) -> Self {
        Self { free: permits::Permits::with_reserve(count), returned: Arc::default() }
    }

    /// A permit for an operation that is about to begin, if one is free for the namespace of its pod.
    pub fn take(&self, namespace: &str) -> Option<Permit> {
        let held = self.free.try_acquire(namespace)?;
        Some(self.slot(namespace, Some(held)))
    }

    /// A permit for an operation that an earlier process has begun: the operation continues even if none is free.
    pub fn resume(&self, namespace: &str) -> Permit {
        self.slot(namespace, self.free.try_acquire(namespace))
    }

    /// Waits until a permit has been returned since the last call.
    pub async fn returned(&self) {
        self.returned.notified().await;
    }

    fn slot(&self, namespace: &str, held: Option<permits::Permit>) -> Permit {
        let (permits, namespace) = (self.clone(), namespace.to_owned());
        Permit(Some(Arc::new(Slot { permits, namespace, held: Mutex::new(held) })))
    }
}

impl Permit {
    /// Whether the operation may touch a container now.
    pub(super) fn is_held(&self) -> bool {
        self.0.as_ref().is_none_or(|slot| slot.held().is_some())
    }

    /// Waits for a permit: first the namespace that holds the fewest, within it in first-come order.
    pub(super) async fn acquire(&self) {
        let Some(slot) = self.0.as_ref().filter(|slot| slot.held().is_none()) else { return };
        let permit = slot.permits.free.acquire(&slot.namespace).await;
        *slot.held() = permit;
    }

    /// Returns the permit for other operations.
    pub(super) fn give_back(&self) {
        if let Some(slot) = &self.0 {
            slot.give_back();
        }
    }
}

impl Slot {
    fn held(&self) -> std::sync::MutexGuard<'_, Option<permits::Permit>> {
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
        let first = permits.take("shop").unwrap();
        assert!(permits.take("shop").is_none() && first.is_held());
        let second = permits.resume("shop");
        assert!(!second.is_held());
        let waits = tokio::spawn({
            let second = second.clone();
            async move { second.acquire().await }
        });
        tokio::task::yield_now().await;
        first.give_back();
        permits.returned().await;
        waits.await.unwrap();
        assert!(second.is_held() && !first.is_held() && permits.take("shop").is_none());
        drop(second);
        permits.returned().await;
        assert!(permits.take("shop").is_some());
        assert!(Permit::default().is_held());
    }
}
