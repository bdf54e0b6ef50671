//! Hooks that set annotations of their pod. The admission policy forbids that to agents, so no agent tries. The
//! controller runs such hooks if a HookRun contains them, and a request that names one is refused before anything
//! is touched.

use inplace::cluster::agents;
use serde_json::{Value, json};

use super::super::api_server::pods;
use super::super::workloads::controller_at;
use super::Fixture;

fn kubernetes(function: &str) -> Value {
    let field = json!({ "path": "metadata.annotations.example.dev/leaves", "value": "yes" });
    json!({ "kubernetes": { "function": function, "fields": [field] } })
}

impl Fixture {
    /// Creates a HookRun of this node about `web-0`.
    fn run_of_node(&self, name: &str, providers: &[Value]) {
        let metric = |(index, provider): (usize, &Value)| json!({ "name": format!("m{index}"), "count": 1, "interval": "1s", "consecutiveErrorLimit": 0, "provider": provider });
        let metrics: Vec<_> = providers.iter().enumerate().map(metric).collect();
        self.api.put(json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": { "namespace": "shop", "name": name, "labels": { "inplace.dev/node": "node-1" } },
            "spec": {
                "args": [{ "name": "PodName", "value": "web-0" }],
                "metrics": metrics,
            },
        }));
    }

    /// Waits for the end of a run; returns its phase and its runner.
    async fn ended(&self, name: &str) -> (Value, Value) {
        let is = |run: &Value| run["status"]["phase"] == "Successful" || run["status"]["phase"] == "Error";
        self.api
            .until(&format!("the end of {name}"), |store| {
                store.get("hookruns", "shop", name).is_some_and(|run| is(&run))
            })
            .await;
        let run = self.api.get("hookruns", "shop", name).unwrap();
        (run["status"]["phase"].clone(), run["metadata"]["annotations"]["inplace.dev/runner"].clone())
    }
}

#[tokio::test]
async fn a_hook_run_that_sets_an_annotation_is_run_by_the_controller_where_a_node_has_its_agent() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let mut agent = pods::pod("inplace-system", "inplace-agent-1", "node-1");
    let labels = agents::LABELS.split(',').map(|label| label.split_once('=').unwrap());
    agent["metadata"]["labels"] = labels.map(|(key, value)| (key.to_owned(), json!(value))).collect();
    agent["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
    fixture.api.put(agent);
    let _agent = fixture.agent().await;
    let _controller = controller_at(&fixture.api);

    fixture.run_of_node("leave", &[kubernetes("patch")]);
    assert_eq!(fixture.ended("leave").await, (json!("Successful"), json!("controller")));
    assert_eq!(fixture.api.pod("shop", "web-0")["metadata"]["annotations"]["example.dev/leaves"], "yes");
    // A command needs the agent, which reports why it does not set the annotation.
    fixture.run_of_node(
        "both",
        &[kubernetes("patch"), json!({ "exec": { "container": "app", "command": ["true"] } })],
    );
    assert_eq!(fixture.ended("both").await, (json!("Error"), json!("node/node-1")));
    let run = fixture.api.get("hookruns", "shop", "both").unwrap();
    assert!(run["status"].to_string().contains("may not set annotations of pods"), "{run:#}");
    // A hook that only reads is run by the agent.
    fixture.run_of_node("look", &[kubernetes("get")]);
    assert_eq!(fixture.ended("look").await, (json!("Successful"), json!("node/node-1")));
}

#[tokio::test]
async fn a_request_that_names_a_hook_that_sets_an_annotation_is_refused_and_says_why() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let before = fixture.runtime.only("web-0/app").id;
    fixture.api.put(json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": { "namespace": "shop", "name": "leave" },
        "spec": { "metrics": [{ "name": "marks", "count": 1, "provider": kubernetes("patch") }] } }));
    let _agent = fixture.agent().await;
    for moment in ["preHook", "postHook"] {
        let request =
            json!({ "id": moment, "containers": [{ "name": "app" }], moment: { "templateName": "leave" } });
        fixture.pod_request("web-0", Some(&request.to_string()));
        let reported = fixture.reported("web-0", moment, "Refused").await;
        let message = reported["message"].as_str().unwrap();
        assert!(message.contains("metric `marks`: provider.kubernetes.function"), "{message}");
        assert!(message.contains("may not set annotations of pods"), "{message}");
    }
    assert_eq!(fixture.runtime.only("web-0/app").id, before);
    assert!(fixture.api.pod("shop", "web-0")["metadata"]["annotations"].get("example.dev/leaves").is_none());
}
