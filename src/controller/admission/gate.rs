//! `/mutate-pods`: adds to a new pod the readiness gate with which an agent takes it out of traffic. Pure.
//!
//! Only in namespaces that opt in by a label: this webhook has an optional configuration of its own. Must not
//! refuse anything.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::json;

use crate::api::annotation::GATE;
use crate::controller::admission::bounded;
use crate::controller::admission::review::{Answer, Request};

/// The fields that are read of a pod. Nothing is stored whose size the author of the pod controls.
#[derive(Debug, Default, Deserialize)]
struct Pod {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
struct Meta {
    #[serde(default, rename = "annotations", deserialize_with = "is_mirror")]
    mirror: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    /// `None` if the pod has no list of gates; otherwise whether this project's gate is in it.
    #[serde(default, rename = "readinessGates", deserialize_with = "has_ours")]
    gates: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gate {
    condition_type: String,
}

fn is_mirror<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    bounded::has_key(from, "kubernetes.io/config.mirror")
}

fn has_ours<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    struct Gates;
    impl<'de> Visitor<'de> for Gates {
        type Value = Option<bool>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("readiness gates")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut has = false;
            while let Some(gate) = list.next_element::<Gate>()? {
                has |= gate.condition_type == GATE;
            }
            Ok(Some(has))
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    from.deserialize_any(Gates)
}

/// The patch that adds the gate if it is missing.
pub(super) fn judge(asked: &Request) -> Answer {
    let Ok(pod) = asked.new_as::<Pod>() else { return Answer::Allowed(Vec::new()) };
    let gates = pod.spec.gates;
    // A mirror pod is a copy of a static pod, and the pod that the kubelet runs has no gate.
    if asked.kind.kind != "Pod" || asked.operation != "CREATE" || gates == Some(true) || pod.metadata.mirror {
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
