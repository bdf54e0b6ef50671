//! A node dies during a rollout: its kubelet and its agent are killed, its containers continue.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::{Fixture, Load, is_ready, person, restarts};
use crate::{
    agent::{Agent, Setup},
    cluster::Cluster,
    support::wait::{eventually, eventually_or},
};

const COUNT: usize = 6;

#[test]
fn a_dead_node_holds_up_its_own_pods_until_it_returns_and_fails_nothing() {
    let cluster = Cluster::own();
    let other = cluster.add_node("node-2");
    let _agent = Agent::start(&cluster, &[]);
    let dying = Agent::start_on(&cluster, &other, &Setup::default());
    let _controller = Agent::controller(&cluster, "one");
    let fixture = Fixture { cluster: &cluster, person: person(&cluster) };
    agents_as_pods(&fixture);
    let load = Load { fixture: &fixture, kind: "Deployment", name: "halved" };
    spread(&load);
    let before = load.pods();
    let on = |pod: &Value| pod["spec"]["nodeName"] == other.name.as_str();
    assert_eq!(before.values().filter(|pod| on(pod)).count(), COUNT / 2, "{before:#?}");

    // One more than the unavailable pods of the dead node, so that the others continue one at a time. The grace is so long that a
    // pod still drains when a slow kubelet has reported it; the deadline, that its request has not ended when the node returns.
    let times = ["--grace", "20s", "--deadline", "1h"];
    let args = [&["restart", "deploy/halved", "--max-unavailable", "4"][..], &times].concat();
    let rollout = fixture.begin(&args);
    let drains = |pod: &Value| on(pod) && !is_ready(pod);
    eventually("a pod of the node drains", || load.pods().values().any(drains).then_some(()));
    // A kubelet that is killed first would leave the agent time to go on.
    dying.kill();
    other.kill("kubelet");

    await_done(&fixture, &rollout, 1..=COUNT / 2);
    let status = eventually_or("the pods that cannot be reached are named", || {
        let status = fixture.rollout(&rollout)["status"].clone();
        let through = status["done"] == COUNT / 2
            && status["message"].as_str().is_some_and(|message| {
                message.contains(&format!("no agent is ready on node {}", other.name))
            });
        if through { Ok(status) } else { Err(format!("{status:#}")) }
    });
    assert_eq!(status["phase"], "Running", "{status:#}");
    assert!(status["failed"].is_null() || status["failed"] == 0, "{status:#}");
    let message = status["message"].as_str().unwrap();
    for (name, pod) in &load.pods() {
        assert_eq!(restarts(pod), u64::from(!on(pod)), "{name}: {:#}", pod["status"]);
        assert!(!on(pod) || message.contains(name.as_str()), "{name} is named: {message}");
    }

    other.start("kubelet");
    let _agent = Agent::start_on(&cluster, &other, &Setup::default());
    await_done(&fixture, &rollout, COUNT / 2 + 1..=COUNT);
    eventually_or("it has ended", || {
        let status = fixture.rollout(&rollout)["status"].clone();
        if status["phase"] == "Succeeded" { Ok(()) } else { Err(format!("{status:#}")) }
    });
    let status = &fixture.rollout(&rollout)["status"];
    assert_eq!(status["done"], COUNT, "{status:#}");
    load.same_but_restarted(&before, 1);
    let denied = cluster.denied();
    assert!(denied.is_empty(), "{denied:#?}");
}

/// Waits for each further pod that is done, up to these numbers of pods.
fn await_done(fixture: &Fixture<'_>, rollout: &str, numbers: RangeInclusive<usize>) {
    for number in numbers {
        eventually_or(&format!("{number} pods are done"), || {
            let status = fixture.rollout(rollout)["status"].clone();
            let is_done = status["done"].as_u64() >= Some(number as u64);
            if is_done { Ok(()) } else { Err(format!("{status:#}")) }
        });
    }
}

/// The agents of these tests are processes. These pods represent them, because the controller checks by pods
/// whether a node has a ready agent.
fn agents_as_pods(fixture: &Fixture<'_>) {
    let labels = json!({"app.kubernetes.io/name": "inplace", "app.kubernetes.io/component": "agent"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 2,
        "containers": [{"name": "agent", "image": "lab/app:v1"}]}});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "inplace-agent", "namespace": "inplace-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": template}});
    fixture.cluster.apply(&set.to_string());
    let args = ["rollout", "status", "daemonset/inplace-agent", "-n", "inplace-system", "--timeout=120s"];
    fixture.cluster.kubectl(&args);
}

/// Spreads the pods evenly over the nodes. They stay on a dead node, however long the others take: without the tolerations
/// they are deleted after 300 s.
fn spread(load: &Load<'_>) {
    let labels = json!({"matchLabels": {"app": load.name}});
    let mut template = load.template(false);
    let stays = |taint: &str| {
        let key = format!("node.kubernetes.io/{taint}");
        json!({"key": key, "operator": "Exists", "effect": "NoExecute"})
    };
    template["spec"]["tolerations"] = json!(["unreachable", "not-ready"].map(stays));
    template["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": labels}]);
    load.make(COUNT, &json!({"replicas": COUNT, "selector": labels, "template": template}));
}
