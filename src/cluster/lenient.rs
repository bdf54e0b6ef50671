//! Reads objects that cannot be parsed as they are, so that one of them does not hide the others: a user can store
//! managed fields with a time that this project cannot represent, and values of a greater depth than the parser
//! accepts.
//!
//! Such an object is parsed again without its managed fields. If this fails too, only its metadata is parsed: the
//! object exists, and each kind decides what the absence of the other fields means. What is skipped may have any depth.

use kube::core::WatchEvent;
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

/// An object without its managed fields.
#[derive(Deserialize)]
struct Unmanaged {
    metadata: Metadata,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// An object without anything but its metadata.
#[derive(Deserialize)]
struct Outline {
    metadata: Metadata,
}

/// The metadata of an object, without the managed fields.
#[derive(Deserialize)]
struct Metadata {
    #[serde(default, rename = "managedFields")]
    _managed_fields: IgnoredAny,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A line of a watch about an object.
#[derive(Deserialize)]
struct Event<O> {
    #[serde(rename = "type")]
    change: Change,
    object: O,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Change {
    Added,
    Modified,
    Deleted,
}

impl Change {
    fn of<T>(self, object: T) -> WatchEvent<T> {
        match self {
            Self::Added => WatchEvent::Added(object),
            Self::Modified => WatchEvent::Modified(object),
            Self::Deleted => WatchEvent::Deleted(object),
        }
    }
}

/// Parses an answer.
///
/// # Errors
/// Why it cannot be parsed as it is.
pub(super) fn answer<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let again = || serde_json::from_slice(text).ok().and_then(unmanaged);
    serde_json::from_slice(text).or_else(|error| again().ok_or(error))
}

/// Parses one object of a list, or an object in the answer to a write.
///
/// # Errors
/// Why it cannot be parsed as it is.
pub(super) fn item<T>(text: &[u8]) -> serde_json::Result<T>
where
    T: Resource<DynamicType = ()> + DeserializeOwned,
{
    let least = || serde_json::from_slice(text).ok().and_then(outline);
    answer(text).or_else(|error| least().ok_or(error))
}

/// Parses one line of a watch.
///
/// # Errors
/// Why it cannot be parsed as it is.
pub(super) fn event<T>(line: &str) -> serde_json::Result<WatchEvent<T>>
where
    T: Resource<DynamicType = ()> + DeserializeOwned,
{
    let again = || {
        let Event { change, object } = serde_json::from_str(line).ok()?;
        Some(change.of(unmanaged(object)?))
    };
    let least = || {
        let Event { change, object } = serde_json::from_str(line).ok()?;
        Some(change.of(outline(object)?))
    };
    serde_json::from_str(line).or_else(|error| again().or_else(least).ok_or(error))
}

fn unmanaged<T: DeserializeOwned>(object: Unmanaged) -> Option<T> {
    let Unmanaged { metadata, mut rest } = object;
    rest.insert("metadata".to_owned(), Value::Object(metadata.rest));
    serde_json::from_value(Value::Object(rest)).ok()
}

fn outline<T>(object: Outline) -> Option<T>
where
    T: Resource<DynamicType = ()> + DeserializeOwned,
{
    let mut fields = Map::new();
    fields.insert("metadata".to_owned(), Value::Object(object.metadata.rest));
    let read: T = serde_json::from_value(Value::Object(fields)).ok()?;
    let (namespace, name) = (read.meta().namespace.as_deref().unwrap_or_default(), read.name_any());
    tracing::warn!("{} {namespace}/{name} cannot be read, except for its metadata", T::kind(&()));
    Some(read)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ControllerRevision;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    /// Nested deeper than the parser accepts.
    fn deep() -> Value {
        (0..200).fold(json!({}), |inside, _| json!({"f:x": inside}))
    }

    /// A pod whose managed fields have the entry `managed`.
    fn pod(managed: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "app"}]},
            "metadata": {"namespace": "shop", "name": "web", "uid": "u", "managedFields": [managed]}})
    }

    fn line(object: &Value) -> String {
        format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}")
    }

    fn modified<T>(object: &Value) -> T
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let Ok(WatchEvent::Modified(read)) = event::<T>(&line(object)) else { panic!("{object}") };
        read
    }

    #[test]
    fn managed_fields_that_cannot_be_read_hide_nothing_else_of_an_object() {
        for managed in [
            json!({"manager": "kubectl", "time": "9999-12-31T23:59:59Z"}),
            json!({"manager": "kubectl", "fieldsV1": deep()}),
        ] {
            let odd = pod(&managed);
            let text = odd.to_string();
            assert!(serde_json::from_str::<Pod>(&text).is_err(), "{text}");
            let reads =
                [item::<Pod>(text.as_bytes()).unwrap(), answer(text.as_bytes()).unwrap(), modified(&odd)];
            for read in reads {
                assert_eq!((read.name_any().as_str(), read.uid().as_deref()), ("web", Some("u")));
                assert_eq!(read.spec.unwrap().containers[0].name, "app");
            }
        }
        // What can be read is complete.
        let usual = pod(&json!({"manager": "kubectl", "time": "2026-11-20T10:00:00Z"}));
        assert_eq!(modified::<Pod>(&usual).metadata.managed_fields.unwrap().len(), 1);
    }

    #[test]
    fn an_object_of_a_list_that_cannot_be_read_at_all_is_there_with_its_metadata() {
        let odd = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 7, "data": deep(),
            "metadata": {"namespace": "shop", "name": "web-1", "labels": {"app": "web"}}});
        let text = odd.to_string();
        assert!(answer::<ControllerRevision>(text.as_bytes()).is_err());
        for read in [item::<ControllerRevision>(text.as_bytes()).unwrap(), modified(&odd)] {
            assert_eq!((read.name_any().as_str(), read.labels()["app"].as_str()), ("web-1", "web"));
            assert_eq!((read.revision, read.data), (0, None));
        }
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for text in ["", "{", "no", "{}", "[]", r#"{"metadata":{"name":7}}"#] {
            assert!(event::<Pod>(text).is_err() && event::<Pod>(&line(&json!(text))).is_err(), "{text}");
        }
        assert!(item::<Pod>(br#"{"metadata":{"name":7}}"#).is_err() && item::<Pod>(b"{").is_err());
        assert!(event::<Pod>(r#"{"type":"MODIFIED","object":{"metadata"#).unwrap_err().is_eof());
        let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7"}}}"#;
        assert!(matches!(event::<Pod>(bookmark), Ok(WatchEvent::Bookmark(_))));
    }
}
