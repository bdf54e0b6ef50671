//! Which pods name the image of a swap that their agents pull in advance, and for how long.

use super::*;
use crate::rollout::prefetch::abandoned;

const KEY: &str = "inplace.dev/rollout-prefetch";

fn swap(more: &Value) -> Value {
    let mut spec = json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": true});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

/// Four pods on two nodes.
fn on_two_nodes() -> Vec<Value> {
    let mut pods: Vec<_> = (0..4).map(pod).collect();
    for (index, pod) in pods.iter_mut().enumerate() {
        pod["spec"]["nodeName"] = json!(format!("n{}", index / 2));
    }
    pods
}

fn step(spec: &Value, pods: &mut [Value], now: i64) -> Decision {
    let decision = reconcile(spec, pods, &[], now);
    for write in &decision.writes {
        let pod = pods.iter_mut().find(|pod| pod["metadata"]["uid"] == *write.pod.uid).unwrap();
        apply(pod, write);
    }
    decision
}

/// What the rollout names on which pod.
fn named(pods: &[Value]) -> Vec<(&str, &str)> {
    pods.iter()
        .filter_map(|pod| {
            let text = pod["metadata"]["annotations"][KEY].as_str()?;
            Some((pod["metadata"]["name"].as_str()?, text.strip_suffix(",rollout=r-1")?))
        })
        .collect()
}

#[test]
fn one_waiting_pod_of_the_other_node_names_the_image_until_its_own_request() {
    let mut pods = on_two_nodes();
    let first = step(&swap(&json!({})), &mut pods, 1);
    assert_eq!(begun(&first), ["web-0"]);
    assert_eq!(named(&pods), [("web-2", "app:2")]);
    assert!(step(&swap(&json!({})), &mut pods, 2).writes.is_empty(), "nothing is written twice");
    // The other node has its first request, which takes the annotation with it.
    ready(&mut pods[2], false, at(3));
    say(&mut pods[0], "Succeeded", None);
    pods[0]["spec"]["containers"][0]["image"] = json!("app:2");
    let second = step(&swap(&json!({})), &mut pods, 4);
    assert_eq!((begun(&second), named(&pods)), (vec!["web-2"], vec![]));
}

#[test]
fn a_restart_a_pause_a_stop_and_what_is_held_back_name_nothing() {
    for (more, expected) in [
        (json!({"containers": [{"name": "app"}]}), vec![]),
        (json!({"paused": true}), vec![]),
        (json!({"prefetch": false}), vec![]),
        (json!({"partition": 3}), vec![]),
        (json!({"maxUnavailable": 4}), vec![]),
    ] {
        let mut pods = on_two_nodes();
        step(&swap(&more), &mut pods, 1);
        assert_eq!(named(&pods), expected, "{more}");
    }
    let mut pods = on_two_nodes();
    step(&swap(&json!({})), &mut pods, 1);
    step(&swap(&json!({"paused": true})), &mut pods, 2);
    assert_eq!(named(&pods), [], "a pause");
    step(&swap(&json!({})), &mut pods, 3);
    assert_eq!(named(&pods).len(), 1);
    say(&mut pods[0], "Failed", Some("Verify"));
    let stopped = step(&swap(&json!({})), &mut pods, 4);
    assert_eq!((stopped.status.phase, named(&pods)), (RolloutPhase::Failed, vec![]), "a failure");
}

#[test]
fn what_another_rollout_names_stays_until_the_own_request() {
    let mut pods = on_two_nodes();
    step(&swap(&json!({})), &mut pods, 1);
    assert_eq!(named(&pods), [("web-2", "app:2")]);
    let decision = |containers: Value, pods: &[Value]| {
        let mut two = rollout(&swap(&json!({"containers": containers})));
        two.uid = "r-2".to_owned();
        let read: Vec<Pod> = pods.iter().map(read).collect();
        decide(&two, seen(&target(), &read, &[], at(2)))
    };
    let restart = json!([{"name": "app"}]);
    assert!(decision(restart.clone(), &pods).writes.is_empty());
    // The other pod of the node names the image.
    let other = decision(json!([{"name": "app", "image": "app:3"}]), &pods);
    let names: Vec<_> = other.writes.iter().map(|write| write.pod.name.as_str()).collect();
    assert_eq!(names, ["web-1", "web-3"]);
    ready(&mut pods[2], false, at(2));
    let begins = decision(restart, &pods);
    assert_eq!(begun(&begins), ["web-2"]);
    assert_eq!(begins.writes[0].patch.annotations.get(KEY), Some(&None));
}

#[test]
fn what_a_rollout_that_is_gone_names_is_replaced_or_removed() {
    for (index, left, more, expected) in [
        (2, "app:9,rollout=gone", json!({}), vec!["web-2"]),
        (2, "app:9,rollout=gone", json!({"paused": true}), vec![]),
        (2, "app:9,rollout=r-2", json!({}), vec!["web-3"]),
        // An earlier release named no rollout.
        (2, "app:9", json!({}), vec!["web-3"]),
        (3, "app:2", json!({}), vec!["web-3"]),
    ] {
        let mut pods = on_two_nodes();
        pods[index]["metadata"]["annotations"][KEY] = json!(left);
        let is_gone = left.ends_with("gone");
        assert_eq!(abandoned(&read(&pods[index]), &["r-2".to_owned()].into()).is_some(), is_gone, "{left}");
        step(&swap(&more), &mut pods, 1);
        let names: Vec<_> = named(&pods).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, expected, "{left} {more}");
        assert!(!is_gone || pods[index]["metadata"]["annotations"][KEY] != left, "{left} {more}");
    }
}
