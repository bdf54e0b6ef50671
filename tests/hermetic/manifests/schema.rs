//! The schema of the chart's values: it describes each value, and Helm refuses what it does not allow.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::{chart, key, read};

fn schema() -> Value {
    serde_json::from_str(&read("daemonset/chart/values.schema.json")).unwrap()
}

/// The dotted names of the values below `object` that the schema names.
fn named(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        found.insert(path.clone());
        named(below, &path, found);
    }
}

/// The values that the schema does not name; not inside of the maps `free`.
fn unnamed(value: &Value, path: &str, known: &BTreeSet<String>, free: &[&str], missing: &mut Vec<String>) {
    for (name, below) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if !known.contains(&path) {
            missing.push(path);
        } else if !free.contains(&path.as_str()) {
            unnamed(below, &path, known, free, missing);
        }
    }
}

#[test]
fn each_value_is_in_the_schema_with_its_meaning() {
    let values: Value = serde_saphyr::from_str(&read("daemonset/chart/values.yaml")).unwrap();
    let mut known = BTreeSet::new();
    named(&schema(), "", &mut known);
    // Maps whose keys the user or Kubernetes names.
    let free = [
        ".nodeSelector",
        ".resources.requests",
        ".resources.limits",
        ".controller.nodeSelector",
        ".controller.affinity",
        ".controller.podAnnotations",
        ".affinity",
        ".podAnnotations",
        ".controller.resources.requests",
        ".controller.resources.limits",
        ".monitoring.labels",
    ];
    let mut missing = Vec::new();
    unnamed(&values, "", &known, &free, &mut missing);
    assert_eq!(missing, Vec::<String>::new(), "values without a schema");
    // A value of the schema that values.yaml does not have does nothing; `global` is Helm's own.
    let of_values = known.iter().filter(|path| !path.starts_with(".global"));
    let unknown = of_values.filter(|path| {
        let inside = |map: &&str| path.starts_with(&format!("{map}."));
        let place = values.pointer(&path.replace('.', "/"));
        place.is_none() && !free.iter().any(inside) && !path.starts_with(".seLinuxOptions.")
    });
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Every part of the schema has a description, and no object takes a field that it does not name, unless it is a map.
#[test]
fn the_schema_describes_every_part_and_leaves_nothing_open() {
    fn walk(schema: &Value, path: &str, wrong: &mut Vec<String>) {
        if schema["description"].as_str().is_none_or(|text| !text.ends_with('.') && !text.ends_with(':')) {
            wrong.push(format!("{path}: no description"));
        }
        if schema.get("properties").is_some() && schema["additionalProperties"] != false {
            wrong.push(format!("{path}: takes any field"));
        }
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            walk(below, &format!("{path}.{name}"), wrong);
        }
        for below in schema.get("items").into_iter().chain(schema["anyOf"].as_array().into_iter().flatten()) {
            walk(below, &format!("{path}[]"), wrong);
        }
    }
    let mut wrong = Vec::new();
    walk(&schema(), "", &mut wrong);
    assert_eq!(wrong, Vec::<String>::new());
}

/// What Helm says when it refuses values.
fn refused(values: &Value) -> String {
    let output = Command::new("bash")
        .args(["tests/lab/chart.sh", "daemonset/chart", &values.to_string()])
        .output()
        .unwrap();
    assert!(!output.status.success(), "{values} was accepted");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn helm_refuses_a_wrong_value_and_names_it() {
    for (values, place) in [
        (json!({"runtimeSockets": "/run/containerd/containerd.sock"}), "'runtimeSockets' not allowed"),
        (json!({"runtimeSocket": "unix:///run/containerd/containerd.sock"}), "/runtimeSocket"),
        (json!({"imageDisk": "/var/lib/containerd/"}), "/imageDisk"),
        (json!({"image": {"digest": "sha256:12"}}), "/image/digest"),
        (json!({"image": {"tags": "v1"}}), "/image"),
        (json!({"image": {"repository": "reg:5000/a/inplace:v1"}}), "/image/repository"),
        (json!({"image": {"repository": "https://reg/inplace"}}), "/image/repository"),
        (json!({"namespace": {"name": "My_Space"}}), "/namespace/name"),
        (json!({"imagePullSecrets": [{"names": "mine"}]}), "/imagePullSecrets/0"),
        (json!({"port": "9464"}), "/port"),
        (json!({"maxUnavailable": "ten"}), "/maxUnavailable"),
        (json!({"maxUnavailable": "0%"}), "/maxUnavailable"),
        (json!({"maxUnavailable": "200%"}), "/maxUnavailable"),
        (json!({"maxUnavailable": 0}), "/maxUnavailable"),
        (json!({"readinessGates": ["Ready"]}), "/readinessGates/0"),
        (json!({"readinessGates": ["it's"]}), "/readinessGates/0"),
        (json!({"admissionPolicy": {"enabled": "yes"}}), "/admissionPolicy/enabled"),
        (json!({"seLinuxOptions": {"kind": "spc_t"}}), "/seLinuxOptions"),
        (json!({"hooks": {"allow": "10.0.0.0/8"}}), "/hooks/allow"),
        (json!({"hooks": {"allow": ["10.0.0.0/33"]}}), "/hooks/allow/0"),
        (json!({"hooks": {"deny": ["10.0.0.0/8", "300.0.0.1"]}}), "/hooks/deny/1"),
        (json!({"hooks": {"deny": ["fd00:/8"]}}), "/hooks/deny/0"),
        (json!({"hooks": {"deny": ["::ffff:300.0.0.1"]}}), "/hooks/deny/0"),
        (json!({"deleteGuard": {"longestHold": "six hours"}}), "/deleteGuard/longestHold"),
        (json!({"deleteGuard": {"longestHold": "0h"}}), "/deleteGuard/longestHold"),
        (json!({"networkPolicy": {"controlPlane": ["everyone"]}}), "/networkPolicy/controlPlane/0"),
        (json!({"networkPolicy": {"controlPlane": ["10.0.0.1"]}}), "/networkPolicy/controlPlane/0"),
        (json!({"networkPolicy": {"controlPlane": ["300.0.0.0/99"]}}), "/networkPolicy/controlPlane/0"),
        (json!({"networkPolicy": {"controlPlane": ["64:ff9b::1.2.3.4"]}}), "/networkPolicy/controlPlane/0"),
        (json!({"controller": {"replicas": 0}}), "/controller/replicas"),
        (json!({"controller": {"extraArgs": ["log-json"]}}), "/controller/extraArgs/0"),
    ] {
        let says = refused(&values);
        assert!(
            says.contains("values don't meet the specifications") && says.contains(place),
            "{values}: {says}"
        );
    }
}

/// Both would do nothing without the webhooks, or would do it unchecked.
#[test]
fn what_needs_the_webhooks_is_refused_without_them() {
    for (values, why) in [
        (json!({"containerRecreateRequests": true}), "containerRecreateRequests needs webhook.enabled"),
        (json!({"webhook": {"readinessGate": true}}), "webhook.readinessGate needs webhook.enabled"),
    ] {
        let mut off = values.clone();
        off["webhook"]["enabled"] = json!(false);
        let says = refused(&off);
        assert!(says.contains(why), "{off}: {says}");
        assert!(chart(&values) != chart(&json!({})), "{values}");
    }
}

/// The forms that the schema has patterns for: Helm accepts them, and so does the program.
#[test]
fn a_duration_and_an_address_that_helm_accepts_are_those_of_the_program() {
    let holds = ["6h", "90min", "1h 30m", "1h, 30m", "2 hours 5 minutes", "0h45s", "999999999h"];
    let holds = holds.into_iter().chain(["1.5h", "500ms", "PT6H", "06:00:00"]);
    let networks = [
        "10.0.0.0/8",
        "0.0.0.0/0",
        "fd00::/8",
        "::/0",
        "2001:db8:0:0:0:0:0:1/128",
        "64:ff9b::1.2.3.4/96",
        "1:2:3:4:5:6:1.2.3.4/128",
    ];
    let addresses = [&networks[..], &["169.254.169.254", "::1", "::ffff:10.0.0.1", "::1.2.3.4"]].concat();
    for hold in holds {
        let made = chart(
            &json!({"hooks": {"allow": addresses, "deny": addresses}, "deleteGuard": {"longestHold": hold},
            "networkPolicy": {"controlPlane": networks}, "image": {"repository": "[::1]:5000/a/inplace"}, "maxUnavailable": "100%"}),
        );
        let controller =
            &made[&key("Deployment", "inplace-system", "inplace-controller")]["spec"]["template"]["spec"];
        let args = controller["containers"][0]["args"].as_array().unwrap();
        let args = args.iter().map(|arg| arg.as_str().unwrap());
        let known = Command::new(env!("CARGO_BIN_EXE_inplace")).args(args).arg("--help").output().unwrap();
        assert!(known.status.success(), "{hold}: {}", String::from_utf8_lossy(&known.stderr));
    }
}

/// Without the webhooks nothing else listens there.
#[test]
fn the_port_of_the_webhooks_is_free_without_them() {
    let values = |webhook: bool| json!({"controller": {"port": 9443}, "webhook": {"enabled": webhook}});
    let says = refused(&values(true));
    assert!(says.contains("controller.port 9443 is that of the webhooks"), "{says}");
    let made = chart(&values(false));
    let controller = &made[&key("Deployment", "inplace-system", "inplace-controller")];
    assert!(controller.to_string().contains("\"containerPort\":9443"), "{controller}");
}

#[test]
fn what_a_pod_takes_is_accepted() {
    let taken = chart(&json!({
        "extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
        "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
        "tolerations": [{"key": "game", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 5}],
        "controller": {"affinity": {"podAntiAffinity": {}}}, "global": {"any": "thing"},
    }));
    assert!(taken.values().any(|object| object.to_string().contains("status.hostIP")));
}

#[test]
fn helm_finds_no_fault_with_the_chart() {
    let found = helm(&["lint", "--strict", "daemonset/chart"]);
    assert!(found.contains("1 chart(s) linted, 0 chart(s) failed"), "{found}");
}

fn helm(args: &[&str]) -> String {
    super::run(super::run("bash", &["tests/lab/helm.sh"]).trim(), args)
}

#[test]
fn the_notes_of_an_installation_say_what_is_off() {
    let notes = |set: &str| {
        let all = helm(&["install", "inplace", "daemonset/chart", "--dry-run=client", "--set", set]);
        all.split("NOTES:").nth(1).unwrap().to_owned()
    };
    let on = notes("admissionPolicy.enabled=true");
    assert!(on.contains("2 controllers are installed in the namespace inplace-system"), "{on}");
    assert!(!on.contains("NOT installed") && !on.contains("webhooks are off"), "{on}");
    assert!(notes("admissionPolicy.enabled=false").contains("admission policies are NOT installed"));
    assert!(notes("webhook.enabled=false").contains("webhooks are off"));
}
