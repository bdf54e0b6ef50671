//! Which labels a selector matches, and its form as one line of text.
//!
//! kube's `Selector` does the matching. Its text form is not used: the controllers watch with the text before they
//! check the spec, so that a selector with an unknown operator must have a text as well, and never an empty one,
//! which would select all pods. kube's conversion fails for such a selector.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};

/// A selector that is converted once and matches many pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Matcher(Selector);

impl Matcher {
    /// Converts a selector; `None` if it is empty or has an unknown operator.
    pub fn of(selector: &LabelSelector) -> Option<Self> {
        let mut selector = selector.clone();
        for expression in selector.match_expressions.iter_mut().flatten() {
            // kube refuses `In` and `NotIn` without values; here they are an empty list.
            expression.values.get_or_insert_default();
        }
        Selector::try_from(selector).ok().filter(|selector| !selector.selects_all()).map(Self)
    }

    /// True when `labels` match.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.matches(labels)
    }
}

/// True when `labels` match. Unlike in Kubernetes, an empty selector matches nothing, and neither does an unknown
/// operator: a workload must never adopt pods by mistake.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Matcher::of(selector).is_some_and(|matcher| matcher.matches(labels))
}

/// The form that autoscalers and `kubectl get -l` read: `app=web,tier in (a,b)`.
pub fn text(selector: &LabelSelector) -> String {
    let exact = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|wanted| {
        let (key, values) = (&wanted.key, wanted.values.as_deref().unwrap_or_default().join(","));
        match wanted.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    exact.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn met(selector: Value, labels: Value) -> bool {
        matches(&serde_json::from_value(selector).unwrap(), &serde_json::from_value(labels).unwrap())
    }

    #[test]
    fn labels_and_expressions_must_all_be_met() {
        let web = json!({"matchLabels": {"app": "web"}});
        assert!(met(web.clone(), json!({"app": "web", "x": "y"})));
        assert!(!met(web, json!({"app": "db"})));
        let tier = |operator: &str| json!({"matchExpressions": [{"key": "tier", "operator": operator, "values": ["a", "b"]}]});
        assert!(met(tier("In"), json!({"tier": "a"})) && !met(tier("In"), json!({})));
        assert!(met(tier("NotIn"), json!({})) && !met(tier("NotIn"), json!({"tier": "b"})));
        assert!(
            met(tier("Exists"), json!({"tier": "z"})) && !met(tier("DoesNotExist"), json!({"tier": "z"}))
        );
    }

    #[test]
    fn nothing_and_the_unknown_mean_no_pod() {
        assert!(!met(json!({}), json!({"app": "web"})));
        assert!(!met(
            json!({"matchExpressions": [{"key": "app", "operator": "Like"}]}),
            json!({"app": "web"})
        ));
        let none = |operator: &str| json!({"matchExpressions": [{"key": "app", "operator": operator}]});
        assert!(!met(none("In"), json!({"app": "web"})) && met(none("NotIn"), json!({"app": "web"})));
    }

    #[test]
    fn it_is_written_as_kubectl_reads_it() {
        let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"}]});
        assert_eq!(text(&serde_json::from_value(selector).unwrap()), "app=web,tier in (a,b),!old");
    }
}
