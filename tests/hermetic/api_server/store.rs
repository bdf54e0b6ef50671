//! The objects, their versions, and the history that feeds the watches.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::crowd::Crowd;

/// The complete state of the server.
#[derive(Default)]
pub(crate) struct Store {
    objects: BTreeMap<Key, Value>,
    secrets: BTreeMap<(String, String), Value>,
    /// In the order in which they were written.
    pub(crate) events: Vec<Value>,
    /// One line per call.
    pub(crate) calls: Vec<String>,
    /// The headers that say who calls, of the last call: name and value.
    pub(crate) caller: Vec<(String, String)>,
    /// The rights of users, as `USER VERB RESOURCE NAMESPACE`, for answers to `SubjectAccessReview`s.
    pub(crate) rights: BTreeSet<String>,
    /// The specs of all received `SubjectAccessReview`s.
    pub(crate) access_reviews: Vec<Value>,
    /// The last assigned version.
    version: u64,
    /// The oldest version from which a watch can continue.
    oldest: u64,
    history: Vec<OperationEvent>,
    /// Watches that started under a lower number end.
    pub(super) generation: u64,
    made: u64,
    /// The version from which the newest watch started.
    pub(super) watched_from: u64,
    /// The watch cache, which answers lists that may be old: objects and their version.
    memory: Option<(BTreeMap<Key, Value>, u64)>,
    /// True if the server resizes running pods, as Kubernetes 1.33 does.
    pub(crate) resizes: bool,
    /// True if a webhook gives each pod that is resized its old resources.
    pub(crate) keeps_resources: bool,
    /// Pods that are listed in place of the stored ones.
    pub(crate) crowd: Option<Crowd>,
    /// True: no call is answered and no watch delivers anything, with all connections open.
    pub(super) mute: bool,
}

/// Plural of the kind, namespace and name.
type Key = (String, String, String);

/// One line of a watch.
pub(super) struct OperationEvent {
    version: u64,
    /// The plural of the object's kind; empty if the line is for every watch.
    pub(super) plural: String,
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, `ERROR`.
    pub(super) kind: &'static str,
    pub(super) object: Value,
}

fn key(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
    (plural, text("namespace"), text("name"))
}

fn at(plural: &str, namespace: &str, name: &str) -> Key {
    (plural.to_owned(), namespace.to_owned(), name.to_owned())
}

impl Store {
    /// The version from which the newest watch started.
    pub(crate) fn last_watch_from(&self) -> u64 {
        self.watched_from
    }

    /// Restores the first state of all objects, as from a backup.
    pub(crate) fn set_back(&mut self) {
        let first = |key: &Key| {
            let made = self.history.iter().find(|now| now.kind == "ADDED" && self::key(&now.object) == *key);
            made.unwrap().object.clone()
        };
        self.objects = self.objects.keys().map(|key| (key.clone(), first(key))).collect();
        self.version = 1;
        self.history.truncate(1);
        self.generation += 1;
    }

    /// From now on the watch cache, which answers lists that may be old, is not updated.
    pub(super) fn lag(&mut self) {
        self.memory = Some((self.objects.clone(), self.version));
    }

    /// All objects of a kind in a state of the requested age (`resourceVersion` of a list), and its version. `None`
    /// if no state is that new.
    pub(super) fn listed(&self, of: &str, version: Option<u64>) -> Option<(Vec<Value>, u64)> {
        let fits = |version: &u64| *version <= self.version;
        let (objects, at) = match (&self.memory, version) {
            (_, Some(wanted)) if !fits(&wanted) => return None,
            (Some((objects, at)), Some(wanted)) if wanted <= *at => (objects, *at),
            _ => (&self.objects, self.version),
        };
        let of_kind = objects.iter().filter(|((plural, ..), _)| plural == of);
        Some((of_kind.map(|(_, object)| object.clone()).collect(), at))
    }

    /// All objects of a kind as they were at an earlier version, which is returned too. `None` if that part of the
    /// history was dropped.
    pub(super) fn listed_at(&self, of: &str, version: u64) -> Option<(Vec<Value>, u64)> {
        let until = self.place(version)?;
        let mut objects = BTreeMap::new();
        for event in self.history[..until].iter().filter(|event| event.plural == of) {
            match event.kind {
                "DELETED" => objects.remove(&key(&event.object)),
                _ => objects.insert(key(&event.object), event.object.clone()),
            };
        }
        Some((objects.into_values().collect(), version))
    }

    /// The current version.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// All pods, by namespace and name.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Value> {
        self.all("pods")
    }

    /// All objects of a kind (`hookruns`), by namespace and name.
    pub(crate) fn all(&self, plural: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((of, ..), _)| of == plural).map(|(_, object)| object)
    }

    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        self.get("pods", namespace, name)
    }

    pub(crate) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.objects.get(&at(plural, namespace, name)).cloned()
    }

    pub(super) fn secret(&self, namespace: &str, name: &str) -> Option<Value> {
        self.secrets.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Stores an object: a new one, or in place of the one with its name. Nothing happens if nothing changes.
    pub(crate) fn put(&mut self, mut pod: Value) -> Value {
        let key = key(&pod);
        if pod["metadata"]["uid"].is_null() {
            self.made += 1;
            pod["metadata"]["uid"] = json!(format!("8f3c1c52-6a1e-4d0e-9a57-{:012}", self.made));
        }
        let old = self.objects.get(&key);
        if let Some(old) = old {
            pod["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
            if *old == pod {
                return pod;
            }
        }
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        self.version += 1;
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(key.clone(), pod.clone());
        self.happen(key.0, kind, pod.clone());
        pod
    }

    /// Changes a pod.
    pub(crate) fn edit(&mut self, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.edit_of("pods", namespace, name, change);
    }

    /// Changes an object.
    pub(crate) fn edit_of(
        &mut self,
        plural: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let mut object = self.get(plural, namespace, name).unwrap();
        change(&mut object);
        self.put(object);
    }

    /// Removes a pod.
    pub(crate) fn remove(&mut self, namespace: &str, name: &str) {
        self.remove_of("pods", namespace, name);
    }

    /// Removes an object.
    pub(crate) fn remove_of(&mut self, plural: &str, namespace: &str, name: &str) {
        let mut object = self.objects.remove(&at(plural, namespace, name)).unwrap();
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.happen(plural.to_owned(), "DELETED", object);
    }

    pub(super) fn put_secret(&mut self, namespace: &str, name: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<_, _> = data
            .iter()
            .map(|(key, text)| (*key, k8s_openapi::ByteString(text.as_bytes().to_vec())))
            .collect();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "data": data,
            "metadata": { "namespace": namespace, "name": name, "uid": "s", "resourceVersion": "1" } });
        self.secrets.insert((namespace.to_owned(), name.to_owned()), secret);
    }

    pub(crate) fn bookmark(&mut self) {
        let mark = json!({ "kind": "Pod", "apiVersion": "v1",
            "metadata": { "resourceVersion": self.version.to_string(), "creationTimestamp": null } });
        self.happen(String::new(), "BOOKMARK", mark);
    }

    pub(super) fn end_watches(&mut self) {
        self.generation += 1;
    }

    pub(crate) fn compact(&mut self) {
        self.version += 1;
        self.oldest = self.version;
        self.happen(String::new(), "ERROR", too_old());
    }

    /// The index in the history at which a watch from `version` starts; `None` if that part was dropped.
    pub(super) fn place(&self, version: u64) -> Option<usize> {
        (version >= self.oldest)
            .then(|| self.history.partition_point(|operation_event| operation_event.version <= version))
    }

    /// The history from this index on.
    pub(super) fn since(&self, place: usize) -> &[OperationEvent] {
        &self.history[place..]
    }

    fn happen(&mut self, plural: String, kind: &'static str, object: Value) {
        self.history.push(OperationEvent { version: self.version, plural, kind, object });
    }
}

/// The server's error for a version that is no longer in the history.
pub(super) fn too_old() -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410 })
}
