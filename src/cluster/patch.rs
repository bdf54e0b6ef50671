//! What the patches of this program have in common: the field manager, and how JSON patches are made. Sends nothing.

use kube::api::Patch;
use kube::core::params::PatchParams;
use serde_json::{Value, json};

use crate::cluster::error::{Class, Error};
use crate::cluster::server::MANAGER;

/// The parameters of every patch.
pub(crate) fn as_us() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// A JSON patch of `operations`, for the call `doing`.
///
/// # Errors
/// `Final` if they are no operations of a JSON patch.
pub(crate) fn json_patch(doing: &str, operations: Value) -> Result<Patch<()>, Error> {
    serde_json::from_value(operations)
        .map(Patch::Json)
        .map_err(|error| Error::own(doing, Class::Final, format!("no JSON patch: {error}")))
}

/// A JSON patch that sets the status of an object, provided that it has this uid and this resource version.
///
/// # Errors
/// As [`json_patch`].
pub(crate) fn status_patch(
    doing: &str,
    (uid, version): (&str, &str),
    status: &Value,
) -> Result<Patch<()>, Error> {
    let operations = json!([
        { "op": "test", "path": "/metadata/uid", "value": uid },
        { "op": "test", "path": "/metadata/resourceVersion", "value": version },
        { "op": "add", "path": "/status", "value": status },
    ]);
    json_patch(doing, operations)
}
