//! The program is uninstalled and installed again while workloads run: no pod is deleted, and the workloads are
//! managed again.

use serde_json::json;

use crate::{
    agent::{self, Agent},
    cluster::Cluster,
    installed,
    support::wait::eventually,
    workloads::{Fixture, is_complete, object, same_but_restarted},
};

#[test]
fn pods_outlive_an_uninstall_and_are_managed_again_after_a_new_install() {
    let cluster = Cluster::own();
    let (agent, controller) = (Agent::start(&cluster, &[]), Agent::controller(&cluster, "one"));
    let fixture = Fixture { cluster: &cluster, kind: "gamedeployment", name: "lasting" };
    fixture.apply(&object(
        "GameDeployment",
        "lasting",
        &json!({"replicas": 2, "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1}}),
    ));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    let (before, uid) = (fixture.pods(), fixture.get()["metadata"]["uid"].clone());

    // All shipped manifests; their images do not exist, so the processes above do the work.
    let base = if installed::knows_policies(&cluster) { "base" } else { "before-1.30" };
    let base = format!("{}/daemonset/{base}", env!("CARGO_MANIFEST_DIR"));
    cluster.kubectl(&["apply", "-k", &base]);
    agent.stop();
    controller.stop();
    cluster.kubectl(&["delete", "-k", &base, "--timeout=300s"]);
    let namespaces =
        || cluster.kubectl(&["get", "namespace", "inplace-system", "--ignore-not-found", "-o", "name"]);
    eventually("it is uninstalled", || namespaces().is_empty().then_some(()));
    assert_eq!(fixture.get()["metadata"]["uid"], uid);

    agent::grant(&cluster);
    let _agent = Agent::start(&cluster, &[]);
    let _controller = Agent::controller(&cluster, "two");
    fixture.image("lab/app:v2");
    fixture.until("both are updated", |status| is_complete(status, 2));
    let after = fixture.pods();
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    for (name, pod) in &after {
        same_but_restarted(&before[name], pod);
    }
    fixture.delete();
}
