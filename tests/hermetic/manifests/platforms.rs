//! The presets of platforms: the kustomize component and the values file of each install the same objects, with the paths of that
//! platform and nothing else changed.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::{Objects, chart_of, key, kustomize, overlay, pod, same};

/// The objects of `base` with the component of a platform, as an overlay combines them.
fn component(platform: &str) -> Objects {
    overlay(
        |manifests| json!({"resources": [format!("{manifests}/base")], "components": [format!("{manifests}/platforms/{platform}")]}),
    )
}

fn preset(platform: &str) -> Objects {
    chart_of(&[&format!("daemonset/chart/presets/{platform}.yaml")])
}

/// Socket, image disk and root folder of the kubelet.
const PATHS: [(&str, [&str; 3]); 7] = [
    ("bottlerocket", ["/run/containerd/containerd.sock", "/var/lib/containerd", "/var/lib/kubelet"]),
    ("gke", ["/run/containerd/containerd.sock", "/var/lib/containerd", "/var/lib/kubelet"]),
    ("k0s", ["/run/k0s/containerd.sock", "/var/lib/k0s/containerd", "/var/lib/k0s/kubelet"]),
    (
        "k3s",
        ["/run/k3s/containerd/containerd.sock", "/var/lib/rancher/k3s/agent/containerd", "/var/lib/kubelet"],
    ),
    (
        "microk8s",
        [
            "/var/snap/microk8s/common/run/containerd.sock",
            "/var/snap/microk8s/common/var/lib/containerd",
            "/var/snap/microk8s/common/var/lib/kubelet",
        ],
    ),
    ("openshift", ["/run/crio/crio.sock", "/var/lib/containers", "/var/lib/kubelet"]),
    (
        "rke2",
        ["/run/k3s/containerd/containerd.sock", "/var/lib/rancher/rke2/agent/containerd", "/var/lib/kubelet"],
    ),
];

#[test]
fn each_platform_has_a_component_and_values_that_install_the_same() {
    let files = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let known: BTreeSet<_> = PATHS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files("daemonset/platforms"), known);
    assert_eq!(files("daemonset/chart/presets"), known);
    for (platform, [socket, disk, kubelet]) in PATHS {
        let made = component(platform);
        let mut installed = made.clone();
        installed.extend(kustomize(&["crds"]));
        same(&preset(platform), &installed);
        let pod = pod(&made);
        let container = &pod["containers"][0];
        assert_eq!(container["args"][2], format!("--runtime-endpoint=unix://{socket}"), "{platform}");
        let run = socket.rsplit_once('/').unwrap().0;
        for (volume, path) in
            [("runtime", run), ("image-disk", disk), ("kubelet-pods", &format!("{kubelet}/pods"))]
        {
            let named = |list: &Value| {
                list.as_array().unwrap().iter().find(|one| one["name"] == volume).unwrap().clone()
            };
            assert_eq!(named(&pod["volumes"])["hostPath"]["path"], path, "{platform}");
            assert_eq!(named(&container["volumeMounts"])["mountPath"], path, "{platform}");
        }
    }
}

/// What a platform changes beyond the paths: object and field.
#[test]
fn a_platform_changes_no_more_than_it_has_to() {
    let base = kustomize(&["base"]);
    for (platform, _) in PATHS {
        let made = component(platform);
        let added: Vec<_> =
            made.keys().filter(|name| !base.contains_key(*name)).map(|name| name.0.as_str()).collect();
        let changed: Vec<_> = base
            .iter()
            .filter(|(name, object)| made[*name] != **object)
            .map(|(name, _)| name.0.as_str())
            .collect();
        let (expected_added, expected_changed): (&[&str], &[&str]) = match platform {
            "gke" => (&["ResourceQuota"], &[]),
            "openshift" => (
                &["Role", "RoleBinding", "RoleBinding", "SecurityContextConstraints"],
                &["DaemonSet", "Namespace"],
            ),
            _ => (&[], &["DaemonSet"]),
        };
        assert_eq!((added.as_slice(), changed.as_slice()), (expected_added, expected_changed), "{platform}");
        // No platform makes the agent privileged.
        let security = &pod(&made)["containers"][0]["securityContext"];
        assert_eq!(security, &pod(&base)["containers"][0]["securityContext"], "{platform}");
        let label = &pod(&made)["securityContext"]["seLinuxOptions"];
        let expected = match platform {
            "openshift" => json!({"type": "spc_t"}),
            "bottlerocket" => {
                json!({"user": "system_u", "role": "system_r", "type": "super_t", "level": "s0"})
            }
            _ => Value::Null,
        };
        assert_eq!(label, &expected, "{platform}");
    }
}

/// The constraints of `OpenShift` allow what the pods of the agent state, and are bound to the two accounts.
#[test]
fn the_constraints_of_openshift_fit_the_pods() {
    let made = component("openshift");
    let constraints = &made[&key("SecurityContextConstraints", "", "inplace-agent")];
    let agent = pod(&made);
    let used: BTreeSet<_> = agent["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|volume| volume.as_object().unwrap().keys())
        .collect();
    let allowed: Vec<_> =
        constraints["volumes"].as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()).collect();
    // Kubernetes adds the volume `projected` with the token.
    assert!(allowed.contains(&"projected"));
    assert!(used.iter().all(|kind| *kind == "name" || allowed.contains(&kind.as_str())), "{used:?}");
    assert_eq!((&constraints["allowHostNetwork"], &agent["hostNetwork"]), (&json!(true), &json!(true)));
    let port = &agent["containers"][0]["ports"][0]["hostPort"];
    assert!(constraints["allowHostPorts"] == true && port.is_number());
    for field in ["allowPrivilegedContainer", "allowPrivilegeEscalation", "allowHostPID", "allowHostIPC"] {
        assert_eq!(constraints[field], false, "{field}");
    }
    assert_eq!(constraints["requiredDropCapabilities"], json!(["ALL"]));
    let role = &made[&key("Role", "inplace-system", "inplace-agent-scc")];
    assert_eq!(role["rules"][0]["resourceNames"], json!(["inplace-agent"]));
    for (account, role) in
        [("inplace-agent", "inplace-agent-scc"), ("inplace-controller", "system:openshift:scc:nonroot-v2")]
    {
        let binding = &made[&key("RoleBinding", "inplace-system", &format!("{account}-scc"))];
        assert_eq!(
            (&binding["roleRef"]["name"], &binding["subjects"][0]["name"]),
            (&json!(role), &json!(account))
        );
    }
    let controller =
        &made[&key("Deployment", "inplace-system", "inplace-controller")]["spec"]["template"]["spec"];
    assert_eq!(controller["securityContext"]["runAsNonRoot"], true);
}

/// The quota admits both priority classes that the pods have.
#[test]
fn the_quota_for_critical_pods_names_the_classes_of_the_pods() {
    let made = component("gke");
    let quota = &made[&key("ResourceQuota", "inplace-system", "inplace-critical-pods")]["spec"];
    let classes = &quota["scopeSelector"]["matchExpressions"][0];
    let of = |kind: &str, name: &str| {
        made[&key(kind, "inplace-system", name)]["spec"]["template"]["spec"]["priorityClassName"].clone()
    };
    let pods = json!([of("DaemonSet", "inplace-agent"), of("Deployment", "inplace-controller")]);
    assert_eq!((&classes["scopeName"], &classes["values"]), (&json!("PriorityClass"), &pods));
}
