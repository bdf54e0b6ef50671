//! Drains that must be confirmed: nothing is stopped while an `EndpointSlice` sends traffic to the pod, or while
//! that is unknown.

use std::sync::Arc;

use serde_json::json;

use super::super::api_server::Fault as ApiFault;
use super::{Fixture, gate};
use crate::support::wait::until;

fn restart(id: &str, drain: &str, grace: u32, deadline: u32) -> String {
    json!({ "id": id, "containers": [{ "name": "app" }], "drain": drain, "gracePeriodSeconds": grace,
        "deadlineSeconds": deadline })
    .to_string()
}

impl Fixture {
    /// Writes the slice `shop/NAME`, which says whether the pod `web-0` gets traffic.
    fn slice(&self, name: &str, ready: bool, serving: Option<bool>) {
        let uid = self.api.pod("shop", "web-0")["metadata"]["uid"].clone();
        let mut conditions = json!({ "ready": ready, "terminating": false });
        if let Some(serving) = serving {
            conditions["serving"] = json!(serving);
        }
        let endpoint = |uid, conditions| {
            json!({ "addresses": ["10.0.0.7"], "conditions": conditions,
                "targetRef": { "kind": "Pod", "namespace": "shop", "name": "web-0", "uid": uid } })
        };
        let old = self.api.get("endpointslices", "shop", name);
        let metadata =
            old.map_or_else(|| json!({ "namespace": "shop", "name": name }), |old| old["metadata"].clone());
        self.api.put(json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": metadata, "addressType": "IPv4",
            "endpoints": [endpoint(uid, conditions), endpoint(json!("another"), json!({ "ready": true }))] }));
    }

    /// Waits until the gate is closed; then the kubelet reports the pod as not Ready.
    pub(super) async fn drained(&self, name: &str) {
        let closed = Some(("False", "InPlaceDrain"));
        self.api.until("the drain", |store| gate(&store.pod("shop", name).unwrap()) == closed).await;
        self.api.edit("shop", name, |pod| {
            let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
            for condition in conditions.iter_mut().filter(|condition| condition["type"] == "Ready") {
                condition["status"] = "False".into();
            }
        });
    }

    /// Waits until the agent has observed the pod this many more times.
    async fn observed(&self, times: usize) {
        let before = self.runtime.calls("ListContainers").len();
        let read = || self.runtime.calls("ListContainers").len() >= before + times;
        self.api.patiently("more reads", until(read)).await;
    }

    /// Waits until the journal contains, or no longer contains, the time of the drain's confirmation.
    async fn confirmed(&self, is: bool) {
        let reported = || {
            let files = walk(self.state.path());
            let text: String = files.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
            text.contains("\"confirmed_at\":\"") == is && text.contains("\"confirmed_at\":")
        };
        self.api.patiently("the journal to contain the time", until(reported)).await;
    }
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn nothing_is_stopped_while_a_slice_sends_traffic_or_is_unknown() {
    let fixture = Arc::new(Fixture::found().await);
    for name in ["web-0", "web-1"] {
        fixture.pod(name);
        fixture.kubelet(name);
    }
    let _agent = fixture.agent().await;
    // A drain that need not be confirmed reads no slices.
    fixture.pod_request("web-1", Some(&restart("fixed", "Fixed", 1, 60)));
    fixture.drained("web-1").await;
    fixture.reported("web-1", "fixed", "Succeeded").await;
    assert_eq!(fixture.api.count("LIST endpointslices"), 0);
    fixture.slice("web-a", true, Some(true));
    fixture.slice("by-hand", false, None);
    // A release without the newer API version.
    fixture.api.on("LIST endpointslices").fault(ApiFault::Answer(404, "the server could not find it"));
    fixture.pod_request("web-0", Some(&restart("r", "Confirmed", 0, 60)));
    fixture.drained("web-0").await;
    fixture.api.arrived("WATCH endpointslices", 1).await;
    assert_eq!(fixture.api.count("LIST endpointslices"), 2);
    fixture.observed(8).await;
    assert_eq!(fixture.attempt("web-0"), 0);
    // The slice stops sending traffic, but the agent cannot read that.
    fixture.api.go_away().await;
    fixture.slice("web-a", false, Some(false));
    fixture.observed(8).await;
    assert_eq!(fixture.attempt("web-0"), 0);
    fixture.api.come_back().await;
    fixture.reported("web-0", "r", "Succeeded").await;
    assert_eq!(fixture.attempt("web-0"), 1);
    assert_eq!(gate(&fixture.api.pod("shop", "web-0")), Some(("True", "InPlaceReady")));
}

#[tokio::test]
async fn a_slice_that_takes_the_pod_back_undoes_the_confirmation() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    fixture.slice("web-a", true, Some(true));
    let agent = fixture.agent().await;
    fixture.pod_request("web-0", Some(&restart("r", "Confirmed", 40, 300)));
    fixture.drained("web-0").await;
    fixture.api.arrived("WATCH endpointslices", 1).await;
    fixture.slice("web-a", false, Some(false));
    fixture.confirmed(true).await;
    // The next process knows the confirmation from the journal, and watches the slices as well.
    agent.kill();
    let _agent = fixture.agent().await;
    fixture.confirmed(true).await;
    fixture.slice("web-a", false, Some(true));
    fixture.confirmed(false).await;
    fixture.pod_request("web-0", None);
    fixture.reported("web-0", "r", "Cancelled").await;
    assert_eq!(fixture.attempt("web-0"), 0);
}

#[tokio::test]
async fn a_slice_that_never_lets_go_is_named_and_nothing_is_touched() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    // As of a Service with publishNotReadyAddresses.
    fixture.slice("peers-x", true, Some(false));
    fixture.slice("web-a", false, Some(false));
    let _agent = fixture.agent().await;
    fixture.pod_request("web-0", Some(&restart("r", "Confirmed", 0, 30)));
    fixture.drained("web-0").await;
    let status = fixture.reported("web-0", "r", "Failed").await;
    assert_eq!(status["reason"], "DrainNotConfirmed");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("peers-x") && !message.contains("web-a"), "{message}");
    let open = Some(("True", "InPlaceReady"));
    fixture.api.until("the gate", |store| gate(&store.pod("shop", "web-0").unwrap()) == open).await;
    assert_eq!((fixture.attempt("web-0"), fixture.runtime.calls("StopContainer").len()), (0, 0));
}
