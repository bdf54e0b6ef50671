//! cpu and memory of the template change: where the API server resizes running pods, the containers keep running with their
//! new limits; elsewhere the change is refused before a pod is touched.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::{Fixture, condition, is_complete, object};
use crate::agent::Agent;
use crate::cluster::Cluster;
use crate::support::parts::Parts;
use crate::support::release;

const MEBIBYTE: u64 = 1 << 20;

fn template(cluster: &Cluster, name: &str, image: &str, container: &Value) -> Value {
    let mut app = json!({"name": "app", "image": cluster.named(image)});
    app.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [app]},
    })
}

fn limits(cpu: &str, memory: &str) -> Value {
    json!({"resources": {"limits": {"cpu": cpu, "memory": memory}}})
}

fn raw(cluster: &Cluster, path: &str) -> Value {
    serde_json::from_str(&cluster.kubectl(&["get", "--raw", path])).unwrap()
}

fn has_resize(cluster: &Cluster) -> bool {
    let list = raw(cluster, "/api/v1");
    list["resources"].as_array().unwrap().iter().any(|resource| resource["name"] == "pods/resize")
}

/// What a resize preserves of a pod: its uid and its container, and how often that was restarted.
fn kept(fixture: &Fixture<'_>) -> BTreeMap<String, [Value; 3]> {
    let of = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        [&pod["metadata"]["uid"], &status["containerID"], &status["restartCount"]].map(Value::clone)
    };
    fixture.pods().iter().map(|(name, pod)| (name.clone(), of(pod))).collect()
}

/// The limits of the cgroups of the pods' containers: thousandths of a cpu, and bytes.
fn enforced(fixture: &Fixture<'_>) -> Vec<(u64, u64)> {
    let tasks = fixture.cluster.lab().ctr(&["-n", "k8s.io", "tasks", "ls"]);
    let of = |pod: &Value| {
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
        let id = id.trim_start_matches("containerd://");
        let task = tasks.lines().find(|line| line.starts_with(id)).unwrap_or_else(|| panic!("{id}: {tasks}"));
        of_process(task.split_whitespace().nth(1).unwrap())
    };
    fixture.pods().values().map(of).collect()
}

fn of_process(pid: &str) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = |controller: &str| {
        let mut lines = text.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
        lines.find(|line| line[1].split(',').any(|one| one == controller)).map(|line| line[2].to_owned())
    };
    let read = |path: String| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or_else(|_| panic!("no limit: {text}"));
    if let (Some(cpu), Some(memory)) = (path("cpu"), path("memory")) {
        let of_cpu = |file| number(&read(format!("/sys/fs/cgroup/cpu{cpu}/cpu.cfs_{file}_us")));
        let memory = number(&read(format!("/sys/fs/cgroup/memory{memory}/memory.limit_in_bytes")));
        return (of_cpu("quota") * 1000 / of_cpu("period"), memory);
    }
    let folder = format!("/sys/fs/cgroup{}", path("").unwrap());
    let cpu = read(format!("{folder}/cpu.max"));
    let (quota, period) = cpu.split_once(' ').unwrap();
    (number(quota) * 1000 / number(period), number(&read(format!("{folder}/memory.max"))))
}

#[test]
fn limits_change_in_the_running_container_or_nothing_is_touched() {
    let cluster = &Cluster::own();
    let _agent = Agent::start(cluster, &[]);
    let controller = Agent::controller(cluster, "one");
    let parts = Parts::default();
    let version = raw(cluster, "/version")["gitVersion"].as_str().unwrap().to_owned();
    assert!(
        has_resize(cluster) || release::minor(&version) < release::RESIZE_SINCE,
        "{version} resizes no pods"
    );
    if !has_resize(cluster) {
        release::not_exercised("resizes of running pods", release::RESIZE_SINCE, &version);
        return refused(cluster);
    }
    parts.run("limits", || limits_change(cluster, release::minor(&version)));
    parts.run("a quota", || a_quota_refuses_and_a_retry_passes(cluster));
    parts.run("a restart", || a_kubelet_restarts_what_its_policy_says(cluster));
    parts.run("a full node", || {
        a_full_node_is_waited_for_across_a_restart_of_the_controller(cluster, &controller);
    });
    let denied = cluster.denied();
    // Those of the quota are the API server's answers to resizes.
    let others = denied.iter().filter(|write| write["objectRef"]["subresource"] != "resize");
    assert_eq!(others.count(), 0, "{denied:#?}");
}

/// A workload with two pods and these containers.
fn start<'c>(cluster: &'c Cluster, name: &'static str, container: &Value) -> Fixture<'c> {
    let fixture = Fixture { cluster, kind: "gamedeployment", name };
    let spec = json!({"replicas": 2, "template": template(cluster, name, "lab/app:v1", container),
        "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1}});
    fixture.apply(&object("GameDeployment", name, &spec));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    fixture
}

impl Fixture<'_> {
    fn change(&self, image: &str, container: &Value) {
        let template = template(self.cluster, self.name, image, container);
        // A merge patch would keep the limits that the new template does not have.
        self.patch(&json!({"spec": {"template": template}}));
    }

    fn until_says(&self, kind: &str, words: &str) {
        self.until_says_one_of(kind, &[words]);
    }

    fn until_says_one_of(&self, kind: &str, all: &[&str]) {
        self.until(&all.join(" or "), |status| {
            let message = condition(status, kind)["message"].as_str().unwrap_or_default();
            all.iter().any(|words| message.contains(words))
        });
    }

    fn until_complete(&self) {
        self.until("it is updated", |status| is_complete(status, 2));
    }
}

fn refused(cluster: &Cluster) {
    let fixture = start(cluster, "sized", &limits("200m", "64Mi"));
    let before = kept(&fixture);
    fixture.change("lab/app:v2", &limits("300m", "96Mi"));
    fixture.until("it is refused", |status| {
        let failed = condition(status, "UpdateFailed");
        let message = failed["message"].as_str().unwrap_or_default();
        failed["reason"] == "NotInPlace"
            && message.contains("limits.cpu (the API server has no resize of pods")
    });
    assert_eq!(kept(&fixture), before);
    assert_eq!(enforced(&fixture), [(200, 64 * MEBIBYTE); 2]);
}

fn limits_change(cluster: &Cluster, minor: u32) {
    let fixture = start(cluster, "sized", &limits("200m", "64Mi"));
    let before = kept(&fixture);
    assert_eq!(enforced(&fixture), [(200, 64 * MEBIBYTE); 2]);
    // No multiple of a page.
    fixture.change("lab/app:v1", &limits("300m", "100M"));
    fixture.until_complete();
    assert_eq!(kept(&fixture), before);
    let page = 100_000_000 / 4096 * 4096;
    assert!(enforced(&fixture).iter().all(|limits| [(300, page), (300, 100_000_000)].contains(limits)));
    fixture.change("lab/app:v1", &limits("300m", "64Mi"));
    if minor > release::RESIZE_SINCE {
        fixture.until_complete();
        assert_eq!(kept(&fixture), before);
        assert_eq!(enforced(&fixture), [(300, 64 * MEBIBYTE); 2]);
    } else {
        fixture.until_says("UpdateFailed", "memory limits cannot be decreased");
        assert_eq!(kept(&fixture), before);
        fixture.change("lab/app:v1", &limits("300m", "100M"));
        fixture.until_complete();
    }
    // With a new image, in one step.
    fixture.change("lab/app:v2", &limits("400m", "128Mi"));
    fixture.until_complete();
    for (name, pod) in fixture.pods() {
        assert_eq!(pod["metadata"]["uid"], before[&name][0]);
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 1, "{pod:#}");
    }
    assert_eq!(enforced(&fixture), [(400, 128 * MEBIBYTE); 2]);
    // No node has so much, so the image does not change. The way back resizes the pod back.
    let between = kept(&fixture);
    fixture.change("lab/app:v3", &limits("4000", "128Mi"));
    // The kubelet says so; from 1.36 on the API server does.
    fixture
        .until_says_one_of("UpdateFailed", &["Infeasible", "node didn't have enough allocatable resources"]);
    assert_eq!(kept(&fixture), between);
    fixture.change("lab/app:v2", &limits("400m", "128Mi"));
    fixture.until_complete();
    assert_eq!(kept(&fixture), between);
    assert_eq!(enforced(&fixture), [(400, 128 * MEBIBYTE); 2]);
    fixture.delete();
}

fn a_quota_refuses_and_a_retry_passes(cluster: &Cluster) {
    let fixture = start(cluster, "quota", &limits("200m", "64Mi"));
    let before = kept(&fixture);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small", "namespace": "default"},
        "spec": {"hard": {"limits.cpu": "450m"}}});
    cluster.apply(&quota.to_string());
    fixture.wait("the quota counts", || {
        let seen = cluster.find("/api/v1/namespaces/default/resourcequotas", "small")?;
        (seen["status"]["used"]["limits.cpu"] == "400m").then_some(())
    });
    fixture.change("lab/app:v1", &limits("300m", "64Mi"));
    fixture.until_says("UpdateFailed", "exceeded quota");
    assert_eq!(kept(&fixture), before);
    assert_eq!(enforced(&fixture), [(200, 64 * MEBIBYTE); 2]);
    cluster.kubectl(&["delete", "resourcequota", "small"]);
    fixture.patch(&json!({"metadata": {"annotations": {"inplace.dev/retry": "true"}}}));
    fixture.until_complete();
    assert_eq!(kept(&fixture), before);
    assert_eq!(enforced(&fixture), [(300, 64 * MEBIBYTE); 2]);
    fixture.delete();
}

fn a_kubelet_restarts_what_its_policy_says(cluster: &Cluster) {
    let with = |cpu: &str, memory: &str| {
        let mut container = limits(cpu, memory);
        container["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        container
    };
    let fixture = start(cluster, "restarted", &with("200m", "64Mi"));
    let before = kept(&fixture);
    fixture.change("lab/app:v1", &with("300m", "64Mi"));
    fixture.until_complete();
    assert_eq!(kept(&fixture), before);
    fixture.change("lab/app:v1", &with("300m", "48Mi"));
    fixture.until_complete();
    for (name, [uid, id, restarts]) in kept(&fixture) {
        assert_eq!((&uid, restarts), (&before[&name][0], json!(1)), "{name}");
        assert_ne!(id, before[&name][1], "{name}");
    }
    assert_eq!(enforced(&fixture), [(300, 48 * MEBIBYTE); 2]);
    fixture.delete();
}

/// Each pod fits on the node, and both do not.
fn a_full_node_is_waited_for_across_a_restart_of_the_controller(cluster: &Cluster, controller: &Agent) {
    let nodes = raw(cluster, "/api/v1/nodes");
    let cpus: u64 = nodes["items"][0]["status"]["allocatable"]["cpu"].as_str().unwrap().parse().unwrap();
    let large = cpus * 700;
    let fixture = start(cluster, "deferred", &limits("100m", "64Mi"));
    let before = kept(&fixture);
    fixture.change("lab/app:v1", &limits(&format!("{large}m"), "64Mi"));
    fixture.until_says("Progressing", "Deferred");
    assert_eq!(kept(&fixture), before);
    let mut sizes = enforced(&fixture);
    sizes.sort_unstable();
    assert_eq!(sizes, [(100, 64 * MEBIBYTE), (large, 64 * MEBIBYTE)]);
    controller.kill();
    let _next = Agent::controller(cluster, "two");
    fixture.change("lab/app:v1", &limits("100m", "64Mi"));
    fixture.until_complete();
    assert_eq!(kept(&fixture), before);
    assert_eq!(enforced(&fixture), [(100, 64 * MEBIBYTE); 2]);
    fixture.delete();
}
