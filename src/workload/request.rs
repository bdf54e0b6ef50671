//! What is asked of the agent: which containers get which image, after which grace period, followed by which hook.

use crate::api::pod_template::PodTemplate;
use crate::api::request::{DEADLINE_SECONDS, HookRef, Request, Target};
use crate::api::workload::ContainerOrder;
use crate::workload::hooks;
use crate::workload::pods::{Pod, Templates, View, is_off, left_closed};
use crate::workload::spec::WorkloadSpec;
use crate::workload::task::{PodTask, Purpose};

/// Longest grace period that a request takes.
const MOST_GRACE: u32 = 43_200;

/// The containers of `view` that have to change so that it is at `target`, in the order of the template. Empty: none.
pub fn targets(view: &View<'_>, target: &PodTemplate, templates: &Templates<'_>) -> Vec<Target> {
    let pod = view.pod;
    let from = templates.get(view.revision);
    let mut targets = Vec::new();
    for (name, image) in target.images() {
        let changed = from.is_none_or(|from| from.image(name) != Some(image));
        let off = view.torn && is_off(pod, name, templates);
        if (changed || off) && pod.image(name) != Some(image) {
            targets.push(Target { name: name.to_owned(), image: Some(image.to_owned()) });
        }
    }
    if targets.is_empty() && view.torn && left_closed(pod, templates) {
        // Every image is right, but only an operation that succeeds lets the pod into traffic again.
        targets.extend(closed(pod));
    }
    targets
}

/// The containers of the operation that failed, or all of them, to be started again.
fn closed(pod: &Pod) -> impl Iterator<Item = Target> {
    let failed = |name: &str| {
        let reports = pod.answer.iter().flat_map(|answer| &answer.containers);
        let mut names = reports.map(|report| report.name.as_str()).peekable();
        names.peek().is_none() || names.any(|failed| failed == name)
    };
    let names = pod.images.iter().map(|(name, _)| name);
    names.filter(move |name| failed(name)).map(|name| Target { name: name.clone(), image: None })
}

/// The request of `task`.
pub fn build(spec: &WorkloadSpec, pod: &Pod, task: &PodTask, containers: Vec<Target>) -> Request {
    let mut request = Request::new(task.id(), containers);
    request.reason = format!("{} {}: revision {}", spec.kind_name(), spec.name, task.target);
    if task.purpose == Purpose::HotPatch {
        return request;
    }
    // Without it the next one waits until the one before runs, which is all that the other orders ask for.
    request.each_ready = spec.update.order == ContainerOrder::OrderedReady;
    // Where the user wants no readiness gate there is nothing to drain; where it is only missing, the agent says so.
    if spec.gate || pod.gated {
        request.grace_period_seconds = spec.update.grace.min(MOST_GRACE);
        request.deadline_seconds = request.grace_period_seconds + DEADLINE_SECONDS;
    }
    request.post_hook = spec
        .hooks
        .post_inplace
        .as_ref()
        .map(|hook| HookRef { template_name: hook.template_name.clone(), args: hooks::given(hook) });
    request
}
