//! The installed manifests as text: kustomize and the chart produce the same objects, and neither requests more
//! rights than needed. And the image: the same input gives the same digest. Runs kubectl, Go and Python, without
//! network access.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Objects by kind, namespace and name.
type Objects = BTreeMap<(String, String, String), Value>;

#[test]
fn the_chart_installs_what_kustomize_does() {
    let own = chart(&json!({}));
    same(&own, &kustomize(&["crds", "base"]));
    assert_eq!(own.len(), 21 + 5, "{:?}", own.keys());
    let every =
        json!({"allowPullSecrets": true, "restartOnSecretChange": true, "webhook": {"readinessGate": true}});
    let all = chart(&every);
    same(&all, &kustomize(&["crds", "base", "pull-secrets", "change-secrets", "readiness-gate"]));
    assert_eq!(all.len(), 27 + 5, "{:?}", all.keys());
    // Compared with Helm itself where it is installed.
    if let Some(helm) = helm(&json!({})) {
        same(&helm, &own);
        same(&helm_or_fail(&every), &all);
    }
}

/// Both install the policies unless the API server does not support them, and nothing else differs there.
#[test]
fn the_policies_are_installed_wherever_the_api_server_has_them() {
    let is_policy = |key: &(String, String, String)| key.0.starts_with("ValidatingAdmissionPolicy");
    let names = |objects: &Objects| -> Vec<(String, String)> {
        let policies = objects.keys().filter(|key| is_policy(key));
        policies.map(|(kind, _, name)| (kind.replace("ValidatingAdmission", ""), name.clone())).collect()
    };
    let base = kustomize(&["base"]);
    let all = ["inplace-agent", "inplace-agent-hooks", "inplace-controller-webhooks"];
    let both = ["Policy", "PolicyBinding"].map(|kind| all.map(|name| (kind.to_owned(), name.to_owned())));
    assert_eq!(names(&base), both.concat());
    for (name, object) in base.iter().filter(|(key, _)| is_policy(key)) {
        if name.0.ends_with("Binding") {
            assert_eq!(object["spec"], json!({"policyName": name.2, "validationActions": ["Deny"]}));
        } else {
            assert_eq!(object["spec"]["failurePolicy"], "Fail");
        }
    }
    let mut old = base.clone();
    old.retain(|key, _| !is_policy(key));
    same(&kustomize(&["before-1.30"]), &old);

    let auto = json!({});
    old.extend(kustomize(&["crds"]));
    same(&chart_for("", &auto), &old);
    same(&chart_for("v1,admissionregistration.k8s.io/v1", &auto), &old);
    same(&chart(&json!({"admissionPolicy": {"enabled": false}})), &old);
    same(&chart_for("", &json!({"admissionPolicy": {"enabled": true}})), &chart(&auto));
}

/// In another namespace the policies apply to the service accounts of agent and controller there, and nothing
/// else names the default namespace.
#[test]
fn another_namespace_changes_whom_everything_is_about() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let here = folder.path().canonicalize().unwrap();
    let up = "../".repeat(here.components().count() - 1);
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset/base").canonicalize().unwrap();
    let overlay = json!({"namespace": "other", "resources": [format!("{up}{}", base.strip_prefix("/").unwrap().display())]});
    std::fs::write(here.join("kustomization.yaml"), overlay.to_string()).unwrap();
    let moved = objects(&run("kubectl", &["kustomize", here.to_str().unwrap()]));
    let in_chart = chart(&json!({"namespace": {"name": "other"}}));
    for objects in [&moved, &in_chart] {
        for (key, object) in objects.iter().filter(|(key, _)| key.0 != "CustomResourceDefinition") {
            assert!(!object.to_string().contains("inplace-system"), "{key:?}: {object}");
        }
    }
    // The policies select the accounts independently of the namespace: the expressions are the same.
    let specs = |objects: &Objects| -> Vec<Value> {
        let policies = objects.iter().filter(|(key, _)| key.0 == "ValidatingAdmissionPolicy");
        policies.map(|(_, object)| object["spec"].clone()).collect()
    };
    assert_eq!(specs(&moved), specs(&kustomize(&["base"])));
    assert_eq!(specs(&in_chart), specs(&moved));
    let accounts =
        |objects: &Objects| objects.keys().filter(|key| key.0 == "ServiceAccount").cloned().collect();
    let expected = ["inplace-agent", "inplace-controller"].map(|name| key("ServiceAccount", "other", name));
    let found: [Vec<_>; 2] = [accounts(&moved), accounts(&in_chart)];
    assert_eq!(found, [expected.to_vec(), expected.to_vec()]);
    // The webhooks identify both by the namespace of the controller's pod, which they get as an argument.
    let controller = &moved[&key("Deployment", "other", "inplace-controller")]["spec"]["template"]["spec"];
    let container = &controller["containers"][0];
    assert!(container["args"].as_array().unwrap().contains(&json!("--namespace=$(NAMESPACE)")));
    assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "metadata.namespace");
}

/// Deleting a CRD deletes every object of its kind, so `kubectl delete -k` of the program must not contain one.
#[test]
fn what_is_uninstalled_holds_no_kind() {
    let of_kinds =
        |objects: &Objects| objects.keys().filter(|key| key.0 == "CustomResourceDefinition").count();
    let folders =
        ["base", "before-1.30", "pull-secrets", "change-secrets", "admission-policy", "readiness-gate"];
    for folder in folders {
        assert_eq!(of_kinds(&kustomize(&[folder])), 0, "{folder}");
    }
    let kinds = kustomize(&["crds"]);
    assert_eq!((of_kinds(&kinds), kinds.len()), (5, 5));
    // Helm leaves the objects of its folder `crds` in place, and deletes those of templates.
    let templates = run("bash", &["tests/lab/chart.sh", "daemonset/chart", "{}"]);
    assert_eq!(of_kinds(&objects(&templates)), 0);
}

#[test]
fn every_value_of_the_chart_does_something() {
    let plain = chart(&json!({}));
    let values: Value = serde_saphyr::from_str(&read("daemonset/chart/values.yaml")).unwrap();
    let mut tried = BTreeSet::new();
    for change in [
        json!({"image": {"repository": "registry.example/inplace"}}),
        json!({"image": {"tag": "v9"}}),
        json!({"image": {"pullPolicy": "Always"}}),
        json!({"imagePullSecrets": ["mine"]}),
        json!({"namespace": {"name": "other"}}),
        json!({"namespace": {"create": false}}),
        json!({"runtimeSocket": "/run/k3s/containerd/containerd.sock"}),
        json!({"imageDisk": "/data/containerd"}),
        json!({"kubeletDir": "/var/lib/k0s/kubelet"}),
        json!({"stateDir": "/data/inplace"}),
        json!({"port": 9999}),
        json!({"allowPullSecrets": true}),
        json!({"restartOnSecretChange": true}),
        json!({"admissionPolicy": {"enabled": false}}),
        json!({"extraArgs": ["--log-json"]}),
        json!({"extraEnv": [{"name": "INPLACE_LOG", "value": "debug"}]}),
        json!({"priorityClassName": "mine"}),
        json!({"maxUnavailable": 3}),
        json!({"resources": {"limits": {"memory": "256Mi"}}}),
        json!({"nodeSelector": {"inplace": "yes"}}),
        json!({"tolerations": [{"key": "game"}]}),
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
        json!({"controller": {"replicas": 1}}),
        json!({"controller": {"port": 9999}}),
        json!({"controller": {"extraArgs": ["--log-json"]}}),
        json!({"controller": {"extraEnv": [{"name": "INPLACE_LOG", "value": "debug"}]}}),
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

#[test]
fn the_agent_may_no_more_than_it_needs() {
    let base = kustomize(&["base"]);
    let rules = &base[&key("ClusterRole", "", "inplace-agent")]["rules"];
    let expected = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hooktemplates"], "verbs": ["get"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hookruns"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hookruns/status"], "verbs": ["patch"]},
    ]);
    assert_eq!(rules, &expected);
    let secrets = kustomize(&["pull-secrets"]);
    let rules = &secrets[&key("ClusterRole", "", "inplace-agent-pull-secrets")]["rules"];
    assert_eq!(rules, &json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]));

    let pod = pod(&base);
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security.get("privileged"), None);
    assert_eq!((pod.get("hostPID"), pod.get("hostIPC")), (None, None));
    // Each folder is mounted at the node's path, and nothing else is mounted.
    let volumes = pod["volumes"].as_array().unwrap();
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert_eq!(volumes.len(), mounts.len());
    for (volume, mount) in volumes.iter().zip(mounts) {
        assert_eq!((&volume["name"], &volume["hostPath"]["path"]), (&mount["name"], &mount["mountPath"]));
    }
    let paths: Vec<_> = mounts.iter().map(|mount| mount["mountPath"].as_str().unwrap()).collect();
    let expected = [
        "/run/containerd",
        "/var/lib/inplace",
        "/var/lib/kubelet/pods",
        "/var/log/containers",
        "/var/log/pods",
        "/var/lib/containerd",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn the_controller_may_no_more_than_it_needs() {
    let base = kustomize(&["base"]);
    let expected = json!([
        {"apiGroups": ["tkex.tencent.com"], "resources": ["gamedeployments", "gamestatefulsets"],
            "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["gamedeployments/status", "gamestatefulsets/status"],
            "verbs": ["patch"]},
        {"apiGroups": ["inplace.dev"], "resources": ["inplacerollouts"],
            "verbs": ["get", "list", "watch", "delete"]},
        {"apiGroups": ["inplace.dev"], "resources": ["inplacerollouts/status"], "verbs": ["patch"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets", "daemonsets"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get", "list"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets/status"], "verbs": ["patch"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hookruns"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hooktemplates"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hookruns/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": ["apps"], "resources": ["controllerrevisions"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list", "watch", "create"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets", "daemonsets"],
            "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]},
        {"apiGroups": ["inplace.dev"], "resources": ["inplacerollouts"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"],
            "resourceNames": ["inplace"], "verbs": ["get", "patch"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"],
            "resourceNames": ["inplace-readiness-gate"], "verbs": ["get", "patch"]},
    ]);
    assert_eq!(base[&key("ClusterRole", "", "inplace-controller")]["rules"], expected);
    let expected = json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["inplace-controller"],
            "verbs": ["get", "update"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["inplace-webhook"],
            "verbs": ["get", "update"]},
    ]);
    assert_eq!(base[&key("Role", "inplace-system", "inplace-controller")]["rules"], expected);
    let pod = &base[&key("Deployment", "inplace-system", "inplace-controller")]["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    for field in ["hostNetwork", "hostPID", "hostIPC", "volumes"] {
        assert_eq!(pod.get(field), None, "{field}");
    }
    let security = &pod["containers"][0]["securityContext"];
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    // The controller's token is valuable, so its pod prefers control plane nodes; only prefers, because many
    // clusters have no such node for pods.
    let affinity = pod["affinity"].as_object().unwrap();
    assert_eq!(affinity.keys().collect::<Vec<_>>(), ["nodeAffinity"]);
    let preferred =
        affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].as_array().unwrap();
    assert_eq!((preferred.len(), affinity["nodeAffinity"].as_object().unwrap().len()), (2, 1));
    for (preferred, tolerated) in preferred.iter().zip(pod["tolerations"].as_array().unwrap()) {
        let expression = &preferred["preference"]["matchExpressions"][0];
        assert_eq!((&expression["key"], &expression["operator"]), (&tolerated["key"], &json!("Exists")));
        assert_eq!((&tolerated["operator"], &tolerated["effect"]), (&json!("Exists"), &json!("NoSchedule")));
    }
    // The agents' pods have the labels that the controller selects.
    let labels =
        &base[&key("DaemonSet", "inplace-system", "inplace-agent")]["spec"]["template"]["metadata"]["labels"];
    let selected = format!(
        "app.kubernetes.io/name={},app.kubernetes.io/component={}",
        labels["app.kubernetes.io/name"].as_str().unwrap(),
        labels["app.kubernetes.io/component"].as_str().unwrap()
    );
    assert_eq!(selected, inplace::cluster::agents::LABELS);
}

#[test]
fn the_webhooks_can_hold_up_nothing_but_our_kinds_and_what_is_guarded() {
    use inplace::controller::admission::{CONFIGURATION, SECRET};
    let base = kustomize(&["base"]);
    let webhooks = &base[&key("ValidatingWebhookConfiguration", "", CONFIGURATION)]["webhooks"];
    let [webhook, guards @ ..] = webhooks.as_array().unwrap().as_slice() else { panic!("{webhooks}") };
    let expected = json!([{"apiGroups": ["tkex.tencent.com"], "apiVersions": ["v1alpha1"],
        "resources": ["gamedeployments", "gamestatefulsets", "hooktemplates", "hookruns"],
        "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"},
        {"apiGroups": ["inplace.dev"], "apiVersions": ["v1alpha1"], "resources": ["inplacerollouts"],
        "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"}]);
    assert_eq!(webhook["rules"], expected);
    assert_eq!((&webhook["sideEffects"], &webhook["timeoutSeconds"]), (&json!("None"), &json!(10)));
    // The path from the API server to the controller, name by name.
    let service = &base[&key("Service", "inplace-system", SECRET)]["spec"];
    let expected = json!({"name": SECRET, "namespace": "inplace-system", "path": "/validate", "port": 443});
    assert_eq!(webhook["clientConfig"], json!({"service": expected}));
    let pods = &base[&key("Deployment", "inplace-system", "inplace-controller")]["spec"];
    assert_eq!(service["selector"], pods["selector"]["matchLabels"]);
    let container = &pods["template"]["spec"]["containers"][0];
    let port = container["ports"]
        .as_array()
        .unwrap()
        .iter()
        .find(|port| port["name"] == service["ports"][0]["targetPort"]);
    let listen = format!("--webhook-listen=0.0.0.0:{}", port.unwrap()["containerPort"]);
    assert!(container["args"].as_array().unwrap().contains(&json!(listen)), "{listen}");
    // Empty, so that the controller needs no right to create Secrets: with that right it could obtain the token
    // of any account there.
    assert_eq!(base[&key("Secret", "inplace-system", SECRET)].get("data"), None);
    // What the guard can hold: pods with its label, and their evictions in namespaces with the same label.
    let (delete, evict) = (json!(["pods"]), json!(["pods/eviction"]));
    let labelled = json!({"matchLabels": {"inplace.dev/delete-guard": "true"}});
    let others = json!({"matchExpressions": [{"key": "inplace.dev/delete-guard", "operator": "NotIn", "values": ["true"]}]});
    let expected = [
        ("Fail", &delete, &labelled, &Value::Null),
        ("Fail", &evict, &Value::Null, &labelled),
        ("Ignore", &evict, &Value::Null, &others),
    ];
    assert_eq!(guards.len(), expected.len());
    for (guard, expected) in guards.iter().zip(expected) {
        let policy = guard["failurePolicy"].as_str().unwrap();
        let found =
            (policy, &guard["rules"][0]["resources"], &guard["objectSelector"], &guard["namespaceSelector"]);
        assert_eq!(found, expected);
        let operation = if expected.1 == &delete { "DELETE" } else { "CREATE" };
        assert_eq!(guard["rules"][0]["operations"], json!([operation]));
        assert_eq!(
            (&guard["rules"].as_array().unwrap().len(), &guard["sideEffects"]),
            (&1, &json!("NoneOnDryRun"))
        );
        assert_eq!(guard["clientConfig"]["service"]["path"], "/guard");
    }
    let off = chart(&json!({"webhook": {"enabled": false}}));
    let named = |object: &Value| object.to_string().contains("webhook");
    // The policy about webhooks stays: without webhooks it has no effect.
    let others =
        |kind: &str| kind != "CustomResourceDefinition" && !kind.starts_with("ValidatingAdmissionPolicy");
    let left: Vec<_> = off.iter().filter(|(key, object)| others(&key.0) && named(object)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_controller_is_asked_at_its_two_ports_and_its_webhooks_by_the_control_plane_where_that_is_said() {
    let name = key("NetworkPolicy", "inplace-system", "inplace-controller");
    let base = &kustomize(&["base"])[&name]["spec"];
    let pods = &kustomize(&["base"])[&key("Deployment", "inplace-system", "inplace-controller")]["spec"];
    assert_eq!(base["podSelector"], pods["selector"]);
    let ports = |of: &Value| -> Vec<Value> {
        of["ingress"].as_array().unwrap().iter().map(|rule| rule["ports"][0]["port"].clone()).collect()
    };
    let named = pods["template"]["spec"]["containers"][0]["ports"].as_array().unwrap();
    assert!(ports(base).iter().all(|port| named.iter().any(|known| known["name"] == *port)));
    assert_eq!(ports(base), ["webhook", "metrics"]);
    assert_eq!((&base["policyTypes"], &base["ingress"][0]["from"]), (&json!(["Ingress"]), &Value::Null));
    // The narrow policy replaces the other, and differs only in the permitted sources.
    let mut narrow = kustomize(&["control-plane-only"])[&name]["spec"].clone();
    let from = narrow["ingress"][0].as_object_mut().unwrap().remove("from").unwrap();
    assert_eq!((from, &narrow), (json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}]), base));
    let made = chart(&json!({"networkPolicy": {"controlPlane": ["10.0.0.0/28"]}}));
    assert_eq!(made[&name]["spec"]["ingress"][0]["from"], json!([{"ipBlock": {"cidr": "10.0.0.0/28"}}]));
    let off = chart(&json!({"webhook": {"enabled": false}}));
    assert_eq!(ports(&off[&name]["spec"]), ["metrics"]);
}

#[test]
fn all_of_it_is_of_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    let about: Value = serde_saphyr::from_str(&read("daemonset/chart/Chart.yaml")).unwrap();
    assert_eq!((&about["version"], &about["appVersion"]), (&json!(version), &json!(version)));
    let base = kustomize(&["base"]);
    assert_eq!(pod(&base)["containers"][0]["image"], format!("inplace:{version}"));
    let controller =
        &base[&key("Deployment", "inplace-system", "inplace-controller")]["spec"]["template"]["spec"];
    assert_eq!(controller["containers"][0]["image"], format!("inplace:{version}"));
}

#[test]
fn the_same_binary_makes_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // The fields that image.py reads: the magic number and the machine, here x86-64.
    let mut program = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0".to_vec();
    // A certificate that is in no public list, for example that of a proxy.
    let own = rcgen::generate_simple_self_signed(["proxy".to_owned()]).unwrap().cert.pem();
    std::fs::write(at("certificates"), &own).unwrap();
    let pack = |out: &str, program: &[u8], arch: &str| {
        std::fs::write(at("program"), program).unwrap();
        let output = Command::new("python3")
            .args(["-B", "daemonset/image.py"])
            .args([at(out), at("program")])
            .args(["--version", "1.2.3", "--arch", arch, "--certificates"])
            .arg(at("certificates"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        if output.status.success() {
            Ok(text.trim().to_owned())
        } else {
            Err(String::from_utf8(output.stderr).unwrap())
        }
    };
    let first = pack("one.tar", &program, "amd64").unwrap();
    assert!(first.starts_with("sha256:") && first.len() == 71, "{first}");
    assert_eq!(pack("two.tar", &program, "amd64").unwrap(), first);
    assert_eq!(std::fs::read(at("one.tar")).unwrap(), std::fs::read(at("two.tar")).unwrap());
    // The image does not trust the certificates of the build machine.
    std::fs::write(at("certificates"), "").unwrap();
    assert_eq!(
        pack("three.tar", &program, "amd64").unwrap(),
        first,
        "a certificate of the build host is in the image"
    );
    assert!(pack("wrong.tar", &program, "arm64").unwrap_err().contains("no program for arm64"));
    program.push(0);
    assert_ne!(pack("four.tar", &program, "amd64").unwrap(), first);
    assert!(pack("five.tar", b"#!/bin/sh\nexit 0 # and so on", "amd64").unwrap_err().contains("no program"));
}

#[test]
fn what_the_binary_is_made_of_is_written_down() {
    let output = Command::new("python3")
        .args(["-B", "daemonset/sbom.py", "--target", "x86_64-unknown-linux-musl"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let bom: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(bom["metadata"]["component"]["name"], "inplace");
    let parts = bom["components"].as_array().unwrap();
    let part = |name: &str| parts.iter().find(|part| part["name"] == name);
    let tokio = part("tokio").unwrap();
    assert!(tokio["version"].is_string() && tokio["licenses"][0]["expression"].is_string(), "{tokio}");
    assert_eq!(tokio["hashes"][0]["content"].as_str().unwrap().len(), 64);
    // Only tests use this crate.
    assert!(part("proptest").is_none());
}

/// Compares object by object, so that a difference is readable.
fn same(one: &Objects, other: &Objects) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (key, object) in one {
        assert_eq!(object, &other[key], "{key:?}");
    }
}

fn key(kind: &str, namespace: &str, name: &str) -> (String, String, String) {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

/// The pod of the only `DaemonSet`.
fn pod(objects: &Objects) -> &Value {
    let mut all = objects.iter().filter(|((kind, ..), _)| kind == "DaemonSet");
    let (_, found) = all.next().unwrap();
    assert!(all.next().is_none());
    &found["spec"]["template"]["spec"]
}

/// The dotted paths of all values in `value`.
fn leaves(value: &Value) -> Vec<String> {
    let Some(map) = value.as_object() else { return vec![String::new()] };
    let below = |(key, value): (&String, &Value)| {
        leaves(value).into_iter().map(|rest| format!("{key}.{rest}")).collect::<Vec<_>>()
    };
    map.iter().flat_map(below).collect()
}

fn kustomize(folders: &[&str]) -> Objects {
    folders
        .iter()
        .flat_map(|folder| objects(&run("kubectl", &["kustomize", &format!("daemonset/{folder}")])))
        .collect()
}

/// The chart's objects for a new cluster.
fn chart(values: &Value) -> Objects {
    chart_for("v1,admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy", values)
}

/// The chart's objects for a cluster with these API versions, including the folder `crds`, which Helm installs
/// before the templates.
fn chart_for(api_versions: &str, values: &Value) -> Objects {
    let known = format!("CHART_API_VERSIONS={api_versions}");
    let args = [&known, "bash", "tests/lab/chart.sh", "daemonset/chart", &values.to_string()];
    let mut all = objects(&run("env", &args));
    for kind in ["hooktemplates", "hookruns", "gamedeployments", "gamestatefulsets", "inplacerollouts"] {
        all.extend(objects(&read(format!("daemonset/chart/crds/{kind}.yaml"))));
    }
    all
}

/// Helm's own output, on machines that have it.
fn helm(values: &Value) -> Option<Objects> {
    Command::new("helm").arg("version").output().is_ok().then(|| helm_or_fail(values))
}

fn helm_or_fail(values: &Value) -> Objects {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let file = file.to_str().unwrap();
    objects(&run("helm", &["template", "inplace", "daemonset/chart", "--include-crds", "--values", file]))
}

fn objects(text: &str) -> Objects {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let mut found = Objects::new();
    for object in all.into_iter().filter(|object| !object.is_null()) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        let key = (text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]));
        assert!(found.insert(key.clone(), object).is_none(), "{key:?} is there twice");
    }
    found
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; run: make setup"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
