//! A container whose startup probe passes late: an operation waits for it, whatever a kubelet claims before it has run the
//! probe in the new container. Kubelets since 1.35 take over from the old container that its probe has passed.

use std::{path::Path, time::Duration};

use inplace::api::status::{Engine, Phase};
use serde_json::json;

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    pod::{Pod, is_ready},
    request::{adopted, request},
    support::release::{self, STARTUP_TAKEN_OVER_SINCE},
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

/// A kubelet may not report until its next sync that a startup probe has passed.
const LONG: Duration = Duration::from_secs(150);

#[test]
fn a_container_whose_startup_probe_has_not_passed_is_waited_for() {
    let cluster = Cluster::shared();
    let version = block_on(cluster.client.apiserver_version()).unwrap().git_version;
    if !release::has("startup probes that a kubelet takes over", STARTUP_TAKEN_OVER_SINCE, &version) {
        return;
    }
    Agent::shared();
    let pod = Pod::create(cluster, "slow", SLOW);
    pod.wait_for(LONG, "it is Ready", is_ready);
    for (image, order, engine) in [
        (None, "StopFirst", Engine::Recreate),
        (None, "StartFirst", Engine::Recreate),
        (Some("lab/app:v2"), "StopFirst", Engine::Respec),
        (Some("lab/app:v1"), "StartFirst", Engine::Respec),
        (None, "StopFirst", Engine::Recreate),
    ] {
        let id = pod.request(&request(pod.cluster, &[("app", image)], json!({"order": order})));
        let status = pod.answer_within(LONG, &id);
        assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
        let instance = pod.facts().settled().running("app").clone();
        assert_eq!(status.containers[0].engine, engine);
        let started = format!("/proc/{}/root/tmp/started", instance.pid);
        assert!(Path::new(&started).exists(), "{order} {engine}: it has not started: {status:#?}");
        adopted(&pod, "app", &format!("lab/app:{}", instance.version));
    }
}
