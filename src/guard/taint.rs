//! Decides whether a node's taints evict a pod, with the rules of Kubernetes' taint manager. Pure.
//!
//! The taint manager requests a deletion only once. The guard checks the taints and does not trust the requester: a
//! pod that the taints of its node evict has to go, regardless of who requests the deletion.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;

const NO_EXECUTE: &str = "NoExecute";

/// True when one of these taints evicts `pod` by now.
///
/// A taint that is tolerated for a limited time evicts when that time is over. If the taint has no `timeAdded`, the
/// condition that the taint manager sets on a pod before it deletes it decides (Kubernetes 1.26 and newer).
pub fn is_evicted(pod: &core::Pod, taints: &[core::Taint], now: Timestamp) -> bool {
    let none = Vec::new();
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_ref()).unwrap_or(&none);
    let evicts = |taint: &core::Taint| {
        let mut tolerated = tolerations.iter().filter(|toleration| tolerates(toleration, taint)).peekable();
        if tolerated.peek().is_none() {
            return true;
        }
        let Some(seconds) = tolerated.filter_map(|toleration| toleration.toleration_seconds).min() else {
            return false;
        };
        let until = |since: Timestamp| since.checked_add(SignedDuration::from_secs(seconds.max(0)));
        match &taint.time_added {
            Some(since) => until(since.0).is_ok_and(|until| until <= now),
            None => has_condition(pod),
        }
    };
    taints.iter().filter(|taint| taint.effect == NO_EXECUTE).any(evicts)
}

/// An unknown operator counts as tolerating: then nothing is deleted.
fn tolerates(toleration: &core::Toleration, taint: &core::Taint) -> bool {
    let given = |field: &'_ Option<String>| field.clone().filter(|text| !text.is_empty());
    if given(&toleration.effect).is_some_and(|effect| effect != taint.effect) {
        return false;
    }
    if given(&toleration.key).is_some_and(|key| key != taint.key) {
        return false;
    }
    match given(&toleration.operator).as_deref() {
        None | Some("Equal") => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        Some(_) => true,
    }
}

fn has_condition(pod: &core::Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|condition| {
            condition.type_ == "DisruptionTarget"
                && condition.status == "True"
                && condition.reason.as_deref() == Some("DeletionByTaintManager")
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-03-01T12:00:00Z";

    fn evicted(tolerations: &Value, taint: &Value, conditions: &Value) -> bool {
        let pod = json!({"spec": {"containers": [], "tolerations": tolerations}, "status": {"conditions": conditions}});
        let taint = serde_json::from_value(taint.clone()).unwrap();
        is_evicted(&serde_json::from_value(pod).unwrap(), &[taint], NOW.parse().unwrap())
    }

    #[test]
    fn a_taint_evicts_what_does_not_tolerate_it() {
        let taint = json!({"key": "gone", "value": "yes", "effect": "NoExecute"});
        for (tolerations, expected) in [
            (json!(null), true),
            (json!([{"key": "other", "operator": "Exists"}]), true),
            (json!([{"key": "gone", "value": "no"}]), true),
            (json!([{"key": "gone", "operator": "Exists", "effect": "NoSchedule"}]), true),
            (json!([{"key": "gone", "operator": "Exists"}]), false),
            (json!([{"key": "gone", "value": "yes", "effect": "NoExecute"}]), false),
            (json!([{"operator": "Exists"}]), false),
            (json!([{"key": "gone", "operator": "Gt", "value": "1"}]), false),
        ] {
            assert_eq!(evicted(&tolerations, &taint, &Value::Null), expected, "{tolerations}");
        }
        let other = json!({"key": "gone", "effect": "NoSchedule"});
        assert!(!evicted(&Value::Null, &other, &Value::Null), "it evicts nobody");
        assert!(!is_evicted(&core::Pod::default(), &[], NOW.parse().unwrap()));
    }

    #[test]
    fn what_is_tolerated_for_a_while_is_evicted_after_it() {
        let tolerates_for =
            |seconds: i64| json!([{"key": "gone", "operator": "Exists", "tolerationSeconds": seconds}]);
        let since = |at: &str| json!({"key": "gone", "effect": "NoExecute", "timeAdded": at});
        assert!(evicted(&tolerates_for(300), &since("2026-03-01T11:55:00Z"), &Value::Null));
        assert!(!evicted(&tolerates_for(300), &since("2026-03-01T11:55:01Z"), &Value::Null));
        assert!(evicted(&tolerates_for(-1), &since(NOW), &Value::Null));
        // Without `timeAdded`, the taint manager's own condition decides.
        let taint = json!({"key": "gone", "effect": "NoExecute"});
        let condition = |status: &str, reason: &str| json!([{"type": "DisruptionTarget", "status": status, "reason": reason}]);
        for (conditions, expected) in [
            (Value::Null, false),
            (condition("True", "DeletionByTaintManager"), true),
            (condition("False", "DeletionByTaintManager"), false),
            (condition("True", "PreemptionByScheduler"), false),
        ] {
            assert_eq!(evicted(&tolerates_for(300), &taint, &conditions), expected, "{conditions}");
        }
    }
}
