//! Which labels a selector matches, and its form as one line of text.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// True when `labels` match. Unlike in Kubernetes, an empty selector matches nothing, and neither does an unknown
/// operator: a workload must never adopt pods by mistake.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let exact = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    let any = exact.clone().next().is_some() || expressions.clone().next().is_some();
    let mut equal = exact.map(|(key, value)| labels.get(key) == Some(value));
    let mut true_of = expressions.map(|wanted| {
        let value = labels.get(&wanted.key);
        let listed = |value: &String| wanted.values.iter().flatten().any(|listed| listed == value);
        match wanted.operator.as_str() {
            "In" => value.is_some_and(listed),
            "NotIn" => value.is_none_or(|value| !listed(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    });
    any && equal.all(|met| met) && true_of.all(|met| met)
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
    }

    #[test]
    fn it_is_written_as_kubectl_reads_it() {
        let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"}]});
        assert_eq!(text(&serde_json::from_value(selector).unwrap()), "app=web,tier in (a,b),!old");
    }
}
