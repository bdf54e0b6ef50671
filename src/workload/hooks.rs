//! The hooks of a workload: which `HookRun` a task needs, whether it lets the task pass, and which runs are over.
//! Runs no hook.
//!
//! A run belongs to one task of one pod: its approval is not valid for another target, and not valid twice.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::api::hook_run::{HookPhase, HookRun};
use crate::api::hook_template::Argument;
use crate::api::request::HookArg;
use crate::api::workload::{HookCondition, WorkloadHook};
use crate::api::{annotation, workload_key};
use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::task::{PodTask, Purpose};
use crate::workload::action::NewHookRun;
use crate::workload::name;
use crate::workload::spec::WorkloadSpec;

/// The action that a hook gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookType {
    /// A deletion, or an update in place that has no hook of its own.
    PreDelete,
    /// An update in place.
    PreInplace,
    /// The next canary step.
    Canary,
}

/// What the cache holds of a `HookRun` of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Name of the run.
    pub name: String,
    /// The action that the run gates.
    pub kind: HookType,
    /// The key of the task or step that the run approves.
    pub key: String,
    /// The uid of the pod that the run belongs to; empty for a canary step.
    pub pod_uid: String,
    /// Phase of the run; `Pending` until it is started.
    pub phase: HookPhase,
    /// True when a person approved it.
    pub approved: bool,
    /// Creation time.
    pub created: Option<Timestamp>,
    /// True when the run is being deleted.
    pub deleting: bool,
}

/// Whether a `HookTemplate` can be used for a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateState {
    /// The template can be used.
    Valid,
    /// The template cannot be used; the sentence says why.
    Invalid(String),
    /// The template does not exist.
    Missing,
}

impl TemplateState {
    /// The state of a template that exists, by what a check of it says.
    pub fn of<T>(checked: Result<T, impl fmt::Display>) -> Self {
        checked.map_or_else(|invalid| Self::Invalid(invalid.to_string()), |_| Self::Valid)
    }

    /// Why the template `name` cannot be used for `user`, if so.
    pub fn problem(&self, name: &str, user: &str) -> Option<String> {
        match self {
            Self::Valid => None,
            Self::Invalid(problem) => {
                Some(format!("HookTemplate {name} cannot be used for {user}: {problem}"))
            }
            Self::Missing => {
                Some(format!("HookTemplate {name} does not exist: create it, {user} waits for it"))
            }
        }
    }
}

/// The `HookTemplate`s of the workload's namespace. Each is checked by the rules of whoever runs the hook.
pub trait HookTemplates: fmt::Debug {
    /// Whether a `HookRun` of this template can be created with these arguments.
    fn for_run(&self, template: &str, args: &[HookArg]) -> TemplateState;

    /// Whether the agent of `pod` can run this template with these arguments, as a hook of a request.
    fn for_agent(&self, template: &str, args: &[HookArg], pod: &Pod) -> TemplateState;
}

/// Whether a task may continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The task may continue.
    Open,
    /// The run does not exist: create it.
    Ask,
    /// The run has not succeeded, or an earlier run of the same name still exists.
    Wait,
}

impl HookType {
    /// The value of the label for the hook type.
    pub fn label(self) -> &'static str {
        match self {
            Self::PreDelete => annotation::PRE_DELETE,
            Self::PreInplace => annotation::PRE_INPLACE,
            Self::Canary => annotation::CANARY,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::PreDelete => "pre-delete-hook",
            Self::PreInplace => "pre-inplace-hook",
            Self::Canary => "canary",
        }
    }

    fn read(label: &str) -> Option<Self> {
        [Self::PreDelete, Self::PreInplace, Self::Canary].into_iter().find(|kind| kind.label() == label)
    }
}

impl Run {
    /// Reads a run; none if it does not belong to a workload but to an operation of an agent.
    pub fn read(run: &HookRun) -> Option<Self> {
        if run.labels().contains_key(annotation::OPERATION) {
            return None;
        }
        let text = |key: &str| run.annotations().get(key).cloned().unwrap_or_default();
        Some(Self {
            name: run.name_any(),
            kind: HookType::read(run.labels().get(annotation::HOOK_TYPE)?)?,
            key: workload_key::task(run.annotations()).cloned().unwrap_or_default(),
            pod_uid: text(workload_key::HOOK_POD),
            phase: run.status.as_ref().and_then(|status| status.phase).unwrap_or(HookPhase::Pending),
            approved: text(annotation::APPROVE) == "true",
            created: run.creation_timestamp().map(|time| time.0),
            deleting: run.metadata.deletion_timestamp.is_some(),
        })
    }

    /// True when the run lets its task pass.
    pub fn has_passed(&self) -> bool {
        self.approved || self.phase == HookPhase::Successful
    }

    /// True when the run will not pass; only a new run can.
    pub fn has_failed(&self) -> bool {
        self.phase.is_completed() && !self.has_passed()
    }

    /// True when the run has failed, and no person has asked for another one.
    pub fn stays_failed(&self) -> bool {
        self.has_failed() && !self.deleting
    }
}

/// The hook that a task with this `purpose` has to pass.
pub fn of(spec: &WorkloadSpec, purpose: Purpose) -> Option<(HookType, &WorkloadHook)> {
    let hooks = &spec.hooks;
    let pre_delete = || hooks.pre_delete.as_ref().map(|hook| (HookType::PreDelete, hook));
    match purpose {
        Purpose::ScaleIn | Purpose::Recreate => pre_delete(),
        Purpose::InPlace => {
            hooks.pre_inplace.as_ref().map(|hook| (HookType::PreInplace, hook)).or_else(pre_delete)
        }
        Purpose::HotPatch => None,
    }
}

/// Whether `task` may continue. A pod that does not run has nothing to prepare, so its gate is open.
pub fn gate(pod: &Pod, task: &PodTask, hook: Option<(HookType, &WorkloadHook)>, runs: &[&Run]) -> Gate {
    let Some((kind, hook)) = hook.filter(|_| pod.phase == PodPhase::Running) else { return Gate::Open };
    let key = task.key();
    if let Some(run) = runs.iter().find(|run| run.kind == kind && run.key == key && !run.deleting) {
        return if run.has_passed() { Gate::Open } else { Gate::Wait };
    }
    let name = run_name(kind, pod, hook);
    if runs.iter().any(|run| run.name == name) { Gate::Wait } else { Gate::Ask }
}

/// The run that `task` needs. `modified` are the containers that get another image.
pub fn run(spec: &WorkloadSpec, pod: &Pod, task: &PodTask, modified: &[String]) -> Option<NewHookRun> {
    let (kind, hook) = of(spec, task.purpose)?;
    let mut args = given(hook);
    args.extend(injected(&spec.namespace, pod));
    if kind == HookType::PreInplace {
        for (at, container) in modified.iter().enumerate() {
            args.push(HookArg { name: format!("ModifiedContainer[{at}]"), value: container.clone() });
        }
    }
    let bounded = |text: &str| name::bounded(text, name::LABEL);
    Some(NewHookRun {
        name: run_name(kind, pod, hook),
        kind,
        template: hook.template_name.clone(),
        args,
        labels: BTreeMap::from([
            (annotation::HOOK_TYPE.to_owned(), kind.label().to_owned()),
            (workload_key::HOOK_REVISION.to_owned(), bounded(&pod.label)),
            (workload_key::HOOK_INSTANCE.to_owned(), bounded(&pod.instance)),
        ]),
        annotations: workload_key::task_annotations(&task.key())
            .into_iter()
            .chain([(workload_key::HOOK_POD.to_owned(), pod.uid.clone())])
            .collect(),
        node: pod.node.clone(),
    })
}

/// The arguments about the pod that every hook gets. An unknown value is omitted: the template's default applies.
pub(crate) fn injected(namespace: &str, pod: &Pod) -> Vec<HookArg> {
    let address = |ip: &Option<String>| ip.clone().unwrap_or_default();
    let about_pod = [
        ("PodName", pod.name.clone()),
        ("PodNamespace", namespace.to_owned()),
        ("PodIP", address(&pod.ip)),
        ("HostIP", address(&pod.host_ip)),
    ];
    let about_pod = about_pod.into_iter().map(|(name, value)| (name.to_owned(), value));
    let containers = pod.images.iter().enumerate();
    let containers = containers.map(|(at, (name, _))| (format!("PodContainer[{at}]"), name.clone()));
    let all = about_pod.chain(containers).filter(|(_, value)| !value.is_empty());
    all.map(|(name, value)| HookArg { name, value }).collect()
}

/// The run of the canary step `index`; `key` identifies steps and revision.
pub fn canary_run(hook: &WorkloadHook, revision: &str, index: usize, key: &str) -> NewHookRun {
    let name = format!("{}-{revision}-{index}-{}", HookType::Canary.prefix(), hook.template_name);
    NewHookRun {
        name: name::bounded(&name, name::NAME),
        kind: HookType::Canary,
        template: hook.template_name.clone(),
        args: given(hook),
        labels: BTreeMap::from([
            (annotation::HOOK_TYPE.to_owned(), HookType::Canary.label().to_owned()),
            (workload_key::HOOK_REVISION.to_owned(), name::bounded(revision, name::LABEL)),
            (workload_key::HOOK_STEP.to_owned(), index.to_string()),
        ]),
        annotations: workload_key::task_annotations(key).into(),
        node: None,
    }
}

/// The arguments that the user gives. An argument without a value is omitted: the template's default applies.
pub(crate) fn given(hook: &WorkloadHook) -> Vec<HookArg> {
    let value = |arg: &Argument| Some(HookArg { name: arg.name.clone(), value: arg.value.clone()? });
    hook.args.iter().filter_map(value).collect()
}

/// The condition that reports a run that has not let its pod pass.
pub fn condition(pod: &Pod, run: &Run) -> Option<HookCondition> {
    let reported = HookCondition {
        pod_name: pod.name.clone(),
        start_time: run.created,
        phase: format!("{:?}", run.phase),
    };
    (!run.has_passed()).then_some(reported)
}

/// `pre-delete-hook-<revision>-<instance>-<template>`; the name of the revision begins with that of the workload.
fn run_name(kind: HookType, pod: &Pod, hook: &WorkloadHook) -> String {
    let name = format!("{}-{}-{}-{}", kind.prefix(), pod.label, pod.instance, hook.template_name);
    name::bounded(&name, name::NAME)
}
