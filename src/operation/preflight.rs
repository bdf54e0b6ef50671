//! Decides once, before anything is touched, whether a request may be executed on a pod.
//!
//! The result is a [`Refusal`] that says what to change, or an [`Admitted`], which only this file can create. It must
//! not plan anything or change anything.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::api::group::GroupTask;
use crate::api::hook_run::HookRunSpec;
use crate::api::pod_ref::PodRef;
use crate::api::request::{InvalidRequest, Order, PreHookPhase, Request, RequestedEngine};
use crate::api::status::ContainerInstance;
use crate::operation::engine::{Choice, Facts, choose, start_first};
use crate::operation::group;
use crate::operation::hook::{Hook, Moment};
use crate::operation::memory::Memory;
use crate::operation::snapshot::{Container, Declared, Gate, Owner, Sandbox, Snapshot, State};
use crate::operation::standby::seconds_to_probe;
use crate::operation::state::{BACK_SPARE_SECONDS, stopping_seconds};

/// Seconds that an operation needs in addition to the containers' grace periods and proving times.
const SPARE_SECONDS: u64 = 5;

/// Kubelet spec hashes by container and image.
pub type Hashes = BTreeMap<String, BTreeMap<String, String>>;

/// The input of the decision: everything that was observed when the request arrived.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The observed pod.
    pub snapshot: Snapshot,
    /// The container runtime of the node.
    pub runtime: Runtime,
    /// Facts about the running containers that the request names, by container name.
    pub sources: BTreeMap<String, Source>,
    /// The hashes that a kubelet wrote on containers of this pod, by container and by the
    /// image in the spec at that time.
    pub hashes: Hashes,
    /// The resolved hooks of the request.
    pub hooks: Hooks,
    /// The memory that is in use; `None` if it was not observed.
    pub memory: Option<Memory>,
    /// The group restart that the request is part of: a container that has ended is started together with the others.
    pub group: Option<GroupTask>,
    /// The current time.
    pub now: Timestamp,
}

/// The resolved hooks of a request; `None` for a hook that it does not name, or when no hooks can be run.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    /// The hook from `preHook`.
    pub pre: Option<Result<HookRunSpec, BadHook>>,
    /// The hook from `postHook`.
    pub post: Option<Result<HookRunSpec, BadHook>>,
}

/// Why a hook cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadHook {
    /// There is no template of that name.
    Missing,
    /// The template cannot be run for this request: the reason, and what to change.
    Invalid(String),
}

/// The container runtime, as it reports itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// `containerd`, `cri-o`, ...
    pub name: String,
    /// The runtime's version.
    pub version: String,
}

impl Runtime {
    /// True for a runtime that refuses a taken name and whose verbose status holds the whole configuration. CRI-O
    /// answers a taken name with the existing container, and cri-dockerd removes that container: on those a fence
    /// protects nothing.
    pub fn has_fences(&self) -> bool {
        self.name == "containerd"
    }
}

/// Facts about one running container as the source of a clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Source {
    /// Why its configuration cannot be cloned without loss; `None` when it can.
    pub not_cloneable: Option<String>,
    /// True when the image that it runs is still on the node.
    pub image_present: bool,
    /// Another reference to the image that runs, in the repository that the spec names: a digest for a tag, or a tag
    /// for a digest. Proven to be the same image; `None` when there is none.
    pub alias: Option<String>,
    /// False when the spec's image reference resolves on this node to another image ID than the running container's.
    pub runs_declared: bool,
    /// True when a kubelet's CPU manager has assigned exclusive CPUs to it, which it would not do for a clone.
    pub has_assigned_cpus: bool,
    /// True when a clone would share the termination message file of the container before it, because the kubelet's
    /// directory is not visible here under its own path.
    pub shares_termination_log: bool,
    /// True when it has devices or block volumes, of which the API server may not know: a device plugin, a claim or a volume
    /// assigned them.
    pub uses_devices: bool,
    /// True when it uses the network of its node.
    pub uses_host_network: bool,
    /// True when its preStop handler connects to the pod.
    pub asks_own_pod: bool,
}

/// Why a request cannot be executed. Nothing was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The annotation is not a valid request.
    #[error("{0}")]
    Invalid(#[from] InvalidRequest),
    /// The ID was executed before. Each ID is executed once.
    #[error(
        "request {0} has already ended on this pod and is not run again: use another id (`#2` in the line form)"
    )]
    AlreadyEnded(String),
    /// The pod does not exist on this node.
    #[error("there is no pod {0} on this node")]
    PodNotFound(String),
    /// The node's pod with the given uid is not the pod that was requested.
    #[error("{0}")]
    IdentityMismatch(String),
    /// The sandbox does not run.
    #[error("the sandbox of pod {0} is not ready: the pod is stopping, or its sandbox must be recreated")]
    SandboxNotReady(Box<PodRef>),
    /// The pod has no such container.
    #[error("pod {pod} has no container {name}; it has {known}")]
    UnknownContainer {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// The names of the pod's containers.
        known: String,
    },
    /// The spec does not declare the container as one that keeps running. A container that a kubelet runs once, or
    /// that another program added, would not be started again.
    #[error(
        "container {name} of pod {pod} is not declared in its spec as a container that keeps running (it may be \
         an init or ephemeral container): only these can be replaced in place: {declared}"
    )]
    UndeclaredContainer {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// The names of the containers that can be replaced.
        declared: String,
    },
    /// The container does not run. Only a running container can be replaced in place.
    #[error("container {name} of pod {pod} is not running: it is {state}. {advice}")]
    NotRunning {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// Its state, with the exit code where there is one.
        state: String,
        /// What the user can do.
        advice: &'static str,
    },
    /// More than one instance of the container runs: something else failed earlier.
    #[error("{count} containers named {name} run in pod {pod}: stop all but one, then make a new request")]
    Duplicate {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// The number of running instances.
        count: usize,
    },
    /// The pod is being deleted. Such a pod is not touched.
    #[error("pod {0} is being deleted")]
    Deleting(Box<PodRef>),
    /// The kubelet terminates the pod, or is about to, without a deletion request.
    #[error("pod {pod} is {why}: its containers are being stopped, so none of them is replaced")]
    Ending {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// Its phase, or what is about to happen to it.
        why: String,
    },
    /// The request asks for a drain, but the pod has no readiness gate that could take it out of traffic.
    #[error(
        "{field} is set, but pod {pod} has no readiness gate that could take it out of traffic, neither InPlaceUpdateReady \
         nor one of the agent's --readiness-gate: remove {field}, or add the gate to the pod's template"
    )]
    NoReadinessGate {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// `gracePeriodSeconds` or `drain`.
        field: &'static str,
    },
    /// The request names a hook, but this agent runs no hooks. Holds the name of the field.
    #[error("{0} is set, but this agent runs no hooks: remove it")]
    HooksUnavailable(&'static str),
    /// The HookTemplate does not exist.
    #[error(
        "{field} names the HookTemplate {name}, which does not exist: create it in namespace {namespace}, or \
         correct the name"
    )]
    HookTemplateMissing {
        /// `preHook` or `postHook`.
        field: &'static str,
        /// The namespace of the pod.
        namespace: String,
        /// The name of the template.
        name: String,
    },
    /// The template cannot be run for this pod and these arguments.
    #[error("{field}: the HookTemplate {name} cannot be run for pod {pod}: {why}")]
    HookTemplateInvalid {
        /// `preHook` or `postHook`.
        field: &'static str,
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name of the template.
        name: String,
        /// Why the template cannot be run.
        why: String,
    },
    /// The requested engine cannot be used for this container.
    #[error("engine {engine:?} cannot be used for container {name} of pod {pod}: {why}")]
    EngineUnavailable {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// The requested engine.
        engine: RequestedEngine,
        /// Why the engine cannot be used.
        why: String,
    },
    /// No engine can be used.
    #[error("container {name} of pod {pod} cannot be restarted in place: {why}")]
    NoEngine {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// The reason for each engine.
        why: String,
    },
    /// The kubelet may delay the container (back-off) and, with its restartPolicy, would then treat it as finished.
    #[error(
        "container {name} of pod {pod} ended recently, and its kubelet may delay its start: with its \
         restartPolicy it would then count as finished. Try again in {seconds} s"
    )]
    BackOff {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// How long the kubelet may delay it.
        seconds: u64,
    },
    /// The container cannot be restarted together with other pods, or cannot wait for them.
    #[error("container {name} of pod {pod} cannot be restarted in this group restart: {why}")]
    CannotWait {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// Why not, and what to change.
        why: String,
    },
    /// No standby can run beside the container.
    #[error(
        "container {name} of pod {pod} cannot be started before the old one is stopped (order StartFirst): {why}. \
         With the order StopFirst it can be replaced"
    )]
    CannotStartFirst {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// Why not.
        why: String,
    },
    /// The runtime is not supported. Holds its name.
    #[error(
        "the runtime is {0}: creating a replacement is safe on containerd only; with other runtimes a cluster is \
         required, where the kubelet creates it"
    )]
    RuntimeUnsupported(String),
    /// The container's configuration cannot be cloned without loss.
    #[error("container {name} of pod {pod} cannot be cloned without loss: {why}")]
    NotCloneable {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// What would be lost.
        why: String,
    },
    /// The running image is no longer on the node: after the stop, the container could not be started again.
    #[error(
        "the image that container {name} of pod {pod} runs is no longer on the node ({image}): pull it first"
    )]
    ImageMissing {
        /// The pod that was requested.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// The missing image.
        image: String,
    },
    /// The image cannot be changed here, because the kubelet takes images from the API server or from a static
    /// manifest and would not know about the change.
    #[error(
        "pod {0} is managed by a kubelet, which takes its images from the API server: swap the image there, or \
         change the manifest of a static pod"
    )]
    KubeletNamesImages(Box<PodRef>),
    /// The deadline is shorter than stopping and observing the containers may take.
    #[error(
        "deadlineSeconds {given} is too short: stopping and observing the containers may take {needed} s"
    )]
    DeadlineTooShort {
        /// The deadline in the request, in seconds.
        given: u32,
        /// The minimum that is needed, in seconds.
        needed: u64,
    },
}

impl Refusal {
    /// One word for programs: the status `reason` and the metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "InvalidRequest",
            Self::AlreadyEnded(_) => "AlreadyEnded",
            Self::PodNotFound(_) => "PodNotFound",
            Self::IdentityMismatch(_) => "IdentityMismatch",
            Self::SandboxNotReady(_) => "SandboxNotReady",
            Self::Deleting(_) | Self::Ending { .. } => "Deleting",
            Self::UnknownContainer { .. } => "UnknownContainer",
            Self::UndeclaredContainer { .. } => "UndeclaredContainer",
            Self::NotRunning { .. } => "NotRunning",
            Self::Duplicate { .. } => "Duplicate",
            Self::NoReadinessGate { .. } => "NoReadinessGate",
            Self::HooksUnavailable(_) => "HooksUnavailable",
            Self::HookTemplateMissing { .. } => "HookTemplateMissing",
            Self::HookTemplateInvalid { .. } => "HookTemplateInvalid",
            Self::EngineUnavailable { .. } => "EngineUnavailable",
            Self::NoEngine { .. } => "NoEngine",
            Self::BackOff { .. } => "BackOff",
            Self::CannotStartFirst { .. } => "CannotStartFirst",
            Self::CannotWait { .. } => "CannotWait",
            Self::RuntimeUnsupported(_) => "RuntimeUnsupported",
            Self::NotCloneable { .. } => "NotCloneable",
            Self::ImageMissing { .. } => "ImageMissing",
            Self::KubeletNamesImages(_) => "KubeletNamesImages",
            Self::DeadlineTooShort { .. } => "DeadlineTooShort",
        }
    }
}

/// A request that can be executed on its pod. Only [`admit`] creates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    request: Request,
    pod: PodRef,
    sandbox_id: String,
    owner: Owner,
    declared: Option<Declared>,
    targets: Vec<AdmittedTarget>,
    hooks: Vec<Hook>,
}

/// The input of a plan.
pub(super) type Parts = (Request, PodRef, String, Owner, Option<Declared>, Vec<AdmittedTarget>, Vec<Hook>);

/// One container of an admitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdmittedTarget {
    pub(super) from: ContainerInstance,
    pub(super) container: Container,
    pub(super) image: Option<String>,
    /// The attempt number of the new container. It is greater than that of every existing container of this name.
    pub(super) next_attempt: u32,
    pub(super) choice: Choice,
    pub(super) shares_termination_log: bool,
    /// The memory that is in use, and that a second container needs; `None` if that is unknown.
    pub(super) room: Option<String>,
}

impl Admitted {
    pub(super) fn into_parts(self) -> Parts {
        (self.request, self.pod, self.sandbox_id, self.owner, self.declared, self.targets, self.hooks)
    }
}

/// Checks `request` against what was observed.
pub fn admit(request: Request, situation: &Situation) -> Result<Admitted, Refusal> {
    request.check()?;
    let snapshot = &situation.snapshot;
    let sandbox = snapshot.sandbox.as_ref().ok_or_else(|| Refusal::PodNotFound(String::new()))?;
    let pod = || Box::new(sandbox.pod.clone());
    let declared = snapshot.declared.as_ref();
    // Checked before the sandbox: the sandbox of a pod that has ended is never ready again.
    if let Some(why) = declared.and_then(|declared| declared.ending.clone()) {
        return Err(Refusal::Ending { pod: pod(), why });
    }
    if !sandbox.ready {
        return Err(Refusal::SandboxNotReady(pod()));
    }
    if declared.is_some_and(|declared| declared.deleting) {
        return Err(Refusal::Deleting(pod()));
    }
    if let Some(field) = request.drained_by()
        && declared.is_none_or(|declared| declared.gate == Gate::Absent)
    {
        return Err(Refusal::NoReadinessGate { pod: pod(), field });
    }
    let hooks = hooks(&request, &sandbox.pod, &situation.hooks)?;
    let own_grace = request.termination_grace_period_seconds.map(|own| Duration::from_secs(own.into()));
    let mut targets = Vec::with_capacity(request.containers.len());
    for target in &request.containers {
        let container = replaceable(
            snapshot,
            sandbox,
            &target.name,
            target.image.is_some() || situation.group.is_some(),
        )?;
        let facts = Facts {
            pod: &sandbox.pod,
            owner: sandbox.owner,
            runtime: &situation.runtime,
            snapshot,
            container,
            image: target.image.as_deref(),
            source: situation.sources.get(&target.name),
            hashes: situation.hashes.get(&target.name),
            memory: situation.memory.as_ref(),
            grace: own_grace.unwrap_or(container.grace),
            in_group: situation.group.is_some(),
            allows_stale_env: request.allow_stale_env,
            now: situation.now,
        };
        let choice = choose(request.engine, &facts)?;
        let room = if request.order == Order::StartFirst {
            start_first(&facts, request.containers.len(), choice.engine)?
        } else {
            None
        };
        targets.push(AdmittedTarget {
            from: choice.before(container),
            choice,
            container: Container { grace: facts.grace, ..container.clone() },
            image: target.image.clone(),
            next_attempt: next_attempt(snapshot, &target.name),
            shares_termination_log: facts.source.is_some_and(|source| source.shares_termination_log),
            room,
        });
    }
    let unfit = |task| group::unfit(task, &targets);
    if let Some((name, why)) = situation.group.as_ref().and_then(unfit) {
        return Err(Refusal::CannotWait { pod: pod(), name, why });
    }
    let graces = targets.iter().map(|target| target.container.grace.as_secs());
    // A standby has the grace period of its container.
    let standbys = graces.clone().filter(|_| request.order == Order::StartFirst);
    let stops = stopping_seconds(graces.chain(standbys));
    let probes = if request.order == Order::StartFirst { seconds_to_probe(&request, snapshot) } else { 0 };
    let waits = u64::from(request.grace_period_seconds)
        + request.seconds_to_prove()
        + request.seconds_to_start_first().max(probes);
    let there = stops.saturating_add(waits + SPARE_SECONDS);
    // The time that `Operation::forward_until` reserves for a rollback must be available in addition.
    let swaps = targets.iter().any(|target| target.image.is_some());
    let back = if swaps { stops.saturating_add(BACK_SPARE_SECONDS).min(there.div_ceil(2)) } else { 0 };
    let needed = there.saturating_add(back);
    if u64::from(request.deadline_seconds) < needed {
        return Err(Refusal::DeadlineTooShort { given: request.deadline_seconds, needed });
    }
    Ok(Admitted {
        request,
        pod: sandbox.pod.clone(),
        sandbox_id: sandbox.id.clone(),
        owner: sandbox.owner,
        declared: snapshot.declared.clone(),
        targets,
        hooks,
    })
}

/// The hooks that the request names, ready to run.
fn hooks(request: &Request, pod: &PodRef, known: &Hooks) -> Result<Vec<Hook>, Refusal> {
    let pre = match request.pre_hook.as_ref().map(|hook| hook.phase).unwrap_or_default() {
        PreHookPhase::Start => Moment::Before,
        PreHookPhase::Handover => Moment::Handover,
    };
    let both = [
        ("preHook", pre, &request.pre_hook, &known.pre),
        ("postHook", Moment::After, &request.post_hook, &known.post),
    ];
    let mut hooks = Vec::new();
    for (field, moment, named, known) in both {
        let Some(named) = named else { continue };
        let name = named.template_name.clone();
        match known {
            None => return Err(Refusal::HooksUnavailable(field)),
            Some(Err(BadHook::Missing)) => {
                return Err(Refusal::HookTemplateMissing { field, namespace: pod.namespace.clone(), name });
            }
            Some(Err(BadHook::Invalid(why))) => {
                let (pod, why) = (Box::new(pod.clone()), why.clone());
                return Err(Refusal::HookTemplateInvalid { field, pod, name, why });
            }
            Some(Ok(spec)) => hooks.push(Hook::new(moment, &pod.name, &request.id, &name, spec.clone())),
        }
    }
    Ok(hooks)
}

fn next_attempt(snapshot: &Snapshot, name: &str) -> u32 {
    snapshot.instances(name).iter().map(|instance| instance.attempt).max().unwrap_or(0).saturating_add(1)
}

/// The instance of `name` that is to be replaced: the running one, or, when it may be `down` and a kubelet tries to start
/// it, the last one.
fn replaceable<'a>(
    snapshot: &'a Snapshot,
    sandbox: &Sandbox,
    name: &str,
    down: bool,
) -> Result<&'a Container, Refusal> {
    let pod = || Box::new(sandbox.pod.clone());
    let instances = snapshot.instances(name);
    let Some(newest) = instances.last() else {
        let known = snapshot.names().join(", ");
        return Err(Refusal::UnknownContainer { pod: pod(), name: name.to_owned(), known });
    };
    if let Some(declared) = snapshot.declared.as_ref().filter(|declared| declared.container(name).is_none()) {
        let declared: Vec<_> = declared.containers.iter().map(|container| container.name.as_str()).collect();
        let declared = declared.join(", ");
        return Err(Refusal::UndeclaredContainer { pod: pod(), name: name.to_owned(), declared });
    }
    let running: Vec<_> = instances.iter().filter(|instance| instance.state == State::Running).collect();
    match running.as_slice() {
        // Created: the kubelet is about to start it again.
        [] if down && snapshot.declared.is_some() && newest.state != State::Unknown => Ok(newest),
        [] => {
            let state = match newest.state {
                State::Exited => format!("exited with code {}", newest.exit_code),
                state => state.to_string(),
            };
            let advice = if sandbox.owner.is_kubelet() {
                "Its kubelet will start it; try again then"
            } else {
                "No kubelet manages it: remove the pod and run it again"
            };
            Err(Refusal::NotRunning { pod: pod(), name: name.to_owned(), state, advice })
        }
        [only] => Ok(only),
        many => Err(Refusal::Duplicate { pod: pod(), name: name.to_owned(), count: many.len() }),
    }
}

#[cfg(test)]
mod tests;
