//! Kustomize and the chart install the same objects, in each namespace and on each release.

use serde_json::{Value, json};

use super::{Objects, chart, chart_for, key, kustomize, objects, overlay, run, same};

#[test]
fn the_chart_installs_what_kustomize_does() {
    let own = chart(&json!({}));
    same(&own, &kustomize(&["crds", "base"]));
    assert_eq!(own.len(), 24 + 5, "{:?}", own.keys());
    let every = json!({"allowPullSecrets": true, "restartOnSecretChange": true, "webhook": {"readinessGate": true}, "monitoring": {"enabled": true}});
    let all = chart(&every);
    same(
        &all,
        &kustomize(&["crds", "base", "pull-secrets", "change-secrets", "readiness-gate", "monitoring"]),
    );
    assert_eq!(all.len(), 34 + 5, "{:?}", all.keys());
    let recreating = chart(&json!({"containerRecreateRequests": true}));
    let flag = key("Deployment", "inplace-system", "inplace-controller");
    let others = |objects: Objects| objects.into_iter().filter(|(key, _)| *key != flag).collect::<Objects>();
    same(&others(recreating), &others(kustomize(&["crds", "base", "recreate-requests"])));
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
    // The disruption budget of the controller has a version that Kubernetes 1.20 does not know.
    let budget = key("PodDisruptionBudget", "inplace-system", "inplace-controller");
    let mut oldest = old.clone();
    assert!(oldest.remove(&budget).is_some());
    same(&kustomize(&["before-1.30"]), &oldest);

    let auto = json!({});
    old.extend(kustomize(&["crds"]));
    oldest.extend(kustomize(&["crds"]));
    let render =
        |release: &str, versions: &str, values: &Value| chart_for(release, versions, &[&values.to_string()]);
    same(&render("1.29.0", "", &auto), &old);
    same(&render("1.21.0", "v1,admissionregistration.k8s.io/v1", &auto), &old);
    same(&render("1.20.2", "", &auto), &oldest);
    same(&chart(&json!({"admissionPolicy": {"enabled": false}})), &old);
    same(&render("1.29.0", "", &json!({"admissionPolicy": {"enabled": true}})), &chart(&auto));
}

/// In another namespace the policies apply to the service accounts of agent and controller there, and nothing
/// else names the default namespace.
#[test]
fn another_namespace_changes_whom_everything_is_about() {
    let moved =
        overlay(|manifests| json!({"namespace": "other", "resources": [format!("{manifests}/base")]}));
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
    let folders = [
        "base",
        "before-1.30",
        "pull-secrets",
        "change-secrets",
        "admission-policy",
        "readiness-gate",
        "recreate-requests",
        "monitoring",
    ];
    for folder in folders {
        assert_eq!(of_kinds(&kustomize(&[folder])), 0, "{folder}");
    }
    let kinds = kustomize(&["crds"]);
    assert_eq!((of_kinds(&kinds), kinds.len()), (5, 5));
    // Helm leaves the objects of its folder `crds` in place, and deletes those of templates.
    let templates = run("bash", &["tests/lab/chart.sh", "daemonset/chart", "{}"]);
    assert_eq!(of_kinds(&objects(&templates)), 0);
}

/// Helm deletes what the values of an upgrade leave out, and the namespace would be deleted with everything in it.
#[test]
fn helm_leaves_the_namespace() {
    let openshift = "daemonset/chart/presets/openshift.yaml";
    for (values, expected) in [
        ("{}", json!({"helm.sh/resource-policy": "keep"})),
        (openshift, json!({"helm.sh/resource-policy": "keep", "openshift.io/node-selector": ""})),
    ] {
        let made = objects(&run("bash", &["tests/lab/chart.sh", "daemonset/chart", values]));
        let namespace = &made[&key("Namespace", "", "inplace-system")];
        assert_eq!(namespace["metadata"]["annotations"], expected, "{values}");
    }
}
