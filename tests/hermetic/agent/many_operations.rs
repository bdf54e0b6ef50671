//! Many operations on one node: an operation that waits and has touched nothing does not delay other pods.

use std::sync::Arc;
use std::time::Duration;

use inplace::api::annotation;
use inplace::api::pod_ref::PodRef;
use inplace::node::journal::Journal;
use serde_json::{Value, json};

use super::super::runtime::{Fault, Pod};
use super::{Fixture, show, status};

/// The number of permits that the agent has by default.
const MANY: usize = 32;
/// The time of a stop that other requests wait for. Their status is written when they have waited for two seconds.
const SLOW: Duration = Duration::from_secs(10);

impl Fixture {
    /// Waits until each of the pods is in one of these steps.
    async fn all_in(&self, pods: &[String], steps: &[&str]) {
        let is_in = |pod: Option<Value>| {
            let step = pod.as_ref().and_then(status).map(|status| status["step"].clone());
            step.is_some_and(|step| steps.iter().any(|wanted| step == *wanted))
        };
        let all = |store: &super::Store| pods.iter().all(|name| is_in(store.pod("shop", name)));
        self.api.until("all of them wait", all).await;
    }
}

#[tokio::test]
async fn operations_that_wait_and_have_touched_nothing_hold_up_nobody() {
    let fixture = Arc::new(Fixture::found().await);
    let slow: Vec<String> = (0..MANY).map(|number| format!("slow-{number}")).collect();
    for name in &slow {
        fixture.pod(name);
    }
    fixture.pod("quick");
    fixture.kubelet("quick");
    fixture.runtime.on("PullImage").about("img:v2").always().fault(Fault::Hang);
    fixture.runtime.on("ExecSync").always().fault(Fault::Hang);
    fixture.api.put(json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": { "namespace": "shop", "name": "never" },
        "spec": { "metrics": [{ "name": "never", "count": 1, "successCondition": "result == 'done'",
            "provider": { "exec": { "container": "app", "command": ["wait"], "timeoutSeconds": 60 } } }] } }));
    let _agent = fixture.agent().await;
    for (number, name) in slow.iter().enumerate() {
        let containers = json!([{ "name": "app" }]);
        let request = match number % 3 {
            0 => json!({ "containers": [{ "name": "app", "image": "img:v2" }] }),
            1 => json!({ "containers": containers, "gracePeriodSeconds": 500 }),
            _ => json!({ "containers": containers, "preHook": { "templateName": "never" } }),
        };
        fixture.pod_request(name, Some(&request.to_string()));
    }
    fixture.all_in(&slow, &["Pull", "Drain", "PreHook"]).await;
    fixture.pod_request("quick", Some("restart app"));
    fixture.reported("quick", "text-", "Succeeded").await;
    // No container of the waiting operations was touched.
    assert!(slow.iter().all(|name| fixture.attempt(name) == 0));
}

/// An operation that has waited acquires a permit again before it touches its container.
#[tokio::test]
async fn only_so_many_change_containers_at_once() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.made("slow", Pod::new("shop", "slow"), |_| {});
    fixture.pod("drained");
    fixture.pod("third");
    for name in ["slow", "drained", "third"] {
        fixture.kubelet(name);
    }
    let _agent = fixture.agent_with(&["--max-operations=1"]).await;
    // The operation drains, and has released its permit.
    fixture
        .pod_request("drained", Some(r#"{"id":"d","containers":[{"name":"app"}],"gracePeriodSeconds":1}"#));
    fixture.all_in(&["drained".to_owned()], &["Drain"]).await;
    fixture.runtime.on("StopContainer").fault(Fault::Slow(SLOW));
    fixture.pod_request("slow", Some(r#"{"id":"s","containers":[{"name":"app"}]}"#));
    fixture.runtime.arrived("StopContainer", "app#0").await;
    // Only now the kubelet processes the gate, so that the grace period begins.
    fixture.api.edit("shop", "drained", |pod| {
        let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
        for condition in conditions.iter_mut().filter(|condition| condition["type"] == "Ready") {
            condition["status"] = "False".into();
        }
    });
    fixture.pod_request("third", Some(r#"{"id":"t","containers":[{"name":"app"}]}"#));
    let waits = fixture.reported("third", "t", "Pending").await;
    assert_eq!(waits["message"], "waiting for another operation on this node to end");
    for (name, id) in [("slow", "s"), ("drained", "d"), ("third", "t")] {
        fixture.reported(name, id, "Succeeded").await;
    }
    let history = fixture.runtime.history();
    let down = |events: &[String]| {
        let ended = events.iter().filter(|event| event.starts_with("exited app#0")).count();
        ended - events.iter().filter(|event| event.starts_with("started app#1")).count()
    };
    let most = (0..=history.len()).map(|end| down(&history[..end])).max();
    assert_eq!(most, Some(1), "{history:#?}");
    let stops: Vec<_> = history.iter().filter(|event| event.starts_with("signalled")).collect();
    assert_eq!(stops.len(), 3, "{history:#?}");
}

/// The operations of one namespace leave some permits to the others.
#[tokio::test]
async fn a_namespace_whose_operations_take_long_holds_up_no_other() {
    let fixture = Arc::new(Fixture::found().await);
    let slow = ["slow-0", "slow-1", "slow-2", "slow-3", "slow-4"];
    for name in slow {
        fixture.pod(name);
    }
    let of_other = fixture.runtime.put(Pod::new("bank", "quick").container("app", "img:v1").grace(1));
    let mut pod = fixture.api.pod("shop", "slow-0");
    pod["metadata"] = json!({ "namespace": "bank", "name": "quick", "uid": of_other.uid });
    pod["metadata"]["annotations"] = json!({ annotation::REQUEST: "restart app" });
    show(&mut pod, of_other.id("app"), 0);
    fixture.runtime.on("StopContainer").always().fault(Fault::Hang);
    let _agent = fixture.agent_with(&["--max-operations=4"]).await;
    for name in slow {
        fixture.pod_request(name, Some("restart app"));
    }
    let phases = |store: &super::Store| -> Vec<String> {
        let phase = |name: &&str| Some(status(&store.pod("shop", name)?)?["phase"].as_str()?.to_owned());
        slow.iter().filter_map(phase).collect()
    };
    let are_full = |store: &super::Store| {
        let phases = phases(store);
        phases.iter().filter(|phase| *phase == "Running").count() == 4
            && phases.iter().any(|phase| phase == "Pending")
    };
    fixture.api.until("four are in progress, and one waits", are_full).await;
    fixture.api.put(pod);
    let runs = |store: &super::Store| {
        store
            .pod("bank", "quick")
            .and_then(|pod| status(&pod))
            .is_some_and(|status| status["phase"] == "Running")
    };
    fixture.api.until("the one of another namespace is in progress", runs).await;
    assert!(fixture.api.store(|store| are_full(store)), "the fifth still waits");
}

/// A request that waits for a permit has one deadline, not one for the wait and another for the work.
#[tokio::test]
async fn time_in_the_queue_counts_towards_the_deadline() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("slow");
    fixture.kubelet("slow");
    fixture.pod("next");
    let _agent = fixture.agent_with(&["--max-operations=1"]).await;
    fixture.runtime.on("StopContainer").fault(Fault::Slow(SLOW));
    fixture.pod_request("slow", Some("restart app"));
    fixture.runtime.arrived("StopContainer", "app#0").await;
    fixture.runtime.on("PullImage").fault(Fault::Hang);
    let request =
        json!({ "id": "n", "deadlineSeconds": 300, "containers": [{ "name": "app", "image": "img:v2" }] });
    fixture.pod_request("next", Some(&request.to_string()));
    fixture.reported("next", "n", "Pending").await;
    let waits = tokio::time::Instant::now();
    fixture.runtime.arrived("PullImage", "img:v2").await;
    let waited = waits.elapsed();
    let uid = fixture.api.pod("shop", "next")["metadata"]["uid"].as_str().unwrap().to_owned();
    let pod = PodRef { namespace: "shop".into(), name: "next".into(), uid };
    let open = Journal::open(fixture.state.path()).unwrap().load(&pod).unwrap().open.unwrap();
    let left = open.deadline_at.duration_since(open.begun_at).unsigned_abs();
    let spent = Duration::from_secs(300).saturating_sub(left);
    // Some time passes between each event and the moment when this test sees it.
    assert!(spent > waited / 2, "{spent:?} of {waited:?}");
}

/// The request waits for an operation of its own pod that lasts longer than its deadline.
#[tokio::test]
async fn a_request_that_waits_for_its_own_pod_ends_by_its_deadline() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let _agent = fixture.agent().await;
    fixture.runtime.on("StopContainer").fault(Fault::Slow(SLOW));
    fixture.pod_request("web-0", Some("restart app"));
    fixture.runtime.arrived("StopContainer", "app#0").await;
    let request = json!({ "id": "late", "deadlineSeconds": 1, "containers": [{ "name": "app" }] });
    fixture.pod_request("web-0", Some(&request.to_string()));
    let status = fixture.reported("web-0", "late", "Failed").await;
    assert_eq!(status["reason"], "DeadlineExceeded", "{status:#}");
    assert!(status["message"].as_str().unwrap().contains("Nothing was touched"), "{status:#}");
    assert_eq!(fixture.attempt("web-0"), 1, "the first one was carried out, the second one was not");
}
