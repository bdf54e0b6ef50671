//! Which `EndpointSlice`s send traffic to a pod. A namespace is watched as long as a caller needs it.
//!
//! Must not decide: it reports what the slices say. An endpoint without conditions is interpreted as proxies
//! interpret it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::server::{Selection, Server};
use crate::cluster::store::{Cached, Store};

/// The watched namespaces.
#[derive(Clone, Debug)]
pub(super) struct Slices {
    server: Server,
    watched: Arc<Mutex<HashMap<String, Weak<Watched>>>>,
}

/// The watch of one namespace. It ends when the last reference is dropped.
#[derive(Debug)]
struct Watched {
    store: Store<Slice>,
    _stop: DropGuard,
}

/// What the slices say about one pod. The watch runs as long as this value exists.
#[derive(Debug)]
pub struct PodSlices {
    namespace: Arc<Watched>,
    uid: String,
}

impl Slices {
    pub(super) fn new(server: Server) -> Self {
        Self { server, watched: Arc::default() }
    }

    /// The slices' view of the pod with this uid at the API server.
    pub(super) fn of(&self, namespace: &str, uid: String) -> PodSlices {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(namespace) = watched.get(namespace).and_then(Weak::upgrade) {
            return PodSlices { namespace, uid };
        }
        watched.retain(|_, watch| watch.strong_count() > 0);
        let stop = CancellationToken::new();
        let selection = Selection {
            what: format!("the EndpointSlices of namespace {namespace}"),
            namespace: Some(namespace.to_owned()),
            ..Selection::default()
        };
        let store = Store::watch(self.server.clone(), selection, stop.clone());
        let new = Arc::new(Watched { store, _stop: stop.drop_guard() });
        watched.insert(namespace.to_owned(), Arc::downgrade(&new));
        PodSlices { namespace: new, uid }
    }
}

impl PodSlices {
    /// The names of the slices that send traffic to the pod; `None` while that is unknown.
    pub fn serving(&self) -> Option<Vec<String>> {
        let store = &self.namespace.store;
        // Check first whether the cache is current: what is read after the check is at least as new.
        (store.has_synced() && store.is_current())
            .then(|| store.group(&self.uid).iter().map(|slice| slice.name_any()).collect())
    }
}

/// One slice: its name, and the uids of the pods that it sends traffic to.
#[derive(Clone, Debug, Deserialize, Resource)]
#[serde(from = "Raw")]
#[resource(inherit = EndpointSlice)]
struct Slice {
    metadata: ObjectMeta,
    sends_to: Vec<String>,
}

impl Cached for Slice {
    const OLDER: Option<&'static str> = Some("v1beta1");

    fn key(&self) -> String {
        self.name_any()
    }

    fn groups(&self) -> Vec<String> {
        self.sends_to.clone()
    }
}

/// The fields that are read; they are the same in all API versions.
#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    metadata: ObjectMeta,
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    conditions: Conditions,
    target_ref: Option<TargetRef>,
}

#[derive(Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
}

#[derive(Deserialize)]
struct TargetRef {
    uid: Option<String>,
}

impl Conditions {
    /// A ready endpoint gets traffic, also if its pod is not Ready and published anyway; a serving endpoint may get
    /// traffic. Older releases only report `ready`, and an endpoint that reports neither must be treated as ready.
    fn sends(&self) -> bool {
        match (self.ready, self.serving) {
            (None, None) => true,
            (ready, serving) => ready.unwrap_or_default() || serving.unwrap_or_default(),
        }
    }
}

impl From<Raw> for Slice {
    fn from(raw: Raw) -> Self {
        let endpoints = raw.endpoints.unwrap_or_default();
        let sending = endpoints.into_iter().filter(|endpoint| endpoint.conditions.sends());
        let mut sends_to: Vec<_> = sending.filter_map(|endpoint| endpoint.target_ref?.uid).collect();
        sends_to.sort_unstable();
        sends_to.dedup();
        let ObjectMeta { name, namespace, uid, resource_version, .. } = raw.metadata;
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        Self { metadata, sends_to }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slice_sends_traffic_to_what_it_does_not_say_no_to() {
        for (conditions, sends) in [
            (json!({"ready": true, "serving": true, "terminating": false}), true),
            (json!({"ready": false, "serving": false, "terminating": false}), false),
            // Terminating, but still serving.
            (json!({"ready": false, "serving": true, "terminating": true}), true),
            // Published although the pod is not Ready.
            (json!({"ready": true, "serving": false}), true),
            (json!({"ready": true}), true),
            (json!({"ready": false}), false),
            (json!({"ready": null, "serving": false}), false),
            (json!({}), true),
        ] {
            let slice = json!({"metadata": {"name": "web-x"}, "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": {"kind": "Pod", "uid": "u-1"}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": true}},
            ]});
            let slice: Slice = serde_json::from_value(slice).unwrap();
            assert_eq!(slice.sends_to, ["u-1"][..usize::from(sends)]);
        }
        let empty: Slice = serde_json::from_value(json!({"endpoints": null})).unwrap();
        assert!(empty.sends_to.is_empty());
        let bare = json!({"endpoints": [{"addresses": [], "targetRef": {"uid": "u-1"}}]});
        assert_eq!(serde_json::from_value::<Slice>(bare).unwrap().sends_to, ["u-1"]);
    }
}
