//! Neither role has more rights than it needs, the webhooks hold up only what they are for, and the network policy admits
//! only who sends requests.

use serde_json::{Value, json};

use super::{chart, key, kustomize, overlay, pod, read};

#[test]
fn the_agent_may_no_more_than_it_needs() {
    let base = kustomize(&["base"]);
    let rules = &base[&key("ClusterRole", "", "inplace-agent")]["rules"];
    let expected = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        {"apiGroups": ["inplace.dev"], "resources": ["inplacerollouts"], "verbs": ["list", "watch"]},
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
        {"apiGroups": ["tkex.tencent.com"],
            "resources": ["gamedeployments/finalizers", "gamestatefulsets/finalizers"], "verbs": ["update"]},
        {"apiGroups": ["inplace.dev"], "resources": ["inplacerollouts"],
            "verbs": ["get", "list", "watch", "patch", "delete"]},
        {"apiGroups": ["inplace.dev"], "resources": ["inplacerollouts/status"], "verbs": ["patch"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets", "daemonsets"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get", "list"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
        {"apiGroups": ["apps.kruise.io"], "resources": ["clonesets", "statefulsets", "daemonsets"], "verbs": ["get"]},
        {"apiGroups": ["argoproj.io"], "resources": ["rollouts"], "verbs": ["get"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list", "watch"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets/status"], "verbs": ["patch"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hookruns"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hooktemplates"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["tkex.tencent.com"], "resources": ["hookruns/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": ["apps"], "resources": ["controllerrevisions"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list", "watch", "create", "patch", "delete"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets", "daemonsets"],
            "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]},
        {"apiGroups": ["inplace.dev"], "resources": ["inplacerollouts"], "verbs": ["create"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
            "resourceNames": ["gamedeployments.tkex.tencent.com", "gamestatefulsets.tkex.tencent.com",
                "hookruns.tkex.tencent.com", "hooktemplates.tkex.tencent.com", "inplacerollouts.inplace.dev"],
            "verbs": ["get"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"],
            "resourceNames": ["inplace", "inplace-recreate-requests"], "verbs": ["get", "patch"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"],
            "resourceNames": ["inplace-readiness-gate"], "verbs": ["get", "patch"]},
    ]);
    assert_eq!(base[&key("ClusterRole", "", "inplace-controller")]["rules"], expected);
    let recreating = kustomize(&["recreate-requests"]);
    let rules = &recreating[&key("ClusterRole", "", "inplace-controller-recreate-requests")]["rules"];
    let expected = json!([
        {"apiGroups": ["apps.kruise.io"], "resources": ["containerrecreaterequests"], "verbs": ["list", "watch", "delete"]},
        {"apiGroups": ["apps.kruise.io"], "resources": ["containerrecreaterequests/status"], "verbs": ["patch"]},
    ]);
    assert_eq!(rules, &expected);
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
    let listen = format!("--webhook-listen=[::]:{}", port.unwrap()["containerPort"]);
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

/// Every new or changed object is checked, by the same controller as the kinds of this project, and nothing else is.
#[test]
fn the_webhook_of_recreate_requests_checks_each_of_them_and_nothing_else() {
    let recreating = kustomize(&["recreate-requests"]);
    let name = key("ValidatingWebhookConfiguration", "", "inplace-recreate-requests");
    let webhooks = recreating[&name]["webhooks"].as_array().unwrap();
    let [webhook] = webhooks.as_slice() else { panic!("{webhooks:?}") };
    let expected = json!([{"apiGroups": ["apps.kruise.io"], "apiVersions": ["v1alpha1"],
        "resources": ["containerrecreaterequests"], "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"}]);
    assert_eq!(webhook["rules"], expected);
    // Without an answer nobody restarts containers by way of this kind, and no selector leaves an object out.
    assert_eq!(webhook["failurePolicy"], "Fail");
    for selector in ["objectSelector", "namespaceSelector", "matchConditions"] {
        assert_eq!(webhook.get(selector), None, "{selector}");
    }
    let base = kustomize(&["base"]);
    let own = &base[&key("ValidatingWebhookConfiguration", "", "inplace")]["webhooks"][0];
    assert_eq!(webhook["clientConfig"], own["clientConfig"]);
    // The roles of users do not have the kind.
    for role in ["inplace-view", "inplace-edit"] {
        let rules = base[&key("ClusterRole", "", role)]["rules"].to_string();
        assert!(!rules.contains("containerrecreaterequests"), "{role}");
    }
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
    // The same with a copy of the file as a patch of an overlay.
    let patch = read("daemonset/control-plane-only/network-policy.yaml");
    let patched = overlay(
        |manifests| json!({"resources": [format!("{manifests}/base")], "patches": [{"patch": patch}]}),
    );
    assert_eq!(patched[&name]["spec"], narrow);
    let from = narrow["ingress"][0].as_object_mut().unwrap().remove("from").unwrap();
    assert_eq!((from, &narrow), (json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}]), base));
    let made = chart(&json!({"networkPolicy": {"controlPlane": ["10.0.0.0/28"]}}));
    assert_eq!(made[&name]["spec"]["ingress"][0]["from"], json!([{"ipBlock": {"cidr": "10.0.0.0/28"}}]));
    let off = chart(&json!({"webhook": {"enabled": false}}));
    assert_eq!(ports(&off[&name]["spec"]), ["metrics"]);
}

/// The roles of users are those of Kubernetes with more rules, and give no right that only the program needs.
#[test]
fn users_get_the_kinds_of_this_project_by_the_roles_that_they_have() {
    let base = kustomize(&["base"]);
    for (name, to) in [("inplace-view", "view"), ("inplace-edit", "edit")] {
        let role = &base[&key("ClusterRole", "", name)];
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{to}");
        assert_eq!(role["metadata"]["labels"][label.as_str()], "true");
        let groups = ["tkex.tencent.com", "inplace.dev"];
        for rule in role["rules"].as_array().unwrap() {
            let verbs: Vec<_> =
                rule["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap()).collect();
            assert!(groups.contains(&rule["apiGroups"][0].as_str().unwrap()), "{rule}");
            let reads = |verb: &&str| ["get", "list", "watch"].contains(verb);
            let is_of_hooks = rule["resources"].to_string().contains("hook");
            // Headers of hooks may hold credentials: whoever only views reads none. Nobody approves a hook by these roles.
            if to == "view" {
                assert!(verbs.iter().all(reads) && !is_of_hooks, "{rule}");
            } else if rule["resources"].to_string().contains("hookruns") {
                assert!(verbs.iter().all(reads), "{rule}");
            } else {
                assert!(!verbs.iter().any(reads), "{rule}");
            }
            assert!(!rule["resources"].to_string().contains("/status"), "{rule}");
        }
    }
    // Without the webhook nobody compares a hook with the rights of its writer.
    let off = chart(&json!({"webhook": {"enabled": false}}));
    let rules = off[&key("ClusterRole", "", "inplace-edit")]["rules"].as_array().unwrap().clone();
    let writes = |rule: &Value| {
        rule["resources"].to_string().contains("hook") && rule["verbs"].to_string().contains("create")
    };
    assert!(!rules.iter().any(writes), "{rules:?}");
}
