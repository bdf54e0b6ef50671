//! Follows the target of each active rollout: caches the target as it was last looked up, and watches the pods
//! with the target's labels. The watch ends with the rollout.
//!
//! Must not decide which pods the rollout works on.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api::workload::UpdateFailurePolicy;
use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::controller::rollouts::cache::{Found, Key, TargetPods};
use crate::rollout::desired::Rollout;
use crate::rollout::target::{TargetState, Template};

/// The longest time that a looked-up target is used.
const OLD: Duration = Duration::from_secs(10);
/// The shorter limit, used while pods exist whose owner was unknown at the last look-up.
const OLD_WITH_UNKNOWN_OWNERS: Duration = Duration::from_secs(1);
/// If pods are selected by labels, the templates of at most this many owners are read.
const MAX_OWNERS: usize = 50;
/// Rollouts of one namespace that are followed at most. Each has a watch of its own.
const FOLLOWED_OF_NAMESPACE: usize = 256;
/// No further rollout of a namespace is followed while the cached pods of the older ones take this much memory, in
/// bytes.
const MAX_BYTES_OF_NAMESPACE: usize = 48 << 20;
/// Watches of one namespace that list their pods at the same time: the memory of these pods is not known yet.
const LISTING_OF_NAMESPACE: usize = 8;

/// Whether a rollout may be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It may.
    Free,
    /// Not before the pods of others have been listed.
    Listing,
    /// Not before an older rollout has ended.
    Full,
}

/// What is followed for one rollout.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) pods: TargetPods,
    pub(super) target: TargetState,
    labels: String,
    at: Instant,
    watch: Arc<DropGuard>,
}

/// What is followed for all rollouts.
#[derive(Debug)]
pub(super) struct Follows {
    server: Server,
    updates: mpsc::Sender<Key>,
    stop: CancellationToken,
    by_key: Mutex<HashMap<Key, Arc<Follow>>>,
}

impl Follows {
    pub(super) fn new(server: Server, updates: mpsc::Sender<Key>, stop: CancellationToken) -> Self {
        Self { server, updates, stop, by_key: Mutex::default() }
    }

    /// Stops following for `key`.
    pub(super) fn remove(&self, key: &Key) {
        self.with(|all| drop(all.remove(key)));
    }

    /// What is followed for `key`, as it was last looked up.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Follow>> {
        self.with(|all| all.get(key).cloned())
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.with(|all| all.contains_key(key))
    }

    /// Whether `key` may be followed; `older` are the older active rollouts of its namespace. The oldest one always
    /// may.
    pub(super) fn room(&self, key: &Key, older: &[Key]) -> Room {
        self.with(|all| {
            let followed = older.iter().filter_map(|other| all.get(other));
            let bytes: usize = followed.map(|follow| follow.pods.bytes()).sum();
            let is_listing = |(other, follow): &(&Key, &Arc<Follow>)| {
                other.namespace == key.namespace && !follow.pods.has_synced()
            };
            let listing = if all.contains_key(key) { 0 } else { all.iter().filter(is_listing).count() };
            Room::of(older.len(), bytes, listing)
        })
    }

    /// What is followed for `key`. The target is looked up again if the last look-up is too old, or if `refresh` is
    /// set.
    pub(super) async fn of(&self, key: &Key, rollout: &Rollout, refresh: bool) -> Result<Arc<Follow>, Error> {
        let cached = self.get(key);
        if let Some(cached) = cached.clone().filter(|cached| !refresh && !cached.is_old()) {
            return Ok(cached);
        }
        let mut found = self.server.find_target(rollout).await?;
        let same = cached.filter(|cached| cached.labels == found.labels);
        let (pods, watch) = match &same {
            Some(cached) => (cached.pods.clone(), Arc::clone(&cached.watch)),
            None => self.watch(key, &found.labels),
        };
        self.templates(rollout, &pods, &mut found).await?;
        let Found { labels, target } = found;
        let follow = Arc::new(Follow { pods, target, labels, at: Instant::now(), watch });
        self.with(|all| drop(all.insert(key.clone(), Arc::clone(&follow))));
        Ok(follow)
    }

    /// Starts a watch that enqueues `key` whenever a pod with these labels changes.
    fn watch(&self, key: &Key, labels: &str) -> (TargetPods, Arc<DropGuard>) {
        let stop = self.stop.child_token();
        let pods = TargetPods::watch(&self.server, &key.namespace, labels, &stop);
        let (mut watched, updates, key) = (pods.clone(), self.updates.clone(), key.clone());
        let over = stop.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = over.cancelled() => break,
                    () = watched.changed() => {
                        if updates.send(key.clone()).await.is_err() {
                            break;
                        }
                    }
                }
            }
        });
        (pods, Arc::new(stop.drop_guard()))
    }

    /// Reads the templates of the owners of pods that are selected by labels.
    async fn templates(&self, rollout: &Rollout, pods: &TargetPods, found: &mut Found) -> Result<(), Error> {
        let TargetState::Present { owners: None, templates, .. } = &mut found.target else { return Ok(()) };
        let aborts = rollout.spec.on_failure == UpdateFailurePolicy::Abort;
        if rollout.spec.allow_template_drift && !aborts || rollout.images().next().is_none() {
            return Ok(());
        }
        let owners: BTreeMap<_, _> = pods
            .list()
            .into_iter()
            .filter_map(|(_, pod)| pod.owner.clone())
            .map(|owner| (owner.uid.clone(), owner))
            .collect();
        for owner in owners.values().take(MAX_OWNERS) {
            templates.extend(self.server.template_of(&rollout.namespace, owner).await?);
        }
        templates.sort_by(|one: &Template, other| one.owner.cmp(&other.owner));
        Ok(())
    }

    fn with<R>(&self, work: impl FnOnce(&mut HashMap<Key, Arc<Follow>>) -> R) -> R {
        work(&mut self.by_key.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Room {
    /// `older`: the number of older rollouts, `bytes`: the memory of their pods, `listing`: the watches that list.
    fn of(older: usize, bytes: usize, listing: usize) -> Self {
        if older >= FOLLOWED_OF_NAMESPACE || bytes >= MAX_BYTES_OF_NAMESPACE {
            Self::Full
        } else if listing >= LISTING_OF_NAMESPACE {
            Self::Listing
        } else {
            Self::Free
        }
    }
}

impl Follow {
    fn is_old(&self) -> bool {
        let age = self.at.elapsed();
        age >= OLD || age >= OLD_WITH_UNKNOWN_OWNERS && self.has_unknown_owners()
    }

    /// True if there are pods whose owner was not found when the target was looked up.
    fn has_unknown_owners(&self) -> bool {
        let TargetState::Present { owners: Some(owners), .. } = &self.target else { return false };
        let pods = self.pods.list();
        pods.iter().any(|(_, pod)| pod.owner.as_ref().is_none_or(|owner| !owners.contains(&owner.uid)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_a_limited_number_of_watches_and_of_pods_in_them() {
        assert_eq!(Room::of(0, 0, 0), Room::Free, "the oldest one");
        assert_eq!(Room::of(FOLLOWED_OF_NAMESPACE - 1, MAX_BYTES_OF_NAMESPACE - 1, 0), Room::Free);
        assert_eq!(Room::of(FOLLOWED_OF_NAMESPACE, 0, 0), Room::Full);
        assert_eq!(Room::of(1, MAX_BYTES_OF_NAMESPACE, LISTING_OF_NAMESPACE), Room::Full);
        assert_eq!(Room::of(1, 0, LISTING_OF_NAMESPACE), Room::Listing);
    }
}
