//! `/mutate-pods`: a new pod gets the readiness gate that an agent needs to take it out of traffic. Pure.
//!
//! Only where a namespace asks for it by a label: the configuration is one of its own, and opt-in. Refuses nothing.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use crate::api::annotation::GATE;
use crate::controller::admission::review::{Answer, Request};

/// What is looked at of a pod.
#[derive(Debug, Default, Deserialize)]
struct Pod {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
struct Meta {
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    readiness_gates: Option<Vec<Gate>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gate {
    condition_type: String,
}

/// The patch that adds the gate, where it is missing.
pub(super) fn judge(asked: &Request) -> Answer {
    let Ok(pod) = asked.new_as::<Pod>() else { return Answer::Allowed(Vec::new()) };
    let gates = pod.spec.readiness_gates;
    let has_it = gates.as_ref().is_some_and(|gates| gates.iter().any(|gate| gate.condition_type == GATE));
    // Of a static pod this is a copy: what its kubelet runs has no gate.
    let mirror = pod.metadata.annotations.is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"));
    if asked.kind.kind != "Pod" || asked.operation != "CREATE" || has_it || mirror {
        return Answer::Allowed(Vec::new());
    }
    let gate = json!({"conditionType": GATE});
    Answer::Patched(match gates {
        Some(_) => json!([{"op": "add", "path": "/spec/readinessGates/-", "value": gate}]),
        None => json!([{"op": "add", "path": "/spec/readinessGates", "value": [gate]}]),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::controller::admission::review::request;

    fn judged(pod: &Value) -> Answer {
        judge(&request(&json!({"uid": "u", "operation": "CREATE", "object": pod,
            "kind": {"group": "", "version": "v1", "kind": "Pod"}})))
    }

    #[test]
    fn the_gate_is_added_once_and_beside_others() {
        let gate = json!({"conditionType": "InPlaceUpdateReady"});
        let Answer::Patched(patch) = judged(&json!({"spec": {"hostNetwork": true}})) else { panic!() };
        assert_eq!(patch, json!([{"op": "add", "path": "/spec/readinessGates", "value": [gate]}]));
        let other = json!({"spec": {"readinessGates": [{"conditionType": "other"}]}});
        let Answer::Patched(patch) = judged(&other) else { panic!() };
        assert_eq!(patch, json!([{"op": "add", "path": "/spec/readinessGates/-", "value": gate}]));
        for pod in [
            json!({"spec": {"readinessGates": [{"conditionType": "other"}, gate]}}),
            json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {}}),
        ] {
            assert_eq!(judged(&pod), Answer::Allowed(Vec::new()), "{pod}");
        }
    }
}
