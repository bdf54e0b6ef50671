//! A cache whose objects the metrics count while this process leads.

use std::sync::{Arc, PoisonError, RwLock};

/// Empty while the process does not lead. Clones share the content.
#[derive(Debug)]
pub(super) struct Observed<C>(Arc<RwLock<Option<C>>>);

impl<C> Clone for Observed<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> Default for Observed<C> {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(None)))
    }
}

impl<C: Clone> Observed<C> {
    /// Puts the cache in until the returned value is dropped.
    pub(super) fn hold(&self, cache: C) -> Held<C> {
        self.put(Some(cache));
        Held(self.clone())
    }

    pub(super) fn get(&self) -> Option<C> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<C> Observed<C> {
    fn put(&self, cache: Option<C>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = cache;
    }
}

/// The cache is taken out when this is dropped.
pub(super) struct Held<C>(Observed<C>);

impl<C> Drop for Held<C> {
    fn drop(&mut self) {
        self.0.put(None);
    }
}
