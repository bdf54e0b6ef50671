//! The order of pods by labels: pods with the same values of the keys form a group, and a group is completed before the
//! next one begins. Decides which group a pod is in; picks nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::priority::PriorityKey;
use crate::podtask::pod::Pod;

/// The labels of nodes, by the name of the node.
pub type NodeLabels = BTreeMap<String, Arc<BTreeMap<String, String>>>;

/// The values of the keys for one pod. Groups are processed in their order.
pub type Group = Vec<Value>;

/// The value of one key: numbers first, by size, then other texts, then pods without the label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A whole number.
    Number(u64),
    /// Any other text.
    Text(String),
    /// The pod, or its node, does not have the label, or the pod has no node.
    Missing,
}

/// The group of `pod`, given the labels of its node.
pub fn group(keys: &[PriorityKey], pod: &Pod, node: Option<&BTreeMap<String, String>>) -> Group {
    let value = |key: &PriorityKey| {
        let of_node = || node?.get(key.node_label.as_ref()?);
        let of_pod = || pod.labels.get(key.pod_label.as_ref()?);
        of_node().or_else(of_pod).map_or(Value::Missing, |text| {
            text.parse().map_or_else(|_| Value::Text(text.clone()), Value::Number)
        })
    };
    keys.iter().map(value).collect()
}

/// The problems of the keys in `field`.
pub fn problems(field: &str, keys: &[PriorityKey]) -> Vec<String> {
    let one = |key: &PriorityKey| {
        let given = [&key.node_label, &key.pod_label];
        given.iter().filter(|label| label.as_ref().is_some_and(|label| !label.is_empty())).count() == 1
    };
    let wrong = keys.iter().enumerate().filter(|(_, key)| !one(key));
    wrong.map(|(at, _)| format!("{field}[{at}]: name either a nodeLabel or a podLabel")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn groups_are_ordered_by_number_then_text_and_pods_without_the_label_are_last() {
        let keys: Vec<PriorityKey> =
            serde_json::from_value(json!([{"nodeLabel": "zone"}, {"podLabel": "tier"}])).unwrap();
        let of = |zone: Option<&str>, tier: &str| {
            let pod = json!({"metadata": {"name": "a", "labels": {"tier": tier}}});
            let node = zone.map(|zone| BTreeMap::from([("zone".to_owned(), zone.to_owned())]));
            group(&keys, &Pod::read(&serde_json::from_value(pod).unwrap()), node.as_ref())
        };
        let order = [
            of(Some("2"), "x"),
            of(Some("10"), "a"),
            of(Some("a"), "2"),
            of(Some("a"), "10"),
            of(Some("b"), "1"),
            of(None, "1"),
        ];
        assert!(order.is_sorted() && order.windows(2).all(|two| two[0] != two[1]), "{order:?}");
        assert_eq!(problems("spec.priority", &keys), Vec::<String>::new());
        let both = PriorityKey { node_label: Some("a".into()), pod_label: Some("b".into()) };
        let found = problems("spec.priority", &[both, PriorityKey::default()]);
        assert_eq!(found[1], "spec.priority[1]: name either a nodeLabel or a podLabel");
        assert_eq!(found.len(), 2);
    }
}
