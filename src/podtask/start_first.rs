//! The order `StartFirst` as a controller uses it: which containers cannot start first, as far as the pod template says,
//! which order the request for a pod has now, and how long it may take. Sends nothing. The agent of the node decides
//! again, with all facts.
//!
//! | container | order of its request |
//! |---|---|
//! | Ready | `StartFirst` |
//! | waits for its start, for example in CrashLoopBackOff | `StopFirst`: nothing runs that could serve |
//! | runs and is not Ready | no request yet: it may serve, and nothing can be compared with it |
//! | not Ready, in a pod that a failed task or an aborted update of the controller left so | `StopFirst`: it is repaired |

use serde_json::Value;

use crate::api::pod_template::{
    PodTemplate, asks_own_pod, is_changeable_field, is_extended_resource, is_sidecar,
};
use crate::api::request::Order;
use crate::podtask::pod::Pod;

/// How long a kubelet waits after SIGTERM if the template does not say it.
const DEFAULT_GRACE_SECONDS: u64 = 30;
/// How many seconds of the default deadline the stops and a rollback may take. The rest is for pulls and hooks.
const STOPS_SECONDS: u64 = 300;

/// The order of a request for these containers of `pod`. `None`: not yet, because one of them runs and is not Ready.
/// `repairs`: a failed task or an aborted update of the controller left the pod as it is.
pub fn order<'n>(
    desired: Order,
    pod: &Pod,
    containers: impl IntoIterator<Item = &'n str>,
    repairs: bool,
) -> Option<Order> {
    if desired == Order::StopFirst {
        return Some(Order::StopFirst);
    }
    let state = |name: &str| pod.unready.iter().find(|(found, _)| found == name).map(|(_, waits)| *waits);
    let states: Vec<_> = containers.into_iter().map(state).collect();
    if states.iter().all(Option::is_none) {
        return Some(Order::StartFirst);
    }
    (repairs || states.iter().all(|waits| *waits == Some(true))).then_some(Order::StopFirst)
}

/// Why a request for these containers cannot start first, if the template says so.
pub fn problem<'n>(template: &PodTemplate, containers: impl IntoIterator<Item = &'n str>) -> Option<String> {
    let names: Vec<_> = containers.into_iter().collect();
    let pod = of_pod(template);
    if names.len() > 1 && pod.is_none() {
        return Some(format!(
            "the containers {} change at once, and only one at a time can: change one after the other",
            names.join(", ")
        ));
    }
    let changes = |container: &Value| {
        container.get("name").and_then(Value::as_str).is_some_and(|name| names.contains(&name))
    };
    pod.or_else(|| {
        let container =
            template.lasting().map(|(_, container)| container).find(|container| changes(container))?;
        of_container(template, container)
    })
}

/// Why no container of the template can start first, if so.
pub fn never(template: &PodTemplate) -> Option<String> {
    of_pod(template).or_else(|| {
        let mut problems = template.lasting().map(|(_, container)| of_container(template, container));
        // A template without containers is refused elsewhere.
        let first = problems.next()??;
        problems.all(|problem| problem.is_some()).then_some(first)
    })
}

fn of_pod(template: &PodTemplate) -> Option<String> {
    let is_shared = template.0.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
    is_shared.then(|| {
        "the pods use the network of their nodes (hostNetwork), where the sockets of other processes count too".to_owned()
    })
}

fn of_container(template: &PodTemplate, container: &Value) -> Option<String> {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    let policy = template.0.pointer("/spec/restartPolicy").and_then(Value::as_str).unwrap_or("Always");
    let cannot = |why: String| Some(format!("container {name} {why}"));
    if policy != "Always" && !is_sidecar(container) {
        return cannot(format!("has the restartPolicy {policy}"));
    }
    if !items(container, "/restartPolicyRules").is_empty() {
        return cannot("has restartPolicyRules".to_owned());
    }
    if container.pointer("/lifecycle/postStart").is_some_and(|hook| !hook.is_null()) {
        return cannot("has a postStart handler, which only its kubelet runs".to_owned());
    }
    if container.pointer("/lifecycle/preStop").is_some_and(asks_own_pod) {
        return cannot(
            "has a preStop handler that connects to the pod, where either of two containers may answer"
                .to_owned(),
        );
    }
    if !items(container, "/envFrom").is_empty() || items(container, "/env").iter().any(follows_an_object) {
        return cannot(
            "has an environment from a ConfigMap, a Secret, labels or annotations, which only its kubelet reads".to_owned(),
        );
    }
    if items(container, "/volumeMounts").iter().any(|mount| mounts_part_of_object(template, mount)) {
        return cannot("mounts a subPath of a ConfigMap, a Secret or a projected volume".to_owned());
    }
    let limits = container.pointer("/resources/limits").and_then(Value::as_object);
    let devices: Vec<_> = limits
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .filter(|name| is_extended_resource(name))
        .collect();
    if !devices.is_empty() {
        return cannot(format!("uses {}, which no second container can use", devices.join(", ")));
    }
    if !items(container, "/resources/claims").is_empty() {
        return cannot("uses resource claims, whose devices no second container can use".to_owned());
    }
    if !items(container, "/volumeDevices").is_empty() {
        return cannot("uses block volumes, which no second container can use".to_owned());
    }
    None
}

fn items<'v>(of: &'v Value, path: &str) -> &'v [Value] {
    of.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// True if the value may differ at the next start.
fn follows_an_object(variable: &Value) -> bool {
    let Some(from) = variable.get("valueFrom").filter(|from| !from.is_null()) else { return false };
    match (from.pointer("/fieldRef/fieldPath").and_then(Value::as_str), from.get("resourceFieldRef")) {
        (Some(path), _) => is_changeable_field(path),
        (None, resource) => resource.is_none(),
    }
}

fn mounts_part_of_object(template: &PodTemplate, mount: &Value) -> bool {
    let is_text = |field: &str| mount.get(field).and_then(Value::as_str).is_some_and(|path| !path.is_empty());
    let is_of = |volume: &&Value| volume.get("name") == mount.get("name");
    let follows = |volume: &Value| {
        ["configMap", "secret", "projected", "downwardAPI"].iter().any(|source| volume.get(source).is_some())
    };
    let partial = is_text("subPath") || is_text("subPathExpr");
    partial && items(&template.0, "/spec/volumes").iter().find(is_of).is_some_and(follows)
}

/// Seconds that a pod of `template` may take to stop one container.
pub fn grace_seconds(template: &PodTemplate) -> u64 {
    let grace = template.0.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_u64);
    grace.unwrap_or(DEFAULT_GRACE_SECONDS)
}

/// Seconds by which the default deadline of a request for this number of containers is too short to stop them, each
/// within `grace` seconds, and to return to the old images. A standby has the grace period of its container.
pub fn missing_seconds(order: Order, containers: usize, grace: u64) -> u32 {
    let standbys = if order == Order::StartFirst { containers } else { 0 };
    let stops = grace.saturating_mul(containers.saturating_add(standbys) as u64);
    u32::try_from(stops.saturating_mul(2).saturating_sub(STOPS_SECONDS)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(spec: &Value) -> PodTemplate {
        PodTemplate(json!({"spec": spec}))
    }

    #[test]
    fn what_cannot_start_first_is_known_from_the_template() {
        let of = |more: &Value, names: &[&str]| {
            let mut app = json!({"name": "app", "image": "app:1"});
            app.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let volumes =
                json!([{"name": "conf", "configMap": {"name": "c"}}, {"name": "data", "emptyDir": {}}]);
            let spec = json!({"containers": [app, {"name": "side", "image": "side:1"}], "volumes": volumes});
            problem(&template(&spec), names.iter().copied()).unwrap_or_default()
        };
        for more in [
            json!({}),
            json!({"env": [{"name": "A", "value": "1"}, {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}),
            json!({"volumeMounts": [{"name": "conf", "mountPath": "/c"}, {"name": "data", "mountPath": "/d", "subPath": "x"}]}),
            json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi", "node.kubernetes.io/x": "1"}}}),
            json!({"lifecycle": {"preStop": {"exec": {"command": ["a"]}}}}),
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 3}}}}),
            json!({"lifecycle": {"preStop": {"httpGet": {"port": 80, "host": "registry.example"}}}}),
        ] {
            assert_eq!(of(&more, &["app"]), "");
        }
        assert!(of(&json!({}), &["app", "side"]).contains("containers app, side change at once"));
        for (more, says) in [
            (
                json!({"lifecycle": {"postStart": {"exec": {"command": ["a"]}}}}),
                "container app has a postStart handler",
            ),
            (
                json!({"lifecycle": {"preStop": {"httpGet": {"port": "http", "path": "/bye"}}}}),
                "container app has a preStop handler that connects to the pod",
            ),
            (json!({"lifecycle": {"preStop": {"tcpSocket": {"port": 80, "host": ""}}}}), "a preStop handler"),
            (json!({"envFrom": [{"configMapRef": {"name": "c"}}]}), "container app has an environment from"),
            (
                json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
                "environment",
            ),
            (
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}]}),
                "environment",
            ),
            (
                json!({"volumeMounts": [{"name": "conf", "mountPath": "/c", "subPath": "f"}]}),
                "mounts a subPath",
            ),
            (json!({"resources": {"limits": {"gpu.example/card": "1"}}}), "uses gpu.example/card"),
            (json!({"resources": {"claims": [{"name": "gpu"}]}}), "uses resource claims"),
            (json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}]}), "uses block volumes"),
            (json!({"restartPolicyRules": [{}]}), "restartPolicyRules"),
        ] {
            let problem = of(&more, &["app"]);
            assert!(problem.contains(says), "{problem}");
            assert_eq!(of(&more, &["side"]), "", "another container changes");
        }
        let host = template(&json!({"hostNetwork": true, "containers": [{"name": "app"}, {"name": "side"}]}));
        assert!(problem(&host, ["app", "side"]).unwrap().contains("hostNetwork"));
        let never_again = template(&json!({"restartPolicy": "Never", "containers": [{"name": "app"}]}));
        assert!(problem(&never_again, ["app"]).unwrap().contains("restartPolicy Never"));
    }

    #[test]
    fn a_template_of_which_nothing_can_start_first_is_known_before_any_update() {
        let post_start = json!({"name": "app", "lifecycle": {"postStart": {}}});
        let of = |containers: Value| never(&template(&json!({"containers": containers})));
        assert!(of(json!([post_start])).unwrap().contains("postStart"));
        assert_eq!(of(json!([post_start, {"name": "side"}])), None, "the other one can");
        assert_eq!(of(json!([{"name": "a"}, {"name": "b"}])), None, "one after the other");
        assert_eq!(of(json!([])), None);
        assert!(never(&template(&json!({"hostNetwork": true, "containers": [{"name": "a"}]}))).is_some());
    }

    #[test]
    fn only_what_is_ready_starts_first_and_what_runs_is_not_stopped_for_it() {
        let of = |order_asked, statuses: Value, repairs| {
            let pod = Pod::read(
                &serde_json::from_value(json!({"metadata": {}, "status": {"containerStatuses": statuses}}))
                    .unwrap(),
            );
            order(order_asked, &pod, ["app"], repairs)
        };
        let status = |name: &str, ready: bool, state: Value| json!({"name": name, "ready": ready, "state": state, "restartCount": 0, "image": "", "imageID": ""});
        let (runs, waits) = (json!({"running": {}}), json!({"waiting": {"reason": "CrashLoopBackOff"}}));
        let ended = json!({"terminated": {"exitCode": 1}});
        let (stop, start) = (Some(Order::StopFirst), Some(Order::StartFirst));
        for (statuses, expected) in [
            (json!([]), start),
            (json!([status("app", true, runs.clone())]), start),
            (json!([status("app", true, runs.clone()), status("side", false, waits.clone())]), start),
            (json!([status("app", false, waits.clone())]), stop),
            (json!([status("app", false, runs.clone())]), None),
            // Its kubelet may be about to start it again, at once.
            (json!([status("app", false, ended)]), None),
        ] {
            assert_eq!(of(Order::StartFirst, statuses.clone(), false), expected, "{statuses}");
            assert_eq!(of(Order::StopFirst, statuses, false), stop);
        }
        assert_eq!(of(Order::StartFirst, json!([status("app", false, runs.clone())]), true), stop);
        assert_eq!(of(Order::StartFirst, json!([status("app", true, runs)]), true), start);
    }

    #[test]
    fn a_long_grace_period_makes_the_deadline_longer() {
        assert_eq!(missing_seconds(Order::StopFirst, 1, 30), 0);
        assert_eq!(missing_seconds(Order::StartFirst, 1, 30), 0);
        assert_eq!(missing_seconds(Order::StopFirst, 1, 600), 900);
        assert_eq!(missing_seconds(Order::StartFirst, 1, 600), 2100);
        assert_eq!(missing_seconds(Order::StopFirst, 2, u64::MAX), u32::MAX);
        assert_eq!(grace_seconds(&template(&json!({"terminationGracePeriodSeconds": 7}))), 7);
        assert_eq!(grace_seconds(&template(&json!({}))), 30);
    }
}
