//! Objects cut down to what is needed while they are being read. Must not decide what is needed: that is said by kind.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::cluster::store::{Cached, Share};

/// The longest text of an owner: names and groups are no longer.
const LONGEST_OF_OWNER: usize = 253;
/// What an object takes beside its texts.
const OVERHEAD: usize = 512;

/// What is kept of a kind of objects.
pub trait Trim: Clone + std::fmt::Debug + Send + Sync + Sized + 'static {
    /// The kind.
    type Kind: Resource<DynamicType = ()>;
    /// What an object is read as first.
    type Source: DeserializeOwned;

    /// Metadata, which is cut down by the caller, and what is kept of the rest.
    fn trim(source: Self::Source) -> (ObjectMeta, Self);

    /// See [`Cached::groups`].
    fn groups(&self, meta: &ObjectMeta) -> Vec<String>;

    /// True when it says the same as `before`, whatever the versions.
    fn says_the_same(&self, before: &Self) -> bool;

    /// About how many bytes of it are kept, without its metadata.
    fn bytes(&self) -> usize {
        0
    }

    /// How many bytes are kept of the objects of one namespace, with their metadata; `None`: as many as there are.
    fn most_bytes() -> Option<usize> {
        None
    }
}

/// One object.
#[derive(Clone, Debug)]
pub struct Trimmed<T> {
    /// Name, namespace, uid, version, controller, and whether it is on its way out.
    pub meta: ObjectMeta,
    /// What is kept of the rest.
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

/// An owner as far as it is kept: the API server bounds none of its texts. One that is cut is nobody's.
fn bounded(owner: &OwnerReference) -> OwnerReference {
    let cut = |text: &str| text.chars().take(LONGEST_OF_OWNER).collect();
    OwnerReference {
        api_version: cut(&owner.api_version),
        kind: cut(&owner.kind),
        name: cut(&owner.name),
        uid: cut(&owner.uid),
        ..owner.clone()
    }
}

impl<T: Trim> Cached for Trimmed<T> {
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
        Some(Share { namespace, bytes: OVERHEAD + texts + owner + self.value.bytes(), most })
    }

    fn is_as(&self, before: &Self) -> bool {
        let rest = |object: &Self| ObjectMeta { resource_version: None, ..object.meta.clone() };
        rest(self) == rest(before) && self.value.says_the_same(&before.value)
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

/// What an object of this name is looked up by.
pub(in crate::cluster) fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Its controller.
pub(in crate::cluster) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}
