//! Parses a file in the pods directory of a standalone agent: the pods that the file names, and their requests.
//!
//! Reads only kind and metadata of each document, so that every manifest that a kubelet accepts is accepted. `request` parses
//! the requests.
//!
//! In YAML the `#2` of `inplace.dev/request: restart app #2` is a comment: the value needs quotes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::yaml::{self, BadYaml};
use crate::api::annotation;
use crate::api::request::{is_dns_label, is_dns_subdomain};

/// A pod that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEntry {
    /// `default` if the file has none.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid, if the file has one.
    pub uid: Option<String>,
    /// The value of the request annotation, unparsed.
    pub request: Option<String>,
}

/// Why a file cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPodsFile {
    /// The YAML is malformed, or metadata has the wrong type.
    #[error("not valid YAML: {0}")]
    Yaml(#[from] BadYaml),
    /// A Pod has no name, so it cannot be found on the node.
    #[error("Pod number {0} of the file has no metadata.name: set it")]
    NoName(usize),
    /// A name or namespace is not valid. The message does not quote it, because the text is unbounded.
    #[error("Pod number {pod} of the file has a {field} that is not a valid name: {DNS_NAME}")]
    BadName {
        /// The number of the Pod in the file, from 1.
        pod: usize,
        /// `metadata.name` or `metadata.namespace`.
        field: &'static str,
    },
}

/// The rule for valid names, for the message.
const DNS_NAME: &str = "lower-case letters, digits and `-` (in a pod's name `.` as well), with a letter or digit at the \
    beginning and at the end, of 63 characters at most (253 in a pod's name)";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    kind: Option<String>,
    metadata: Option<Metadata>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    annotations: Option<BTreeMap<String, Option<String>>>,
}

impl PodEntry {
    /// Parses a file of one or more YAML documents. Objects of other kinds are skipped.
    pub fn parse(text: &str) -> Result<Vec<Self>, InvalidPodsFile> {
        let documents: Vec<Option<Document>> = yaml::all(text)?;
        let pods = documents.into_iter().flatten().filter(|document| document.kind.as_deref() == Some("Pod"));
        pods.enumerate()
            .map(|(at, pod)| {
                let metadata = pod.metadata.unwrap_or_default();
                let given = |text: Option<String>| text.filter(|text| !text.is_empty());
                let namespace = given(metadata.namespace).unwrap_or_else(|| "default".to_owned());
                let name = given(metadata.name).ok_or(InvalidPodsFile::NoName(at + 1))?;
                let bad = |field| InvalidPodsFile::BadName { pod: at + 1, field };
                if !is_dns_label(&namespace) {
                    return Err(bad("metadata.namespace"));
                }
                if !is_dns_subdomain(&name) {
                    return Err(bad("metadata.name"));
                }
                Ok(Self {
                    namespace,
                    name,
                    uid: given(metadata.uid),
                    request: metadata
                        .annotations
                        .and_then(|mut all| all.remove(annotation::REQUEST))
                        .flatten(),
                })
            })
            .collect()
    }
}
