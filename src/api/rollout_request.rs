//! The request that a rollout has for each of its pods: the conversion of its spec. Checks nothing.

use crate::api::in_place_rollout::{InPlaceRolloutSpec, PodTerms, RolloutContainer};
use crate::api::request::{ContainerRequest, HookArg, HookRef, PreHookPhase, Request};
use crate::api::workload::WorkloadHook;

/// The request `id` of the rollout `name`. Admission rejects numbers out of range; here they become 0.
pub fn request(id: &str, name: &str, spec: &InPlaceRolloutSpec) -> Request {
    // Both sides are written out: a field that is new on one of them and not here does not compile.
    let PodTerms {
        each_ready,
        grace_period_seconds,
        drain,
        pre_hook,
        post_hook,
        min_ready_seconds,
        ready_timeout_seconds,
        termination_grace_period_seconds,
        deadline_seconds,
        on_failure,
        engine,
        order,
        allow_stale_env,
        reason,
    } = spec.pod.clone();
    let target =
        |one: &RolloutContainer| ContainerRequest { name: one.name.clone(), image: one.image.clone() };
    let reason = if reason.is_empty() { format!("InPlaceRollout {name}") } else { reason };
    let seconds = |value: i32| u32::try_from(value).unwrap_or(0);
    Request {
        id: id.to_owned(),
        containers: spec.containers.iter().map(target).collect(),
        each_ready,
        grace_period_seconds: seconds(grace_period_seconds),
        drain,
        pre_hook: pre_hook.as_ref().map(|pre| hook(&pre.hook, pre.phase)),
        post_hook: post_hook.as_ref().map(|post| hook(post, PreHookPhase::Start)),
        min_ready_seconds: seconds(min_ready_seconds),
        ready_timeout_seconds: seconds(ready_timeout_seconds),
        termination_grace_period_seconds: termination_grace_period_seconds.map(seconds),
        deadline_seconds: seconds(deadline_seconds),
        on_failure,
        engine,
        order,
        allow_stale_env,
        reason,
    }
}

fn hook(hook: &WorkloadHook, phase: PreHookPhase) -> HookRef {
    let given = hook
        .args
        .iter()
        .filter_map(|arg| Some(HookArg { name: arg.name.clone(), value: arg.value.clone()? }));
    HookRef { template_name: hook.template_name.clone(), args: given.collect(), phase }
}
