//! cpu and memory of the containers of a pod: what its spec states, and what its kubelet reports of a change of them in the
//! running pod (the subresource `pods/resize`). Decides nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use serde_json::Value;

use crate::api::pod_template::PodTemplate;
use crate::api::quantity::Quantity;

/// The resources that Kubernetes changes in a running pod.
pub const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// `limits` or `requests`, and the name of the resource.
pub type Field = (&'static str, &'static str);

/// All of them.
pub const FIELDS: [Field; 4] =
    [("limits", "cpu"), ("limits", "memory"), ("requests", "cpu"), ("requests", "memory")];

/// Limits and requests of cpu and memory of one container.
pub type Resources = BTreeMap<Field, Quantity>;

/// The answer of a kubelet to the resources in the spec of its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resize {
    /// All containers have them.
    Taken,
    /// Not yet, for this reason.
    Waits(Cow<'static, str>),
    /// The node can never give them.
    Infeasible {
        /// Why.
        note: String,
        /// True if the kubelet reports that this answers the newest spec. Kubelets before 1.34 do not report it.
        newest: bool,
    },
}

/// The value of one field of the `resources` of a container, as Kubernetes takes it: without a request the limit is the
/// request.
pub fn value<'r>(resources: &'r Value, (kind, resource): (&str, &str)) -> Option<&'r Value> {
    let stated =
        |kind: &str| resources.get(kind)?.get(resource).filter(|value| Quantity::read(value).is_some());
    stated(kind).or_else(|| stated("limits"))
}

/// The fields of the `resources` of a container that are there.
pub fn fields(resources: &Value) -> impl Iterator<Item = (Field, &Value)> {
    FIELDS.into_iter().filter_map(|field| Some((field, value(resources, field)?)))
}

/// The quantities in the `resources` of a container.
pub fn read(resources: &Value) -> Resources {
    fields(resources).filter_map(|(field, value)| Some((field, Quantity::read(value)?))).collect()
}

/// The quantities that the container `name` of a template states.
pub fn of_template(template: &PodTemplate, name: &str) -> Resources {
    let is = |container: &&Value| container.get("name").and_then(Value::as_str) == Some(name);
    let container = template.lasting().map(|(_, container)| container).find(is);
    container.and_then(|container| container.get("resources")).map(read).unwrap_or_default()
}

fn typed(resources: Option<&core::ResourceRequirements>) -> Resources {
    let value = resources.and_then(|resources| serde_json::to_value(resources).ok());
    value.as_ref().map(read).unwrap_or_default()
}

/// The resources of those containers of a pod that can be replaced, by name. Containers without any are left out.
pub fn of_pod(spec: &core::PodSpec) -> Vec<(String, Resources)> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let all = spec.containers.iter().chain(sidecars);
    let read = all.map(|container| (container.name.clone(), typed(container.resources.as_ref())));
    read.filter(|(_, resources)| !resources.is_empty()).collect()
}

impl Resize {
    /// Reads it from a pod whose spec states these resources.
    pub fn read(pod: &core::Pod, stated: &[(String, Resources)]) -> Self {
        let Some(status) = &pod.status else { return Self::waits() };
        let generation = pod.metadata.generation;
        let condition = |kind: &str| {
            let mut all = status.conditions.iter().flatten();
            all.find(|condition| condition.type_ == kind && condition.status == "True")
        };
        let words = |condition: &core::PodCondition, word: &str| {
            let message = condition.message.as_deref().unwrap_or_default();
            if message.is_empty() { word.to_owned() } else { format!("{word}: {message}") }
        };
        if let Some(pending) = condition("PodResizePending") {
            let reason = pending.reason.as_deref().unwrap_or("Deferred");
            let note = words(pending, reason);
            let newest = pending.observed_generation.zip(generation).map(|(seen, newest)| seen >= newest);
            return match newest {
                Some(false) => Self::waits(),
                _ if reason == "Infeasible" => Self::Infeasible { note, newest: newest.is_some() },
                _ => Self::Waits(note.into()),
            };
        }
        if let Some(progress) = condition("PodResizeInProgress") {
            return Self::Waits(words(progress, "PodResizeInProgress").into());
        }
        let is_behind =
            status.observed_generation.zip(generation).is_some_and(|(seen, newest)| seen < newest);
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let reported = |name: &str| {
            let status = lists.into_iter().flatten().flatten().find(|container| container.name == name);
            typed(status.and_then(|status| status.resources.as_ref()))
        };
        if !is_behind && stated.iter().all(|(name, resources)| has(&reported(name), resources)) {
            Self::Taken
        } else {
            Self::waits()
        }
    }

    /// The kubelet has not answered.
    fn waits() -> Self {
        Self::Waits("its kubelet does not report the new resources (kubelets from 1.33 on do)".into())
    }
}

/// True when all `wanted` fields are among the `reported` ones with the same quantities.
fn has(reported: &Resources, wanted: &Resources) -> bool {
    wanted.iter().all(|(field, quantity)| reported.get(field) == Some(quantity))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(conditions: &Value, reported: &Value) -> core::Pod {
        serde_json::from_value(json!({
            "metadata": {"generation": 3},
            "spec": {
                "containers": [{"name": "app", "resources": {"limits": {"cpu": "2", "memory": "1Gi", "example.com/gpu": "1"}}},
                    {"name": "side"}],
                "initContainers": [{"name": "setup", "resources": {"limits": {"cpu": "9"}}},
                    {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}}],
            },
            "status": {"conditions": conditions,
                "containerStatuses": [{"name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "resources": reported}],
                "initContainerStatuses": [{"name": "proxy", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "resources": {"requests": {"cpu": "0.1"}}}]},
        }))
        .unwrap()
    }

    fn answer(conditions: &Value, reported: &Value) -> Resize {
        let pod = pod(conditions, reported);
        Resize::read(&pod, &of_pod(pod.spec.as_ref().unwrap()))
    }

    #[test]
    fn only_containers_that_keep_running_and_resources_that_are_resized_are_read() {
        let found = of_pod(pod(&json!([]), &json!({})).spec.as_ref().unwrap());
        let names: Vec<_> = found.iter().map(|(name, resources)| (name.as_str(), resources.len())).collect();
        assert_eq!(names, [("app", 4), ("proxy", 1)], "without a request the limit is the request");
    }

    #[test]
    fn a_resize_is_taken_when_no_condition_and_no_number_says_otherwise() {
        let all =
            json!({"limits": {"cpu": "2000m", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}});
        assert_eq!(answer(&json!([]), &all), Resize::Taken);
        for before in [json!({}), json!({"limits": {"cpu": "1", "memory": "1Gi"}}), json!(null)] {
            assert_eq!(answer(&json!([]), &before), Resize::waits(), "{before}");
        }
        let progress = json!([{"type": "PodResizeInProgress", "status": "True", "reason": "Error", "message": "too much in use"}]);
        assert_eq!(answer(&progress, &all), Resize::Waits("PodResizeInProgress: too much in use".into()));
        let over = json!([{"type": "PodResizeInProgress", "status": "False"}]);
        assert_eq!(answer(&over, &all), Resize::Taken);
        let mut behind = pod(&json!([]), &all);
        behind.status.as_mut().unwrap().observed_generation = Some(2);
        assert_eq!(Resize::read(&behind, &of_pod(behind.spec.as_ref().unwrap())), Resize::waits());
    }

    #[test]
    fn a_pending_resize_waits_or_is_never_possible() {
        let pending = |reason: &str, seen: Option<i64>| json!([{"type": "PodResizePending", "status": "True", "reason": reason, "message": "no cpu", "observedGeneration": seen}]);
        assert_eq!(answer(&pending("Deferred", None), &json!({})), Resize::Waits("Deferred: no cpu".into()));
        assert_eq!(
            answer(&pending("Infeasible", Some(2)), &json!({})),
            Resize::waits(),
            "the answer of before"
        );
        for (seen, newest) in [(None, false), (Some(3), true)] {
            let infeasible = Resize::Infeasible { note: "Infeasible: no cpu".into(), newest };
            assert_eq!(answer(&pending("Infeasible", seen), &json!({})), infeasible);
        }
    }
}
