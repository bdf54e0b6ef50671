//! Reduces objects to the needed fields when they are read. Must not decide which fields are needed: each kind
//! does (`kinds`).
//!
//! An object is first parsed into the source type of its kind, which may hold more than what is cached (a whole pod
//! with its environment, a whole workload); that value is dropped before the next object is parsed.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::cluster::store::{Cached, Share};

/// The longest cached text of an owner reference: names and groups are not longer.
const MAX_TEXT_OF_OWNER: usize = 253;
/// The memory of a cached object beside its texts.
const OVERHEAD: usize = 512;

/// The cached part of a kind of objects.
pub(crate) trait Trim: Clone + std::fmt::Debug + Send + Sync + Sized + 'static {
    /// The kind of the objects.
    type Kind: Resource<DynamicType = ()>;
    /// The type that an object is parsed into first.
    type Source: DeserializeOwned;

    /// See [`Cached::OLDER`].
    const OLDER: Option<&'static str> = None;

    /// Splits an object into its metadata, which the caller reduces, and the cached part of the rest.
    fn trim(source: Self::Source) -> (ObjectMeta, Self);

    /// See [`Cached::groups`].
    fn groups(&self, meta: &ObjectMeta) -> Vec<String>;

    /// See [`Cached::is_kept`].
    fn is_kept(&self) -> bool {
        true
    }

    /// True if this is equal to `before`, regardless of the versions.
    fn is_unchanged_since(&self, before: &Self) -> bool;

    /// The approximate size of the cached part in bytes, without its metadata.
    fn bytes(&self) -> usize {
        0
    }

    /// The limit for the cached objects of one namespace, in bytes and with their metadata; `None`: no limit.
    fn most_bytes() -> Option<usize> {
        None
    }
}

/// A cached object.
#[derive(Clone, Debug)]
pub(crate) struct Trimmed<T> {
    /// Name, namespace, uid, version, deletion, and the controller.
    pub meta: ObjectMeta,
    /// The cached part of the rest.
    pub value: T,
}

impl<'de, T: Trim> Deserialize<'de> for Trimmed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (meta, value) = T::trim(T::Source::deserialize(deserializer)?);
        let controller = controller(&meta).map(bounded);
        let meta = ObjectMeta {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.resource_version,
            deletion_timestamp: meta.deletion_timestamp,
            owner_references: controller.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        Ok(Self { meta, value })
    }
}

/// An owner reference with bounded texts, because the API server bounds none of them. A truncated reference matches
/// no owner.
fn bounded(owner: &OwnerReference) -> OwnerReference {
    let cut = |text: &str| text.chars().take(MAX_TEXT_OF_OWNER).collect();
    OwnerReference {
        api_version: cut(&owner.api_version),
        kind: cut(&owner.kind),
        name: cut(&owner.name),
        uid: cut(&owner.uid),
        ..owner.clone()
    }
}

impl<T: Trim> Cached for Trimmed<T> {
    const OLDER: Option<&'static str> = T::OLDER;

    /// Namespace and name.
    fn key(&self) -> String {
        key(self.meta.namespace.as_deref().unwrap_or_default(), &self.name_any())
    }

    fn groups(&self) -> Vec<String> {
        self.value.groups(&self.meta)
    }

    fn share(&self) -> Option<Share> {
        let most = T::most_bytes()?;
        let meta = &self.meta;
        let owners = meta.owner_references.iter().flatten();
        let owner: usize = owners
            .map(|owner| owner.api_version.len() + owner.kind.len() + owner.name.len() + owner.uid.len())
            .sum();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let texts = [&meta.name, &meta.namespace, &meta.uid, &meta.resource_version];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        Some(Share {
            namespace,
            bytes: OVERHEAD + texts + owner + self.value.bytes(),
            most,
            most_of_all: None,
        })
    }

    fn is_kept(&self) -> bool {
        self.value.is_kept()
    }

    fn is_as(&self, before: &Self) -> bool {
        let rest = |object: &Self| ObjectMeta { resource_version: None, ..object.meta.clone() };
        rest(self) == rest(before) && self.value.is_unchanged_since(&before.value)
    }
}

impl<T: Trim> Resource for Trimmed<T> {
    type DynamicType = ();
    type Scope = <T::Kind as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        T::Kind::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        T::Kind::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        T::Kind::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        T::Kind::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

/// Reads the object of a watch event as the cache does, and what the cache asks of it.
#[cfg(any(fuzzing, feature = "faults"))]
pub(crate) fn watched<T: Trim>(event: &[u8]) {
    use kube::core::WatchEvent::{Added, Deleted, Modified};
    if let Ok(Added(object) | Modified(object) | Deleted(object)) =
        serde_json::from_slice::<kube::core::WatchEvent<Trimmed<T>>>(event)
    {
        let _ = (object.key(), object.groups(), object.share(), object.is_kept(), object.is_as(&object));
    }
}

/// The cache key of an object.
pub(crate) fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The controller in the object's owner references.
pub(crate) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

#[cfg(target_os = "linux")]
pub(crate) fn within(namespace: &str) -> String {
    format!("in/{namespace}")
}

/// The metadata of an object. Managed fields that cannot be read are removed from it: a user may write any time into
/// them.
pub(crate) fn meta_of(object: &mut Value) -> ObjectMeta {
    let Some(meta) = object.get_mut("metadata") else { return ObjectMeta::default() };
    ObjectMeta::deserialize(&*meta).unwrap_or_else(|_| {
        if let Some(fields) = meta.as_object_mut() {
            fields.remove("managedFields");
        }
        ObjectMeta::deserialize(&*meta).unwrap_or_default()
    })
}

/// Parses an object; logs if it is unreadable. The parser's message is not logged, because it contains values.
pub(crate) fn readable<T: Resource<DynamicType = ()> + DeserializeOwned>(
    meta: &ObjectMeta,
    source: Value,
) -> Option<T> {
    let read = serde_json::from_value(source).ok();
    if read.is_none() {
        let name = meta.name.as_deref().unwrap_or_default();
        tracing::warn!(
            "{} {}/{name} cannot be decoded and is ignored: check that the CRD is that of this release \
             (`inplace crds` prints it)",
            T::kind(&()),
            namespace(meta)
        );
    }
    read
}

pub(crate) fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn managed_fields_that_cannot_be_read_do_not_hide_the_metadata() {
        let of = |time: &str| {
            json!({"metadata": {"namespace": "shop", "name": "web",
                "managedFields": [{"manager": "curl", "time": time}]}})
        };
        let meta = meta_of(&mut of("2026-11-20T10:00:00Z"));
        assert!(meta.managed_fields.is_some_and(|fields| fields.len() == 1));
        let mut odd = of("9999-12-31T23:59:59Z");
        let meta = meta_of(&mut odd);
        assert_eq!((namespace(&meta), meta.name.as_deref()), ("shop", Some("web")));
        // The kind reads the rest of the object.
        assert_eq!(odd, json!({"metadata": {"namespace": "shop", "name": "web"}}));
        assert_eq!(meta_of(&mut json!({})), ObjectMeta::default());
    }
}
