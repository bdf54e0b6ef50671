//! Decides which differences in the resources of a container are made in a running pod, by a resize (the subresource
//! `pods/resize`, Kubernetes 1.33 or newer), and why not, field by field. Values are never part of a reason.
//!
//! A resize belongs to the task of a pod, as a request to its agent does: it waits for the same hook, is within the same
//! budgets and the same order, and its pod counts as unavailable until the kubelet has the resources. Hence a bad value does
//! not reach all pods at once.
//!
//! If the image of a container changes as well, the pod is resized first. The new container then starts with the new limits,
//! because the agent copies those that the old one has; and a node that does not have the resources is known before anything
//! is stopped. The agent restarts the container once. A kubelet restarts it by itself before that if its `resizePolicy` is
//! `RestartContainer`: no order saves that restart, because neither waits for the other.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::api::pod_template::{PodTemplate, is_sidecar};
use crate::api::quantity::Quantity;
use crate::api::workload_key;
use crate::podtask::pod::Pod;
use crate::podtask::resources::{self, Field, RESIZABLE, Resize};
use crate::podtask::state::Stage;
use crate::podtask::task::PodTask;
use crate::podtask::time::later;
use crate::podtask::write::PodPatch;
use crate::workload::input::ReconcileInput;
use crate::workload::view::{PodView, Templates};

/// How long after a resize a kubelet may still report what it found out about the resources of before.
const SETTLED: SignedDuration = SignedDuration::from_secs(10);

/// When the API server is asked again whether it resizes pods, while a pod waits for that: it may be upgraded.
pub const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(300);

/// Why a resize that the API server accepted is not there.
pub const TAKEN_BACK: &str =
    "the API server stored other resources than those of the resize, as a webhook may have it do";

/// Maximum number of characters of an error of the API server that are recorded on the pod.
const MAX_NOTE: usize = 512;

/// Why a resource of a container cannot be changed in a running pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotResizable {
    /// Devices, huge pages and local storage are assigned when a pod starts.
    #[error("Kubernetes changes only cpu and memory of a running container")]
    OtherResource,
    /// Its process has ended.
    #[error("an init container has ended when the others run")]
    InitContainer,
    /// The API server refuses it.
    #[error("Kubernetes resizes no Windows pods")]
    Windows,
    /// The API server refuses it.
    #[error("Kubernetes does not remove limits or requests of a running container")]
    Removed,
    /// The API server refuses it.
    #[error("the QoS class of the pod would change from {from:?} to {to:?}")]
    QosClass {
        /// The class before.
        from: QosClass,
        /// The class after.
        to: QosClass,
    },
    /// Kubernetes could make the change.
    #[error("the API server has no resize of pods, which Kubernetes 1.33 or newer has")]
    NoResize,
}

/// The quality of service class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as Kubernetes names them")]
pub enum QosClass {
    BestEffort,
    Burstable,
    Guaranteed,
}

/// Whether the field `path` can be changed from the pod spec `old` to the pod spec `new` by a resize; `None` when the field is
/// no resource of a container. Both specs have their quantities in one form. `served`: the API server has the subresource.
pub fn resizable(path: &str, old: &Value, new: &Value, served: bool) -> Option<Result<(), NotResizable>> {
    let (container, field) = path.strip_prefix("spec.")?.split_once(".resources.")?;
    let (kind, resource) = field.split_once('.').filter(|(kind, _)| ["limits", "requests"].contains(kind))?;
    let container = container_at(container, new)?;
    let windows = |spec: &Value| spec.pointer("/os/name").and_then(Value::as_str) == Some("windows");
    let refusal = match (qos_class(old), qos_class(new)) {
        _ if !RESIZABLE.contains(&resource) => NotResizable::OtherResource,
        _ if container.ends => NotResizable::InitContainer,
        _ if windows(new) => NotResizable::Windows,
        _ if is_removed(container.value, kind, resource) => NotResizable::Removed,
        (Some(from), Some(to)) if from != to => NotResizable::QosClass { from, to },
        _ if !served => NotResizable::NoResize,
        _ => return Some(Ok(())),
    };
    Some(Err(refusal))
}

/// True when a container has other resources in one of these revisions than in `template`: only then it matters whether the
/// API server resizes pods.
pub fn differ<'t>(revisions: impl IntoIterator<Item = &'t PodTemplate>, template: &PodTemplate) -> bool {
    let of = |template: &PodTemplate| {
        let read = |(_, container): (String, &Value)| {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let resources = container.get("resources").map(resources::read).unwrap_or_default();
            (!resources.is_empty()).then_some((name, resources))
        };
        template.lasting().filter_map(read).collect::<BTreeMap<_, _>>()
    };
    let wanted = of(template);
    revisions.into_iter().any(|revision| of(revision) != wanted)
}

/// True when the kubelet restarts the container at this place of a template to change the resource in `path`.
pub fn restarts(container: &Value, path: &str) -> bool {
    let rules = container.get("resizePolicy").and_then(Value::as_array).into_iter().flatten();
    let is =
        |rule: &Value, field: &str, wanted: &str| rule.get(field).and_then(Value::as_str) == Some(wanted);
    let name = path.rsplit('.').next().unwrap_or_default();
    rules
        .into_iter()
        .any(|rule| is(rule, "resourceName", name) && is(rule, "restartPolicy", "RestartContainer"))
}

/// What is to be written to the pod's spec so that it has the resources of `target`, as a strategic merge patch; `None` if it
/// has them. As with images, what another client has changed stays, unless the template changes it too.
pub fn missing(view: &PodView<'_>, target: &PodTemplate, templates: &Templates<'_>) -> Option<Value> {
    let mut spec = Map::new();
    for (path, container) in target.lasting() {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
        let mut changes = json!({});
        for (field, value) in changed(view, container, templates) {
            let quantity = Quantity::read(value);
            if view.pod.resource(name, field) != quantity {
                changes[field.0][field.1] = value.clone();
            }
        }
        let list = path.trim_start_matches("spec.").split('[').next().unwrap_or_default();
        if changes.as_object().is_some_and(|changes| !changes.is_empty()) {
            let items = spec.entry(list).or_insert_with(|| json!([]));
            if let Some(items) = items.as_array_mut() {
                items.push(json!({"name": name, "resources": changes}));
            }
        }
    }
    (!spec.is_empty()).then_some(Value::Object(spec))
}

/// True when the pod is not at `target` before its kubelet has taken resources.
pub fn is_due(view: &PodView<'_>, target: &PodTemplate, templates: &Templates<'_>) -> bool {
    let changes =
        || target.lasting().any(|(_, container)| changed(view, container, templates).next().is_some());
    missing(view, target, templates).is_some() || view.pod.resize != Resize::Taken && changes()
}

/// The resources of a container of the target that the pod's own revision does not have, or that a task left at those of
/// another one.
fn changed<'c>(
    view: &PodView<'_>,
    container: &'c Value,
    templates: &Templates<'_>,
) -> impl Iterator<Item = (Field, &'c Value)> {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    let own = templates.get(view.revision).map(|own| resources::of_template(own, name));
    let differs = move |(field, value): &(Field, &Value)| {
        own.as_ref().is_none_or(|own| own.get(field).copied() != Quantity::read(value))
            || view.between_revisions && is_off(view.pod, name, *field, templates)
    };
    container.get("resources").into_iter().flat_map(resources::fields).filter(differs)
}

/// True when a container has resources of another revision than the pod's own.
pub(super) fn is_torn(pod: &Pod, templates: &Templates<'_>) -> bool {
    let mut all = pod.resources.iter().flat_map(|(name, all)| all.keys().map(move |field| (name, *field)));
    all.any(|(name, field)| is_off(pod, name, field, templates))
}

fn is_off(pod: &Pod, name: &str, field: Field, templates: &Templates<'_>) -> bool {
    let of = |template: &PodTemplate| resources::of_template(template, name).get(&field).copied();
    let runs = pod.resource(name, field);
    let own = templates.get(pod.label.as_str()).and_then(|own| of(own));
    own.is_some() && runs.is_some() && own != runs && templates.values().any(|other| of(other) == runs)
}

/// What the kubelet has made of the resize of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The pod has the resources.
    Taken,
    /// Not yet. The answer may be old until this time, if there is one.
    Waits(Option<Timestamp>),
    /// It never will, for this reason.
    Never(String),
}

/// The answer to the resize that `task` has written.
pub fn answer(pod: &Pod, task: &PodTask, now: Timestamp) -> Answer {
    let settled_at = later(task.at, SETTLED);
    match &pod.resize {
        Resize::Taken => Answer::Taken,
        Resize::Waits(_) => Answer::Waits(None),
        Resize::Infeasible { newest, .. } if !newest && settled_at > now => Answer::Waits(Some(settled_at)),
        Resize::Infeasible { note, .. } => Answer::Never(note.clone()),
    }
}

/// True when the pod that the API server returns has what was written by the resize `spec`.
pub fn is_written(pod: &Pod, spec: &Value) -> bool {
    let lists = ["containers", "initContainers"].map(|list| spec.get(list).and_then(Value::as_array));
    lists.into_iter().flatten().flatten().all(|container| {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
        let kinds = container.get("resources").and_then(Value::as_object).into_iter().flatten();
        let stated =
            kinds.flat_map(|(kind, of)| of.as_object().into_iter().flatten().map(move |of| (kind, of)));
        let mut fields = stated.filter_map(|(kind, (resource, value))| {
            let field = resources::FIELDS.into_iter().find(|field| *field == (kind, resource))?;
            Some((field, Quantity::read(value)?))
        });
        fields.all(|(field, quantity)| pod.resource(name, field) == Some(quantity))
    })
}

/// Records on the pod that the API server refuses the resize of `task`. The next decision ends the task.
pub fn refused(task: &PodTask, error: &str) -> PodPatch {
    let note = error.chars().take(MAX_NOTE).collect::<String>();
    let text = serde_json::to_string(&task.at_stage(Stage::Resizing, note)).unwrap_or_default();
    let annotations = workload_key::task_annotations(&text).map(|(key, value)| (key, Some(value)));
    PodPatch { annotations: annotations.into_iter().collect(), ..PodPatch::default() }
}

/// The progress of an update, with the pods whose kubelets have not resized them.
pub fn with_waiting(
    input: &ReconcileInput<'_>,
    (going, reason, message): (bool, &'static str, String),
) -> (bool, &'static str, String) {
    let waits = |view: &&PodView<'_>| view.is_resizing() && matches!(view.pod.resize, Resize::Waits(_));
    let mut waiting = input.views.iter().filter(waits);
    let (Some(first), others) = (waiting.next(), waiting.count()) else { return (going, reason, message) };
    let Resize::Waits(why) = &first.pod.resize else { return (going, reason, message) };
    let message = format!("{message}, {} pods are being resized: pod {}: {why}", others + 1, first.pod.name);
    (going, reason, message)
}

struct Container<'a> {
    value: &'a Value,
    /// True for an init container that does not keep running.
    ends: bool,
}

/// The container of a path such as `containers[0]`.
fn container_at<'a>(path: &str, spec: &'a Value) -> Option<Container<'a>> {
    let (list, at) = path.strip_suffix(']')?.split_once('[')?;
    let value = spec.get(list)?.get(at.parse::<usize>().ok()?)?;
    match list {
        "containers" => Some(Container { value, ends: false }),
        "initContainers" => Some(Container { value, ends: !is_sidecar(value) }),
        _ => None,
    }
}

/// The quantity of a resource, as it is stated.
fn amount(container: &Value, kind: &str, resource: &str) -> Option<Quantity> {
    Quantity::read(container.get("resources")?.get(kind)?.get(resource)?)
}

/// True when the container has no such limit or request any more.
fn is_removed(container: &Value, kind: &str, resource: &str) -> bool {
    container.get("resources").and_then(|stated| resources::value(stated, (kind, resource))).is_none()
}

/// The class of a pod with this spec; `None` when the resources of the whole pod are stated, which decide it then.
fn qos_class(spec: &Value) -> Option<QosClass> {
    if spec.get("resources").is_some_and(|resources| !resources.is_null()) {
        return None;
    }
    let list = |name: &str| spec.get(name).and_then(Value::as_array).into_iter().flatten();
    let (mut any, mut equal) = (false, true);
    for container in list("containers").chain(list("initContainers")) {
        for resource in RESIZABLE {
            let stated = |kind: &str| amount(container, kind, resource).filter(|amount| !amount.is_zero());
            let limit = stated("limits");
            // Without a request the limit is the request.
            let request = stated("requests").or(limit);
            any |= request.is_some();
            equal &= limit.is_some() && request == limit;
        }
    }
    Some(match (any, equal) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(resources: &Value) -> Value {
        json!({"containers": [{"name": "app", "resources": resources}, {"name": "side"}],
            "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}]})
    }

    fn burstable() -> Value {
        spec(&json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}))
    }

    const CPU: &str = "spec.containers[0].resources.limits.cpu";

    #[test]
    fn what_kubernetes_does_needs_only_the_subresource() {
        for (path, value) in [
            ("/containers/0/resources/limits/cpu", "3"),
            ("/containers/0/resources/limits/memory", "512Mi"),
            ("/containers/0/resources/requests/cpu", "2"),
        ] {
            let mut new = burstable();
            *new.pointer_mut(path).unwrap() = json!(value);
            let field = format!("spec{}", path.replace("/containers/0", ".containers[0]").replace('/', "."));
            assert_eq!(resizable(&field, &burstable(), &new, true), Some(Ok(())), "{field}");
            assert_eq!(resizable(&field, &burstable(), &new, false), Some(Err(NotResizable::NoResize)));
        }
        let mut new = burstable();
        new["initContainers"][1]["resources"] = json!({"requests": {"cpu": "1"}});
        let path = "spec.initContainers[1].resources.requests.cpu";
        assert_eq!(resizable(path, &burstable(), &new, true), Some(Ok(())));
    }

    #[test]
    fn what_kubernetes_refuses_has_its_own_reason() {
        let of = |path: &str, new: &Value| resizable(path, &burstable(), new, true).unwrap().unwrap_err();
        let gpu = spec(&json!({"limits": {"cpu": "2", "memory": "1Gi", "example.com/gpu": "1"}}));
        assert_eq!(
            of("spec.containers[0].resources.limits.example.com/gpu", &gpu),
            NotResizable::OtherResource
        );
        let storage = "spec.containers[0].resources.requests.ephemeral-storage";
        assert_eq!(of(storage, &burstable()), NotResizable::OtherResource, "also when it is removed");
        let mut setup = burstable();
        setup["initContainers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
        assert_eq!(of("spec.initContainers[0].resources.limits.cpu", &setup), NotResizable::InitContainer);
        let removed = spec(&json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "1"}}));
        assert_eq!(of(CPU, &removed), NotResizable::Removed);
        let requests = "spec.containers[0].resources.requests.cpu";
        let raised = spec(&json!({"limits": {"cpu": "2", "memory": "1Gi"}}));
        assert_eq!(
            resizable(requests, &burstable(), &raised, true),
            Some(Ok(())),
            "the limit is the request"
        );
        let mut windows = burstable();
        windows["os"] = json!({"name": "windows"});
        assert_eq!(of(CPU, &windows), NotResizable::Windows);
    }

    #[test]
    fn a_pod_keeps_its_qos_class() {
        let alone = |resources: Value| json!({"containers": [{"name": "app", "resources": resources}]});
        let guaranteed = |cpu: &str| alone(json!({"limits": {"cpu": cpu, "memory": "1Gi"}}));
        let stated = alone(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}}));
        assert_eq!(qos_class(&stated), Some(QosClass::Guaranteed));
        assert_eq!(resizable(CPU, &guaranteed("1"), &guaranteed("2"), true), Some(Ok(())));
        let less = alone(json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}));
        let (from, to) = (QosClass::Guaranteed, QosClass::Burstable);
        let why = resizable(CPU, &guaranteed("1"), &less, true).unwrap().unwrap_err();
        assert_eq!(why, NotResizable::QosClass { from, to });
        assert_eq!(why.to_string(), "the QoS class of the pod would change from Guaranteed to Burstable");
        let none = alone(json!({"limits": {"cpu": "0"}}));
        assert_eq!(qos_class(&none), Some(QosClass::BestEffort));
        let (from, to) = (QosClass::BestEffort, QosClass::Guaranteed);
        assert_eq!(
            resizable(CPU, &none, &guaranteed("1"), true),
            Some(Err(NotResizable::QosClass { from, to }))
        );
        // A container without limits makes the pod Burstable, an init container as well.
        let mut mixed = guaranteed("1");
        mixed["initContainers"] = json!([{"name": "setup"}]);
        assert_eq!(qos_class(&mixed), Some(QosClass::Burstable));
        mixed["resources"] = json!({"limits": {"cpu": "4"}});
        assert_eq!(qos_class(&mixed), None, "the resources of the whole pod decide");
    }

    #[test]
    fn other_fields_have_no_such_reason() {
        for path in [
            "spec.nodeName",
            "spec.containers[0].resources.claims",
            "spec.containers[9].resources.limits.cpu",
            "spec.resources.limits.cpu",
            "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage",
        ] {
            assert_eq!(resizable(path, &burstable(), &burstable(), true), None, "{path}");
        }
    }
}
