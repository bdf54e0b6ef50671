//! Each value of the chart changes something, and reaches the program.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::{chart, key, kustomize, overlay, pod, read, same};

#[test]
fn every_value_of_the_chart_does_something() {
    let plain = chart(&json!({}));
    let values: Value = serde_saphyr::from_str(&read("daemonset/chart/values.yaml")).unwrap();
    let mut tried = BTreeSet::new();
    for change in [
        json!({"image": {"repository": "registry.example/inplace"}}),
        json!({"image": {"tag": "v9"}}),
        json!({"image": {"digest": format!("sha256:{}", "0".repeat(64))}}),
        json!({"image": {"pullPolicy": "Always"}}),
        json!({"imagePullSecrets": ["mine"]}),
        json!({"imagePullSecrets": [{"name": "mine"}]}),
        json!({"userRoles": false}),
        json!({"openshift": true}),
        json!({"criticalPodsQuota": true}),
        json!({"namespace": {"name": "other"}}),
        json!({"namespace": {"create": false}}),
        json!({"runtimeSocket": "/run/k3s/containerd/containerd.sock"}),
        json!({"imageDisk": "/data/containerd"}),
        json!({"kubeletDir": "/var/lib/k0s/kubelet"}),
        json!({"stateDir": "/data/inplace"}),
        json!({"port": 9999}),
        json!({"allowPullSecrets": true}),
        json!({"restartOnSecretChange": true}),
        json!({"containerRecreateRequests": true}),
        json!({"readinessGates": ["KruisePodReady"]}),
        json!({"admissionPolicy": {"enabled": false}}),
        json!({"extraArgs": ["--log-json"]}),
        json!({"extraEnv": [{"name": "INPLACE_LOG", "value": "debug"}]}),
        json!({"priorityClassName": "mine"}),
        json!({"maxUnavailable": 3}),
        json!({"resources": {"limits": {"memory": "256Mi"}}}),
        json!({"nodeSelector": {"inplace": "yes"}}),
        json!({"tolerations": [{"key": "game"}]}),
        json!({"affinity": {"nodeAffinity": {"any": "thing"}}}),
        json!({"podAnnotations": {"team": "a"}}),
        json!({"seLinuxOptions": {"type": "spc_t"}}),
        json!({"webhook": {"enabled": false}}),
        json!({"webhook": {"readinessGate": true}}),
        json!({"hooks": {"allow": ["169.254.0.0/16"]}}),
        json!({"hooks": {"deny": ["10.0.0.0/16"]}}),
        json!({"hooks": {"exec": false}}),
        json!({"deleteGuard": {"exemptUsers": []}}),
        json!({"deleteGuard": {"exemptGroups": ["system:masters"]}}),
        json!({"deleteGuard": {"longestHold": "6h"}}),
        json!({"deleteGuard": {"labelledNamespacesOnly": true}}),
        json!({"networkPolicy": {"enabled": false}}),
        json!({"networkPolicy": {"controlPlane": ["10.0.0.0/28"]}}),
        json!({"monitoring": {"enabled": true}}),
        json!({"controller": {"replicas": 1}}),
        json!({"controller": {"port": 9999}}),
        json!({"controller": {"priorityClassName": ""}}),
        json!({"controller": {"podDisruptionBudget": false}}),
        json!({"controller": {"podAnnotations": {"team": "a"}}}),
        json!({"controller": {"extraArgs": ["--log-json"]}}),
        json!({"controller": {"extraEnv": [{"name": "INPLACE_LOG", "value": "debug"}]}}),
        json!({"controller": {"extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}]}}),
        json!({"controller": {"extraVolumeMounts": [{"name": "tls", "mountPath": "/tls"}]}}),
        json!({"controller": {"resources": {"limits": {"memory": "1Gi"}}}}),
        json!({"controller": {"nodeSelector": {"inplace": "yes"}}}),
        json!({"controller": {"tolerations": [{"key": "game"}]}}),
        json!({"controller": {"affinity": {"nodeAffinity": null}}}),
    ] {
        assert!(chart(&change) != plain, "{change} changes nothing");
        tried.extend(leaves(&change));
    }
    let known = values.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let tried: BTreeSet<_> = tried.iter().map(|path| path.split('.').next().unwrap().to_owned()).collect();
    assert_eq!(tried, known, "a value that no case here changes, or a case without a value");
}

/// Both roles run hooks, and only the controller guards deletions; the program accepts the rendered arguments.
#[test]
fn settings_of_hooks_and_of_the_guard_reach_those_who_read_them() {
    let made = chart(&json!({
        "hooks": {"allow": ["169.254.0.0/16"], "deny": ["10.0.0.0/16", "fd00::/8"], "exec": false},
        "deleteGuard": {"exemptUsers": ["system:kube-scheduler", "gc"], "exemptGroups": ["system:masters"],
            "longestHold": "6h", "labelledNamespacesOnly": true}}));
    let texts = |args: &Value| -> Vec<String> {
        args.as_array().unwrap().iter().map(|arg| arg.as_str().unwrap().to_owned()).collect()
    };
    let hooks = ["--hook-allow=169.254.0.0/16", "--hook-deny=10.0.0.0/16,fd00::/8", "--hook-exec=false"];
    let guard = [
        "--guard-exempt-users=system:kube-scheduler,gc",
        "--guard-exempt-groups=system:masters",
        "--guard-longest-hold=6h",
        "--guard-labelled-namespaces-only",
    ];
    let agent = texts(&pod(&made)["containers"][0]["args"]);
    assert_eq!(agent[agent.len() - 3..], hooks);
    let controller =
        &made[&key("Deployment", "inplace-system", "inplace-controller")]["spec"]["template"]["spec"];
    let controller = texts(&controller["containers"][0]["args"]);
    assert_eq!(controller[controller.len() - 7..], [&hooks[..], &guard[..]].concat());
    for args in [agent, controller] {
        let known = Command::new(env!("CARGO_BIN_EXE_inplace")).args(&args).arg("--help").output().unwrap();
        assert!(known.status.success(), "{args:?}: {}", String::from_utf8_lossy(&known.stderr));
    }
    // With an empty list of exempt users every user is held.
    let made = chart(&json!({"deleteGuard": {"exemptUsers": []}}));
    assert!(made.values().any(|object| object.to_string().contains("\"--guard-exempt-users=\"")));
}

/// The component and the value of the chart install the same: a flag of the agents, and a policy that allows the condition.
#[test]
fn further_readiness_gates_reach_the_agents_and_the_policy() {
    let made = chart(&json!({"readinessGates": ["KruisePodReady"]}));
    let mut component = overlay(
        |manifests| json!({"resources": [format!("{manifests}/base")], "components": [format!("{manifests}/openkruise-gate")]}),
    );
    component.extend(kustomize(&["crds"]));
    same(&made, &component);
    let plain = chart(&json!({}));
    let changed: Vec<_> =
        plain.iter().filter(|(name, object)| made[*name] != **object).map(|(name, _)| name).collect();
    let policy = key("ValidatingAdmissionPolicy", "", "inplace-agent");
    assert_eq!(changed, [&key("DaemonSet", "inplace-system", "inplace-agent"), &policy]);
    let of = |names: Value| {
        chart(&json!({"readinessGates": names}))[&policy]["spec"]["variables"][0]["expression"].clone()
    };
    assert_eq!(of(json!(["a.example/b", "c"])), "['InPlaceUpdateReady', 'a.example/b', 'c']");
    let args = pod(&chart(&json!({"readinessGates": ["a.example/b", "c"]})))["containers"][0]["args"].clone();
    let args: Vec<_> = args.as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_eq!(args.last(), Some(&"--readiness-gate=a.example/b,c"));
    let known = Command::new(env!("CARGO_BIN_EXE_inplace")).args(&args).arg("--help").output().unwrap();
    assert!(known.status.success(), "{}", String::from_utf8_lossy(&known.stderr));
}

/// The conditions of Kubernetes: the schema of the chart, the admission policy and the agent have the same list.
#[test]
fn no_condition_of_kubernetes_is_a_readiness_gate_of_the_agents() {
    let schema: Value = serde_json::from_str(&read("daemonset/chart/values.schema.json")).unwrap();
    let names = schema["properties"]["readinessGates"]["items"]["not"]["enum"].as_array().unwrap();
    let names: BTreeSet<_> = names.iter().map(|name| name.as_str().unwrap()).collect();
    let names: BTreeSet<_> = names.into_iter().filter(|name| *name != "InPlaceUpdateReady").collect();
    let policy = chart(&json!({}))[&key("ValidatingAdmissionPolicy", "", "inplace-agent")].clone();
    let variable = policy["spec"]["variables"]
        .as_array()
        .unwrap()
        .iter()
        .find(|variable| variable["name"] == "conditionsOfKubernetes");
    let listed = variable.unwrap()["expression"].as_str().unwrap();
    let listed: BTreeSet<_> = listed.split('\'').skip(1).step_by(2).collect();
    assert_eq!(names, listed);
    for name in names {
        let flag = format!("--readiness-gate={name}");
        let agent = Command::new(env!("CARGO_BIN_EXE_inplace"))
            .args(["agent", "--node-name=n", &flag])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&agent.stderr).into_owned();
        assert!(text.contains("belongs to Kubernetes"), "{name}: {text}");
    }
}

/// Both forms of `imagePullSecrets` name the same Secret, also one whose name is a number. A digest does not hide the tag.
#[test]
fn the_image_is_pulled_by_digest_and_with_secrets() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let of = |secrets: Value, tag: &str| {
        chart(
            &json!({"imagePullSecrets": secrets, "image": {"repository": "r.example:5000/inplace", "tag": tag, "digest": digest}}),
        )
    };
    for (tag, image) in [("v1", "r.example:5000/inplace:v1@"), ("", "r.example:5000/inplace@")] {
        let made = of(json!(["mine", "123"]), tag);
        assert_eq!(made, of(json!([{"name": "mine"}, {"name": "123"}]), tag));
        for kind in [("DaemonSet", "inplace-agent"), ("Deployment", "inplace-controller")] {
            let pod = &made[&key(kind.0, "inplace-system", kind.1)]["spec"]["template"]["spec"];
            assert_eq!(pod["imagePullSecrets"], json!([{"name": "mine"}, {"name": "123"}]));
            assert_eq!(pod["containers"][0]["image"], format!("{image}{digest}"));
        }
    }
}

/// A name that YAML reads as a number stays a text.
#[test]
fn a_namespace_can_have_a_number_as_its_name() {
    let made = chart(&json!({"namespace": {"name": "123"}, "monitoring": {"enabled": true}}));
    assert!(made.contains_key(&key("DaemonSet", "123", "inplace-agent")), "{:?}", made.keys());
    for (key, object) in &made {
        assert!(object["metadata"].get("namespace").is_none_or(Value::is_string), "{key:?}");
    }
}

/// The parser of these tests refuses a key that a map has twice; an API server takes one of the two values.
#[test]
fn no_manifest_has_a_key_twice() {
    assert!(serde_saphyr::from_multiple::<Value>("a: {b: 1}\n---\na:\n  b: 1\n  b: 2\n").is_err());
    let scrape = json!({"prometheus.io/scrape": "false", "team": "a"});
    let made = chart(&json!({
        "podAnnotations": scrape, "controller": {"podAnnotations": scrape},
        "monitoring": {"enabled": true, "labels": {"grafana_dashboard": "2", "app.kubernetes.io/part-of": "mine"}},
    }));
    for (kind, name, port) in
        [("DaemonSet", "inplace-agent", "9464"), ("Deployment", "inplace-controller", "9465")]
    {
        let template = &made[&key(kind, "inplace-system", name)]["spec"]["template"];
        let expected = json!({"prometheus.io/scrape": "false", "prometheus.io/port": port,
            "prometheus.io/path": "/metrics", "team": "a"});
        assert_eq!(template["metadata"]["annotations"], expected, "{name}");
    }
    let labels = &made[&key("ConfigMap", "inplace-system", "inplace-dashboard")]["metadata"]["labels"];
    assert_eq!(labels["grafana_dashboard"], "2");
    assert_eq!(labels["app.kubernetes.io/part-of"], "mine");
}

#[test]
fn a_socket_elsewhere_is_mounted_and_named() {
    let made = chart(
        &json!({"runtimeSocket": "/run/k3s/containerd/containerd.sock", "namespace": {"name": "other"},
        "extraArgs": ["--max-pulls=1"], "allowPullSecrets": true}),
    );
    let pod = pod(&made);
    let args = &pod["containers"][0]["args"];
    assert_eq!(args[2], "--runtime-endpoint=unix:///run/k3s/containerd/containerd.sock");
    assert_eq!(args[5], "--max-pulls=1");
    assert_eq!(pod["containers"][0]["volumeMounts"][0]["mountPath"], "/run/k3s/containerd");
    assert_eq!(pod["volumes"][0]["hostPath"]["path"], "/run/k3s/containerd");
    // The output does not contain the default namespace.
    for ((kind, _, name), object) in &made {
        let text = object.to_string();
        assert!(!text.contains("inplace-system"), "{kind} {name}: {text}");
    }
}

/// The dotted paths of all values in `value`.
fn leaves(value: &Value) -> Vec<String> {
    let Some(map) = value.as_object() else { return vec![String::new()] };
    let below = |(key, value): (&String, &Value)| {
        leaves(value).into_iter().map(|rest| format!("{key}.{rest}")).collect::<Vec<_>>()
    };
    map.iter().flat_map(below).collect()
}

/// A Prometheus selects these objects by labels.
#[test]
fn labels_for_a_prometheus_reach_every_object_that_it_selects() {
    let with = |labels: Value| chart(&json!({"monitoring": {"enabled": true, "labels": labels}}));
    let (plain, labelled) = (with(json!({})), with(json!({"release": "mine"})));
    let changed: Vec<_> = labelled.iter().filter(|(key, object)| plain[*key] != **object).collect();
    let kinds: Vec<_> = changed.iter().map(|((kind, ..), _)| kind.as_str()).collect();
    assert_eq!(kinds, ["ConfigMap", "PodMonitor", "PodMonitor", "PrometheusRule"]);
    for (key, object) in changed {
        assert_eq!(object["metadata"]["labels"]["release"], "mine", "{key:?}");
    }
}
