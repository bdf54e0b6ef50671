//! A pod is deleted while a standby runs in it. Its kubelet does not know the standby, which gets its preStop handler and
//! its grace period from the agent.

use std::{collections::BTreeMap, fs};

use inplace::api::{
    annotation::STANDBY,
    status::{Phase, Step},
};
use kube::api::DeleteParams;
use serde_json::json;

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    ongoing::{containers, is_running},
    pod::{GOING, Pod},
    request::request,
    support::wait::eventually,
};

/// Each instance writes its own name and what happens to it into a folder of the node, and needs some time to stop. Only
/// the first two, the container and its standby, become Ready. When the pod is deleted, its own containers end after the standby:
/// its kubelet ends the standby when they have stopped (docs/start-first.md), and the agent may first wait for a probe in it.
const RECORDED: &str = "
terminationGracePeriodSeconds: 120
volumes: [{name: out, hostPath: {path: OUT}}]
containers:
- name: app
  image: lab/app:v1
  command:
  - sh
  - -c
  - |
    id=$(cat /proc/sys/kernel/random/uuid)
    echo $id >/tmp/id
    if [ ! -e /out/standby ]; then
      [ ! -e /out/ready ] || echo $id >/out/standby
      echo $id >>/out/ready
    fi
    ends() {
      echo $id term >>/out/log
      sleep 1
      if [ -e /out/deleted ] && ! grep -q $id /out/standby; then
        until grep -qf /out/standby /out/ended; do sleep 1; done
      fi
      echo $id end >>/out/log
      echo $id >>/out/ended
      kill $server
      exit 0
    }
    serve 8080 & server=$!
    trap ends TERM
    echo $id start >>/out/log
    while :; do sleep 3600 & wait $!; done
  ports: [{containerPort: 8080}]
  volumeMounts: [{name: out, mountPath: /out}]
  lifecycle: {preStop: {exec: {command: [sh, -c, 'echo $(cat /tmp/id) preStop >>/out/log; sleep 2']}}}
  readinessProbe: {exec: {command: [sh, -c, 'grep -qf /tmp/id /out/ready']}, periodSeconds: 1, timeoutSeconds: 30}
";

#[test]
fn a_standby_of_a_deleted_pod_gets_its_handler_and_its_grace_period() {
    let cluster = Cluster::shared();
    Agent::shared();
    for (moment, step) in [("proves", Step::Standby), ("serves", Step::Verify)] {
        let out = cluster.node().dir.join(format!("out-{moment}"));
        fs::create_dir(&out).unwrap();
        let pod = Pod::run(cluster, moment, &RECORDED.replace("OUT", out.to_str().unwrap()));
        let seconds = if step == Step::Standby { 60 } else { 0 };
        pod.request(&request(
            cluster,
            &[("app", None)],
            json!({"order": "StartFirst", "minReadySeconds": seconds}),
        ));
        pod.reported("the standby runs", |status| {
            status.phase == Phase::Running && status.step == Some(step)
        });
        eventually("a running standby", || {
            let standbys = containers(&pod).into_iter().filter(is_running);
            standbys.into_iter().find(|one| one.labels.contains_key(STANDBY)).map(drop)
        });
        let expected = if step == Step::Standby { 2 } else { 3 };
        let log = || fs::read_to_string(out.join("log")).unwrap_or_default();
        eventually("the start of each", || (log().matches(" start").count() == expected).then_some(()));
        fs::write(out.join("deleted"), "").unwrap();
        block_on(pod.api.delete(&pod.name, &DeleteParams::default())).unwrap();
        pod.until(GOING, "it is gone", |seen| seen.gone);

        let log = log();
        let mut instances = BTreeMap::<_, Vec<_>>::new();
        for (id, what) in log.lines().map(|line| line.split_once(' ').unwrap()) {
            instances.entry(id).or_default().push(what);
        }
        assert_eq!(instances.len(), expected, "{moment}: {log}");
        for (id, what) in instances {
            assert_eq!(what, ["start", "preStop", "term", "end"], "{moment}: {id} in\n{log}");
        }
    }
}
