//! Which templates mean the same, and which do not.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::workload::diff::Change;
use crate::workload::revision;

fn template(value: Value) -> PodTemplate {
    PodTemplate(value)
}

/// A template as a user writes it, with what a Go program rewrites.
fn written() -> Value {
    json!({
        "metadata": {"labels": {"app": "web", "empty": ""}},
        "spec": {
            "hostNetwork": false, "nodeSelector": {}, "imagePullSecrets": [], "serviceAccountName": "web",
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [
                {"name": "app", "image": "app:1", "command": [], "tty": false,
                    "env": [{"name": "EMPTY", "value": ""}, {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
                    "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}, "requests": {"cpu": 0.5}},
                    "readinessProbe": {"initialDelaySeconds": 0, "httpGet": {"port": 80}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": false}]},
                {"name": "side", "image": "side:1"},
            ],
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "2048Mi"}}, {"name": "more", "emptyDir": {}}],
        },
    })
}

/// The same template in the `ControllerRevision` that a bk-bcs operator has written.
fn recorded() -> Value {
    json!({
        "metadata": {"creationTimestamp": null, "labels": {"app": "web", "empty": ""}},
        "spec": {
            "serviceAccountName": "web", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [
                {"name": "app", "image": "app:1",
                    "env": [{"name": "EMPTY"}, {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}],
                    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                    "readinessProbe": {"httpGet": {"port": 80}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                {"name": "side", "image": "side:1", "resources": {}},
            ],
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "2Gi"}}, {"name": "more", "emptyDir": {}}],
        },
    })
}

/// The same template with the defaults of the API server.
fn defaulted() -> Value {
    let mut value = recorded();
    let spec = &mut value["spec"];
    for (field, default) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
        ("serviceAccount", json!("web")),
    ] {
        spec[field] = default;
    }
    let app = &mut spec["containers"][0];
    app["terminationMessagePath"] = json!("/dev/termination-log");
    app["terminationMessagePolicy"] = json!("File");
    app["readinessProbe"] = json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1,
        "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
    value
}

#[test]
fn the_form_in_which_a_template_is_written_is_no_change() {
    for other in [recorded(), defaulted()] {
        assert!(revision::equal(&template(written()), &template(other.clone())), "{other:#}");
        let mut image = other.clone();
        image["spec"]["containers"][0]["image"] = json!("app:2");
        let change = Change::between(&template(other), &template(image.clone()), false);
        let crossed = Change::between(&template(written()), &template(image), false);
        assert_eq!(crossed, change, "an image is all that changes");
        assert_eq!(change.containers, ["app"]);
    }
}

#[test]
fn what_says_something_though_it_looks_empty_is_a_change() {
    for (path, value) in [
        ("/metadata/labels/empty", None),
        ("/spec/terminationGracePeriodSeconds", None),
        ("/spec/automountServiceAccountToken", None),
        ("/spec/containers/0/env/0", None),
        ("/spec/volumes/1/emptyDir", None),
        ("/spec/unknown", Some(json!(false))),
        ("/spec/shareProcessNamespace", Some(json!(false))),
        ("/spec/securityContext", Some(json!({"runAsUser": 0}))),
        ("/spec/containers/0/securityContext", Some(json!({"privileged": false}))),
        ("/spec/containers/1/restartPolicy", Some(json!("Always"))),
        ("/spec/nodeSelector", Some(json!({"disk": ""}))),
        ("/spec/containers/1/resources/limits", Some(json!({"cpu": "0"}))),
        ("/spec/topologySpreadConstraints", Some(json!([{"labelSelector": {}}]))),
    ] {
        let (parent, name) = path.rsplit_once('/').unwrap();
        let mut other = recorded();
        let parent = other.pointer_mut(parent).unwrap();
        match (parent, value) {
            (Value::Array(items), None) => drop(items.remove(name.parse().unwrap())),
            (Value::Object(fields), None) => drop(fields.remove(name).unwrap()),
            (parent, value) => parent[name] = value.unwrap(),
        }
        assert!(!revision::equal(&template(written()), &template(other)), "{path}");
    }
    let selects = |selector: Value| {
        template(
            json!({"spec": {"affinity": {"podAffinity": {"required": [{"namespaceSelector": selector}]}}}}),
        )
    };
    assert!(!revision::equal(&selects(json!({})), &selects(Value::Null)), "all namespaces, and its own");
    let change = Change::between(&selects(json!({})), &selects(Value::Null), false);
    assert_eq!(change.elsewhere, ["spec.affinity.podAffinity.required[0].namespaceSelector"]);
}

#[test]
fn quantities_are_compared_as_numbers() {
    for same in [
        &["1", "1000m", "1.0", "1e0", "+1", "1000000u", "0.001k"][..],
        &["1Gi", "1024Mi", "1073741824", "1048576Ki"],
        &["0", "0m", "-0", "0Gi"],
        &["1.5Gi", "1536Mi"],
        &["100M", "1e8", "1E8", "0.1G"],
        &["1n"],
        &["1E"],
        &["1Ei"],
    ] {
        let numbers: Vec<_> = same.iter().map(|text| nanos(text)).collect();
        assert!(
            numbers.iter().all(|number| number.is_some() && *number == numbers[0]),
            "{same:?}: {numbers:?}"
        );
    }
    assert_eq!(nanos("-250m"), Some(-250_000_000));
    for odd in ["", ".", "m", "1.2.3", "1x", "1 Gi", "1e99", "0.0000000001", "٣", &"9".repeat(40)] {
        assert_eq!(nanos(odd), None, "{odd}");
        assert_eq!(quantity(&json!(odd)), json!(odd), "it counts as it is written");
    }
}

/// The paths of all values without fields or items of their own.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(value, &format!("{path}/{name}"), found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (at, value) in items.iter().enumerate() {
                leaves(value, &format!("{path}/{at}"), found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

proptest! {
    /// No other value of any field is overlooked.
    #[test]
    fn every_other_value_is_a_change(at in any::<prop::sample::Index>(), number in 1_000_000_i64..9_000_000) {
        let mut paths = Vec::new();
        leaves(&defaulted(), "", &mut paths);
        paths.retain(|path| path != "/metadata/creationTimestamp" && path != "/spec/serviceAccount");
        let path = &paths[at.index(paths.len())];
        let mut other = defaulted();
        let value = other.pointer_mut(path).unwrap();
        *value = match value {
            Value::Bool(now) => json!(!*now),
            Value::Number(_) => json!(number),
            Value::Object(_) => json!({"other": number}),
            _ if path.contains("/resources/") || path.ends_with("sizeLimit") => json!(number),
            _ => json!(format!("other-{number}")),
        };
        prop_assert!(!revision::equal(&template(written()), &template(other)), "{}", path);
    }

    /// Two quantities are equal if and only if their numbers are.
    #[test]
    fn quantities_differ_as_their_numbers(one in 0_i64..5000, more in prop_oneof![Just(0), -1_i64..5000]) {
        let other = (one + more).max(0);
        let of = |milli: i64| {
            let limits = json!({"cpu": format!("{milli}m"), "memory": format!("{}Ki", milli * 1024)});
            template(json!({"spec": {"containers": [{"resources": {"limits": limits}}]}}))
        };
        let written = template(json!({"spec": {"containers": [{"resources": {
            "limits": {"cpu": format!("{}.{:03}", one / 1000, one % 1000), "memory": format!("{one}Mi")}}}]}}));
        prop_assert_eq!(revision::equal(&written, &of(other)), one == other);
    }

    /// Any JSON has a meaning, and the meaning of that is the same.
    #[test]
    fn the_meaning_of_a_meaning_is_itself(text in "[a-z]{0,8}", number in any::<i64>()) {
        let any = json!({"metadata": {"labels": {text.clone(): null}}, "spec": {text.clone(): [{}, null, number, [text]]}});
        let once = meaning(&template(any));
        prop_assert_eq!(meaning(&template(once.clone())), once);
    }
}
