//! Decides which containers have to be started again because their environment has a label or an annotation that
//! changes: a kubelet reads it only when it creates a container. Writes nothing, and needs no value of a pod.

use serde_json::Value;

use crate::api::pod_template::PodTemplate;

/// The containers of `new`, in its order, whose environment differs from that of `old` by labels or annotations of the
/// pod (`fieldRef`).
pub fn readers<'a>(old: &PodTemplate, new: &'a PodTemplate) -> Vec<&'a str> {
    let changed = |path: &str| value(old, path) != value(new, path);
    let containers = new.lasting().filter(|(_, container)| paths(container).any(changed));
    containers.filter_map(|(_, container)| container.get("name").and_then(Value::as_str)).collect()
}

/// True when the environment of `container` has the entry `key` of the map `labels` or `annotations`.
pub fn reads(container: &Value, map: &str, key: &str) -> bool {
    paths(container).any(|path| entry(path) == Some((map, key)))
}

/// The fields of the pod that are in the environment of `container`.
fn paths(container: &Value) -> impl Iterator<Item = &str> {
    let variables = container.get("env").and_then(Value::as_array).into_iter().flatten();
    variables.filter_map(|variable| variable.pointer("/valueFrom/fieldRef/fieldPath").and_then(Value::as_str))
}

/// The map and the key of a path such as `metadata.labels['zone']`.
fn entry(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_prefix("metadata.")?.split_once("['")?;
    ["labels", "annotations"].contains(&map).then_some((map, key.strip_suffix("']")?))
}

/// The value that `path` has in the pods of a template. A key that is not there is empty in an environment.
fn value<'a>(template: &'a PodTemplate, path: &str) -> &'a str {
    let found = entry(path).and_then(|(map, key)| template.0.get("metadata")?.get(map)?.get(key)?.as_str());
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(metadata: &Value) -> PodTemplate {
        let from = |path: &str| {
            json!([{"name": "A", "value": "x"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": path}}}])
        };
        PodTemplate(json!({"metadata": metadata, "spec": {
            "initContainers": [
                {"name": "setup", "env": from("metadata.labels['zone']")},
                {"name": "proxy", "restartPolicy": "Always", "env": from("metadata.annotations['example.com/map']")}],
            "containers": [{"name": "app", "env": from("metadata.labels['zone']")},
                {"name": "side", "env": from("metadata.name")}, {"name": "plain"}]}}))
    }

    #[test]
    fn a_container_that_has_a_changed_entry_in_its_environment_is_started_again() {
        let old = template(&json!({"labels": {"zone": "a", "tier": "1"}, "annotations": {"zone": "x"}}));
        for (metadata, expected) in [
            (json!({"labels": {"zone": "b", "tier": "1"}, "annotations": {"zone": "x"}}), &["app"][..]),
            (json!({"labels": {"tier": "1"}}), &["app"]),
            (json!({"labels": {"zone": "a"}, "annotations": {"example.com/map": "m"}}), &["proxy"]),
            (json!({"labels": {"zone": "b"}, "annotations": {"example.com/map": "m"}}), &["proxy", "app"]),
            // Others do not read it: an entry of that name in the other map, and the absence of an empty value.
            (json!({"labels": {"zone": "a"}, "annotations": {"zone": "y"}}), &[]),
            (json!({"labels": {"zone": "a"}, "annotations": {"example.com/map": ""}}), &[]),
        ] {
            assert_eq!(readers(&old, &template(&metadata)), expected, "{metadata}");
        }
    }
}
