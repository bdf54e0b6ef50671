//! Validation at admission, and in each decision in case no webhook is installed: specs that contradict themselves,
//! and (at admission only) changes of immutable fields. All problems are reported at once, each with the field and
//! the remedy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::group::Strategy;
use crate::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutSpec, RolloutTarget};
use crate::api::request::{Drain, InvalidRequest, Order, RequestedEngine, is_dns_subdomain};
use crate::api::rollout_request::request;
use crate::api::selector;
use crate::api::workload::UpdateFailurePolicy;
use crate::api::workload_kind::{KINDS, Kind};
use crate::podtask::amount::Amount;
use crate::podtask::priority;

/// The longest `pod.reason`, in bytes: an agent reads requests of up to 16 KiB.
const MAX_REASON: usize = 12 << 10;
/// The longest selector as text, in bytes: the pods are watched with it.
const MAX_SELECTOR: usize = 4 << 10;

/// All problems of a rollout, and of the change from `old` to it.
pub fn rollout(old: Option<&InPlaceRollout>, new: &InPlaceRollout) -> Vec<String> {
    let mut problems = spec(&new.spec);
    if let Some(old) = old {
        problems.extend(changed(&old.spec, &new.spec));
    }
    problems
}

/// All problems of a spec.
pub fn spec(spec: &InPlaceRolloutSpec) -> Vec<String> {
    let mut problems = target(&spec.target);
    for (field, value) in [
        ("maxUnavailable", &spec.max_unavailable),
        ("partition", &spec.partition),
        ("failureThreshold", &spec.failure_threshold),
    ] {
        problems.extend(amount(field, value));
    }
    problems.extend(priority::problems("spec.priority", &spec.priority));
    if Amount::read(&spec.max_unavailable).is_ok_and(Amount::is_zero) {
        let problem = "it is 0, so no pod that is available could be restarted: set it to 1 or more";
        problems.push(format!("spec.maxUnavailable: {problem}"));
    }
    let terms = &spec.pod;
    for (field, value) in [
        ("pod.gracePeriodSeconds", terms.grace_period_seconds),
        ("pod.minReadySeconds", terms.min_ready_seconds),
        ("pod.readyTimeoutSeconds", terms.ready_timeout_seconds),
        ("pod.terminationGracePeriodSeconds", terms.termination_grace_period_seconds.unwrap_or(0)),
        ("pod.deadlineSeconds", terms.deadline_seconds),
        ("deadlineSeconds", spec.deadline_seconds.unwrap_or(1)),
        ("progressDeadlineSeconds", spec.progress_deadline_seconds.unwrap_or(1)),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished.unwrap_or(0)),
    ] {
        if value < 0 {
            problems.push(format!("spec.{field}: {value} is less than 0"));
        }
    }
    if terms.reason.len() > MAX_REASON {
        problems.push(format!("spec.pod.reason: it is longer than {MAX_REASON} bytes"));
    }
    problems.extend(start_first(spec));
    problems.extend(own_grace(spec));
    problems.extend(abort(spec));
    problems.extend(together(spec));
    // The id is the uid of an object that may not have one yet.
    match request("x", "x", spec).check() {
        Ok(()) => {}
        Err(InvalidRequest::Value { field, problem }) if field.starts_with("containers") => {
            problems.push(format!("spec.{field}: {problem}"));
        }
        Err(InvalidRequest::Value { field, problem }) => {
            problems.push(format!("spec.pod.{field}: {problem}"));
        }
        Err(other) => problems.push(format!("spec: {other}")),
    }
    problems
}

/// What every agent would refuse with the order `StartFirst`.
fn start_first(spec: &InPlaceRolloutSpec) -> Option<String> {
    let why = if spec.containers.len() > 1 {
        "one container at a time can be started first: create one InPlaceRollout after the other, or use StopFirst"
    } else if spec.pod.engine == RequestedEngine::Stop {
        "the engine Stop cannot start a container first: use another engine, or StopFirst"
    } else {
        return None;
    };
    (spec.pod.order == Order::StartFirst).then(|| format!("spec.pod.order: {why}"))
}

/// A kubelet that replaces a container stops it, and knows only the grace period of the pod.
fn own_grace(spec: &InPlaceRolloutSpec) -> Option<String> {
    let swaps = spec.containers.iter().any(|container| container.image.is_some());
    let by_kubelet = swaps || spec.pod.engine == RequestedEngine::Respec;
    (spec.pod.termination_grace_period_seconds.is_some() && by_kubelet).then(|| {
        "spec.pod.terminationGracePeriodSeconds: the kubelet stops a container whose image changes, and uses the grace period of \
         the pod: remove the field, or the images"
            .to_owned()
    })
}

/// A restart changes no image that an abort could take back.
fn abort(spec: &InPlaceRolloutSpec) -> Option<String> {
    let restarts_only = spec.containers.iter().all(|container| container.image.is_none());
    (spec.on_failure == UpdateFailurePolicy::Abort && restarts_only).then(|| {
        "spec.onFailure: a restart leaves nothing that Abort could take back: give a container an image, or use Pause"
            .to_owned()
    })
}

/// What a group restart does not do.
fn together(spec: &InPlaceRolloutSpec) -> Vec<String> {
    if spec.strategy != Strategy::Together {
        let unused = "it has no effect with the strategy Rolling: remove it, or set strategy: Together";
        return spec.together.iter().map(|_| format!("spec.together: {unused}")).collect();
    }
    let (terms, pod) = (spec.together.unwrap_or_default(), &spec.pod);
    let swaps = spec.containers.iter().any(|container| container.image.is_some());
    let barrier = if terms.barrier { terms.barrier_timeout_seconds } else { 0 };
    [
        (
            swaps,
            "containers: the kubelet starts a container with a new image, and does not wait for other pods: remove the images, \
             or use strategy: Rolling",
        ),
        (!(1..=3600).contains(&terms.prepare_timeout_seconds), "together.prepareTimeoutSeconds: it is not in 1..3600"),
        (!(1..=300).contains(&terms.barrier_timeout_seconds), "together.barrierTimeoutSeconds: it is not in 1..300"),
        (
            pod.deadline_seconds <= terms.prepare_timeout_seconds.saturating_add(barrier),
            "pod.deadlineSeconds: it includes the waits: make it longer than together.prepareTimeoutSeconds and \
             together.barrierTimeoutSeconds",
        ),
        (spec.on_failure == UpdateFailurePolicy::Abort, "onFailure: a group restart has no way back: use Pause"),
        (pod.each_ready, "pod.eachReady: the containers of a group restart do not wait until the ones before are Ready: remove it"),
        (pod.order == Order::StartFirst, "pod.order: a group restart stops all containers first: use StopFirst"),
        (
            pod.grace_period_seconds > 0 || pod.drain != Drain::default(),
            "pod.gracePeriodSeconds, spec.pod.drain: all pods are restarted at once, so that no pod is left to take the \
             traffic: remove them",
        ),
    ]
    .into_iter()
    .filter(|(is_wrong, _)| *is_wrong)
    .map(|(_, problem)| format!("spec.{problem}"))
    .collect()
}

fn target(target: &RolloutTarget) -> Vec<String> {
    match (&target.workload_ref, &target.selector) {
        (None, None) => vec!["spec.target: name a workloadRef or a selector".to_owned()],
        (Some(_), Some(_)) => vec!["spec.target: only one of workloadRef and selector".to_owned()],
        (None, Some(selector)) => labels(selector),
        (Some(workload), None) => {
            let mut problems = Vec::new();
            if Kind::of(workload).is_none() {
                let kinds: Vec<_> =
                    KINDS.iter().map(|kind| format!("{} ({})", kind.name, kind.api_version())).collect();
                let named = format!("{} {}", workload.api_version, workload.kind);
                problems.push(format!(
                    "spec.target.workloadRef.kind: `{}` is none of {}; for pods of other kinds use spec.target.selector",
                    named.trim(),
                    kinds.join(", ")
                ));
            }
            if !is_dns_subdomain(&workload.name) {
                problems.push(format!("spec.target.workloadRef.name: `{}` is not a name", workload.name));
            }
            problems
        }
    }
}

fn labels(selector: &LabelSelector) -> Vec<String> {
    let at = "spec.target.selector";
    if selector::text(selector).len() > MAX_SELECTOR {
        return vec![format!("{at}: it is longer than {MAX_SELECTOR} bytes: name fewer labels")];
    }
    let exact: Vec<_> = selector.match_labels.iter().flatten().collect();
    let expressions: Vec<_> = selector.match_expressions.iter().flatten().collect();
    if exact.is_empty() && expressions.is_empty() {
        return vec![format!("{at}: is empty: name the labels of the pods")];
    }
    let mut problems = Vec::new();
    for (key, value) in exact {
        if !is_key(key) || !is_value(value) {
            problems.push(format!("{at}.matchLabels: `{key}={value}` is not a label"));
        }
    }
    for (index, wanted) in expressions.iter().enumerate() {
        let (at, values) =
            (format!("{at}.matchExpressions[{index}]"), wanted.values.as_deref().unwrap_or_default());
        if !is_key(&wanted.key) || !values.iter().all(|value| is_value(value)) {
            problems.push(format!("{at}: `{}` and its values are not labels", wanted.key));
        }
        match wanted.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => problems.push(format!("{at}.values: name at least one")),
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                problems.push(format!("{at}.values: must be empty with operator {}", wanted.operator));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                problems.push(format!("{at}.operator: `{other}` is none of In, NotIn, Exists, DoesNotExist"));
            }
        }
    }
    problems
}

fn is_key(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    !name.is_empty() && is_value(name) && prefix.is_none_or(is_dns_subdomain)
}

fn is_value(value: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    value.is_empty()
        || value.len() <= 63 && value.starts_with(edge) && value.ends_with(edge) && value.chars().all(inner)
}

fn amount(field: &str, value: &IntOrString) -> Option<String> {
    Amount::read(value).err().map(|error| format!("spec.{field}: {error}"))
}

/// Changes of immutable fields.
fn changed(old: &InPlaceRolloutSpec, new: &InPlaceRolloutSpec) -> Vec<String> {
    [
        ("target", old.target == new.target),
        ("containers", old.containers == new.containers),
        ("strategy", old.strategy == new.strategy),
        ("together", old.together == new.together),
        ("prefetch", old.prefetch == new.prefetch),
        ("allowTemplateDrift", old.allow_template_drift == new.allow_template_drift),
        ("priority", old.priority == new.priority),
        ("pod", old.pod == new.pod),
    ]
    .into_iter()
    .filter(|(_, same)| !same)
    .map(|(field, _)| {
        format!("spec.{field}: cannot be changed: create another InPlaceRollout, which supersedes this one")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_text_that_no_agent_reads_and_a_selector_that_no_watch_has_are_refused() {
        let problems = |labels: usize, reason: usize| {
            let labels: serde_json::Map<String, Value> =
                (0..labels).map(|at| (format!("label-{at}"), json!("x"))).collect();
            let object = json!({"target": {"selector": {"matchLabels": labels}}, "containers": [{"name": "app"}],
                "pod": {"reason": "x".repeat(reason)}});
            spec(&serde_json::from_value(object).unwrap()).join("; ")
        };
        assert_eq!(problems(10, MAX_REASON), "");
        let reported = problems(10, MAX_REASON + 1);
        assert_eq!(reported, "spec.pod.reason: it is longer than 12288 bytes");
        let reported = problems(1000, 0);
        assert!(reported.starts_with("spec.target.selector: it is longer than 4096 bytes"), "{reported}");
    }
}
