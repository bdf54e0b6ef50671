//! `updateStrategy.priority` on two nodes: a group of pods is updated and available before the next one begins.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Fixture, Load};
use crate::support::wait::eventually;

/// How long an updated pod must be Ready before the next group begins.
const MIN_READY: i64 = 4;

/// The second node is first, and on it the pod that the user has labelled; the name of a node orders the other way
/// round. The budget allows all pods at once.
pub(super) fn the_pods_of_a_group_are_updated_before_the_next_group(fixture: &Fixture<'_>) {
    let first = fixture.cluster.node().name;
    for (node, rank) in [(first.as_str(), "2"), ("node-2", "1")] {
        fixture.cluster.kubectl(&["label", "node", node, &format!("example.com/rank={rank}")]);
    }
    let load = Load { fixture, kind: "GameDeployment", name: "grouped" };
    let mut template = load.template(false);
    template["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "grouped"}}}]);
    let priority = json!([{"nodeLabel": "example.com/rank"}, {"podLabel": "first"}]);
    let spec = json!({"replicas": 4, "selector": {"matchLabels": {"app": "grouped"}}, "template": template,
        "minReadySeconds": MIN_READY,
        "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 4, "priority": priority}});
    load.make(4, &spec);
    let before = load.pods();
    let chosen = before.values().find(|pod| pod["spec"]["nodeName"] == "node-2").unwrap();
    let chosen = chosen["metadata"]["name"].as_str().unwrap();
    fixture.cluster.kubectl(&["label", "pod", chosen, "first=1"]);
    // The controller orders by what it has observed.
    fixture.cluster.kubectl(&["wait", "--for=condition=Ready", "gamedeployment/grouped", "--timeout=180s"]);

    let image = fixture.cluster.image("app:v2");
    let patch = json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]);
    fixture.cluster.kubectl(&["patch", "gamedeployment", "grouped", "--type=json", "-p", &patch.to_string()]);
    eventually("four pods run the new image", || {
        let pods = load.pods();
        let done = pods.values().all(|pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1);
        done.then_some(())
    });
    load.same_but_restarted(&before, 1);
    // A kubelet may report the restart before the container has started; by now all are Ready.
    let after = load.pods();
    let mut groups: BTreeMap<u8, Vec<Timestamp>> = BTreeMap::new();
    for (name, pod) in &after {
        let group = match pod["spec"]["nodeName"].as_str().unwrap() {
            "node-2" if name == chosen => 0,
            "node-2" => 1,
            _ => 2,
        };
        groups.entry(group).or_default().push(started(pod));
    }
    assert_eq!(groups.values().map(Vec::len).collect::<Vec<_>>(), [1, 1, 2], "two pods on each node");
    for group in 1..3 {
        let (last, next) = (groups[&(group - 1)].iter().max().unwrap(), groups[&group].iter().min().unwrap());
        // A kubelet reports whole seconds.
        let between = next.as_second() - last.as_second();
        assert!(
            between >= MIN_READY - 1,
            "group {group} began {between} s after the previous one: {groups:?}"
        );
    }
    fixture.cluster.kubectl(&["delete", "gamedeployment", "grouped", "--timeout=180s"]);
}

fn started(pod: &Value) -> Timestamp {
    let started = &pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"];
    started.as_str().unwrap().parse().unwrap()
}
