//! What proves a standby beside its sockets: the container's own readiness probe, and a hook at the handover, both as
//! commands that run in the standby; and what the memory of the pod has no room for.

use inplace::api::status::{Phase, Step};
use serde_json::{Value, json};

use super::{Client, start_first};
use crate::{agent::Agent, cluster::Cluster, pod::Pod, request::adopted};

/// v3 never becomes Ready: its version fails the readiness probe.
const PROBED: &str = "
terminationGracePeriodSeconds: 5
securityContext: {sysctls: [{name: net.ipv4.tcp_migrate_req, value: '1'}]}
containers:
- name: app
  image: lab/app:v1
  command: [serve, '8080']
  ports: [{containerPort: 8080}]
  readinessProbe: {exec: {command: [grep, -qv, v3, /etc/version]}, periodSeconds: 1, timeoutSeconds: 30}
";

/// The container has allocated 40 MiB: the buffer of a program that waits for a reader.
const LARGE: &str = "
terminationGracePeriodSeconds: 1
containers:
- name: app
  image: lab/app:v1
  command: [sh, -c, 'mkfifo /f; sleep 100000 </f & exec dd if=/dev/zero of=/f bs=40M count=1']
  resources: {limits: {memory: 72Mi}}
  readinessProbe:
    exec: {command: [sh, -c, 'test $(grep RssAnon /proc/1/status | tr -dc 0-9) -gt 40000']}
    periodSeconds: 1
    timeoutSeconds: 30
";

/// A hook that passes where the file with the version says v2. The argument names the container that is replaced.
fn template(cluster: &Cluster) {
    let metric = json!({
        "name": "version", "count": 1, "successCondition": "result == 'v2 for app'",
        "provider": {"exec": {"container": "app", "command":
            ["sh", "-c", "echo \"$(cat /etc/version) for $0\"", "{{ args.ModifiedContainer[0] }}"]}},
    });
    let args = json!([{"name": "ModifiedContainer[0]"}]);
    let template = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": {"name": "runs-v2"},
        "spec": {"args": args, "metrics": [metric]},
    });
    cluster.apply(&template.to_string());
}

fn handover() -> Value {
    json!({"preHook": {"templateName": "runs-v2", "phase": "Handover"}})
}

#[test]
fn a_standby_passes_its_probe_and_the_hook_before_anything_is_touched() {
    Agent::shared();
    let pod = Pod::run(Cluster::shared(), "proven", PROBED);
    template(pod.cluster);
    let client = Client::of(&pod);
    start_first(&pod, ("app", Some("lab/app:v2")), handover(), Phase::Succeeded);
    client.awaits("v2");
    adopted(&pod, "app", "lab/app:v2");
    // Its kubelet may collect the previous instance meanwhile.
    let running = || pod.facts().settled().running("app").clone();
    let before = running();
    for (image, more, step, said) in [
        ("lab/app:v1", handover(), Step::Handover, "hook runs-v2"),
        ("lab/app:v3", json!({"readyTimeoutSeconds": 5}), Step::Standby, "its readiness probe does not pass"),
    ] {
        let status = start_first(&pod, ("app", Some(image)), more, Phase::Failed);
        assert_eq!((status.reason.as_str(), status.step), ("NotStartedBeside", Some(step)), "{status:#?}");
        assert!(status.message.contains(said), "{}", status.message);
        assert!(status.message.ends_with("The running containers were not touched"), "{}", status.message);
        assert_eq!(running(), before);
    }
    client.was_always_served("a standby that did not prove itself");
}

#[test]
fn two_that_do_not_fit_into_the_memory_of_the_pod_are_refused() {
    Agent::shared();
    let pod = Pod::run(Cluster::shared(), "large", LARGE);
    let before = pod.facts().settled();
    let status = start_first(&pod, ("app", None), json!({}), Phase::Refused);
    assert_eq!(status.reason, "CannotStartFirst", "{status:#?}");
    assert!(status.message.contains("of its memory limit of 72 MiB"), "{}", status.message);
    assert_eq!(pod.facts(), before);
}
