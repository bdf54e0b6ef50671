//! Permits for measurements, shared fairly among namespaces: a namespace that requests many delays no other. Must
//! not know what a permit is used for.
//!
//! A free permit goes to the namespace that holds the fewest, and within it to the request that has waited
//! longest. One namespace never holds all permits, unless there is only one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The number that one namespace may hold of `most`: a quarter is left for the others.
pub(crate) fn share(most: usize) -> usize {
    (most - most / 4).max(1)
}

/// The permits of a process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    share: usize,
    /// By namespace; entries with 0 are removed.
    held: HashMap<String, usize>,
    waiting: VecDeque<(String, oneshot::Sender<Permit>)>,
}

/// One permit; it is returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Permits,
    namespace: String,
}

impl Permits {
    /// `most` permits, at least one.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        let state = State { free: most, share: share(most), held: HashMap::new(), waiting: VecDeque::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Waits for a permit. The result is never `None`, because the queue is never closed.
    pub(crate) async fn acquire(&self, namespace: &str) -> Option<Permit> {
        let (sender, granted) = oneshot::channel();
        self.state().waiting.push_back((namespace.to_owned(), sender));
        self.grant();
        granted.await.ok()
    }

    /// Grants the free permits.
    fn grant(&self) {
        loop {
            let Some((namespace, sender)) = self.state().next() else { return };
            // If the receiver is gone, the permit is dropped and so returned at once; the state is not locked
            // here.
            let _ = sender.send(Permit { permits: self.clone(), namespace });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next request, with a permit counted for it.
    fn next(&mut self) -> Option<(String, oneshot::Sender<Permit>)> {
        self.waiting.retain(|(_, sender)| !sender.is_closed());
        if self.free == 0 {
            return None;
        }
        let held = |namespace: &String| self.held.get(namespace).copied().unwrap_or(0);
        let waiting = self.waiting.iter().enumerate();
        let may = waiting.filter(|(_, (namespace, _))| held(namespace) < self.share);
        // Among equals, the first.
        let (index, _) = may.min_by_key(|(_, (namespace, _))| held(namespace))?;
        let next = self.waiting.remove(index)?;
        self.free -= 1;
        *self.held.entry(next.0.clone()).or_default() += 1;
        Some(next)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.permits.state();
            state.free += 1;
            if let Some(held) = state.held.get_mut(&self.namespace) {
                *held -= 1;
                if *held == 0 {
                    state.held.remove(&self.namespace);
                }
            }
        }
        self.permits.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn now(permits: &Permits, namespace: &str) -> Option<Permit> {
        permits.acquire(namespace).now_or_never().flatten()
    }

    #[test]
    fn one_namespace_leaves_some_for_the_others() {
        let permits = Permits::new(8);
        let held: Vec<_> = std::iter::from_fn(|| now(&permits, "greedy")).collect();
        assert_eq!(held.len(), 6);
        assert!(now(&permits, "shop").is_some());
        drop(held);
        assert_eq!(permits.state().held.len(), 0);
        assert_eq!(permits.state().free, 8);
        let one = Permits::new(1);
        assert!(now(&one, "greedy").is_some(), "one permit is for anybody");
    }

    #[test]
    fn what_becomes_free_goes_to_the_namespace_that_holds_the_fewest() {
        let permits = Permits::new(2);
        let first = now(&permits, "greedy").unwrap();
        let second = now(&permits, "greedy").unwrap();
        let mut more: Vec<_> = (0..50).map(|_| Box::pin(permits.acquire("greedy"))).collect();
        assert!(more.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        let mut shop = Box::pin(permits.acquire("shop"));
        assert!(shop.as_mut().now_or_never().is_none());
        drop(first);
        let shop = shop.now_or_never().flatten().unwrap();
        assert!(more.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        drop((second, shop));
        assert!(more[0].as_mut().now_or_never().flatten().is_some(), "who waits longest is next");
    }

    #[test]
    fn whoever_waits_no_longer_holds_up_nobody() {
        let permits = Permits::new(1);
        let held = now(&permits, "a").unwrap();
        let mut gone = Box::pin(permits.acquire("b"));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        let mut late = Box::pin(permits.acquire("c"));
        assert!(late.as_mut().now_or_never().is_none());
        drop(held);
        // A permit that was granted and never received is returned.
        drop(late);
        assert!(now(&permits, "d").is_some());
    }
}
