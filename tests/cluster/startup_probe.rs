//! A container whose startup probe passes late: an operation waits for it, whatever a kubelet claims before it has run the
//! probe in the new container. Kubelets since 1.35 take over from the old container that its probe has passed.

use std::path::Path;

use inplace::api::status::{Engine, Phase};
use serde_json::json;

use crate::{
    agent::Agent,
    cluster::Cluster,
    pod::Pod,
    request::{adopted, request},
};

/// It needs some seconds until its startup probe passes.
const SLOW: &str = "
terminationGracePeriodSeconds: 2
containers:
- name: app
  image: lab/app:v1
  command: [sh, -c, 'sleep 8; touch /tmp/started; exec app']
  startupProbe: {exec: {command: [test, -e, /tmp/started]}, periodSeconds: 3, failureThreshold: 30, timeoutSeconds: 30}
";

#[test]
fn a_container_whose_startup_probe_has_not_passed_is_waited_for() {
    Agent::shared();
    let pod = Pod::run(Cluster::shared(), "slow", SLOW);
    for (image, order, engine) in [
        (None, "StopFirst", Engine::Recreate),
        (None, "StartFirst", Engine::Recreate),
        (Some("lab/app:v2"), "StopFirst", Engine::Respec),
        (Some("lab/app:v1"), "StartFirst", Engine::Respec),
        (None, "StopFirst", Engine::Recreate),
    ] {
        let status =
            pod.ask(&request(pod.cluster, &[("app", image)], json!({"order": order})), Phase::Succeeded);
        let instance = pod.facts().settled().running("app").clone();
        assert_eq!(status.containers[0].engine, engine);
        let started = format!("/proc/{}/root/tmp/started", instance.pid);
        assert!(Path::new(&started).exists(), "{order} {engine}: it has not started: {status:#?}");
        adopted(&pod, "app", &format!("lab/app:{}", instance.version));
    }
}
