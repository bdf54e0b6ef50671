//! Finds a `GameDeployment` or a `GameStatefulSet` in a file of manifests. It must not check the spec: `workload::check`
//! does. An error must not quote a value.

use serde_json::Value;

use crate::api::manifest::BadYaml;
use crate::api::manifest::yaml;

/// Maximum size of the file in bytes.
const MAX_TEXT: usize = 4 << 20;

/// Why a file has no manifest of the workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoManifest {
    /// The file is not YAML.
    #[error(transparent)]
    Yaml(#[from] BadYaml),
    /// The file has no object of this kind and name.
    #[error("it has no {kind} {name} of tkex.tencent.com/v1alpha1")]
    Missing {
        /// The kind.
        kind: String,
        /// The name.
        name: String,
    },
    /// The file is too large.
    #[error("it is larger than {MAX_TEXT} bytes")]
    TooLarge,
}

/// The object of this kind and name in a file of YAML or JSON.
///
/// # Errors
/// If the file cannot be parsed, or has no such object.
pub fn find(text: &str, kind: &str, name: &str) -> Result<Value, NoManifest> {
    if text.len() > MAX_TEXT {
        return Err(NoManifest::TooLarge);
    }
    let is = |object: &Value| {
        object["apiVersion"] == "tkex.tencent.com/v1alpha1"
            && object["kind"] == kind
            && object["metadata"]["name"] == name
    };
    let documents: Vec<Option<Value>> = yaml::all(text)?;
    let missing = || NoManifest::Missing { kind: kind.to_owned(), name: name.to_owned() };
    documents.into_iter().flatten().find(is).ok_or_else(missing)
}
