//! Builds the `InPlaceRollout` for a command line, and checks the command line against the workload. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::api::hook_template::Argument;
use crate::api::in_place_rollout::{
    InPlaceRollout, InPlaceRolloutSpec, PodTerms, RolloutContainer, RolloutPreHook, RolloutTarget, first,
};
use crate::api::request::{ContainerRequest, HookRef, Request};
use crate::api::workload::{UpdateFailurePolicy, WorkloadHook, nothing, quarter, yes};
use crate::api::workload_kind::Kind;
use crate::cli::in_place_rollout::flags::{Labels, RolloutFlags, Share, TTL};
use crate::cli::in_place_rollout::names::WorkloadName;
use crate::cli::span::Seconds;

/// The pods that a rollout selects. `Display` is for people.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Whose {
    Workload(WorkloadName),
    Labels(Labels),
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workload(name) => name.fmt(f),
            Self::Labels(labels) => write!(f, "the pods with {}", labels.text()),
        }
    }
}

impl Labels {
    /// The labels in the syntax of the API server's label selector.
    pub(in crate::cli) fn text(&self) -> String {
        self.0.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    }
}

impl Whose {
    fn target(&self) -> RolloutTarget {
        match self {
            Self::Workload(name) => {
                RolloutTarget { workload_ref: Some(name.reference()), ..RolloutTarget::default() }
            }
            Self::Labels(labels) => {
                let match_labels: BTreeMap<_, _> = labels.0.iter().cloned().collect();
                let selector = LabelSelector { match_labels: Some(match_labels), ..LabelSelector::default() };
                RolloutTarget { selector: Some(selector), ..RolloutTarget::default() }
            }
        }
    }

    /// True when `rollout` selects the same pods.
    pub(super) fn is_target_of(&self, rollout: &InPlaceRollout) -> bool {
        let (mine, its) = (self.target(), &rollout.spec.target);
        let named = |target: &RolloutTarget| {
            target
                .workload_ref
                .as_ref()
                .map(|found| (found.kind.clone(), Kind::of(found), found.name.clone()))
        };
        named(&mine) == named(its) && mine.selector == its.selector
    }
}

/// Builds the rollout that applies `request` to the pods of `whose`.
pub(super) fn draft(verb: &str, whose: &Whose, request: Request, flags: &RolloutFlags) -> InPlaceRollout {
    let prefix = match whose {
        Whose::Workload(name) => name.name.as_str(),
        Whose::Labels(_) => "pods",
    };
    let share = |given: &Option<Share>, default: IntOrString| {
        given.as_ref().map_or(default, |Share(amount)| amount.clone())
    };
    let ttl = flags.ttl.map_or(Some(TTL), |ttl| ttl.0);
    let containers = request
        .containers
        .iter()
        .map(|target| RolloutContainer { name: target.name.clone(), image: target.image.clone() });
    let (strategy, together) = flags.group.strategy();
    let spec = InPlaceRolloutSpec {
        target: whose.target(),
        containers: containers.collect(),
        strategy,
        together,
        max_unavailable: share(&flags.max_unavailable, quarter()),
        partition: share(&flags.partition, nothing()),
        priority: Vec::new(),
        paused: flags.paused,
        failure_threshold: share(&flags.failure_threshold, first()),
        on_failure: flags
            .on_rollout_failure
            .map_or(UpdateFailurePolicy::default(), UpdateFailurePolicy::from),
        prefetch: yes(),
        allow_template_drift: flags.allow_template_drift,
        deadline_seconds: flags.rollout_deadline.map(|Seconds(seconds)| whole(seconds)),
        progress_deadline_seconds: flags.progress_deadline.map(|Seconds(seconds)| whole(seconds)),
        ttl_seconds_after_finished: ttl.map(|Seconds(seconds)| whole(seconds)),
        pod: terms(request),
    };
    let metadata = ObjectMeta { generate_name: Some(format!("{prefix}-{verb}-")), ..ObjectMeta::default() };
    InPlaceRollout { metadata, spec, status: None }
}

/// The fields of a request that apply to each pod.
fn terms(request: Request) -> PodTerms {
    let hook = |hook: HookRef| WorkloadHook {
        template_name: hook.template_name,
        args: hook.args.into_iter().map(|arg| Argument { name: arg.name, value: Some(arg.value) }).collect(),
    };
    // Both sides are written out: a field that is new on one of them and not here does not compile.
    let Request {
        id: _,
        containers: _,
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
    } = request;
    PodTerms {
        each_ready,
        grace_period_seconds: whole(grace_period_seconds),
        drain,
        pre_hook: pre_hook.map(|pre| RolloutPreHook { phase: pre.phase, hook: hook(pre) }),
        post_hook: post_hook.map(hook),
        min_ready_seconds: whole(min_ready_seconds),
        ready_timeout_seconds: whole(ready_timeout_seconds),
        termination_grace_period_seconds: termination_grace_period_seconds.map(whole),
        deadline_seconds: whole(deadline_seconds),
        on_failure,
        engine,
        order,
        allow_stale_env,
        reason,
    }
}

fn whole(seconds: u32) -> i32 {
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// Name and image of the containers of a pod spec that can be replaced: the regular ones, and init containers
/// with `restartPolicy: Always` (native sidecars).
pub(super) fn replaceable(spec: &Value) -> Vec<(String, String)> {
    let list = |field: &str| spec[field].as_array().cloned().unwrap_or_default();
    let stays = |init: &Value| init["restartPolicy"] == "Always";
    let sidecars = list("initContainers").into_iter().filter(stays);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = list("containers").into_iter().chain(sidecars);
    all.map(|container| (text(&container["name"]), text(&container["image"]))).collect()
}

/// The containers to restart: the named ones, or the only one that exists.
pub(super) fn restarts(
    whose: &Whose,
    known: &[(String, String)],
    named: &[String],
) -> Result<Vec<ContainerRequest>, String> {
    let target = |name: &str| ContainerRequest { name: name.to_owned(), image: None };
    match (named, known) {
        ([], [(only, _)]) => Ok(vec![target(only)]),
        ([], many) => Err(format!("{whose} has several containers: select with -c ({})", names(many))),
        (named, _) => Ok(named.iter().map(|name| target(name)).collect()),
    }
}

/// Refuses containers that `subject` does not have.
pub(super) fn check(
    subject: &str,
    known: &[(String, String)],
    targets: &[ContainerRequest],
) -> Result<(), String> {
    match targets.iter().find(|target| known.iter().all(|(name, _)| *name != target.name)) {
        Some(missing) => Err(format!("{subject} has no container {}; it has {}", missing.name, names(known))),
        None => Ok(()),
    }
}

/// Refuses images that differ from the template's, unless `allowed` is set.
pub(super) fn check_drift(
    whose: &Whose,
    known: &[(String, String)],
    targets: &[ContainerRequest],
    allowed: bool,
) -> Result<(), String> {
    let drift = targets.iter().find_map(|target| {
        let (_, in_template) = known.iter().find(|(name, _)| *name == target.name)?;
        let wanted = target.image.as_ref().filter(|image| *image != in_template)?;
        Some((&target.name, in_template, wanted))
    });
    match drift.filter(|_| !allowed) {
        Some((name, in_template, wanted)) => Err(format!(
            "the template of {whose} names {name}={in_template}, not {wanted}: every new pod would have \
             {in_template} again. Nothing was created; set --allow-template-drift to swap anyway"
        )),
        None => Ok(()),
    }
}

fn names(known: &[(String, String)]) -> String {
    known.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}
