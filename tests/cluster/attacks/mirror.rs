//! A tenant may create pods and HookRuns in the tenant's own namespace. A pod that claims to be the mirror of
//! another namespace's pod must not give access to that pod's containers.

use inplace::{
    api::{
        annotation::{CONFIG_SOURCE, CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID, REQUEST},
        status::Phase,
    },
    cri::{client::Client, endpoint::Endpoint},
};
use serde_json::{Value, json};

use super::tenant::{NAMESPACE, Tenant};
use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    hook_runs::has_ended,
    pod::{Pod, is_ready},
    support::wait::eventually,
};

/// The victim, with a secret in its environment.
const VICTIM: &str = "
terminationGracePeriodSeconds: 2
containers: [{name: app, image: lab/app:v1, env: [{name: PASSWORD, value: hunter2}]}]
";

/// Why a hook does not run in the victim.
const MISMATCH: &str = "on this node belongs to another pod";
/// How many hooks are created until one is run while the claim exists: a kubelet deletes it.
const TRIES: usize = 10;

impl Tenant<'_> {
    /// Creates a pod that is bound to the node by hand and claims to be the mirror of the pod `of`.
    fn claim(&self, name: &str, of: &Pod<'_>, request: Option<&str>) {
        let mut annotations = json!({ "kubernetes.io/config.mirror": of.uid });
        if let Some(request) = request {
            annotations[REQUEST] = json!(request);
        }
        self.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {
                "nodeName": self.node.name,
                "containers": [{"name": "app", "image": "lab/app:v1"}],
            },
        }));
    }

    /// The agent's event about a pod of the tenant: reason and message. A kubelet deletes mirror pods that it
    /// does not have, but the events stay.
    fn reported(&self, name: &str) -> Option<(String, String)> {
        let events = self.cluster.read(&format!("/api/v1/namespaces/{NAMESPACE}/events"));
        let ends =
            ["InPlaceSucceeded", "InPlaceFailed", "InPlaceRolledBack", "InPlaceRefused", "InPlaceCancelled"];
        events["items"].as_array().unwrap().iter().find_map(|event| {
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let is = event["involvedObject"]["name"] == name && ends.contains(&text("reason").as_str());
            is.then(|| (text("reason"), text("message")))
        })
    }
}

#[test]
fn a_pod_that_calls_itself_the_mirror_of_another_reaches_nothing_of_it() {
    let cluster = Cluster::shared();
    Agent::shared();
    let tenant = Tenant::new(cluster);
    let victim = Pod::run(cluster, "victim", VICTIM);
    let before = victim.facts().settled();
    let swap = cluster.named("swap app=lab/app:v2");
    for (name, request) in [("restarts", "restart app"), ("swaps", swap.as_str())] {
        let (reason, message) = eventually(&format!("what becomes of the claim {name}"), || {
            tenant.claim(name, &victim, Some(request));
            tenant.reported(name)
        });
        assert_eq!(reason, "InPlaceRefused", "{message}");
        assert!(message.contains("kubernetes.io/config.mirror"), "{message}");
    }
    let command = ["cat", "/proc/1/environ"];
    let exec = json!({"container": "app", "command": command});
    let mut last = String::new();
    let is_refused = (1..=TRIES).any(|number| {
        let name = format!("reads-{number}");
        tenant.create(&json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"inplace.dev/node": tenant.node.name}},
            "spec": {
                "args": [{"name": "PodName", "value": "reader"}],
                "metrics": [{"name": "reads", "count": 1, "consecutiveErrorLimit": 0, "provider": {"exec": exec}}],
            },
        }));
        let run = eventually("the end of the hook", || {
            tenant.claim("reader", &victim, None);
            let run = tenant.run(&name);
            has_ended(&run).then_some(run)
        });
        assert!(!run.to_string().contains("hunter2"), "the victim's environment was read: {run:#}");
        assert_eq!(run["status"]["phase"], "Error", "{run:#}");
        last = run["status"].to_string();
        last.contains(MISMATCH)
    });
    assert!(is_refused, "the claim was deleted before each of {TRIES} hooks? {last}");
    assert_eq!(victim.facts().settled(), before);
}

/// Values that a user writes under the kubelet's keys: the kubelet overwrites them, and the agent trusts no
/// others.
#[test]
fn annotations_of_a_kubelet_that_a_user_writes_on_a_pod_have_no_effect() {
    let cluster = Cluster::shared();
    Agent::shared();
    let victim = Pod::run(cluster, "marked", VICTIM);
    let before = victim.facts().settled();
    let spec: Value = serde_saphyr::from_str(&cluster.named(VICTIM)).unwrap();
    let metadata = json!({
        "labels": {
            POD_UID: victim.uid, POD_NAME: victim.name, POD_NAMESPACE: victim.namespace, CONTAINER_NAME: "app",
        },
        "annotations": {CONFIG_SOURCE: "file", "kubernetes.io/config.hash": victim.uid},
    });
    let pod = Pod::make(cluster, "marks", json!({"metadata": metadata, "spec": spec}));
    pod.wait("it is Ready", is_ready);
    let endpoint = Endpoint::parse(&cluster.node().endpoint).unwrap();
    let sandboxes = block_on(async {
        Client::new(&endpoint, None).sandboxes(Some((POD_NAME, &pod.name))).await.unwrap()
    });
    let [sandbox] = sandboxes.as_slice() else { panic!("{sandboxes:#?}") };
    assert_eq!(
        (&sandbox.labels[POD_UID], &sandbox.annotations[CONFIG_SOURCE]),
        (&pod.uid, &"api".to_owned())
    );
    pod.ask("restart app", Phase::Succeeded);
    assert_eq!(pod.facts().settled().running("app").attempt, 1);
    assert_eq!(victim.facts().settled(), before);
}
