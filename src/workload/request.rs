//! Builds the request to the agent: which containers get which image, after which grace period, followed by which
//! hook. Writes nothing.

use std::collections::BTreeSet;

use crate::api::pod_template::PodTemplate;
use crate::api::request::{ContainerRequest, HookRef, MAX_DEADLINE_SECONDS, Order, PreHookPhase, Request};
use crate::api::workload::ContainerOrder;
use crate::podtask::foreign::ForeignUpdate;
use crate::podtask::pod::Pod;
use crate::podtask::start_first;
use crate::podtask::task::{PodTask, Purpose};
use crate::workload::environment;
use crate::workload::hooks;
use crate::workload::input::ReconcileInput;
use crate::workload::spec::WorkloadSpec;
use crate::workload::view::{PodView, Templates, is_off, left_closed, left_environments};

/// Maximum grace period of a request, in seconds.
const MAX_GRACE_SECONDS: u32 = 43_200;

/// The containers of `view` that have to change to be at `target`, in the order of the template. Empty: none. Without an image,
/// a container is restarted, because its environment takes a label or an annotation that changes.
pub fn targets(view: &PodView<'_>, target: &PodTemplate, templates: &Templates<'_>) -> Vec<ContainerRequest> {
    let pod = view.pod;
    let from = templates.get(view.revision);
    let restarts = restarts(view, target, templates);
    let mut targets = Vec::new();
    for (name, image) in target.images() {
        let changed = from.is_none_or(|from| from.image(name) != Some(image));
        let unwritten = |update: &ForeignUpdate| update.unwritten.iter().any(|unwritten| unwritten == name);
        let off = view.between_revisions
            && (is_off(pod, name, templates) || pod.foreign.as_ref().is_some_and(unwritten));
        if (changed || off) && pod.image(name) != Some(image) {
            targets.push(ContainerRequest { name: name.to_owned(), image: Some(image.to_owned()) });
        } else if restarts.contains(name) {
            targets.push(ContainerRequest { name: name.to_owned(), image: None });
        }
    }
    if targets.is_empty() && view.between_revisions && left_closed(pod, templates) {
        // All images are right, but only an operation that succeeds opens the readiness gate again.
        targets.extend(closed(pod));
    }
    targets
}

/// The containers whose environment is not that of `target`. A task that failed after it touched the pod may have restarted
/// them with the labels and annotations of its own target.
fn restarts<'t>(view: &PodView<'_>, target: &'t PodTemplate, templates: &Templates<'_>) -> BTreeSet<&'t str> {
    let from = templates.get(view.revision).copied();
    let left = left_environments(view.pod, templates);
    from.into_iter().chain(left).flat_map(|from| environment::restarted(from, target)).collect()
}

/// The containers to restart: those of the failed operation, or all when it names none.
fn closed(pod: &Pod) -> impl Iterator<Item = ContainerRequest> {
    let failed = |name: &str| {
        let reports = pod.answer.iter().flat_map(|answer| &answer.containers);
        let mut names = reports.map(|report| report.name.as_str()).peekable();
        names.peek().is_none() || names.any(|failed| failed == name)
    };
    let names = pod.images.iter().map(|(name, _)| name);
    names.filter(move |name| failed(name)).map(|name| ContainerRequest { name: name.clone(), image: None })
}

/// The order of the request for these containers. `None`: not yet, because one of them runs and is not Ready.
pub fn order(
    input: &ReconcileInput<'_>,
    view: &PodView<'_>,
    containers: &[ContainerRequest],
) -> Option<Order> {
    let names = containers.iter().map(|container| container.name.as_str());
    // A pod that is Ready serves, also one between two revisions. One that is not is repaired if a failed task, or the
    // update that is aborted, left it as it is.
    let is_broken = view.between_revisions && !view.is_only_resized(&input.revisions);
    let repairs = !view.ready && (is_broken || input.aborts);
    start_first::order(input.spec.update.order, view.pod, names, repairs)
}

/// The request of `task`.
pub fn build(
    spec: &WorkloadSpec,
    pod: &Pod,
    task: &PodTask,
    containers: Vec<ContainerRequest>,
    order: Order,
) -> Request {
    let mut request = Request::new(task.id(), containers);
    request.order = order;
    request.reason = format!("{} {}: revision {}", spec.kind_name(), spec.name, task.target);
    let grace = start_first::grace_seconds(&spec.template);
    let missing = start_first::missing_seconds(order, request.containers.len(), grace);
    request.deadline_seconds = request.deadline_seconds.saturating_add(missing).min(MAX_DEADLINE_SECONDS);
    if task.purpose == Purpose::HotPatch {
        prove(&mut request, spec);
        return request;
    }
    // Without this flag a container waits until the one before runs; the other orders require no more.
    request.each_ready = spec.update.policy == ContainerOrder::OrderedReady;
    // If the user disabled the readiness gate, there is no traffic to drain; if it is merely missing, the agent
    // reports that.
    if spec.gate || pod.gated {
        request.grace_period_seconds = spec.update.grace.min(MAX_GRACE_SECONDS);
        let deadline = request.deadline_seconds.saturating_add(request.grace_period_seconds);
        request.deadline_seconds = deadline.min(MAX_DEADLINE_SECONDS);
    }
    prove(&mut request, spec);
    request.post_hook = spec.hooks.post_inplace.as_ref().map(|hook| HookRef {
        template_name: hook.template_name.clone(),
        args: hooks::given(hook),
        phase: PreHookPhase::Start,
    });
    request
}

/// Sets how long the new containers must stay up before the agent accepts them, and extends the deadline by that time,
/// and by the time that the proof of a standby takes. What the longest deadline has no room for is left to
/// `minReadySeconds` of the workload itself.
fn prove(request: &mut Request, spec: &WorkloadSpec) {
    let each =
        if request.each_ready { u32::try_from(request.containers.len()).unwrap_or(1).max(1) } else { 1 };
    let standby = u32::from(request.order == Order::StartFirst);
    let most = MAX_DEADLINE_SECONDS.saturating_sub(request.deadline_seconds) / (each + standby);
    let desired = u32::try_from(spec.min_ready.as_secs()).unwrap_or(u32::MAX);
    request.min_ready_seconds = desired.min(most);
    let standby = u32::try_from(request.seconds_to_start_first()).unwrap_or(u32::MAX);
    let proofs = (request.min_ready_seconds * each).saturating_add(standby);
    request.deadline_seconds = request.deadline_seconds.saturating_add(proofs).min(MAX_DEADLINE_SECONDS);
}
