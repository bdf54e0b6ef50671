//! Reads and sets arbitrary annotations of a pod, for hooks that name them.
//!
//! Must not cache them: annotations of other writers may hold anything.

use std::collections::BTreeMap;

use json_patch::PatchOperation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use kube::core::Request;
use kube::core::params::GetParams;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::error::Error;
use crate::cluster::patch::{self, ANNOTATIONS, UID, VERSION};
use crate::cluster::pod::{MIRROR, Pod};
use crate::cluster::server::{Change, Server};
use crate::failure::Class;

/// The number of attempts when other writers change the pod at the same time.
const MAX_ATTEMPTS: u32 = 3;

/// The metadata of a pod; spec and status are not read.
#[derive(Deserialize)]
struct Meta {
    metadata: ObjectMeta,
}

impl Server {
    /// The annotations of a pod. `uid` is the uid at the node's runtime; if it is given, only that pod is read.
    ///
    /// # Errors
    /// `Gone` if the pod does not exist, or another pod has its name.
    pub async fn annotations(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<BTreeMap<String, String>, Error> {
        Ok(self.meta(namespace, name, uid).await?.annotations.unwrap_or_default())
    }

    /// Sets annotations of a pod, all or none. Annotations that already have the wanted value are not written.
    ///
    /// # Errors
    /// `Gone` if the pod does not exist, or another pod has its name.
    pub async fn annotate(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        wanted: &[(&str, &str)],
    ) -> Result<(), Error> {
        let doing = format!("annotating pod {namespace}/{name}");
        let mut attempts = 0;
        loop {
            attempts += 1;
            let seen = self.meta(namespace, name, uid).await?;
            let change = set(&seen, wanted);
            if change.is_empty() {
                return Ok(());
            }
            match self.change(&doing, namespace, name, &Change::Json(change)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_test_failed() && attempts < MAX_ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn meta(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<ObjectMeta, Error> {
        let doing = format!("reading the annotations of pod {namespace}/{name}");
        let request = Request::new(Pod::url_path(&(), Some(namespace)));
        let seen: Meta = self.ask(&doing, request.get_metadata(name, &GetParams::default())).await?;
        if uid.is_none_or(|uid| is(&seen.metadata, uid)) {
            return Ok(seen.metadata);
        }
        let message = "the pod does not exist any more; another pod has its name".to_owned();
        Err(Error::own(&doing, Class::Gone, message))
    }
}

/// Whether the pod has this uid at its runtime. A static pod has one uid at its runtime and another one at the API
/// server.
fn is(meta: &ObjectMeta, uid: &str) -> bool {
    let mirrored = meta.annotations.as_ref().and_then(|annotations| annotations.get(MIRROR));
    mirrored.map(String::as_str).or(meta.uid.as_deref()) == Some(uid)
}

/// The JSON patch operations that set the missing annotations of `wanted`. They apply only to the pod that was
/// `seen`.
fn set(seen: &ObjectMeta, wanted: &[(&str, &str)]) -> Vec<PatchOperation> {
    let has = |key: &str, value: &str| {
        seen.annotations.as_ref().and_then(|annotations| annotations.get(key)).is_some_and(|is| is == value)
    };
    let lacking: Vec<_> = wanted.iter().filter(|(key, value)| !has(key, value)).collect();
    if lacking.is_empty() {
        return Vec::new();
    }
    let mut operations = vec![patch::test(UID, seen.uid.clone())];
    if seen.annotations.is_some() {
        operations.extend(lacking.into_iter().map(|(key, value)| patch::add(patch::annotation(key), *value)));
    } else {
        // Adding the whole map would remove annotations that were written in the meantime, so it is tied to the
        // version that was seen.
        let all: Value = lacking.into_iter().copied().collect();
        operations.push(patch::test(VERSION, seen.resource_version.clone()));
        operations.push(patch::add(ANNOTATIONS, all));
    }
    operations
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meta(annotations: Option<&[(&str, &str)]>) -> ObjectMeta {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        ObjectMeta {
            uid: Some("u1".to_owned()),
            resource_version: Some("7".to_owned()),
            annotations: annotations.map(|all| all.iter().map(owned).collect()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn keys_are_escaped_and_values_are_json() {
        let change = set(&meta(Some(&[("a", "1")])), &[("example.dev/a~b", "\"quoted\", \\ and }")]);
        assert_eq!(
            serde_json::to_value(change).unwrap(),
            json!([
                { "op": "test", "path": "/metadata/uid", "value": "u1" },
                { "op": "add", "path": "/metadata/annotations/example.dev~1a~0b", "value": "\"quoted\", \\ and }" },
            ])
        );
    }

    #[test]
    fn without_annotations_the_object_comes_first_and_only_to_that_version() {
        let change = set(&meta(None), &[("a/b", "1"), ("c", "2")]);
        assert_eq!(
            serde_json::to_value(change).unwrap(),
            json!([
                { "op": "test", "path": "/metadata/uid", "value": "u1" },
                { "op": "test", "path": "/metadata/resourceVersion", "value": "7" },
                { "op": "add", "path": "/metadata/annotations", "value": { "a/b": "1", "c": "2" } },
            ])
        );
    }

    #[test]
    fn what_is_as_it_should_be_is_not_written() {
        let seen = meta(Some(&[("a", "1"), ("b", "2")]));
        assert!(set(&seen, &[("a", "1")]).is_empty());
        assert_eq!(set(&seen, &[("a", "1"), ("b", "3")]).len(), 2);
    }

    #[test]
    fn a_static_pod_is_known_by_the_uid_on_its_node() {
        assert!(is(&meta(None), "u1") && !is(&meta(None), "u2"));
        let mirror = meta(Some(&[(MIRROR, "node-uid")]));
        assert!(is(&mirror, "node-uid") && !is(&mirror, "u1"));
    }
}
