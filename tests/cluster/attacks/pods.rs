//! S5 with pods: a tenant who may create pods in the tenant's own namespace assigns a node more pods than its
//! agent has memory for. The kubelet refuses each; the objects remain.

use serde_json::{Value, json};

use super::{
    hooks::assert_alive,
    tenant::{NAMESPACE, Tenant},
};
use crate::{
    agent::Agent,
    cluster::Cluster,
    pod::Pod,
    request::ONE,
    support::{process::Process, wait::eventually},
};
use inplace::api::{annotation, status::Phase};

/// Number of pods: together many times what an agent caches of a namespace.
const MANY: usize = 45;
/// Bytes of the environment of one pod.
const LARGE: usize = 800 << 10;
/// Bytes of its annotations, nearly the limit of what is stored.
const ANNOTATION: usize = 200 << 10;

#[test]
fn s5_pods_of_a_tenant_end_no_agent_and_hold_up_no_other_namespace() {
    let cluster = Cluster::own();
    let agent = Agent::start(&cluster, &[]);
    let victim = Pod::run(&cluster, "shop", ONE);
    let tenant = Tenant::new(&cluster);
    victim.ask("restart app", Phase::Succeeded);
    let before = Process(agent.pid()).peak();
    let pods: Vec<Value> = (0..MANY).map(|index| pod(&tenant.node.name, index)).collect();
    for some in pods.chunks(20) {
        assert!(tenant.create(&json!({"apiVersion": "v1", "kind": "List", "items": some})));
    }
    eventually("the kubelet to refuse the last one", || {
        let pod = cluster.read(&format!("/api/v1/namespaces/{NAMESPACE}/pods/large-{}", MANY - 1));
        (pod["status"]["phase"] == "Failed").then_some(())
    });
    victim.ask("restart app #2", Phase::Succeeded);
    assert_alive(&agent, before, MANY * (LARGE + ANNOTATION));
    // The next agent lists all of them at once.
    agent.kill();
    let agent = Agent::start(&cluster, &[]);
    victim.ask("restart app #3", Phase::Succeeded);
    assert_alive(&agent, before, MANY * (LARGE + ANNOTATION));
}

/// A pod whose node selector the node does not match.
fn pod(node: &str, index: usize) -> Value {
    let annotation = format!("{}unknown", annotation::REQUEST.trim_end_matches("request"));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("large-{index}"), "namespace": NAMESPACE,
            "annotations": {annotation: "x".repeat(ANNOTATION)},
        },
        "spec": {
            "nodeName": node, "nodeSelector": {"example.dev/no-node": "has-this"},
            "containers": [{
                "name": "app", "image": "lab/app:v1", "env": [{"name": "LARGE", "value": "x".repeat(LARGE)}],
            }],
        },
    })
}
