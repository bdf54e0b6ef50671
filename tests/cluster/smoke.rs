//! Tests the test cluster itself: pods run on it, and it is removed without a trace.

use std::{fs, process::Command};

use serde_json::json;

use crate::{
    cluster::Cluster,
    pod::{PAIR, Pod, annotation, container, is, is_ready},
    support::lab::run,
    support::wait::eventually,
};

#[test]
fn a_pod_runs_and_goes() {
    let pod = Pod::run(Cluster::any(), "runs", PAIR);
    let status = pod.get().status.unwrap();
    assert!(status.pod_ip.is_some_and(|ip| !ip.is_empty()));
    pod.delete();
    assert!(!pod.seen().versions().any(|version| version.metadata.uid.as_ref() != Some(&pod.uid)));
}

#[test]
fn the_runtime_and_the_api_server_report_the_same() {
    let cluster = Cluster::shared();
    let pod = Pod::run(cluster, "shown", PAIR);
    let facts = pod.facts().settled();
    let object = pod.get();
    let status = container(&object, "app").unwrap();
    assert_eq!(status.container_id.as_deref().unwrap(), format!("containerd://{}", facts.running("app").id));
    // Not by name: a runtime reports any of an image's names, and tests add some.
    let digest = cluster.lab().digest("app:v1");
    let (_, digest) = digest.split_once('@').unwrap();
    assert!(status.image_id.ends_with(digest), "{} is not {digest}", status.image_id);
    assert_eq!(object.status.as_ref().unwrap().pod_ip.as_deref(), Some(&*facts.ip));
    assert_eq!(object.spec.unwrap().node_name, Some(cluster.node().name));
}

#[test]
fn an_annotation_and_the_events_can_be_read() {
    let metadata = json!({"annotations": {"test/given": "yes"}});
    let spec = json!({"containers": [{"name": "app", "image": Cluster::any().image("app:v1")}]});
    let pod = Pod::make(Cluster::any(), "marked", json!({"metadata": metadata, "spec": spec}));
    pod.annotate("test/later", Some("1"));
    pod.wait("both are there", |pod| {
        annotation(pod, "test/given") == Some("yes") && annotation(pod, "test/later") == Some("1")
    });
    pod.annotate("test/later", None);
    pod.wait("it is gone and the pod is Ready", |pod| {
        annotation(pod, "test/later").is_none() && is_ready(pod)
    });
    // The scheduler writes its event after the binding, on which the kubelet may act first.
    eventually("the event of the scheduler", || {
        pod.events().iter().any(|event| event.reason.as_deref() == Some("Scheduled")).then_some(())
    });
}

#[test]
fn a_service_has_the_address_of_its_pod() {
    let cluster = Cluster::any();
    let service = format!("followed-{}", std::process::id());
    let (head, spec) = ("apiVersion: v1\nkind: Service", "ports: [{port: 80}]");
    cluster.apply(&format!(
        "{head}\nmetadata: {{name: {service}}}\nspec: {{selector: {{app: {service}}}, {spec}}}\n"
    ));
    let app = json!({"name": "app", "image": cluster.image("app:v1")});
    let manifest = json!({"metadata": {"labels": {"app": service}}, "spec": {"containers": [app]}});
    let pod = Pod::make(cluster, "followed", manifest);
    let ip = pod.wait("it is Ready", is_ready).status.unwrap().pod_ip.unwrap();
    eventually("the endpoint", || {
        let endpoints = cluster.find("/api/v1/namespaces/default/endpoints", &service)?;
        (endpoints["subsets"][0]["addresses"][0]["ip"] == ip).then_some(())
    });
    cluster.kubectl(&["delete", "service", &service]);
}

#[test]
fn the_program_can_be_run_on_the_cluster_and_on_its_node() {
    let cluster = Cluster::shared();
    assert!(cluster.inplace(&["--version"]).status().unwrap().success());
    assert!(cluster.node().inplace(&["--version"]).status().unwrap().success());
}

#[test]
fn a_pod_reaches_the_api_server_as_its_service_account() {
    let cluster = Cluster::shared();
    let ask = "cd /var/run/secrets/kubernetes.io/serviceaccount && test -s token && test -s ca.crt &&
      nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null";
    for host_network in [false, true] {
        let app = json!({"name": "app", "image": cluster.image("app:v1")});
        let spec = json!({"spec": {"hostNetwork": host_network, "containers": [app]}});
        let pod = Pod::make(cluster, "asks", spec);
        pod.wait("it is Ready", is_ready);
        cluster.kubectl(&["exec", &pod.name, "--", "sh", "-c", ask]);
    }
}

#[test]
fn an_account_has_its_own_rights_alone_and_its_writes_are_on_record() {
    let cluster = Cluster::shared();
    let kubeconfig = cluster.kubeconfig_of("default", "default");
    let name = format!("denied-{}", std::process::id());
    let delete = ["delete", "configmap", &name];
    cluster.kubectl(&["create", "configmap", &name]);
    let denied = cluster.kubectl_command(&delete).arg("--kubeconfig").arg(&kubeconfig).output().unwrap();
    let reported = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert!(reported.contains("system:serviceaccount:default:default"), "{reported}");
    cluster.kubectl(&["annotate", "configmap", &name, "test/key=value"]);
    cluster.kubectl(&delete);
    let writes = eventually("three writes that name it", || {
        let mut writes = cluster.writes();
        writes.retain(|write| write["objectRef"]["name"] == *name && write["verb"] != "create");
        (writes.len() >= 3).then_some(writes)
    });
    let reported =
        writes.iter().map(|write| (write["verb"].as_str().unwrap(), &write["responseStatus"]["code"]));
    let expected = [("delete", &json!(403)), ("patch", &json!(200)), ("delete", &json!(200))];
    assert_eq!(reported.collect::<Vec<_>>(), expected);
}

#[test]
fn host_paths_are_the_nodes_own() {
    let cluster = Cluster::shared();
    let mounts = [("run", "/run/containerd"), ("state", "/var/lib/inplace-smoke"), ("logs", "/var/log/pods")];
    let volumes = mounts.map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}));
    let mounts = mounts.map(|(name, path)| json!({"name": name, "mountPath": path}));
    let app = json!({"name": "app", "image": cluster.image("app:v1"), "volumeMounts": mounts});
    let pod = Pod::make(cluster, "below", json!({"spec": {"containers": [app], "volumes": volumes}}));
    pod.wait("it is Ready", is_ready);
    let script =
        "test -S /run/containerd/containerd.sock && touch /var/lib/inplace-smoke/made && ls /var/log/pods";
    assert!(cluster.kubectl(&["exec", &pod.name, "--", "sh", "-c", script]).contains(&pod.uid));
    assert!(cluster.node().dir.join("var/lib/inplace-smoke/made").exists());
    assert!(!fs::exists("/var/lib/inplace-smoke").unwrap());
}

#[test]
fn a_second_node_runs_pods_too_and_a_cluster_that_is_dropped_leaves_nothing() {
    let before = sysctls();
    let cluster = Cluster::own();
    let node = cluster.add_node("other");
    let spec =
        json!({"nodeName": node.name, "containers": [{"name": "app", "image": cluster.image("app:v1")}]});
    let pod = Pod::make(&cluster, "there", json!({"spec": spec}));
    pod.wait("it is Ready", is_ready);
    let facts = pod.facts_on(&node).settled();
    assert_eq!(facts.running("app").version, "v1");
    let ip = pod.get().status.unwrap().pod_ip.unwrap();
    assert_eq!(ip.rsplit_once('.').unwrap().0, node.ip.rsplit_once('.').unwrap().0);
    drop(pod);
    // A pod with a volume that is a mount, and a container that ignores SIGTERM.
    let spec = "{containers: [{name: app, image: lab/app:stubborn}], volumes: [{name: v, emptyDir: {medium: Memory}}]}";
    let pod = Pod::run(&cluster, "left", spec);
    let dir = cluster.lab().dir.clone();
    let bridges = [&dir, &dir.join("nodes/other")].map(|dir| {
        let name = fs::read_to_string(dir.join("bridge")).unwrap();
        name.trim().to_owned()
    });
    let left = || traces(&dir.to_string_lossy(), &bridges);
    assert!(left().len() > 10, "{:?}", left());
    assert!(is(&pod.get(), "Ready"));
    std::mem::forget(pod);
    drop(cluster);

    assert!(!dir.exists());
    assert_eq!(left(), Vec::<String>::new());
    assert_eq!(sysctls(), before);
}

/// Processes, mounts, links and cgroups of a cluster.
fn traces(dir: &str, bridges: &[String]) -> Vec<String> {
    let below = format!("{dir}/");
    let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    });
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut found: Vec<_> = processes.filter(|line| line.contains(&below)).collect();
    found.extend(mounts.lines().filter(|line| line.contains(&below)).map(str::to_owned));
    let links = run(Command::new("ip").args(["-o", "addr"]));
    let cgroups = run(Command::new("find").args(["/sys/fs/cgroup", "-maxdepth", "2", "-name", "inpl*"]));
    let rules = Command::new("iptables-save").output().map(|output| output.stdout).unwrap_or_default();
    let rules = String::from_utf8_lossy(&rules).into_owned();
    for bridge in bridges {
        let named = |line: &&str| line.split([' ', '/', ':']).any(|word| word == bridge);
        for text in [&links, &cgroups, &rules] {
            found.extend(text.lines().filter(named).map(str::to_owned));
        }
    }
    found
}

/// The kernel parameters that a kubelet sets.
fn sysctls() -> Vec<String> {
    let names = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"];
    names.map(|name| fs::read_to_string(format!("/proc/sys/{name}")).unwrap()).to_vec()
}
