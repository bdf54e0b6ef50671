//! The resize of a running pod, as Kubernetes 1.33 has it: the list of resources names it, and it changes cpu and memory of
//! containers and nothing else.

use serde_json::{Map, Value, json};

use super::http::{Refusal, invalid, parsed, status};
use super::store::Store;

/// The list of the core resources, as far as it is read.
pub(super) fn resources(resizes: bool) -> Value {
    let names =
        ["pods", "pods/status", "pods/resize"].into_iter().filter(|name| resizes || *name != "pods/resize");
    let resources: Vec<_> =
        names.map(|name| json!({"name": name, "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["patch"]})).collect();
    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
}

/// The pod, if the server has the subresource.
pub(super) fn resizable(store: &Store, namespace: &str, name: &str) -> Result<Value, Refusal> {
    let pod = store.pod(namespace, name).filter(|_| store.resizes);
    pod.ok_or_else(|| status(404, "NotFound", "the server could not find the requested resource"))
}

/// Applies a strategic merge patch through the subresource. Every other field keeps its value.
pub(super) fn resized(pod: &Value, media: &str, body: &[u8]) -> Result<Value, Refusal> {
    if media != "application/strategic-merge-patch+json" {
        return Err(status(415, "UnsupportedMediaType", media));
    }
    let body = parsed(body)?;
    if body["metadata"]["uid"] != pod["metadata"]["uid"] {
        return Err(invalid("metadata.uid", "field is immutable"));
    }
    if body["metadata"]["resourceVersion"] != pod["metadata"]["resourceVersion"] {
        return Err(status(409, "Conflict", "the object has been modified"));
    }
    let mut changed = pod.clone();
    for list in ["containers", "initContainers"] {
        for patch in body["spec"][list].as_array().into_iter().flatten() {
            let mut all = changed["spec"][list].as_array_mut().into_iter().flatten();
            let container = all.find(|container| container["name"] == patch["name"]);
            let container = container.ok_or_else(|| invalid(list, "containers may not be added"))?;
            change(container, patch)?;
        }
    }
    if let Some(generation) = pod["metadata"]["generation"].as_i64() {
        changed["metadata"]["generation"] = json!(generation + 1);
    }
    Ok(changed)
}

fn change(container: &mut Value, wanted: &Value) -> Result<(), Refusal> {
    let none = Map::new();
    for (kind, fields) in wanted["resources"].as_object().unwrap_or(&none) {
        for (resource, value) in fields.as_object().unwrap_or(&none) {
            let field = format!("spec.containers.resources.{kind}.{resource}");
            if !["cpu", "memory"].contains(&resource.as_str()) || value.is_null() {
                return Err(invalid(&field, "only cpu and memory are mutable, and none is removed"));
            }
            let before = container["resources"][kind][resource].as_str().unwrap_or_default();
            let is_limit = resource == "memory" && kind == "limits";
            if is_limit && mebibytes(value.as_str().unwrap()) < mebibytes(before) {
                let problem = "memory limits cannot be decreased if resizePolicy is not RestartContainer";
                return Err(invalid(&field, problem));
            }
            container["resources"][kind][resource] = value.clone();
        }
    }
    Ok(())
}

/// Limits of the tests are in MiB.
fn mebibytes(text: &str) -> u64 {
    text.strip_suffix("Mi").and_then(|number| number.parse().ok()).unwrap_or(0)
}
