//! A controller whose clock is behind that of the API server.

use super::*;

#[test]
fn the_pods_that_exist_at_the_start_are_restarted_and_later_ones_are_not() {
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    pods[1]["metadata"]["creationTimestamp"] = json!(at(0));
    let mut one = rollout(&json!({"maxUnavailable": 3}));
    one.before.started_at = None;
    let decision = |one: &Rollout, pods: &[Value], now| {
        let pods: Vec<Pod> = pods.iter().map(read).collect();
        decide(one, seen(&target(), &pods, &[], at(now)))
    };
    one.before = decision(&one, &pods[..2], -60).status;
    assert_eq!((one.before.started_at, one.before.progressed_at), (Some(at(1)), Some(at(-60))));
    pods[2]["metadata"]["creationTimestamp"] = json!(at(1));
    let next = decision(&one, &pods, -59);
    assert_eq!((begun(&next), next.status.done), (vec!["web-0", "web-1"], 1));
    // A clock that is right starts the rollout now.
    one.before.started_at = None;
    assert_eq!(decision(&one, &pods, 2).status.started_at, Some(at(2)));
}
