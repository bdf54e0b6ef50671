//! Says field by field what a new manifest of a workload would change in its pods: in place, only by new pods, or not at
//! all. It uses the decisions of the controller and changes nothing. Values are not repeated: they may be secrets.

use serde::Serialize;
use serde_json::Value;

use crate::api::game_deployment::UpdateType;
use crate::api::pod_template::PodTemplate;
use crate::workload::claims::template_problems;
use crate::workload::diff::Change;
use crate::workload::environment;
use crate::workload::resize;
use crate::workload::spec::WorkloadSpec;

/// What becomes of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedField {
    /// Path of the field in the manifest.
    pub field: String,
    /// What happens.
    pub effect: Effect,
    /// One line for people.
    pub message: String,
}

/// What happens for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Effect {
    /// The running pods take it over, without a restart.
    InPlace,
    /// One container is restarted, the pod stays.
    RestartOfContainer,
    /// The pods are deleted and created again.
    NewPods,
    /// Pods are created or removed.
    Scale,
    /// The pods stay at the old template until a user deletes them.
    WaitsForDeletion,
    /// It is refused.
    Refused,
}

/// Maximum number of fields that need new pods.
const MAX_FIELDS: usize = 50;

/// What the change from `old` to `new` does, field by field. `problems` are those that admission has with it: the fields
/// that they name are refused. `resizes`: the API server resizes running pods.
pub fn planned(
    old: &WorkloadSpec,
    new: &WorkloadSpec,
    problems: &[String],
    resizes: bool,
) -> Vec<PlannedField> {
    let mut fields: Vec<_> = problems.iter().map(|problem| refused(problem)).collect();
    if old.replicas != new.replicas {
        let message = format!("{} instead of {} pods", new.replicas, old.replicas);
        fields.push(PlannedField { field: "spec.replicas".to_owned(), effect: Effect::Scale, message });
    }
    template(&mut fields, old, new, resizes);
    if let (Some(before), Some(after)) = (old.stateful(), new.stateful())
        && before.claims != after.claims
        && template_problems(&before.claims, &after.claims).is_empty()
    {
        fields.push(PlannedField {
            field: "spec.volumeClaimTemplates".to_owned(),
            effect: Effect::InPlace,
            message: "the claims that exist request more storage, where their storage class allows expansion"
                .to_owned(),
        });
    }
    fields
}

/// A problem begins with the path of its field.
fn refused(problem: &str) -> PlannedField {
    let (field, message) = problem.split_once(": ").unwrap_or(("spec", problem));
    PlannedField { field: field.to_owned(), effect: Effect::Refused, message: message.to_owned() }
}

fn template(fields: &mut Vec<PlannedField>, old: &WorkloadSpec, new: &WorkloadSpec, resizes: bool) {
    let change = Change::with_paths(&old.template, &new.template, resizes, MAX_FIELDS);
    let mut add = |field: String, effect: Effect, message: String| {
        let field = format!("spec.template.{field}");
        // Of a change that is refused, the other fields are shown as they would be without it.
        fields.push(PlannedField { field, effect, message });
    };
    let recreated = match new.update.way {
        UpdateType::RollingUpdate => {
            Some((Effect::NewPods, "updateStrategy.type is RollingUpdate: the pods are replaced"))
        }
        UpdateType::OnDelete => {
            Some((Effect::WaitsForDeletion, "updateStrategy.type is OnDelete: a user deletes the pods"))
        }
        UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate
            if !change.elsewhere.is_empty() && new.update.fallback =>
        {
            Some((
                Effect::NewPods,
                "inplace.dev/in-place-fallback is Recreate, and another field cannot be changed in place: the pods are replaced",
            ))
        }
        UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate => None,
    };
    let first =
        if new.starts_first() { ", and a standby serves meanwhile if one can run beside it" } else { "" };
    for (path, container) in new.template.lasting() {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
        if change.containers.iter().any(|changed| changed == name) {
            let (effect, message) = recreated.map_or_else(
                || {
                    (
                        Effect::RestartOfContainer,
                        format!("container {name} is swapped to the new image; the pod stays{first}"),
                    )
                },
                |(effect, message)| (effect, message.to_owned()),
            );
            add(format!("{path}.image"), effect, message);
        }
    }
    for (map, keys) in [("labels", &change.labels), ("annotations", &change.annotations)] {
        for key in keys.keys() {
            let (effect, message) = recreated.map_or_else(
                || metadata_effect(&new.template, map, key),
                |(effect, message)| (effect, message.to_owned()),
            );
            add(format!("metadata.{map}[{key}]"), effect, message);
        }
    }
    for path in &change.resized {
        let (effect, message) = recreated.map_or_else(
            || resize_effect(&new.template, path),
            |(effect, message)| (effect, message.to_owned()),
        );
        add(path.clone(), effect, message);
    }
    for path in change.elsewhere {
        let (effect, message) = recreated.map_or_else(
            || {
                let reason = change.reasons.get(&path).map(|why| format!("{why}, so ")).unwrap_or_default();
                let why = format!(
                    "cannot be changed in a running pod: {reason}it needs new pods. Undo it, use updateStrategy.type \
                     RollingUpdate, or set the annotation inplace.dev/in-place-fallback: Recreate"
                );
                (Effect::Refused, why)
            },
            |(effect, message)| (effect, message.to_owned()),
        );
        add(path, effect, message);
    }
}

/// How a container gets the resource in `path`.
fn resize_effect(template: &PodTemplate, path: &str) -> (Effect, String) {
    let of_path = |(of, _): &(String, &Value)| path.starts_with(&format!("{of}.resources."));
    let container = template.lasting().find(of_path).map(|(_, container)| container);
    let Some(container) = container.filter(|container| resize::restarts(container, path)) else {
        let message = "the running pod is resized; the kubelet decides whether its node has the resources";
        return (Effect::InPlace, message.to_owned());
    };
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    let message = format!(
        "the running pod is resized: its kubelet restarts container {name}, because its resizePolicy is RestartContainer"
    );
    (Effect::RestartOfContainer, message)
}

/// How a label or an annotation reaches the pod, and whoever reads it inside.
fn metadata_effect(template: &PodTemplate, map: &str, key: &str) -> (Effect, String) {
    let path = format!("metadata.{map}['{key}']");
    let readers = template.lasting().filter(|(_, container)| environment::takes(container, &path));
    let names: Vec<_> =
        readers.filter_map(|(_, container)| container.get("name").and_then(Value::as_str)).collect();
    let volumes = template.0.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let sources = volumes.flat_map(|volume| {
        let projected = volume.pointer("/projected/sources").and_then(Value::as_array);
        std::iter::once(volume).chain(projected.into_iter().flatten())
    });
    let mut items =
        sources.filter_map(|source| source.pointer("/downwardAPI/items").and_then(Value::as_array)).flatten();
    let shows = |item: &Value| {
        let field = item.pointer("/fieldRef/fieldPath").and_then(Value::as_str);
        field.is_some_and(|field| field == path || field == format!("metadata.{map}"))
    };
    let volume = if items.any(shows) {
        "; the kubelet updates the downward API volume that shows it, without a restart"
    } else {
        ""
    };
    if names.is_empty() {
        return (Effect::InPlace, format!("changed in the running pod, without a restart{volume}"));
    }
    let names = names.join(", ");
    let message = format!(
        "container {names} has it in its environment and is restarted by its kubelet; the pod stays{volume}"
    );
    (Effect::RestartOfContainer, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workload::check;
    use crate::workload::fixtures::{Draft, deployment, stateful_set};

    fn in_place() -> Draft {
        deployment()
            .with("/updateStrategy", json!({"type": "InplaceUpdate"}))
            .with(
                "/template/spec/containers/0/env",
                json!([
                {"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['zone']"}}}]),
            )
            .with(
                "/template/spec/volumes",
                json!([{"name": "info", "downwardAPI": {"items": [
                {"path": "a", "fieldRef": {"fieldPath": "metadata.annotations"}}]}}]),
            )
    }

    fn of(old: &Draft, new: &Draft) -> Vec<(String, Effect, String)> {
        at(old, new, false)
    }

    fn at(old: &Draft, new: &Draft, resizes: bool) -> Vec<(String, Effect, String)> {
        let problems = check::deployment(Some(&old.object()), &new.object(), resizes);
        let fields = planned(&old.spec(), &new.spec(), &problems, resizes);
        fields.into_iter().map(|one| (one.field, one.effect, one.message)).collect()
    }

    #[test]
    fn each_field_says_what_it_costs() {
        let old = in_place();
        assert_eq!(of(&old, &old), []);
        let new = old
            .clone()
            .image("app:2")
            .with("/replicas", json!(5))
            .with("/template/metadata/annotations", json!({"note": "x"}));
        let fields = of(&old, &new);
        let effects: Vec<_> = fields.iter().map(|(field, effect, _)| (field.as_str(), *effect)).collect();
        assert_eq!(
            effects,
            [
                ("spec.replicas", Effect::Scale),
                ("spec.template.spec.containers[0].image", Effect::RestartOfContainer),
                ("spec.template.metadata.annotations[note]", Effect::InPlace),
            ]
        );
        assert!(fields[2].2.contains("kubelet updates the downward API volume"), "{fields:?}");
        let labelled = old.clone().with("/template/metadata/labels/zone", json!("b"));
        let fields = of(&old, &labelled);
        assert!(fields[0].2.contains("container app has it in its environment"), "{fields:?}");
        assert_eq!(fields[0].1, Effect::RestartOfContainer);
        let fields = of(&old, &labelled.image("app:2"));
        assert!(fields.iter().any(|(_, _, message)| message.contains("environment")), "{fields:?}");
    }

    #[test]
    fn a_container_that_starts_first_is_named_and_one_that_cannot_is_refused() {
        let old = in_place()
            .with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": "StartFirst"}))
            .with("/template/spec/containers/0/env", json!([]));
        let new = old.clone().image("app:2");
        let fields = of(&old, &new);
        assert!(
            fields[0].1 == Effect::RestartOfContainer && fields[0].2.contains("a standby serves"),
            "{fields:?}"
        );
        let devices = json!({"limits": {"gpu.example/card": "1"}});
        let with_devices =
            |draft: Draft| draft.with("/template/spec/containers/0/resources", devices.clone());
        let fields = of(&with_devices(old), &with_devices(new));
        assert_eq!(
            (fields[0].0.as_str(), fields[0].1),
            ("spec.updateStrategy.inPlaceUpdateStrategy.order", Effect::Refused)
        );
        assert!(fields[0].2.contains("container app uses gpu.example/card"), "{fields:?}");
    }

    #[test]
    fn what_needs_new_pods_is_named_and_its_value_is_not() {
        let old = in_place();
        let new = old.clone().image("app:2").with("/template/spec/nodeSelector", json!({"disk": "secret"}));
        let fields = of(&old, &new);
        assert!(
            fields
                .iter()
                .any(|(field, effect, _)| field.contains("spec.nodeSelector") && *effect == Effect::Refused)
        );
        assert!(!format!("{fields:?}").contains("secret"));
        let fallback = new.clone().annotated("inplace.dev/in-place-fallback", "Recreate");
        assert!(of(&old, &fallback).iter().all(|(_, effect, _)| *effect == Effect::NewPods));
        let rolling = new.clone().with("/updateStrategy/type", json!("RollingUpdate"));
        assert!(of(&old, &rolling).iter().all(|(_, effect, _)| *effect == Effect::NewPods));
        let waits = new.with("/updateStrategy/type", json!("OnDelete"));
        assert!(of(&old, &waits).iter().all(|(_, effect, _)| *effect == Effect::WaitsForDeletion));
    }

    #[test]
    fn resources_say_why_they_need_new_pods() {
        let limits = "/template/spec/containers/0/resources";
        let old = in_place().with(limits, json!({"limits": {"cpu": "1", "memory": "1Gi"}}));
        for (path, resources, says) in [
            ("limits.cpu", json!({"limits": {"cpu": "2", "memory": "1Gi"}}), "has no resize of pods"),
            ("limits.cpu", json!({"limits": {"memory": "1Gi"}}), "does not remove limits"),
            (
                "requests.cpu",
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}),
                "from Guaranteed to Burstable",
            ),
        ] {
            let fields = of(&old, &old.clone().with(limits, resources));
            let path = format!("spec.template.spec.containers[0].resources.{path}");
            let (_, effect, message) = fields.iter().find(|(field, ..)| *field == path).unwrap();
            assert!(*effect == Effect::Refused && message.contains(says), "{fields:#?}");
            assert!(message.ends_with("in-place-fallback: Recreate"), "{message}");
        }
    }

    #[test]
    fn a_resize_says_whether_it_restarts_the_container() {
        let limits = "/template/spec/containers/0/resources/limits";
        let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        let old = in_place()
            .with(limits, json!({"cpu": "1", "memory": "1Gi"}))
            .with("/template/spec/containers/0/resizePolicy", policy);
        let new = old.clone().with(limits, json!({"cpu": "2", "memory": "2Gi"})).image("app:2");
        let fields = at(&old, &new, true);
        let effects: Vec<_> = fields.iter().map(|(field, effect, _)| (field.as_str(), *effect)).collect();
        let of = "spec.template.spec.containers[0]";
        let resources = format!("{of}.resources");
        let expected = [
            (format!("{of}.image"), Effect::RestartOfContainer),
            (format!("{resources}.limits.cpu"), Effect::InPlace),
            (format!("{resources}.limits.memory"), Effect::RestartOfContainer),
        ];
        let expected: Vec<_> = expected.iter().map(|(field, effect)| (field.as_str(), *effect)).collect();
        assert_eq!(effects, expected);
        assert!(fields[2].2.contains("restarts container app, because its resizePolicy"), "{fields:#?}");
        let rolling = new.with("/updateStrategy/type", json!("RollingUpdate"));
        assert!(at(&old, &rolling, true).iter().all(|(_, effect, _)| *effect == Effect::NewPods));
    }

    #[test]
    fn claims_grow_and_nothing_else_of_them_changes() {
        let template = |storage: &str| json!([{"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": storage}}}}]);
        let old = stateful_set().with("/volumeClaimTemplates", template("1Gi"));
        for (storage, effect) in [("2Gi", Effect::InPlace), ("1Mi", Effect::Refused)] {
            let new = old.clone().with("/volumeClaimTemplates", template(storage));
            let problems = check::stateful_set(Some(&old.set_object()), &new.set_object(), false);
            let fields = planned(&old.spec(), &new.spec(), &problems, false);
            assert_eq!((fields.len(), fields[0].effect), (1, effect), "{fields:?}");
        }
    }
}
