//! Random cases: in any order of events, budgets hold, each pod gets one request and at most one for the way back, and the
//! rollout ends, if it is aborted with all pods back that can go back.

use serde_json::Value;

use super::decide::{What, decide};
use super::fixtures::*;
use super::pod::Pod;
use crate::api::in_place_rollout::RolloutPhase;

/// Deterministic pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

#[derive(Default)]
struct Progress {
    orders: usize,
    returns: usize,
    failed: bool,
    not_returned: bool,
}

const BACK: &str = "r-1-back";

#[test]
fn budgets_hold_and_no_pod_is_asked_twice_in_any_order_of_events() {
    for seed in 0..100 {
        run(&mut Dice(seed));
    }
}

fn run(dice: &mut Dice) {
    let count = 1 + dice.below(8);
    let (limit, least) = (1 + dice.below(3), dice.below(count));
    let mut more = serde_json::json!({"maxUnavailable": limit, "failureThreshold": 1 + dice.below(3)});
    let swaps = dice.below(2) == 0;
    if swaps {
        let swap = serde_json::json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": true,
            "onFailure": if dice.below(3) == 0 { "Pause" } else { "Abort" }});
        more.as_object_mut().unwrap().extend(swap.as_object().unwrap().clone());
    }
    let mut rollout = rollout(&more);
    let mut pods: Vec<Value> = (0..count).map(pod).collect();
    let mut progress: Vec<Progress> = (0..count).map(|_| Progress::default()).collect();
    let mut entries = std::collections::BTreeMap::new();
    for step in 0..2000 {
        let now = at(1 + step);
        // What the disruption controller computes.
        let mut counted = budget(0);
        let serves = |pod: &Value| pod["status"]["conditions"][0]["status"] == "True";
        let healthy = pods
            .iter()
            .filter(|pod| serves(pod) && !entries.contains_key(pod["metadata"]["name"].as_str().unwrap()));
        counted.status.current_healthy = i64::try_from(healthy.count()).unwrap();
        counted.status.desired_healthy = i64::try_from(least).unwrap();
        counted.status.disruptions_allowed =
            (counted.status.current_healthy - counted.status.desired_healthy).max(0);
        counted.status.disrupted_pods = entries.clone();
        let seen_pods: Vec<Pod> = pods.iter().map(read).collect();
        let allowed = usize::try_from(counted.status.disruptions_allowed).unwrap();
        let enough = counted.status.current_healthy >= counted.status.desired_healthy && least > 0;
        let decision = decide(&rollout, seen(&target(), &seen_pods, &[counted], now));
        // An available pod needs a claim, and there are no more claims than disruptions allowed.
        let begins = decision.writes.iter().filter_map(|write| match &write.what {
            What::Begin(claims) => Some((&write.pod.uid, claims)),
            _ => None,
        });
        for (uid, claims) in begins.clone() {
            let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == **uid).unwrap();
            assert!(!claims.is_empty() || !serves(pod) && enough, "{uid} goes without a claim");
        }
        let claimed = begins.filter(|(_, claims)| !claims.is_empty()).count();
        assert!(claimed <= allowed, "{claimed} claims, {allowed} allowed");
        // The process is killed after some of the writes, before the status.
        let killed = dice.below(4) == 0;
        let written = if killed { dice.below(decision.writes.len() + 1) } else { decision.writes.len() };
        for write in &decision.writes[..written] {
            let index = pods.iter().position(|pod| pod["metadata"]["uid"] == *write.pod.uid).unwrap();
            match &write.what {
                What::Begin(claims) => {
                    let text = write.patch.annotations["inplace.dev/request"].as_ref().unwrap();
                    if text.contains(BACK) {
                        assert!(rollout.before.abort.is_some(), "the status comes first");
                        progress[index].returns += 1;
                    } else {
                        assert!(rollout.before.abort.is_none(), "nothing goes on during an abort");
                        progress[index].orders += 1;
                    }
                    if !claims.is_empty() {
                        entries.insert(write.pod.name.clone(), now);
                    }
                }
                What::End(..) => drop(entries.remove(&write.pod.name)),
                What::Prefetch | What::Release => {}
                What::Recall => assert!(progress.iter().any(|one| one.failed), "withdrawn for nothing"),
            }
            apply(&mut pods[index], write);
        }
        let busy = |pod: &Value| !pod["metadata"]["labels"]["inplace.dev/rollout-uid"].is_null();
        assert!(pods.iter().filter(|pod| busy(pod)).count() <= limit, "more than {limit} at once");
        assert!(progress.iter().all(|one| one.orders <= 1 && one.returns <= 1), "asked twice");
        if !killed {
            rollout.before = decision.status.clone();
            if decision.status.phase.is_terminal() {
                let failed = progress.iter().any(|one| one.failed);
                assert_eq!(decision.status.phase != RolloutPhase::Succeeded, failed, "{:?}", decision.status);
                assert!(failed || progress.iter().all(|one| one.orders == 1), "all of them");
                let old = pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "app:1");
                let not_returned = progress.iter().any(|one| one.not_returned);
                match decision.status.phase {
                    RolloutPhase::Aborted => assert!(old && !not_returned, "{:?}", decision.status),
                    RolloutPhase::AbortFailed => assert!(not_returned, "{:?}", decision.status),
                    _ => assert!(progress.iter().all(|one| one.returns == 0), "{:?}", decision.status),
                }
                return;
            }
        }
        happen(dice, swaps, &mut pods, &mut progress, step);
    }
    panic!("it does not end: {:?}", rollout.before);
}

/// One random event on a random pod.
fn happen(dice: &mut Dice, swaps: bool, pods: &mut [Value], progress: &mut [Progress], step: i64) {
    let index = dice.below(pods.len());
    let (pod, one) = (&mut pods[index], &mut progress[index]);
    let ordered = !pod["metadata"]["labels"]["inplace.dev/rollout-uid"].is_null();
    let text = |key: &str| pod["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
    // An agent may not have noticed that the request was withdrawn.
    let back = text("inplace.dev/rollout").contains(r#""back":true"#);
    let id = if back { BACK } else { UID };
    let reported = Some(text("inplace.dev/status"));
    let reported = reported.filter(|text| text.contains(&format!(r#""id":"{id}""#))).unwrap_or_default();
    let (running, over) =
        (reported.contains("Running"), reported.contains("Succeeded") || reported.contains("Failed"));
    if !ordered || over {
        // A pod that no task works on becomes unready and ready now and then.
        ready(pod, dice.below(8) != 0, at(1 + step));
        return;
    }
    match dice.below(4) {
        0 if !running => say_about(pod, id, "Pending", None),
        0 | 1 => {
            ready(pod, false, at(1 + step));
            say_about(pod, id, "Running", Some("Swap"));
        }
        2 => {
            ready(pod, true, at(1 + step));
            say_about(pod, id, "Succeeded", None);
            has_image(pod, swaps, back);
        }
        _ if dice.below(6) == 0 => {
            let failed = if back { &mut one.not_returned } else { &mut one.failed };
            *failed = true;
            say_about(pod, id, "Failed", Some("Verify"));
            // The agent may have left the new image.
            has_image(pod, swaps && !back && dice.below(2) == 0, back);
        }
        _ => {}
    }
}

/// The agent has swapped the container, or taken it back.
fn has_image(pod: &mut Value, swaps: bool, back: bool) {
    if swaps {
        pod["spec"]["containers"][0]["image"] = if back { "app:1" } else { "app:2" }.into();
    }
}
