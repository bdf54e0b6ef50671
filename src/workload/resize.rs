//! Decides why a difference in the resources of a container cannot be made in a running pod, field by field.
//!
//! Most reasons are rules of Kubernetes for the resize of a pod (the subresource `pods/resize`, since 1.33): they hold
//! whatever program resizes it. A difference that Kubernetes could make has the last reason, because this program
//! resizes no pods. Values are never part of a reason.

use serde_json::Value;

use crate::api::pod_template::is_sidecar;
use crate::api::quantity::Quantity;

/// The resources that Kubernetes changes in a running pod.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

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
    #[error("this version of inplace resizes no pods")]
    NotImplemented,
}

/// The quality of service class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as Kubernetes names them")]
pub enum QosClass {
    BestEffort,
    Burstable,
    Guaranteed,
}

/// Why the field `path` cannot be changed from the pod spec `old` to the pod spec `new`; `None` when the field is no
/// resource of a container. Both specs have their quantities in one form.
pub fn not_resizable(path: &str, old: &Value, new: &Value) -> Option<NotResizable> {
    let (container, field) = path.strip_prefix("spec.")?.split_once(".resources.")?;
    let (kind, resource) = field.split_once('.').filter(|(kind, _)| ["limits", "requests"].contains(kind))?;
    let container = container_at(container, new)?;
    let windows = |spec: &Value| spec.pointer("/os/name").and_then(Value::as_str) == Some("windows");
    Some(match (qos_class(old), qos_class(new)) {
        _ if !RESIZABLE.contains(&resource) => NotResizable::OtherResource,
        _ if container.ends => NotResizable::InitContainer,
        _ if windows(new) => NotResizable::Windows,
        _ if is_removed(container.value, kind, resource) => NotResizable::Removed,
        (Some(from), Some(to)) if from != to => NotResizable::QosClass { from, to },
        _ => NotResizable::NotImplemented,
    })
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

/// True when the container has no such limit or request any more. Without a request the limit is the request.
fn is_removed(container: &Value, kind: &str, resource: &str) -> bool {
    let stated = |kind: &str| amount(container, kind, resource).is_some();
    !stated(kind) && (kind == "limits" || !stated("limits"))
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
    fn what_kubernetes_could_do_is_only_not_implemented() {
        for (path, value) in [
            ("/containers/0/resources/limits/cpu", "3"),
            ("/containers/0/resources/limits/memory", "512Mi"),
            ("/containers/0/resources/requests/cpu", "2"),
        ] {
            let mut new = burstable();
            *new.pointer_mut(path).unwrap() = json!(value);
            let field = format!("spec{}", path.replace("/containers/0", ".containers[0]").replace('/', "."));
            assert_eq!(
                not_resizable(&field, &burstable(), &new),
                Some(NotResizable::NotImplemented),
                "{field}"
            );
        }
        let mut new = burstable();
        new["initContainers"][1]["resources"] = json!({"requests": {"cpu": "1"}});
        let path = "spec.initContainers[1].resources.requests.cpu";
        assert_eq!(not_resizable(path, &burstable(), &new), Some(NotResizable::NotImplemented));
    }

    #[test]
    fn what_kubernetes_refuses_has_its_own_reason() {
        let of = |path: &str, new: &Value| not_resizable(path, &burstable(), new).unwrap();
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
        assert_eq!(of(requests, &raised), NotResizable::NotImplemented, "the limit is the request");
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
        assert_eq!(
            not_resizable(CPU, &guaranteed("1"), &guaranteed("2")),
            Some(NotResizable::NotImplemented)
        );
        let less = alone(json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}));
        let (from, to) = (QosClass::Guaranteed, QosClass::Burstable);
        let why = not_resizable(CPU, &guaranteed("1"), &less).unwrap();
        assert_eq!(why, NotResizable::QosClass { from, to });
        assert_eq!(why.to_string(), "the QoS class of the pod would change from Guaranteed to Burstable");
        let none = alone(json!({"limits": {"cpu": "0"}}));
        assert_eq!(qos_class(&none), Some(QosClass::BestEffort));
        let (from, to) = (QosClass::BestEffort, QosClass::Guaranteed);
        assert_eq!(not_resizable(CPU, &none, &guaranteed("1")), Some(NotResizable::QosClass { from, to }));
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
            assert_eq!(not_resizable(path, &burstable(), &burstable()), None, "{path}");
        }
    }
}
