//! A container that the agent recreates beside the kubelet must equal the original, compared by the runtime's
//! specification. A container that may not be cloned gets another engine, and the plan says why.

use std::collections::BTreeMap;

use inplace::{
    api::status::Engine,
    cri::{client::Client, endpoint::Endpoint},
};
use serde_json::Value;

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    pod::{Pod, is_ready},
    request::{answered, restart_probed},
    support::facts::Instance,
    support::release,
};

/// Every field of a container that a pod can set, with values that are easily corrupted.
const EVERYTHING: &str = r#"
terminationGracePeriodSeconds: 20
shareProcessNamespace: true
hostAliases: [{ip: 10.1.2.3, hostnames: [alias.example, other.example]}]
securityContext:
  fsGroup: 2000
  supplementalGroups: [3000]
  seccompProfile: {type: RuntimeDefault}
  sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]
initContainers:
- {name: setup, image: lab/app:v1, command: [sh, -c, 'echo made >/scratch/made'], volumeMounts: [{name: scratch, mountPath: /scratch}]}
containers:
- name: app
  image: lab/app:v1
  command: [sh, -c, 'sleep 0; exec "$0" "$@"', app]
  args: ['$(NAME)', '', 'two words', "it's", 'ünï', '$$(NOT)', '\n']
  workingDir: /tmp
  ports: [{name: http, containerPort: 8080}, {containerPort: 53, protocol: UDP}]
  resources: {requests: {cpu: 20m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}
  securityContext:
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {add: [NET_ADMIN], drop: [CHOWN, MKNOD]}
  startupProbe: {exec: {command: ['true']}, timeoutSeconds: 30}
  livenessProbe: {exec: {command: ['true']}, periodSeconds: 30, timeoutSeconds: 30}
  readinessProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 30}
  lifecycle: {preStop: {exec: {command: [sh, -c, 'echo stopped >>/scratch/prestop']}}}
  env:
  - {name: NAME, value: plain}
  - {name: EMPTY, value: ''}
  - {name: NOTHING}
  - {name: UNICODE, value: 'Grüße, 世界 🎮'}
  - {name: EQUALS, value: '=a==b='}
  - {name: QUOTES, value: "\"double\" 'single' \\ back\\nslash"}
  - {name: BASE64, value: aGVsbG8gd29ybGQ=}
  - {name: DIGITS, value: '1234'}
  - {name: LINES, value: "one\ntwo\n\tthree"}
  - {name: SPACES, value: '  a  b  '}
  - {name: DOLLAR, value: '$NAME ${NAME} $$(NAME) $ 100% $('}
  - {name: REFERS, value: '<$(UNICODE)>'}
  - {name: ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
  volumeMounts:
  - {name: scratch, mountPath: /scratch}
  - {name: memory, mountPath: /memory}
  - {name: config, mountPath: /config}
  - {name: token, mountPath: /token}
volumes:
- {name: scratch, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
- {name: config, configMap: {name: kube-root-ca.crt}}
- name: token
  projected:
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3600}
    - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
"#;

/// The runtime's specification of a container instance.
fn runtime_spec(instance: &Instance) -> Value {
    let endpoint = Endpoint::parse(&Cluster::shared().node().endpoint).unwrap();
    let answer = block_on(async { Client::new(&endpoint, None).container(&instance.id, true).await });
    let answer = answer.unwrap().unwrap();
    serde_json::from_str::<Value>(&answer.info["info"]).unwrap()["runtimeSpec"].take()
}

/// Every leaf in which two documents differ, by its path.
fn differences(path: &str, a: &Value, b: &Value, found: &mut BTreeMap<String, (Value, Value)>) {
    let none = Value::Null;
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()) {
                let of = |map: &'_ serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                differences(&format!("{path}/{key}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for index in 0..a.len().max(b.len()) {
                let at = format!("{path}/{index}");
                differences(&at, a.get(index).unwrap_or(&none), b.get(index).unwrap_or(&none), found);
            }
        }
        (a, b) if a != b => {
            found.insert(path.to_owned(), (a.clone(), b.clone()));
        }
        _ => {}
    }
}

/// The specifications of two instances must be equal except for two values: the cgroup, which is named after the
/// container, and the file for the termination message, which every instance has for itself, with a kubelet too.
fn assert_same((old, before): (&Instance, &Value), (new, after): (&Instance, &Value)) {
    let mut found = BTreeMap::new();
    differences("", before, after, &mut found);
    let (a, b) = found.remove("/linux/cgroupsPath").expect("the cgroup is the container's own");
    assert_eq!(a.as_str().unwrap().replace(&old.id, &new.id), b.as_str().unwrap());
    let mounts = before["mounts"].as_array().unwrap();
    let log = mounts.iter().position(|mount| mount["destination"] == "/dev/termination-log").unwrap();
    let (a, b) = found.remove(&format!("/mounts/{log}/source")).expect("a termination log of its own");
    let folder = |path: &Value| path.as_str().unwrap().rsplit_once('/').unwrap().0.to_owned();
    assert_eq!(folder(&a), folder(&b));
    assert!(found.is_empty(), "{found:#?}");
}

/// The pod's spec, with a native sidecar where the kubelet supports it.
fn everything(cluster: &Cluster) -> String {
    // Other tests on this cluster add nodes without a kubelet.
    let node = cluster.read(&format!("/api/v1/nodes/{}", cluster.node().name));
    let reported = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap();
    let sidecar = "- {name: mesh, image: lab/app:v1, restartPolicy: Always}\ncontainers:\n- name: app";
    if release::has("native sidecars", release::SIDECARS_SINCE, reported) {
        EVERYTHING.replace("containers:\n- name: app", sidecar)
    } else {
        EVERYTHING.to_owned()
    }
}

#[test]
fn the_clone_differs_from_the_kubelets_own_in_its_cgroup_alone() {
    let cluster = Cluster::shared();
    Agent::shared();
    let spec = everything(cluster);
    let pod = Pod::run(cluster, "everything", &spec);
    let names = if spec.contains("name: mesh") { vec!["app", "mesh"] } else { vec!["app"] };
    let exec = |script: &str| cluster.kubectl(&["exec", &pod.name, "-c", "app", "--", "sh", "-c", script]);
    exec("echo kept >/memory/a; echo kept >/dev/shm/b");
    let before = pod.facts();
    // Each instance of `app` before the last one was stopped: by a request, or by the kubelet because of a probe.
    let mut stopped = 0;
    for name in names {
        let mut spec_before = Value::Null;
        let ([old, new], status) = restart_probed(&pod, name, |old| {
            // Read now: a kubelet that ends a clone collects the instances before it.
            spec_before = runtime_spec(old);
            answered(&pod, name)
        });
        assert_eq!(status.containers[0].engine, Engine::Recreate);
        let after = pod.facts();
        assert!(after.sandbox == before.sandbox && after.ip == before.ip);
        assert!(!old.by_operation, "{old:#?}");
        assert_same((&old, &spec_before), (&new, &runtime_spec(&new)));
        if name == "app" {
            stopped = new.attempt as usize;
        }
    }
    // The preStop handler ran once per stop, the written files are there, and `exec` reaches the new instance.
    let reported = exec("cat /scratch/made /scratch/prestop /memory/a /dev/shm/b; cat /etc/hosts");
    let kept = |stops: usize| format!("made\n{}kept\nkept\n", "stopped\n".repeat(stops));
    assert!((1..=stopped).any(|stops| reported.starts_with(&kept(stops))), "{reported}");
    assert!(reported.contains("alias.example"), "{reported}");
    pod.wait("it is Ready", is_ready);
}
