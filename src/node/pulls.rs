//! Limits how many images are pulled at once: a limit per registry, so that a registry that hangs delays only images
//! from it, and a larger limit in all. Pulls nothing itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The total limit as a multiple of the limit per registry.
const REGISTRIES: usize = 16;
/// The registry of an image whose name contains none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The pull limits of a node. Clones share them.
#[derive(Clone, Debug)]
pub struct Pulls {
    from_each: usize,
    in_all: Arc<Semaphore>,
    /// One semaphore per registry with pulls in progress or waiting.
    registries: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// Held while an image is pulled.
#[derive(Debug)]
pub(super) struct PullPermit(#[expect(dead_code, reason = "held for its drop")] [OwnedSemaphorePermit; 2]);

impl Pulls {
    /// Allows `from_each` pulls from each registry.
    pub(super) fn new(from_each: usize) -> Self {
        let in_all = Arc::new(Semaphore::new(from_each.saturating_mul(REGISTRIES)));
        Self { from_each, in_all, registries: Arc::default() }
    }

    /// The number of pulls in progress.
    pub fn open(&self) -> usize {
        self.from_each.saturating_mul(REGISTRIES).saturating_sub(self.in_all.available_permits())
    }

    /// Whether a pull of this reference would have to wait.
    pub(super) fn is_full(&self, reference: &str) -> bool {
        self.in_all.available_permits() == 0 || self.registry(reference).available_permits() == 0
    }

    /// Waits for a permit to pull `reference`. The permit of its registry is acquired first: while it waits, it
    /// holds no permit of the total.
    pub(super) async fn acquire(&self, reference: &str) -> Option<PullPermit> {
        let of_registry = self.registry(reference).acquire_owned().await.ok()?;
        let of_node = Arc::clone(&self.in_all).acquire_owned().await.ok()?;
        Some(PullPermit([of_registry, of_node]))
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

    #[tokio::test]
    async fn one_registry_takes_nothing_from_another() {
        let pulls = Pulls::new(1);
        let held = pulls.acquire("a.example/x").await.unwrap();
        assert!(pulls.is_full("a.example/y") && !pulls.is_full("b.example/y"));
        let second = pulls.acquire("b.example/y").await.unwrap();
        assert_eq!(pulls.open(), 2);
        drop(held);
        assert!(!pulls.is_full("a.example/y"));
        drop(second);
        assert_eq!(pulls.open(), 0);
        // The semaphores of unused registries are removed.
        pulls.is_full("c.example/z");
        assert_eq!(pulls.registries.lock().unwrap().len(), 1);
        // There is also a limit across all registries.
        let mut all = Vec::new();
        for number in 0..REGISTRIES {
            all.push(pulls.acquire(&format!("r{number}.example/x")).await.unwrap());
        }
        assert!(pulls.is_full("another.example/x"));
    }
}
