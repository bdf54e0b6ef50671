//! A cache of the objects of one kind, updated by one watch.
//!
//! Must not decide: it reports the state.

mod follow;
mod quota;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::cluster::server::{Selection, Server};
use crate::cluster::store::quota::Quota;

pub(crate) use quota::Share;

/// A kind of objects that can be cached.
pub(crate) trait Cached:
    Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
    /// The older API version of the kind, for releases that do not have the version of this type.
    const OLDER: Option<&'static str> = None;

    /// The cache key of the object.
    fn key(&self) -> String;

    /// The groups of the object, by which several objects are looked up together; empty for most kinds.
    fn groups(&self) -> Vec<String> {
        Vec::new()
    }

    /// The object's share of the limit of its namespace; `None` if the kind has no limit.
    fn share(&self) -> Option<Share> {
        None
    }

    /// False if no caller uses the object in this state: it is not cached.
    fn is_kept(&self) -> bool {
        true
    }

    /// True if nothing that any caller uses has changed since `before`.
    fn is_as(&self, _before: &Self) -> bool {
        false
    }
}

/// The cached objects. Clones share them, but each clone tracks its own [`Self::changed`].
#[derive(Clone)]
pub(crate) struct Store<T> {
    shared: Arc<Shared<T>>,
    updates: tokio::sync::watch::Receiver<()>,
}

/// The state that the watch updates.
struct Shared<T> {
    server: Server,
    selection: Selection,
    view: RwLock<CacheState<T>>,
    updates: tokio::sync::watch::Sender<()>,
}

struct CacheState<T> {
    objects: BTreeMap<String, Arc<T>>,
    /// Keys by group.
    groups: HashMap<String, BTreeSet<String>>,
    /// Groups that have changed since [`Store::touched`] was last called.
    touched: BTreeSet<String>,
    /// The size of the cached objects of each namespace.
    quota: Quota,
    current: bool,
    synced: bool,
}

impl<T> Default for CacheState<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            groups: HashMap::new(),
            touched: BTreeSet::new(),
            quota: Quota::default(),
            current: false,
            synced: false,
        }
    }
}

impl<T: Cached> CacheState<T> {
    /// Stores an object. False if nothing that any caller uses has changed.
    fn insert(&mut self, key: String, object: Arc<T>) -> bool {
        let was_refused = self.quota.forget(&key);
        if !object.is_kept() {
            return self.take(&key) || was_refused;
        }
        if let Some(cached) = self.objects.get_mut(&key)
            && object.is_as(cached)
        {
            self.quota.exchange(cached.share(), object.share());
            *cached = object;
            return false;
        }
        let is_new = !self.take(&key);
        if !self.quota.admits(&T::kind(&()), object.share(), is_new) {
            self.quota.refuse(key);
            return true;
        }
        for group in object.groups() {
            self.groups.entry(group.clone()).or_default().insert(key.clone());
            self.touched.insert(group);
        }
        self.objects.insert(key, object);
        true
    }

    /// Removes an object. False if it was not cached.
    fn take(&mut self, key: &str) -> bool {
        let Some(object) = self.objects.remove(key) else { return false };
        self.quota.give_back(object.share());
        for group in object.groups() {
            if let Some(keys) = self.groups.get_mut(&group) {
                keys.remove(key);
                if keys.is_empty() {
                    self.groups.remove(&group);
                }
            }
            self.touched.insert(group);
        }
        true
    }
}

impl<T> Debug for Store<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (count, current) = self.shared.read(|view| (view.objects.len(), view.current));
        let mut fields = f.debug_struct("Store");
        fields.field("of", &self.shared.selection.what).field("objects", &count).field("current", &current);
        fields.finish_non_exhaustive()
    }
}

impl<T: Cached> Store<T> {
    /// Watches until `stop`. The cache is empty when this returns; see [`Self::has_synced`].
    pub(crate) fn watch(server: Server, selection: Selection, stop: CancellationToken) -> Self {
        let (sender, updates) = tokio::sync::watch::channel(());
        let shared = Arc::new(Shared { server, selection, view: RwLock::default(), updates: sender });
        tokio::spawn(follow::run(Arc::clone(&shared), stop));
        Self { shared, updates }
    }

    /// All cached objects, by key.
    pub(crate) fn list(&self) -> Vec<Arc<T>> {
        self.shared.read(|view| view.objects.values().cloned().collect())
    }

    /// The same, and true if no object of this namespace is missing because it was too large to be cached.
    pub(crate) fn list_with(&self, namespace: &str) -> (Vec<Arc<T>>, bool) {
        self.shared
            .read(|view| (view.objects.values().cloned().collect(), !view.quota.has_refused(namespace)))
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<T>> {
        self.shared.read(|view| view.objects.get(key).cloned())
    }

    /// The objects of a group, by key. The cost does not depend on objects outside the group.
    pub(crate) fn group(&self, group: &str) -> Vec<Arc<T>> {
        self.shared.read(|view| {
            let keys = view.groups.get(group).into_iter().flatten();
            keys.filter_map(|key| view.objects.get(key).cloned()).collect()
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shared.read(|view| view.objects.is_empty())
    }

    /// True while the watch is connected: the cache is then as new as the API server can deliver it.
    pub(crate) fn is_current(&self) -> bool {
        self.shared.read(|view| view.current)
    }

    /// True once the objects have been listed: an object that is not in the cache did not exist then.
    pub(crate) fn has_synced(&self) -> bool {
        self.shared.read(|view| view.synced)
    }

    /// Returns when anything has changed since the last call on this clone: an object, or whether the cache is
    /// current. Several changes may be combined into one.
    pub(crate) async fn changed(&mut self) {
        // The sender exists as long as this value does, so that this never fails.
        if self.updates.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Stores an object that a write returned, before the watch delivers it. An object that is not in the cache
    /// (any more) is not added.
    pub(crate) fn upsert(&self, object: T) {
        self.shared.upsert(object);
    }
}

/// What only the controller uses.
#[cfg(target_os = "linux")]
impl<T: Cached> Store<T> {
    /// The objects whose keys have this prefix.
    pub(crate) fn beginning(&self, with: &str) -> Vec<Arc<T>> {
        self.shared.read(|view| {
            let from = view.objects.range(with.to_owned()..);
            from.take_while(|(key, _)| key.starts_with(with)).map(|(_, object)| Arc::clone(object)).collect()
        })
    }

    /// The groups that have changed since the last call. Only one caller may use it.
    pub(crate) fn touched(&self) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        if self.shared.read(|view| !view.touched.is_empty()) {
            self.shared.alter(|view| std::mem::swap(&mut touched, &mut view.touched));
        }
        touched
    }

    /// Removes an object that is known to be gone, before the watch reports it.
    pub(crate) fn remove(&self, key: &str, uid: &str) {
        self.shared.remove(key, Some(uid));
    }
}

impl<T> Shared<T> {
    fn read<R>(&self, query: impl FnOnce(&CacheState<T>) -> R) -> R {
        query(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn alter(&self, work: impl FnOnce(&mut CacheState<T>)) {
        work(&mut self.view.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn change(&self, work: impl FnOnce(&mut CacheState<T>)) {
        self.alter(work);
        self.updates.send_replace(());
    }

    fn set_current(&self, current: bool) {
        if self.read(|view| view.current != current) {
            self.change(|view| view.current = current);
        }
    }
}

impl<T: Cached> Shared<T> {
    /// True if an object of a list is cached; `quota` counts the objects of the list.
    fn admits(&self, object: &T, quota: &mut Quota) -> bool {
        if !object.is_kept() {
            return false;
        }
        let key = object.key();
        let is_new = self.read(|view| !view.objects.contains_key(&key));
        let is_admitted = quota.admits(&T::kind(&()), object.share(), is_new);
        if !is_admitted {
            quota.refuse(key);
        }
        is_admitted
    }

    /// Replaces the cache by a complete list, whose objects were counted in `quota`.
    fn replace(&self, objects: Vec<T>, quota: Quota) {
        let objects: BTreeMap<_, _> =
            objects.into_iter().map(|object| (object.key(), Arc::new(object))).collect();
        self.change(|view| {
            let gone: Vec<_> =
                view.objects.keys().filter(|key| !objects.contains_key(*key)).cloned().collect();
            for key in gone {
                view.take(&key);
            }
            view.quota.take_refused(quota);
            for (key, object) in objects {
                let version = |object: &Arc<T>| (object.uid(), object.resource_version());
                if view.objects.get(&key).is_none_or(|cached| version(cached) != version(&object)) {
                    view.insert(key, object);
                }
            }
            view.synced = true;
        });
    }

    /// Stores an object from the watch, unless the answer to a write has already stored a newer version.
    fn put(&self, object: T) {
        let mut has_changed = false;
        self.alter(|view| {
            let key = object.key();
            if view.objects.get(&key).is_none_or(|cached| is_not_older(&object, cached.as_ref())) {
                has_changed = view.insert(key, Arc::new(object));
            }
        });
        if has_changed {
            self.updates.send_replace(());
        }
    }

    fn remove(&self, key: &str, uid: Option<&str>) {
        self.change(|view| {
            view.quota.forget(key);
            // An object that was created again under the same key has another uid; a late deletion must not remove
            // it.
            if view.objects.get(key).is_some_and(|cached| cached.uid().as_deref() == uid) {
                view.take(key);
            }
        });
    }

    /// The newest version among `version` and those of the cached objects, if they are numbers.
    fn newest_after(&self, version: &str) -> String {
        let Ok(version) = version.parse::<u64>() else { return version.to_owned() };
        let cached = |view: &CacheState<T>| {
            let versions = view.objects.values().filter_map(|object| object.resource_version()?.parse().ok());
            versions.fold(version, u64::max)
        };
        self.read(cached).to_string()
    }

    fn upsert(&self, object: T) {
        let key = object.key();
        if self.read(|view| view.objects.contains_key(&key)) {
            self.put(object);
        }
    }
}

/// True unless `other` is known to be the newer state. Versions have always been numbers, and by contract since
/// 1.35.
pub(crate) fn is_not_older<T: Cached>(object: &T, other: &T) -> bool {
    let version = |object: &T| object.meta().resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
    match (version(object), version(other)) {
        (Some(mine), Some(theirs)) => mine >= theirs,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::pod::Pod;

    fn shared() -> Shared<Pod> {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let (updates, _) = tokio::sync::watch::channel(());
        let server = Server::new(kube::Client::try_from(config).unwrap());
        Shared { server, selection: Selection::default(), view: RwLock::default(), updates }
    }

    fn pod(uid: &str, version: u32, mirror: &str) -> Pod {
        let text = format!(
            r#"{{"metadata":{{"name":"web","namespace":"shop","uid":"{uid}","resourceVersion":"{version}",
                "annotations":{{"kubernetes.io/config.mirror":"{mirror}"}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn versions(shared: &Shared<Pod>) -> Vec<(String, String)> {
        let version = |pod: &Arc<Pod>| kube::ResourceExt::resource_version(pod.as_ref()).unwrap();
        shared
            .read(|view| view.objects.values().map(|pod| (pod.api_uid().to_owned(), version(pod))).collect())
    }

    #[tokio::test]
    async fn neither_watch_nor_answer_brings_back_an_older_state() {
        let shared = shared();
        shared.put(pod("a", 10, ""));
        shared.upsert(pod("a", 12, ""));
        shared.put(pod("a", 11, ""));
        assert_eq!(versions(&shared), [("a".into(), "12".into())]);
        shared.put(pod("a", 13, ""));
        shared.upsert(pod("a", 12, ""));
        assert_eq!(versions(&shared), [("a".into(), "13".into())]);
        // A list replaces the cache, even if the cached state is newer.
        shared.replace(vec![pod("a", 5, "")], Quota::default());
        assert_eq!(versions(&shared), [("a".into(), "5".into())]);
    }

    #[tokio::test]
    async fn a_deleted_pod_is_not_cached_again() {
        let shared = shared();
        shared.put(pod("a", 10, ""));
        let gone = pod("a", 11, "");
        shared.remove(&gone.key(), gone.uid().as_deref());
        shared.upsert(pod("a", 12, ""));
        assert_eq!(versions(&shared), []);
    }

    #[tokio::test]
    async fn a_late_goodbye_of_a_copy_does_not_take_the_next_one_along() {
        let shared = shared();
        shared.put(pod("a", 10, "static"));
        shared.put(pod("b", 11, "static"));
        let gone = pod("a", 12, "static");
        shared.remove(&gone.key(), gone.uid().as_deref());
        assert_eq!(versions(&shared), [("b".into(), "11".into())]);
    }

    #[tokio::test]
    async fn what_is_cached_stays_although_a_list_has_more_of_other_namespaces_than_there_is_for_all() {
        let shared = shared();
        let text = "x".repeat(2 << 20);
        let large = |namespace: &str, uid: u32| {
            let metadata = serde_json::json!({"name": "web", "namespace": namespace, "uid": uid.to_string(),
                "resourceVersion": "1", "annotations": {"inplace.dev/request": text}});
            serde_json::from_value::<Pod>(serde_json::json!({ "metadata": metadata })).unwrap()
        };
        shared.put(large("shop", 0));
        let mut quota = Quota::default();
        let admitted = (1..20).filter(|uid| {
            let other = large(&format!("other-{}", uid / 3), *uid);
            shared.admits(&other, &mut quota)
        });
        assert_eq!(admitted.count(), 15, "there is no more for all");
        assert!(!shared.admits(&large("bank", 20), &mut quota), "a new one");
        assert!(shared.admits(&large("shop", 0), &mut quota), "it is cached");
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let at = |version: &str| {
            let text = format!(r#"{{"metadata":{{"uid":"a","resourceVersion":"{version}"}}}}"#);
            serde_json::from_str::<Pod>(&text).unwrap()
        };
        assert!(is_not_older(&at("100"), &at("99")) && !is_not_older(&at("99"), &at("100")));
        assert!(is_not_older(&at("7"), &at("7")) && is_not_older(&at("opaque"), &at("100")));
    }
}
