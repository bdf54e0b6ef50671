//! The labels and annotations that containers have in their environment. A kubelet reads them when it starts a container, so
//! that such a container is restarted for a change.
//!
//! Volumes of the downward API are no part of this: the kubelet updates their files in running containers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::pod_template::PodTemplate;
use crate::podtask::write::PodPatch;

/// The labels and annotations that the environments of a template's containers take.
#[derive(Debug, Default)]
struct Fields<'t> {
    labels: BTreeSet<&'t str>,
    annotations: BTreeSet<&'t str>,
}

/// The containers that have a label or an annotation in their environment whose value differs between `from` and `to`, in the
/// order of `to`.
pub fn restarted<'t>(from: &PodTemplate, to: &'t PodTemplate) -> Vec<&'t str> {
    let mut readers = readers(to).filter(|(_, fields)| !fields.is_empty()).peekable();
    if readers.peek().is_none() {
        return Vec::new();
    }
    let (labels, annotations) = ((from.labels(), to.labels()), (from.annotations(), to.annotations()));
    let differ = |keys: &BTreeSet<&str>,
                  (from, to): &(BTreeMap<String, String>, BTreeMap<String, String>)| {
        keys.iter().any(|key| from.get(*key) != to.get(*key))
    };
    let changed =
        |fields: &Fields<'_>| differ(&fields.labels, &labels) || differ(&fields.annotations, &annotations);
    readers.filter(|(_, fields)| changed(fields)).map(|(name, _)| name).collect()
}

/// Gives a pod those labels and annotations of `to` that a container of `from` or `to` has in its environment and whose
/// value differs between the two. All others, also those that other clients wrote, stay as they are.
pub fn patch(from: &PodTemplate, to: &PodTemplate) -> PodPatch {
    let mut read = Fields::default();
    for (_, fields) in readers(from).chain(readers(to)) {
        read.labels.extend(fields.labels);
        read.annotations.extend(fields.annotations);
    }
    let set = |keys: BTreeSet<&str>, from: &BTreeMap<String, String>, to: &BTreeMap<String, String>| {
        let differs = |key: &&str| from.get(*key) != to.get(*key);
        keys.into_iter().filter(differs).map(|key| (key.to_owned(), to.get(key).cloned())).collect()
    };
    PodPatch {
        labels: set(read.labels, &from.labels(), &to.labels()),
        annotations: set(read.annotations, &from.annotations(), &to.annotations()),
    }
}

/// True if the environment of `container` takes the label or annotation with this path, for example
/// `metadata.labels['zone']`.
pub fn takes(container: &Value, path: &str) -> bool {
    paths(container).any(|found| found == path)
}

fn readers(template: &PodTemplate) -> impl Iterator<Item = (&str, Fields<'_>)> {
    template.lasting().filter_map(|(_, container)| {
        let mut fields = Fields::default();
        for path in paths(container) {
            if let Some(key) = subscript(path, "metadata.labels") {
                fields.labels.insert(key);
            } else if let Some(key) = subscript(path, "metadata.annotations") {
                fields.annotations.insert(key);
            }
        }
        Some((container.get("name")?.as_str()?, fields))
    })
}

/// The paths of the pod's fields in the environment of `container`.
fn paths(container: &Value) -> impl Iterator<Item = &str> {
    let variables = container.get("env").and_then(Value::as_array).into_iter().flatten();
    variables.filter_map(|variable| variable.pointer("/valueFrom/fieldRef/fieldPath")?.as_str())
}

/// The key in `map['key']`, the form that Kubernetes accepts (`SplitMaybeSubscriptedPath` in pkg/fieldpath).
fn subscript<'p>(path: &'p str, map: &str) -> Option<&'p str> {
    path.strip_prefix(map)?.strip_prefix("['")?.strip_suffix("']")
}

impl Fields<'_> {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(zone: &str, note: Option<&str>) -> PodTemplate {
        let field = |path: &str| json!({"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}});
        PodTemplate(json!({
            "metadata": {"labels": {"zone": zone, "other": zone}, "annotations": {"note": note}},
            "spec": {
                "initContainers": [
                    {"name": "setup", "env": [field("metadata.labels['zone']")]},
                    {"name": "proxy", "restartPolicy": "Always", "env": [field("metadata.annotations['note']")]},
                ],
                "containers": [
                    {"name": "app", "env": [{"name": "A", "value": "1"}, field("status.podIP"), field("metadata.labels['zone']")]},
                    {"name": "side"},
                ],
            },
        }))
    }

    #[test]
    fn only_containers_that_have_a_changed_key_in_their_environment_are_restarted() {
        let old = template("a", Some("1"));
        for (new, names) in [
            (template("a", Some("1")), &[][..]),
            (template("b", Some("1")), &["app"]),
            (template("a", Some("2")), &["proxy"]),
            (template("b", None), &["proxy", "app"]),
        ] {
            assert_eq!(restarted(&old, &new), names, "{new:?}");
        }
    }

    /// Other clients write labels and annotations that no template has, and the controller its own.
    #[test]
    fn what_the_templates_do_not_change_is_not_written() {
        let reads = |zone: &str, key: &str| {
            let mut template = template(zone, Some("1"));
            let field = json!({"fieldRef": {"fieldPath": format!("metadata.annotations['{key}']")}});
            template.0["spec"]["containers"][1]["env"] = json!([{"name": "V", "valueFrom": field}]);
            template
        };
        let patch = patch(
            &reads("a", "k8s.v1.cni.cncf.io/network-status"),
            &reads("b", "k8s.v1.cni.cncf.io/network-status"),
        );
        assert_eq!(patch.labels.keys().collect::<Vec<_>>(), ["zone"]);
        assert!(patch.annotations.is_empty());
        let same = reads("a", "note");
        assert_eq!(super::patch(&same, &same), PodPatch::default());
    }

    #[test]
    fn the_pod_gets_the_keys_that_are_read_and_loses_those_that_the_template_lost() {
        let set = |value: &str| Some(value.to_owned());
        let patch = patch(&template("a", Some("1")), &template("b", None));
        assert_eq!(patch.labels, [("zone".to_owned(), set("b"))].into());
        assert_eq!(patch.annotations, [("note".to_owned(), None)].into());
    }
}
