//! Bounds of what the controllers cache of the objects of users. The API server bounds only an object as a whole, and
//! a small text can take much memory once it is parsed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

/// The limit for the cached objects of one kind in a namespace, in bytes.
pub(super) const MAX_BYTES_OF_NAMESPACE: usize = 32 << 20;
/// The longest cached text of a claim or an owner.
pub(super) const MAX_TEXT: usize = 253;
/// The most cached labels of a pod, and the most of a revision that can be adopted, and of a claim; these are those
/// of the workload's pods.
pub(super) const MAX_LABELS: usize = 64;
/// The most bytes of those labels.
pub(super) const MAX_LABEL_BYTES: usize = 4 << 10;
/// The memory that a text and its slot in a map or a list take, beside its bytes.
pub(super) const OVERHEAD: usize = 128;
/// The longest image that is read; no runtime knows a longer one.
pub(super) const MAX_IMAGE: usize = 1 << 10;
/// The longest annotation of a pod that is read. The status of an agent is shorter, also with the most containers.
const MAX_ANNOTATION: usize = 64 << 10;
/// The most containers of a pod that are read, and the most init containers.
const MAX_CONTAINERS: usize = 256;
/// The memory of the fields of a pod that are always cached.
const POD: usize = 2 << 10;
/// The memory of a node of a JSON object, and how many entries it usually has.
const NODE: usize = 640;
const ENTRIES_OF_NODE: usize = 6;
/// The memory of a text beside its bytes.
const TEXT: usize = 32;
/// The memory of an element of a JSON list, beside what it holds elsewhere.
const ELEMENT: usize = 64;

/// The approximate memory of a JSON value, in bytes.
pub(super) fn memory(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => TEXT + text.len(),
        Value::Array(list) => list.iter().map(|one| ELEMENT + memory(one)).sum(),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| TEXT + key.len() + memory(value));
            NODE * map.len().div_ceil(ENTRIES_OF_NODE) + entries.sum::<usize>()
        }
    }
}

/// The approximate memory of the spec of an object, in bytes.
pub(super) fn memory_of_spec(object: &Value) -> usize {
    object.get("spec").map_or(0, memory)
}

/// Removes what is too long or too much to be read of a pod; it then counts as absent. Labels stay, because some
/// are read by their names; see [`cut`].
pub(super) fn bound(pod: &mut Pod) {
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|_, text| text.len() <= MAX_ANNOTATION);
    }
    let Some(spec) = &mut pod.spec else { return };
    spec.containers.truncate(MAX_CONTAINERS);
    if let Some(init) = &mut spec.init_containers {
        init.truncate(MAX_CONTAINERS);
    }
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if container.image.as_ref().is_some_and(|image| image.len() > MAX_IMAGE) {
            container.image = None;
        }
    }
}

/// True unless the labels are too many or too long to be cached.
pub(super) fn are_few(labels: &BTreeMap<String, String>) -> bool {
    let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    labels.len() <= MAX_LABELS && bytes <= MAX_LABEL_BYTES
}

/// Removes the labels beyond the limits. Returns true if there were any.
pub(super) fn cut(labels: &mut BTreeMap<String, String>) -> bool {
    let before = labels.len();
    let (mut count, mut bytes) = (0, 0);
    labels.retain(|key, value| {
        count += 1;
        bytes += key.len() + value.len();
        count <= MAX_LABELS && bytes <= MAX_LABEL_BYTES
    });
    labels.len() < before
}

/// Empties the texts of an owner reference that are too long: it then matches no owner.
pub(super) fn bound_owner(owner: &mut OwnerReference) {
    for text in [&mut owner.api_version, &mut owner.kind, &mut owner.name, &mut owner.uid] {
        if text.len() > MAX_TEXT {
            *text = String::new();
        }
    }
}

/// The approximate memory of what a controller reads from a bounded pod, in bytes.
pub(super) fn memory_of_pod(pod: &Pod) -> usize {
    let meta = &pod.metadata;
    let labels = meta.labels.iter().flatten().take(MAX_LABELS);
    let own = meta.annotations.iter().flatten().filter(|(key, _)| key.contains("inplace.dev/"));
    let texts: usize = labels.chain(own).map(|(key, value)| OVERHEAD + key.len() + value.len()).sum();
    let spec = pod.spec.iter();
    let containers =
        spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    // Both a list and a map have name and image.
    let images = containers.map(|container| OVERHEAD + container.image.as_ref().map_or(0, String::len));
    POD + texts + 2 * images.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn many_small_parts_of_a_value_count_as_what_they_take() {
        let small = json!([{"a": 1}]);
        assert!(memory(&small) > 600, "{}", memory(&small));
        let list: Vec<_> = (0..1000).map(|_| json!({"a": 1})).collect();
        assert!(memory(&json!(list)) > 600_000);
        let long = json!("x".repeat(1 << 20));
        assert!((1 << 20..2 << 20).contains(&memory(&long)));
    }

    #[test]
    fn an_ordinary_template_is_far_below_the_limit() {
        let env: Vec<_> =
            (0..50).map(|at| json!({"name": format!("NAME_{at}"), "value": "x".repeat(40)})).collect();
        let container = json!({"name": "app", "image": "registry.example/app:1", "env": env});
        let bytes = memory(&json!({"spec": {"template": {"spec": {"containers": [container]}}}}));
        assert!(bytes * 500 < MAX_BYTES_OF_NAMESPACE, "{bytes}");
    }

    #[test]
    fn of_a_pod_only_a_bounded_part_is_read() {
        let long = "x".repeat(100 << 10);
        let image = "x".repeat(MAX_IMAGE + 1);
        let containers: Vec<_> =
            (0..1000).map(|at| json!({"name": format!("c-{at}"), "image": image})).collect();
        let pod = json!({"metadata": {"annotations": {"inplace.dev/status": long, "short": "x"}},
            "spec": {"containers": containers, "initContainers": containers}});
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        bound(&mut pod);
        assert_eq!(pod.metadata.annotations.as_ref().unwrap().len(), 1);
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!((spec.containers.len(), spec.containers[0].image.as_ref()), (MAX_CONTAINERS, None));
        assert_eq!(spec.init_containers.as_ref().unwrap().len(), MAX_CONTAINERS);
        assert!(memory_of_pod(&pod) < 256 << 10);

        let mut labels: BTreeMap<_, _> = (0..50_000).map(|at| (format!("l-{at}"), "x".to_owned())).collect();
        assert!(cut(&mut labels) && labels.len() == MAX_LABELS);
        assert!(!cut(&mut labels), "they fit");
    }
}
