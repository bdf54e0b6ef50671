//! Users and the kubelet treat a container instance as usual even if the kubelet did not create it: the previous
//! instance's log can be read, and an instance that fails its liveness probe is restarted.

use std::{fs, thread};

use inplace::api::status::{Engine, Phase};
use serde_json::json;

use crate::{
    agent::Agent,
    cluster::Cluster,
    pod::{Pod, container, is_ready},
    request::{adopted, answered, restart, restart_probed, restored, swap},
    support::wait::eventually_or,
};

/// Each instance logs its number.
const NUMBERED: &str = "
terminationGracePeriodSeconds: 2
containers:
- name: app
  image: lab/app:v1
  command: [sh, -c, 'echo x >>/dev/shm/starts; echo start $(wc -l </dev/shm/starts); exec app']
";

#[test]
fn the_log_of_the_previous_instance_can_be_read() {
    let cluster = Cluster::shared();
    Agent::shared();
    let pod = Pod::run(cluster, "logs", NUMBERED);
    let log = || cluster.kubectl(&["logs", pod.name.as_str()]);
    // An instance is reported as running before it writes its line.
    let starts = |number: u32| {
        let line = format!("start {number}\n");
        eventually_or(&line, || {
            let logged = log();
            if logged == line { Ok(()) } else { Err(logged) }
        });
    };
    starts(1);
    let mut read = 0;
    for cycle in 1..=3 {
        let status = restart(&pod, "app", json!({}), Phase::Succeeded);
        assert_eq!(status.containers[0].engine, Engine::Recreate);
        let instance = adopted(&pod, "app", "lab/app:v1");
        assert_eq!(instance.attempt, cycle);
        starts(cycle + 1);
        // Once a minute the kubelet collects exited containers and keeps the newest: for a moment that is the
        // fence. Then it reports no previous instance, or is about to remove it, its log first.
        let reported = container(&pod.get(), "app").unwrap().last_state.clone();
        let dead = reported.and_then(|last| last.terminated?.container_id);
        let is_there = || {
            pod.facts().of("app").any(|instance| {
                instance.pid == 0 && dead.as_deref().is_some_and(|dead| dead.ends_with(&instance.id))
            })
        };
        if !is_there() {
            continue;
        }
        let previous = cluster.kubectl_command(&["logs", pod.name.as_str(), "--previous"]).output().unwrap();
        let logged = String::from_utf8_lossy(&previous.stdout).into_owned();
        if logged == format!("start {cycle}\n") {
            read += 1;
        } else {
            eventually_or("the kubelet to remove the instance whose log is not there", || {
                if is_there() { Err(logged.clone()) } else { Ok(()) }
            });
        }
    }
    assert!(read >= 2, "only {read} of three were there");
}

/// Fails its liveness probe as soon as the file exists, which is in the file system of one instance. Under load an exec takes
/// more than the default timeout of one second, which the kubelet counts as a failure.
const MORTAL: &str = "
terminationGracePeriodSeconds: 1
containers:
- name: app
  image: lab/app:v1
  livenessProbe: {exec: {command: [test, '!', -e, /tmp/dead]}, periodSeconds: 10, timeoutSeconds: 30, failureThreshold: 1}
";

/// A pod whose v2 fails its liveness probe from the start.
const DEAD: &str = "
terminationGracePeriodSeconds: 1
containers:
- name: app
  image: lab/app:v1
  livenessProbe: {exec: {command: [grep, -qv, v2, /etc/version]}, periodSeconds: 10, timeoutSeconds: 30, failureThreshold: 1}
";

#[test]
fn a_new_instance_whose_liveness_probe_fails_is_restarted_by_its_kubelet() {
    Agent::shared();
    thread::scope(|scope| {
        scope.spawn(dies_later);
        scope.spawn(dies_while_it_is_watched);
    });
}

fn dies_later() {
    let pod = Pod::run(Cluster::shared(), "mortal", MORTAL);
    let ([_, ours], status) = restart_probed(&pod, "app", |_| answered(&pod, "app"));
    assert_eq!(status.containers[0].engine, Engine::Recreate);
    // A kubelet that has just ended it, because a probe was due before its start, restarts it as well. Then no file can be
    // written.
    let _ = fs::write(format!("/proc/{}/root/tmp/dead", ours.pid), "");
    pod.wait("its kubelet has restarted it", |pod| {
        is_ready(pod)
            && container(pod, "app")
                .is_some_and(|app| app.ready && app.restart_count.unsigned_abs() == ours.attempt + 1)
    });
    let theirs = adopted(&pod, "app", "lab/app:v1");
    assert_eq!(theirs.attempt, ours.attempt + 1);
    assert!(theirs.started_at >= ours.started_at);
    // The status describes the request alone, and the next request works as usual.
    assert_eq!(pod.reported("it stays", |reported| reported.id == status.id), status);
    restart_probed(&pod, "app", |_| answered(&pod, "app"));
}

fn dies_while_it_is_watched() {
    let pod = Pod::run(Cluster::shared(), "dead", DEAD);
    let status = swap(&pod, "lab/app:v2", json!({"minReadySeconds": 30}), Phase::RolledBack);
    assert_eq!(status.reason, "Exited", "{status:#?}");
    // It stays, unless its kubelet is late.
    let instance = restored(&pod, &status.containers[0], "lab/app:v1");
    assert_eq!(instance.version, "v1");
}
