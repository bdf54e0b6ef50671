//! The request that a `ContainerRecreateRequest` amounts to, or the fields that have no counterpart. Nothing is left out in
//! silence: what cannot be carried out as written is refused by the name of its field.

use jiff::Timestamp;

use crate::api::container_recreate_request::{RecreateContainer, RecreateStrategy};
use crate::api::request::{
    ContainerRequest, DEADLINE_SECONDS, InvalidRequest, MAX_CONTAINERS, MAX_DEADLINE_SECONDS, Request,
    is_dns_label, is_dns_subdomain,
};
use crate::recreate_request::{Pod, PodRecord, RecreateRequest, request_id};

/// The most problems that are reported at once.
const MAX_PROBLEMS: usize = 10;
/// The fields of a container that OpenKruise's webhook fills and a user must not set.
const READ_ONLY: [&str; 3] = ["preStop", "ports", "statusContext"];

/// The time limits of an object, from its creation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// When it must have ended, or, without a limit of its own, when its request must have been written.
    pub(super) until: Timestamp,
    /// Seconds that a request may take that is written now.
    pub(super) seconds: u32,
}

/// The limits at `now`.
pub(super) fn limit(object: &RecreateRequest, now: Timestamp) -> Limit {
    let own = object.spec.active_deadline_seconds;
    let total = own.unwrap_or_else(|| i64::from(DEADLINE_SECONDS)).clamp(0, i64::from(MAX_DEADLINE_SECONDS));
    let until = crate::podtask::time::later(object.created, jiff::SignedDuration::from_secs(total));
    // Clocks may differ: never longer than the whole limit.
    let left = until.duration_since(now).as_secs().clamp(0, total);
    let seconds = if own.is_some() { left } else { total };
    Limit { until, seconds: u32::try_from(seconds).unwrap_or(0) }
}

/// How many of the `seconds` that are left the request for the next container may take: its share, if the object has a limit.
pub(super) fn share(object: &RecreateRequest, record: &PodRecord, seconds: u32) -> u32 {
    let open = record.open_container().filter(|_| object.spec.active_deadline_seconds.is_some());
    let left = open.map_or(1, |open| object.spec.containers.len().saturating_sub(open).max(1));
    seconds / u32::try_from(left).unwrap_or(1)
}

/// What is wrong with the names in an object, so that nothing of it is repeated in a status: its writer decides how long they
/// are, and how many.
pub(super) fn malformed(object: &RecreateRequest) -> Option<String> {
    let spec = &object.spec;
    if !is_dns_subdomain(&spec.pod_name) {
        return Some("spec.podName: it is not a name of a pod".to_owned());
    }
    if spec.containers.is_empty() || spec.containers.len() > MAX_CONTAINERS {
        return Some(format!("spec.containers: name 1 to {MAX_CONTAINERS} containers"));
    }
    let index = spec.containers.iter().position(|container| !is_dns_label(&container.name))?;
    Some(format!("spec.containers[{index}].name: it is not a name of a container"))
}

/// True if each container gets a request of its own, so that one that fails does not keep the others from being restarted.
pub(super) fn is_separate(object: &RecreateRequest) -> bool {
    let ignores = object.spec.strategy.as_ref().is_some_and(|strategy| strategy.failure_policy == "Ignore");
    ignores && object.spec.containers.len() > 1
}

/// The request for `pod`: for all containers, or for the one that is next in `record`. The error has the fields that cannot be
/// carried out.
pub(super) fn request(
    object: &RecreateRequest,
    pod: &Pod,
    record: &PodRecord,
    seconds: u32,
) -> Result<Request, Vec<String>> {
    let spec = &object.spec;
    let strategy = spec.strategy.clone().unwrap_or_default();
    let mut problems: Vec<_> = spec.unknown.keys().map(|field| unknown(&format!("spec.{field}"))).collect();
    for (index, container) in spec.containers.iter().enumerate() {
        problems.extend(of_container(index, container, pod));
    }
    problems.extend(of_strategy(&strategy));
    if spec.active_deadline_seconds.is_some_and(|own| !(1..=i64::from(MAX_DEADLINE_SECONDS)).contains(&own)) {
        problems.push(format!("spec.activeDeadlineSeconds: 1 to {MAX_DEADLINE_SECONDS}"));
    }
    if spec.ttl_seconds_after_finished.is_some_and(|ttl| ttl < 0) {
        problems.push("spec.ttlSecondsAfterFinished: it is less than 0".to_owned());
    }
    let number = |value: i64| u32::try_from(value).unwrap_or(0);
    let names = spec.containers.iter();
    let names = names.map(|container| ContainerRequest { name: container.name.clone(), image: None });
    let open = record.open_container();
    let mut request = Request {
        each_ready: strategy.ordered_recreate,
        grace_period_seconds: number(strategy.unready_grace_period_seconds.unwrap_or(0)),
        min_ready_seconds: number(strategy.min_started_seconds),
        // OpenKruise knows no other limit for a container that does not become Ready.
        ready_timeout_seconds: seconds,
        termination_grace_period_seconds: strategy.termination_grace_period_seconds.map(number),
        deadline_seconds: seconds,
        reason: format!("ContainerRecreateRequest {}", object.name),
        ..Request::new(request_id(&object.uid, open), names.collect())
    };
    if problems.is_empty()
        && let Err(error) = request.check()
    {
        problems.push(named(&error));
    }
    if let Some(next) = open {
        request.containers = request.containers.into_iter().skip(next).take(1).collect();
    }
    problems.truncate(MAX_PROBLEMS);
    if problems.is_empty() { Ok(request) } else { Err(problems) }
}

fn of_container(index: usize, container: &RecreateContainer, pod: &Pod) -> Vec<String> {
    let at = format!("spec.containers[{index}]");
    let others = container.others.iter().filter(|(_, value)| !value.is_null());
    let mut problems: Vec<_> = others
        .map(|(field, _)| {
            if READ_ONLY.contains(&field.as_str()) {
                format!(
                    "{at}.{field}: it is read-only: remove it; the preStop hook of the pod's container is run"
                )
            } else {
                unknown(&format!("{at}.{field}"))
            }
        })
        .collect();
    if pod.base.image(&container.name).is_none() {
        let name = &container.name;
        problems.push(format!(
            "{at}.name: pod {} has no container `{name}` that can be restarted",
            pod.base.name
        ));
    }
    problems
}

fn of_strategy(strategy: &RecreateStrategy) -> Vec<String> {
    let mut problems: Vec<_> =
        strategy.unknown.keys().map(|field| unknown(&format!("spec.strategy.{field}"))).collect();
    let mut problem = |field: &str, text: String| problems.push(format!("spec.strategy.{field}: {text}"));
    match strategy.failure_policy.as_str() {
        "" | "Fail" | "Ignore" => {}
        other => problem("failurePolicy", format!("`{other}` is none of Fail, Ignore")),
    }
    for (field, value) in [
        ("terminationGracePeriodSeconds", strategy.termination_grace_period_seconds.unwrap_or(0)),
        ("unreadyGracePeriodSeconds", strategy.unready_grace_period_seconds.unwrap_or(0)),
        ("minStartedSeconds", strategy.min_started_seconds),
    ] {
        if !(0..=i64::from(MAX_DEADLINE_SECONDS)).contains(&value) {
            problem(field, format!("0 to {MAX_DEADLINE_SECONDS}"));
        }
    }
    problems
}

fn unknown(field: &str) -> String {
    format!("{field}: this program does not know the field, and leaves nothing out: remove it")
}

/// The problem of a request, with the name that its field has in a `ContainerRecreateRequest`.
fn named(error: &InvalidRequest) -> String {
    let InvalidRequest::Value { field, problem } = error else { return format!("spec: {error}") };
    let field = match field.as_str() {
        "gracePeriodSeconds" => "strategy.unreadyGracePeriodSeconds",
        "minReadySeconds" => "strategy.minStartedSeconds",
        "terminationGracePeriodSeconds" => "strategy.terminationGracePeriodSeconds",
        "deadlineSeconds" => "activeDeadlineSeconds",
        other => other,
    };
    format!("spec.{field}: {}", problem.replace("deadlineSeconds", "what is left of activeDeadlineSeconds:"))
}
