//! The pod templates and volume claim templates of workloads: stored as untyped JSON, so that every field is preserved.
//!
//! The schema has only the fields that this program reads, and preserves all others: the definition stays small, and a
//! field that is newer than this program reaches the pods. The API server checks the whole pod when it is created.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PodTemplateSpec};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The template of a workload's pods, as in the manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Value);

/// The template of a volume claim, as in the manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClaimTemplate(pub Value);

impl PodTemplate {
    /// Parses the template with the types of the Kubernetes release that this program is built for.
    pub fn typed(&self) -> Result<PodTemplateSpec, serde_json::Error> {
        serde_json::from_value(self.0.clone())
    }

    /// The labels of the pods.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.texts("labels")
    }

    /// The annotations of the pods.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.texts("annotations")
    }

    /// Name and image of each container that can be replaced in a running pod, in the order in which a kubelet starts
    /// them: the native sidecars, which are init containers that keep running, and the regular containers.
    pub fn images(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lasting().filter_map(|(_, container)| {
            let name = container.get("name")?.as_str()?;
            Some((name, container.get("image").and_then(Value::as_str).unwrap_or_default()))
        })
    }

    /// Native sidecars and regular containers, each with its path in the template.
    pub fn lasting(&self) -> impl Iterator<Item = (String, &Value)> {
        let list = |of: &'static str| {
            let list = self.0.get("spec").and_then(|spec| spec.get(of)).and_then(Value::as_array);
            let all = list.into_iter().flatten().enumerate();
            all.map(move |(at, container)| (format!("spec.{of}[{at}]"), container))
        };
        list("initContainers").filter(|(_, container)| is_sidecar(container)).chain(list("containers"))
    }

    /// The image of the container `name`.
    pub fn image(&self, name: &str) -> Option<&str> {
        self.images().find(|(found, _)| *found == name).map(|(_, image)| image)
    }

    fn texts(&self, field: &str) -> BTreeMap<String, String> {
        let map = self.0.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_object);
        let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        map.into_iter().flatten().filter_map(text).collect()
    }
}

/// True for a resource of a device plugin: the domain of its name is not one of Kubernetes.
pub fn is_extended_resource(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
}

/// True for the path of a pod's field (`fieldRef`) whose value may be another one at the next start of a container.
pub fn is_changeable_field(path: &str) -> bool {
    ["metadata.labels", "metadata.annotations"].iter().any(|start| path.starts_with(start))
}

/// True for a lifecycle handler that connects to the address of its own pod.
pub fn asks_own_pod(handler: &Value) -> bool {
    let has_no_host = |action: &Value| action.get("host").and_then(Value::as_str).is_none_or(str::is_empty);
    let actions = ["httpGet", "tcpSocket"].into_iter().filter_map(|kind| handler.get(kind));
    actions.filter(|action| action.is_object()).any(has_no_host)
}

/// True for an init container that keeps running beside the regular containers.
pub fn is_sidecar(container: &Value) -> bool {
    container.get("restartPolicy").and_then(Value::as_str) == Some("Always")
}

impl ClaimTemplate {
    /// Parses the template with the types of the Kubernetes release that this program is built for.
    pub fn typed(&self) -> Result<PersistentVolumeClaim, serde_json::Error> {
        serde_json::from_value(self.0.clone())
    }

    /// The name of the template: the first part of the names of its claims.
    pub fn name(&self) -> &str {
        self.0.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
    }
}

/// The schema of the metadata: labels and annotations must be texts, all other fields are preserved.
fn metadata() -> Value {
    serde_json::json!({
        "description": "Metadata of the pods. All fields are preserved.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "labels": {
                "description": "The selector must match them.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "annotations": {
                "description": "A change restarts only containers that have the annotation in their environment.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
        },
    })
}

impl JsonSchema for PodTemplate {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PodTemplate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The template of the pods, as in a Deployment. All fields of a pod are preserved.",
            "type": "object",
            "required": ["spec"],
            "properties": {
                "metadata": metadata(),
                "spec": {
                    "description": "The spec of the pods. All fields are preserved.",
                    "type": "object",
                    "required": ["containers"],
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {
                        "containers": {
                            "description": "Their images can be changed in place.",
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["name"],
                                "x-kubernetes-preserve-unknown-fields": true,
                                "properties": {
                                    "name": {"description": "The name of the container.", "type": "string"},
                                    "image": {"description": "The image of the container.", "type": "string"},
                                },
                            },
                        },
                    },
                },
            },
        })
    }
}

impl JsonSchema for ClaimTemplate {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ClaimTemplate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A volume claim, created for each pod as CLAIM-SET-ORDINAL.",
            "type": "object",
            "required": ["metadata", "spec"],
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "metadata": {
                    "description": "Metadata of the claims. All fields are preserved.",
                    "type": "object",
                    "required": ["name"],
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {
                        "name": {"description": "The volume of the pods with this name uses this claim.", "type": "string"},
                    },
                },
                "spec": {
                    "description": "The spec of the claims. All fields are preserved.",
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                },
            },
        })
    }
}
