//! Builds the patches of this program: the field manager, and the operations of a JSON patch (RFC 6902). Sends nothing.
//!
//! A path is given as its tokens; they are escaped here and nowhere else.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation};
use kube::api::Patch;
use kube::core::params::PatchParams;
use serde_json::Value;

use crate::cluster::server::MANAGER;

/// The path of an object's uid.
pub(crate) const UID: [&str; 2] = ["metadata", "uid"];
/// The path of an object's resource version.
pub(crate) const VERSION: [&str; 2] = ["metadata", "resourceVersion"];
/// The path of all annotations.
pub(crate) const ANNOTATIONS: [&str; 2] = ["metadata", "annotations"];

/// The path of the annotation `key`.
pub(crate) const fn annotation(key: &str) -> [&str; 3] {
    ["metadata", "annotations", key]
}

/// The parameters of every patch.
pub(crate) fn as_us() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// The patch changes nothing unless the value at `path` is `value`.
pub(crate) fn test<'p>(path: impl IntoIterator<Item = &'p str>, value: impl Into<Value>) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: PointerBuf::from_tokens(path), value: value.into() })
}

/// Sets the value at `path`, whether there is one or not.
pub(crate) fn add<'p>(path: impl IntoIterator<Item = &'p str>, value: impl Into<Value>) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(path), value: value.into() })
}

/// Replaces the value at `path`. If there is none, the patch changes nothing.
pub(crate) fn replace<'p>(
    path: impl IntoIterator<Item = &'p str>,
    value: impl Into<Value>,
) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path: PointerBuf::from_tokens(path), value: value.into() })
}

/// Removes the value at `path`. If there is none, the patch changes nothing.
pub(crate) fn remove<'p>(path: impl IntoIterator<Item = &'p str>) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(path) })
}

/// A JSON patch of `operations`: all of them are applied, or none.
pub(crate) fn json_patch(operations: Vec<PatchOperation>) -> Patch<()> {
    Patch::Json(::json_patch::Patch(operations))
}

/// A JSON patch that sets the status of an object, provided that it has this uid and this resource version.
#[cfg(target_os = "linux")]
pub(crate) fn status_patch((uid, version): (&str, &str), status: Value) -> Patch<()> {
    json_patch(vec![test(UID, uid), test(VERSION, version), add(["status"], status)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_have_the_form_of_the_rfc_and_keys_are_escaped() {
        let operations = vec![
            test(UID, None::<&str>),
            add(annotation("example.dev/a~b"), "x"),
            replace(["spec", "containers", "0", "image"], "app:2"),
            remove(annotation("a")),
        ];
        assert_eq!(
            serde_json::to_value(operations).unwrap(),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": null},
                {"op": "add", "path": "/metadata/annotations/example.dev~1a~0b", "value": "x"},
                {"op": "replace", "path": "/spec/containers/0/image", "value": "app:2"},
                {"op": "remove", "path": "/metadata/annotations/a"},
            ])
        );
    }
}
