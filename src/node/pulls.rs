//! Limits how many images are pulled at once: a limit per registry, so that a registry that hangs delays only images
//! from it, and a larger limit in all, of which a namespace may use three quarters: it can name many registries. Knows
//! which images operations pull, so that a prefetch can yield to them. Pulls nothing itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::process::permits::{self, Permits};

/// The total limit as a multiple of the limit per registry.
const REGISTRIES: usize = 16;
/// How long a prefetch continues beside an operation that pulls the same image. In this time the operation's pull takes
/// over the layers that have arrived, so that none of them is downloaded twice.
const TAKES_OVER: Duration = Duration::from_secs(10);
/// The registry of an image whose name contains none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The pull limits of a node. Clones share them.
#[derive(Clone, Debug)]
pub struct Pulls {
    from_each: usize,
    in_all: Permits,
    /// One semaphore per registry with pulls in progress or waiting.
    registries: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
    /// How many operations pull each reference, or wait for a permit to.
    requested: Arc<watch::Sender<BTreeMap<String, usize>>>,
}

/// Held while an image is pulled.
#[derive(Debug)]
pub(super) struct PullPermit {
    #[expect(dead_code, reason = "held for its drop")]
    permits: (OwnedSemaphorePermit, permits::Permit),
    #[expect(dead_code, reason = "held for its drop")]
    requested: Requested,
}

/// Counts an operation in [`Pulls::requested`] while it lives.
#[derive(Debug)]
struct Requested {
    all: Arc<watch::Sender<BTreeMap<String, usize>>>,
    reference: String,
}

impl Drop for Requested {
    fn drop(&mut self) {
        self.all.send_modify(|all| {
            let left = all.get(&self.reference).map_or(0, |count| count.saturating_sub(1));
            if left == 0 {
                all.remove(&self.reference);
            } else {
                all.insert(self.reference.clone(), left);
            }
        });
    }
}

impl Pulls {
    /// Allows `from_each` pulls from each registry.
    pub(super) fn new(from_each: usize) -> Self {
        let in_all = Permits::new(from_each.saturating_mul(REGISTRIES));
        Self { from_each, in_all, registries: Arc::default(), requested: Arc::default() }
    }

    /// The number of pulls of operations in progress. A prefetch holds no permit and does not count.
    pub fn open(&self) -> usize {
        self.in_all.held()
    }

    /// Whether a pull of this reference for a pod of `namespace` would have to wait.
    pub(super) fn is_full(&self, reference: &str, namespace: &str) -> bool {
        self.in_all.is_full(namespace) || self.registry(reference).available_permits() == 0
    }

    /// Waits for a permit to pull `reference` for a pod of `namespace`. While it waits for one of the two permits, it does not
    /// hold the other one.
    pub(super) async fn acquire(&self, reference: &str, namespace: &str) -> Option<PullPermit> {
        let requested = self.request(reference);
        let permits = loop {
            let of_registry = self.registry(reference).acquire_owned().await.ok()?;
            if let Some(of_node) = self.in_all.try_acquire(namespace) {
                break (of_registry, of_node);
            }
            drop(of_registry);
            drop(self.in_all.acquire(namespace).await?);
        };
        Some(PullPermit { permits, requested })
    }

    /// Returns once no operation pulls an image or waits to.
    pub async fn idle(&self) {
        // The sender lives as long as this value.
        let _ = self.requested.subscribe().wait_for(BTreeMap::is_empty).await;
    }

    /// Returns once a prefetch of `reference` has to end: an operation pulls another image, or has pulled this one for
    /// `TAKES_OVER`.
    pub async fn preempts(&self, reference: &str) {
        let mut requested = self.requested.subscribe();
        let other = |all: &BTreeMap<String, usize>| all.keys().any(|one| one != reference);
        loop {
            // The sender lives as long as this value.
            let same = requested.wait_for(|all| !all.is_empty()).await.is_ok_and(|all| !other(&all));
            if !same {
                return;
            }
            let ended = requested.wait_for(|all| all.is_empty() || other(all));
            match tokio::time::timeout(TAKES_OVER, ended).await {
                Ok(Ok(all)) if all.is_empty() => {}
                _ => return,
            }
        }
    }

    fn request(&self, reference: &str) -> Requested {
        self.requested.send_modify(|all| *all.entry(reference.to_owned()).or_default() += 1);
        Requested { all: Arc::clone(&self.requested), reference: reference.to_owned() }
    }

    fn registry(&self, reference: &str) -> Arc<Semaphore> {
        let mut registries = self.registries.lock().unwrap_or_else(PoisonError::into_inner);
        // Each pull in progress or waiting holds a second reference.
        registries.retain(|_, permits| Arc::strong_count(permits) > 1);
        let permits = registries.entry(registry_of(reference).to_owned());
        Arc::clone(permits.or_insert_with(|| Arc::new(Semaphore::new(self.from_each))))
    }
}

/// The registry host in the reference.
fn registry_of(reference: &str) -> &str {
    match reference.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => DEFAULT_REGISTRY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_of_a_reference() {
        for (reference, registry) in [
            ("app:v1", "docker.io"),
            ("team/app", "docker.io"),
            ("docker.io/library/app", "docker.io"),
            ("quay.io/team/app@sha256:0", "quay.io"),
            ("host:5000/app", "host:5000"),
            ("localhost/app", "localhost"),
        ] {
            assert_eq!(registry_of(reference), registry, "{reference}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_prefetch_ends_for_another_image_at_once_and_for_its_own_after_a_while() {
        let pulls = Pulls::new(1);
        pulls.idle().await;
        let ends = |pulls: &Pulls| {
            let pulls = pulls.clone();
            async move {
                let began = tokio::time::Instant::now();
                let ended = tokio::time::timeout(TAKES_OVER * 2, pulls.preempts("a/x")).await;
                ended.ok().map(|()| began.elapsed())
            }
        };
        assert_eq!(ends(&pulls).await, None, "no operation pulls");
        let same = pulls.acquire("a/x", "shop").await.unwrap();
        assert_eq!(ends(&pulls).await, Some(TAKES_OVER));
        let waiting = tokio::spawn({
            let pulls = pulls.clone();
            async move { pulls.acquire("a/y", "shop").await }
        });
        tokio::task::yield_now().await;
        assert_eq!(ends(&pulls).await, Some(Duration::ZERO), "an operation waits for a permit");
        drop(same);
        drop(waiting.await.unwrap());
        pulls.idle().await;
        // A pull of the same image that ends soon does not end the prefetch.
        let same = pulls.acquire("a/x", "shop").await.unwrap();
        let soon = async {
            tokio::time::sleep(TAKES_OVER / 2).await;
            drop(same);
        };
        assert_eq!(tokio::join!(ends(&pulls), soon).0, None);
    }

    #[tokio::test]
    async fn one_registry_takes_nothing_from_another() {
        let pulls = Pulls::new(1);
        let held = pulls.acquire("a.example/x", "shop").await.unwrap();
        assert!(pulls.is_full("a.example/y", "shop") && !pulls.is_full("b.example/y", "shop"));
        let second = pulls.acquire("b.example/y", "shop").await.unwrap();
        assert_eq!(pulls.open(), 2);
        drop(held);
        assert!(!pulls.is_full("a.example/y", "shop"));
        drop(second);
        assert_eq!(pulls.open(), 0);
        // The semaphores of unused registries are removed.
        pulls.is_full("c.example/z", "shop");
        assert_eq!(pulls.registries.lock().unwrap().len(), 1);
        // There is also a limit across all registries, of which one namespace leaves a part to the others.
        let mut all = Vec::new();
        for number in 0..permits::share(REGISTRIES) {
            all.push(pulls.acquire(&format!("r{number}.example/x"), "shop").await.unwrap());
        }
        assert!(pulls.is_full("another.example/x", "shop"));
        assert!(!pulls.is_full("another.example/x", "bank"));
        let waits = tokio::spawn({
            let pulls = pulls.clone();
            async move { pulls.acquire("another.example/x", "shop").await }
        });
        tokio::task::yield_now().await;
        assert!(!pulls.is_full("another.example/x", "bank"), "who waits for its share keeps no registry");
        waits.abort();
        for number in permits::share(REGISTRIES)..REGISTRIES {
            all.push(pulls.acquire(&format!("r{number}.example/x"), "bank").await.unwrap());
        }
        assert!(pulls.is_full("another.example/x", "bank"));
    }
}
