//! What depends on where a pod is: whether an agent reaches it, how much its node carries out at once, and the order of
//! zones.

use super::super::reach::ReadyAgent;
use super::*;

/// Like [`reconcile`], with agents on these nodes only, each ready since this time.
fn reconcile_with(more: &Value, pods: &[Value], agents: &[(&str, i64)], now: i64) -> Decision {
    let pods: Vec<Pod> = pods.iter().map(read).collect();
    let agent = |since: i64| ReadyAgent { since: at(since), at_once: 32 };
    let agents = agents.iter().map(|(node, since)| ((*node).to_owned(), agent(*since))).collect();
    let target = target();
    decide(&rollout(more), RolloutInput { agents: Some(&agents), ..seen(&target, &pods, &[], at(now)) })
}

#[test]
fn who_is_reached_by_nobody_is_not_begun_and_is_no_failure() {
    let mut pods: Vec<_> = (0..4).map(pod).collect();
    pods[0]["spec"]["nodeName"] = json!("dead");
    ready(&mut pods[0], false, at(0));
    pods[1]["spec"].as_object_mut().unwrap().remove("nodeName");
    pods[1]["status"] = json!({"phase": "Pending"});
    let three = json!({"maxUnavailable": 3});
    let decision = reconcile_with(&three, &pods, &[("n", -900)], 1);
    assert_eq!(begun(&decision), ["web-2"], "within what is left of maxUnavailable");
    let message = &decision.status.message;
    let names = "waiting for 2 pods that no agent reaches: web-0 (no agent is ready on node dead), web-1 (not scheduled to a node)";
    assert!(message.contains(names), "{message}");
    // The others succeed: the rollout waits for the two without a limit.
    for pod in &mut pods[2..] {
        say(pod, "Succeeded", None);
    }
    let decision = reconcile_with(&three, &pods, &[("n", -900)], 90_000);
    let status = &decision.status;
    assert_eq!(
        (status.phase, status.reason.as_str(), status.failed),
        (RolloutPhase::Running, "PodsUnreachable", 0)
    );
    assert!(begun(&decision).is_empty());
    // With a deadline it ends then, and names the pods that it waited for.
    let bounded = json!({"maxUnavailable": 3, "deadlineSeconds": 100});
    let status = reconcile_with(&bounded, &pods, &[("n", -900)], 100).status;
    assert_eq!((status.phase, status.reason.as_str()), (RolloutPhase::Failed, "DeadlineExceeded"));
    assert!(status.message.contains(names), "{}", status.message);
    // Both agents are reachable again.
    pods[1]["spec"]["nodeName"] = json!("n");
    let decision = reconcile_with(&three, &pods, &[("n", -900), ("dead", 90_000)], 90_001);
    assert_eq!(begun(&decision), ["web-0", "web-1"]);
    // If agents are not in the cache, only pods without a node count as unreachable.
    pods[1]["spec"].as_object_mut().unwrap().remove("nodeName");
    assert_eq!(begun(&reconcile(&three, &pods, &[], 1)), ["web-0"]);
}

#[test]
fn silence_counts_only_while_an_agent_is_there() {
    let mut pods = vec![pod(0)];
    let order = reconcile_with(&json!({}), &pods, &[("n", -900)], 1);
    apply(&mut pods[0], &order.writes[0]);
    // Its node died before the agent accepted the request.
    let decision = reconcile_with(&json!({}), &pods, &[("other", -900)], 500);
    assert_eq!((decision.writes.len(), decision.status.busy, decision.status.failed), (0, 1, 0));
    assert!(
        decision.status.message.contains("web-0 (no agent is ready on node n)"),
        "{}",
        decision.status.message
    );
    // The agent is back and has its full time to answer.
    assert_eq!(reconcile_with(&json!({}), &pods, &[("n", 500)], 619).status.failed, 0);
    assert_eq!(reconcile_with(&json!({}), &pods, &[("n", 500)], 620).status.failures[0].reason, "NoAgent");
    // The request is withdrawn at the deadline.
    let late = reconcile_with(&json!({"deadlineSeconds": 100}), &pods, &[("other", -900)], 500);
    assert!(matches!(late.writes[0].what, What::Recall), "{:?}", late.writes);
}

#[test]
fn a_node_gets_no_more_requests_than_its_agent_carries_out_at_once() {
    let mut pods: Vec<_> = (0..110).map(pod).collect();
    for pod in &mut pods[100..] {
        pod["spec"]["nodeName"] = json!("other");
    }
    let more = json!({"maxUnavailable": "100%", "pod": {"gracePeriodSeconds": 300}});
    let agents = [("n", -900), ("other", -900)];
    let decision = reconcile_with(&more, &pods, &agents, 1);
    assert_eq!(begun(&decision).len(), 32 + 10, "32 on one node, all on the other");
    let message = &decision.status.message;
    assert!(message.contains("waiting for the requests in progress on 1 nodes"), "{message}");
    for write in &decision.writes {
        let pod = pods.iter_mut().find(|pod| pod["metadata"]["name"] == *write.pod.name).unwrap();
        apply(pod, write);
    }
    assert!(begun(&reconcile_with(&more, &pods, &agents, 2)).is_empty());
    let first = pods.iter_mut().find(|pod| pod["metadata"]["name"] == "web-0").unwrap();
    say(first, "Succeeded", None);
    assert_eq!(begun(&reconcile_with(&more, &pods, &agents, 3)).len(), 1, "one ends, one begins");
}

#[test]
fn one_zone_is_completed_before_the_next_one_begins() {
    let zone = |zone: &str| std::sync::Arc::new([("zone".to_owned(), zone.to_owned())].into());
    let nodes =
        [("n-b", zone("b")), ("n-a", zone("a"))].map(|(node, labels)| (node.to_owned(), labels)).into();
    let mut pods: Vec<_> = (0..5).map(pod).collect();
    for (pod, node) in pods.iter_mut().zip(["n-b", "n-a", "n-a", "n-b", "unlabelled"]) {
        pod["spec"]["nodeName"] = json!(node);
    }
    let rollout = rollout(&json!({"maxUnavailable": "100%", "priority": [{"nodeLabel": "zone"}]}));
    let run = |pods: &[Value]| {
        let pods: Vec<Pod> = pods.iter().map(read).collect();
        decide(&rollout, RolloutInput { nodes: &nodes, ..seen(&target(), &pods, &[], at(1)) })
    };
    ready(&mut pods[0], false, at(0));
    let mut begun_in_order = Vec::new();
    for _ in 0..20 {
        let decision = run(&pods);
        if decision.status.phase.is_terminal() {
            break;
        }
        for write in &decision.writes {
            let pod = pods.iter_mut().find(|pod| pod["metadata"]["uid"] == *write.pod.uid).unwrap();
            apply(pod, write);
        }
        begun_in_order.push(begun(&decision).join(" "));
        // The agents end one request at a time.
        let busy = |pod: &&mut Value| !pod["metadata"]["labels"]["inplace.dev/rollout-uid"].is_null();
        if let Some(pod) = pods.iter_mut().find(busy) {
            say(pod, "Succeeded", None);
        }
    }
    begun_in_order.retain(|names| !names.is_empty());
    assert_eq!(begun_in_order, ["web-1 web-2", "web-0 web-3", "web-4"], "zone a, zone b, no zone");
}
