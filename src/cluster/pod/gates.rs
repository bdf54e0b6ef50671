//! The readiness gates of a pod, and which of them an agent uses. Must not decide when a gate changes.
//!
//! An agent uses the gate [`annotation::GATE`]. An existing pod cannot get a gate, so an agent can be set to use another
//! one, of pods without its own.

use std::sync::Arc;

use crate::api::annotation;
use crate::operation::snapshot::Gate;

/// The conditions of pods that Kubernetes writes itself.
const OF_KUBERNETES: [&str; 10] = [
    "PodScheduled",
    "PodReadyToStartContainers",
    "PodHasNetwork",
    "Initialized",
    "ContainersReady",
    "Ready",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];
/// The longest name that the API server accepts: a DNS subdomain, a slash and a name.
const MAX_NAME: usize = 253 + 1 + 63;

/// The condition types that agents use for pods without [`annotation::GATE`]: the first one that a pod has.
#[derive(Clone, Debug, Default)]
pub struct FurtherGates(Arc<[String]>);

impl From<Vec<String>> for FurtherGates {
    fn from(names: Vec<String>) -> Self {
        Self(names.into())
    }
}

/// Why a text cannot be a further gate.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadGate {
    /// It is no name.
    #[error("the type of a condition is a name such as KruisePodReady or example.com/ready")]
    NoName,
    /// An agent must not write this condition.
    #[error("the condition {0} belongs to Kubernetes")]
    OfKubernetes(String),
}

/// Reads the condition type of a further gate.
///
/// # Errors
/// If it is no name, or the name of a condition of Kubernetes.
pub fn further_gate(text: &str) -> Result<String, BadGate> {
    let is_word = |text: &str| {
        let ends = text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric());
        ends && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let is_name = text.len() <= MAX_NAME
        && text
            .split_once('/')
            .map_or_else(|| is_word(text), |(domain, name)| is_word(domain) && is_word(name));
    if !is_name {
        return Err(BadGate::NoName);
    }
    if OF_KUBERNETES.contains(&text) {
        return Err(BadGate::OfKubernetes(text.to_owned()));
    }
    Ok(text.to_owned())
}

/// A readiness gate of a pod other than [`annotation::GATE`].
#[derive(Clone, Debug)]
pub(super) struct OtherGate {
    /// The type of its condition.
    name: String,
    state: Gate,
    /// True if an agent wrote the condition.
    by_agent: bool,
}

/// The condition of a gate: its status and its reason.
pub(super) type GateCondition<'a> = (&'a str, Option<&'a str>);

/// The state of the gate [`annotation::GATE`], and the other gates, of a spec with gates of these `names`.
pub(super) fn split<'a>(
    names: impl Iterator<Item = String>,
    condition: impl Fn(&str) -> Option<GateCondition<'a>>,
) -> (Gate, Vec<OtherGate>) {
    let (mut own, mut others) = (Gate::Absent, Vec::new());
    for name in names {
        let condition = condition(&name);
        if name == annotation::GATE {
            own = state(condition);
        } else {
            others.push(OtherGate::new(name, condition));
        }
    }
    (own, others)
}

/// The state of a gate of the spec with this condition.
fn state(condition: Option<GateCondition<'_>>) -> Gate {
    match condition {
        None => Gate::Unset,
        Some(("True", _)) => Gate::Open,
        Some((_, reason)) => Gate::Closed { reason: reason.unwrap_or_default().to_owned() },
    }
}

impl OtherGate {
    fn new(name: String, condition: Option<GateCondition<'_>>) -> Self {
        let of_agent = [annotation::GATE_READY, annotation::GATE_DRAIN, annotation::GATE_FAILED];
        let reason = condition.and_then(|(_, reason)| reason);
        Self {
            name,
            state: state(condition),
            by_agent: reason.is_some_and(|reason| of_agent.contains(&reason)),
        }
    }

    fn is_closed_by_agent(&self) -> bool {
        self.by_agent && matches!(self.state, Gate::Closed { .. })
    }

    /// The approximate memory use of this value, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let reason = if let Gate::Closed { reason } = &self.state { reason.len() } else { 0 };
        size_of::<Self>() + self.name.len() + reason
    }
}

impl super::Pod {
    /// The readiness gate that an agent uses, and its state. [`annotation::GATE`] if the pod has no gate for it.
    ///
    /// A gate that an agent has closed comes before those of `further`: it is opened again also after the flag has
    /// changed. Nobody else would open it.
    pub fn gate(&self, further: &FurtherGates) -> (&str, &Gate) {
        let own = (annotation::GATE, &self.declared.gate);
        if self.declared.gate != Gate::Absent {
            return own;
        }
        let of_pod = |name: &String| self.other_gates.iter().find(|gate| gate.name == *name);
        let closed = self.other_gates.iter().find(|gate| gate.is_closed_by_agent());
        closed.or_else(|| further.0.iter().find_map(of_pod)).map_or(own, |gate| (&gate.name, &gate.state))
    }

    /// The gates, apart from [`annotation::GATE`], whose conditions an agent wrote last.
    pub fn gates_of_agents(&self) -> FurtherGates {
        let gates = self.other_gates.iter().filter(|gate| gate.by_agent);
        gates.map(|gate| gate.name.clone()).collect::<Vec<_>>().into()
    }

    /// The names of the gates that are not [`annotation::GATE`].
    pub fn other_gates(&self) -> impl Iterator<Item = &str> {
        self.other_gates.iter().map(|gate| gate.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::pod::Pod;

    #[test]
    fn the_first_further_gate_of_a_pod_without_its_own_is_used() {
        let pod = |gates: &[&str]| -> Pod {
            let gates: Vec<_> = gates.iter().map(|name| json!({"conditionType": name})).collect();
            let condition = |name: &str, status: &str, reason: &str| json!({"type": name, "status": status, "reason": reason});
            let conditions = [
                condition("a", "False", "Other"),
                condition("b.example/b", "True", "InPlaceReady"),
                condition("InPlaceUpdateReady", "True", "InPlaceReady"),
            ];
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"readinessGates": gates},
                "status": {"conditions": conditions}}))
            .unwrap()
        };
        let further = FurtherGates::from(vec!["b.example/b".to_owned(), "a".to_owned(), "c".to_owned()]);
        let closed = Gate::Closed { reason: "Other".to_owned() };
        for (gates, used) in [
            (&["a", "b.example/b"][..], ("b.example/b", &Gate::Open)),
            (&["a"], ("a", &closed)),
            (&["c"], ("c", &Gate::Unset)),
            (&["a", "InPlaceUpdateReady"], ("InPlaceUpdateReady", &Gate::Open)),
            (&["d"], ("InPlaceUpdateReady", &Gate::Absent)),
            (&[], ("InPlaceUpdateReady", &Gate::Absent)),
        ] {
            assert_eq!(pod(gates).gate(&further), used, "{gates:?}");
        }
        let absent = ("InPlaceUpdateReady", &Gate::Absent);
        assert_eq!(pod(&["a", "b.example/b"]).gate(&FurtherGates::default()), absent);
        // A gate that an agent has closed is opened again, whatever the flag says by now.
        let closing = |reason: &str| -> Pod {
            let conditions = json!([{"type": "a", "status": "False", "reason": reason}]);
            serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {"conditions": conditions},
                "spec": {"readinessGates": [{"conditionType": "b.example/b"}, {"conditionType": "a"}]}}))
            .unwrap()
        };
        for (reason, used) in [("InPlaceDrain", "a"), ("InPlaceFailed", "a"), ("Other", "InPlaceUpdateReady")]
        {
            assert_eq!(closing(reason).gate(&FurtherGates::default()).0, used, "{reason}");
        }
        assert_eq!(closing("InPlaceDrain").gate(&further).0, "a");
        assert_eq!(closing("Other").gate(&further).0, "b.example/b");
        // Only an agent writes these reasons.
        let seen = pod(&["a", "b.example/b", "c"]);
        assert_eq!(seen.gate(&seen.gates_of_agents()), ("b.example/b", &Gate::Open));
        assert_eq!(pod(&["a", "c"]).gates_of_agents().0.len(), 0);
    }

    #[test]
    fn a_further_gate_is_a_name_that_is_not_of_kubernetes() {
        for good in ["KruisePodReady", "example.com/ready", "a"] {
            assert_eq!(further_gate(good).as_deref(), Ok(good));
        }
        let long = "a".repeat(MAX_NAME + 1);
        for bad in ["", "a b", "a'b", "/a", "a/", "a/b/c", "-a", "a\"]", &long] {
            assert_eq!(further_gate(bad), Err(BadGate::NoName), "{bad}");
        }
        for theirs in OF_KUBERNETES {
            assert_eq!(further_gate(theirs), Err(BadGate::OfKubernetes(theirs.to_owned())));
        }
    }
}
