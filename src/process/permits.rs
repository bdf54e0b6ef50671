//! Permits, shared fairly among namespaces: a namespace that requests many delays no other. Must not know what a
//! permit is used for.
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
    limits: Limits,
    all: usize,
    /// By namespace; entries with 0 are removed.
    held: HashMap<String, usize>,
    waiting: VecDeque<(String, oneshot::Sender<Permit>)>,
}

/// Up to `common` permits in all, a namespace may hold `of_one`. The others, up to `most`, are for namespaces that hold
/// fewer than `of_reserve`.
#[derive(Clone, Copy, Debug)]
struct Limits {
    common: usize,
    of_one: usize,
    most: usize,
    of_reserve: usize,
}

/// One permit; it is returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Permits,
    namespace: String,
}

impl Permits {
    /// `most` permits, at least one, of which a namespace may hold its [`share`].
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self::with(Limits { common: most, of_one: share(most), most, of_reserve: 0 })
    }

    /// `most` permits, at least one, that one namespace may hold, and a quarter more, at least one, for those that hold
    /// few. A single one has no reserve.
    #[cfg(target_os = "linux")]
    pub(crate) fn with_reserve(most: usize) -> Self {
        let common = most.max(1);
        let of_reserve = (common / 16).max(1);
        let reserve = (common / 4).max(usize::from(common > 1));
        Self::with(Limits { common, of_one: common, most: common + reserve, of_reserve })
    }

    fn with(limits: Limits) -> Self {
        let state = State { limits, all: 0, held: HashMap::new(), waiting: VecDeque::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Waits for a permit. The result is never `None`, because the queue is never closed.
    pub(crate) async fn acquire(&self, namespace: &str) -> Option<Permit> {
        let (sender, granted) = oneshot::channel();
        self.state().waiting.push_back((namespace.to_owned(), sender));
        self.grant();
        granted.await.ok()
    }

    /// A permit, if one is free for the namespace.
    #[cfg(target_os = "linux")]
    pub(crate) fn try_acquire(&self, namespace: &str) -> Option<Permit> {
        let mut state = self.state();
        state.is_free_for(namespace).then(|| {
            state.take(namespace);
            Permit { permits: self.clone(), namespace: namespace.to_owned() }
        })
    }

    /// Whether the namespace would have to wait for a permit.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_full(&self, namespace: &str) -> bool {
        !self.state().is_free_for(namespace)
    }

    /// The number of permits that are held.
    #[cfg(target_os = "linux")]
    pub(crate) fn held(&self) -> usize {
        self.state().all
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
        let waiting = self.waiting.iter().enumerate();
        let may = waiting.filter(|(_, (namespace, _))| self.is_free_for(namespace));
        // Among equals, the first.
        let (index, _) = may.min_by_key(|(_, (namespace, _))| self.of(namespace))?;
        let next = self.waiting.remove(index)?;
        self.take(&next.0);
        Some(next)
    }

    fn is_free_for(&self, namespace: &str) -> bool {
        let Limits { common, of_one, most, of_reserve } = self.limits;
        let held = self.of(namespace);
        self.all < common && held < of_one || self.all < most && held < of_reserve
    }

    fn of(&self, namespace: &str) -> usize {
        self.held.get(namespace).copied().unwrap_or(0)
    }

    fn take(&mut self, namespace: &str) {
        self.all += 1;
        *self.held.entry(namespace.to_owned()).or_default() += 1;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.permits.state();
            state.all -= 1;
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
        assert_eq!(permits.state().all, 0);
        let one = Permits::new(1);
        assert!(now(&one, "greedy").is_some(), "one permit is for anybody");
    }

    #[test]
    fn one_namespace_holds_all_but_the_reserve_of_which_every_other_gets_a_part() {
        let permits = Permits::with_reserve(32);
        let all = |namespace: &str| std::iter::from_fn(|| permits.try_acquire(namespace)).collect::<Vec<_>>();
        let held = all("greedy");
        assert_eq!(held.len(), 32);
        assert!(permits.is_full("greedy") && !permits.is_full("shop"));
        let of_others: Vec<_> = ["a", "b", "c"].map(all).into_iter().flatten().collect();
        assert_eq!(of_others.len(), 6);
        assert_eq!(all("shop").len(), 2);
        assert_eq!(permits.held(), 38);
        drop(held);
        assert_eq!(all("shop").len(), 26, "the common ones are for anybody");
        for few in [2, 3] {
            let permits = Permits::with_reserve(few);
            let held: Vec<_> = std::iter::from_fn(|| permits.try_acquire("greedy")).collect();
            assert_eq!(held.len(), few);
            let of_other = permits.try_acquire("shop");
            assert!(of_other.is_some() && permits.is_full("bank"), "a small number has a reserve of one");
        }
        let one = Permits::with_reserve(1);
        let held = one.try_acquire("greedy");
        assert!(held.is_some() && one.try_acquire("shop").is_none(), "a single one has no reserve");
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
