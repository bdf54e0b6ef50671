//! May this request be carried out on this pod? Decided once, before anything is touched.
//!
//! The answer is a [`Refusal`] that says what to change, or an [`Admitted`], which nothing else can make.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::api::hook_run::HookRunSpec;
use crate::api::request::{InvalidRequest, Request, RequestedEngine};
use crate::api::status::Incarnation;
use crate::operation::engine::{Choice, Facts, choose};
use crate::operation::hook::{Hook, Moment};
use crate::operation::snapshot::{Container, Declared, Gate, Owner, PodRef, Sandbox, Snapshot, State};
use crate::operation::state::{BACK_SPARE_SECONDS, stopping_seconds};

/// Seconds that an operation needs beside the containers' own grace and settling times.
const SPARE_SECONDS: u64 = 5;

/// Hashes of specs by container and image.
pub type Hashes = BTreeMap<String, BTreeMap<String, String>>;

/// What is known when a request comes in.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The pod.
    pub snapshot: Snapshot,
    /// The runtime.
    pub runtime: Runtime,
    /// What is known of the containers that the request names and that run, by name.
    pub sources: BTreeMap<String, Source>,
    /// The hashes that a kubelet has written on containers of this pod, by container and the image its spec said then.
    pub hashes: Hashes,
    /// What the hooks that the request names have become.
    pub hooks: Hooks,
    /// The time.
    pub now: Timestamp,
}

/// What the hooks that a request names have become; `None` for one that it does not name, or where no hooks are run.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    /// `preHook`.
    pub pre: Option<Result<HookRunSpec, BadHook>>,
    /// `postHook`.
    pub post: Option<Result<HookRunSpec, BadHook>>,
}

/// Why a hook cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadHook {
    /// There is no template of that name.
    Missing,
    /// The template cannot be run so; why, and what to change.
    Invalid(String),
}

/// The runtime's own word about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// `containerd`, `cri-o`, ...
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Runtime {
    /// True where a taken name is refused and the verbose status holds the whole configuration. CRI-O answers a taken
    /// name with the existing container, cri-dockerd removes it: there a fence is no fence.
    pub fn has_fences(&self) -> bool {
        self.name == "containerd"
    }
}

/// What is known of one running container as the source of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Source {
    /// Why its configuration cannot be cloned without loss; `None` when it can.
    pub not_cloneable: Option<String>,
    /// Whether the image it runs is still on the node.
    pub image_present: bool,
    /// Another spelling of the image that runs, in the repository that the spec names: a digest for a tag, or a tag for
    /// a digest. Proven to be the same image; `None` when there is none.
    pub alias: Option<String>,
    /// False when the node knows the image that the pod's spec names as another one than the one that it runs.
    pub runs_declared: bool,
    /// True when a kubelet's CPU manager has given it CPUs by number, which it would not do for a clone.
    pub has_assigned_cpus: bool,
    /// True when a clone would get the termination message file of the container before it: the kubelet's folder is not
    /// visible here under its own path.
    pub shares_termination_log: bool,
}

/// Why a request cannot be carried out. Nothing was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The annotation is no request.
    #[error("{0}")]
    Invalid(#[from] InvalidRequest),
    /// An id is carried out once.
    #[error("request {0} has ended on this pod before and is not run again: use another id (`#2` in a line)")]
    AlreadyEnded(String),
    /// No such pod on this node.
    #[error("there is no pod {0} on this node")]
    PodNotFound(String),
    /// What the node has under the uid that was given is not the pod that was asked for.
    #[error("{0}")]
    IdentityMismatch(String),
    /// The sandbox does not run.
    #[error("the sandbox of pod {0} is not ready: the pod is stopping, or has to be made again")]
    SandboxNotReady(Box<PodRef>),
    /// The pod has no such container.
    #[error("pod {pod} has no container {name}; it has {known}")]
    UnknownContainer {
        /// The pod.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// The names there are.
        known: String,
    },
    /// What a kubelet runs once, or somebody put beside its containers, would not come back.
    #[error(
        "container {name} of pod {pod} is not one that its spec declares to keep running (an init or ephemeral container, \
         say): only these can be replaced in place: {declared}"
    )]
    UndeclaredContainer {
        /// The pod.
        pod: Box<PodRef>,
        /// The name in the request.
        name: String,
        /// The names that can be replaced.
        declared: String,
    },
    /// Only what runs can be replaced in place.
    #[error("container {name} of pod {pod} is not running: it is {state}. {advice}")]
    NotRunning {
        /// The pod.
        pod: Box<PodRef>,
        /// The container.
        name: String,
        /// Its state, with the exit code where there is one.
        state: String,
        /// What to do.
        advice: &'static str,
    },
    /// Two of one name run: something else went wrong before.
    #[error("{count} containers named {name} run in pod {pod}: stop all but one, then ask again")]
    Duplicate {
        /// The pod.
        pod: Box<PodRef>,
        /// The container.
        name: String,
        /// How many.
        count: usize,
    },
    /// A pod on its way out is not touched.
    #[error("pod {0} is being deleted")]
    Deleting(Box<PodRef>),
    /// Its kubelet ends it, or is about to, although nobody deletes it.
    #[error("pod {pod} is {why}: its containers are being stopped, so none of them is replaced")]
    Ending {
        /// The pod.
        pod: Box<PodRef>,
        /// Its phase, or what is about to happen to it.
        why: String,
    },
    /// A drain that drains nothing is a lie.
    #[error(
        "{field} is set, but pod {pod} has no readiness gate InPlaceUpdateReady that could take it out of \
         traffic: remove {field}, or add the gate to the pod's template"
    )]
    NoReadinessGate {
        /// The pod.
        pod: Box<PodRef>,
        /// `gracePeriodSeconds` or `drain`.
        field: &'static str,
    },
    /// Hooks need what is not there.
    #[error("{0} is set, but this agent runs no hooks: remove it")]
    HooksUnavailable(&'static str),
    /// The template is not there.
    #[error(
        "{field} names the HookTemplate {name}, which is not there: create it in namespace {namespace}, or correct the name"
    )]
    HookTemplateMissing {
        /// `preHook` or `postHook`.
        field: &'static str,
        /// The pod's.
        namespace: String,
        /// The template's.
        name: String,
    },
    /// The template cannot be run for this pod and these arguments.
    #[error("{field}: the HookTemplate {name} cannot be run for pod {pod}: {why}")]
    HookTemplateInvalid {
        /// `preHook` or `postHook`.
        field: &'static str,
        /// The pod.
        pod: Box<PodRef>,
        /// The template's.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The engine asked for cannot be had for this container.
    #[error("engine {engine:?} cannot be used for container {name} of pod {pod}: {why}")]
    EngineUnavailable {
        /// The pod.
        pod: Box<PodRef>,
        /// The container.
        name: String,
        /// The engine.
        engine: RequestedEngine,
        /// Why not.
        why: String,
    },
    /// No engine may do it.
    #[error("container {name} of pod {pod} cannot be restarted in place: {why}")]
    NoEngine {
        /// The pod.
        pod: Box<PodRef>,
        /// The container.
        name: String,
        /// Why not, engine by engine.
        why: String,
    },
    /// A kubelet that holds it back would call it finished.
    #[error(
        "container {name} of pod {pod} ended not long ago, and its kubelet may hold it back: with its restartPolicy it \
         would be lost. Ask again in {seconds} s"
    )]
    BackOff {
        /// The pod.
        pod: Box<PodRef>,
        /// The container.
        name: String,
        /// How long the kubelet may hold it back.
        seconds: u64,
    },
    /// Not on this runtime.
    #[error(
        "the runtime is {0}: creating a replacement is safe on containerd only, elsewhere it takes a cluster, where \
         the kubelet does it"
    )]
    RuntimeUnsupported(String),
    /// Something would be lost.
    #[error("container {name} of pod {pod} cannot be made again faithfully: {why}")]
    NotCloneable {
        /// The pod.
        pod: Box<PodRef>,
        /// The container.
        name: String,
        /// What would be lost.
        why: String,
    },
    /// After the stop it could not be started again.
    #[error(
        "the image that container {name} of pod {pod} runs is no longer on the node ({image}): pull it first"
    )]
    ImageMissing {
        /// The pod.
        pod: Box<PodRef>,
        /// The container.
        name: String,
        /// The image.
        image: String,
    },
    /// The kubelet would not know of it.
    #[error(
        "pod {0} belongs to a kubelet, whose API server names its images: swap it there, or change the manifest of a \
         static pod"
    )]
    KubeletNamesImages(Box<PodRef>),
    /// The container could not even stop in that time.
    #[error("deadlineSeconds {given} is too short: stopping and watching the containers may take {needed} s")]
    DeadlineTooShort {
        /// What was asked for.
        given: u32,
        /// What it takes at least.
        needed: u64,
    },
}

impl Refusal {
    /// One word for programs: status `reason`, metric label.
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
            Self::RuntimeUnsupported(_) => "RuntimeUnsupported",
            Self::NotCloneable { .. } => "NotCloneable",
            Self::ImageMissing { .. } => "ImageMissing",
            Self::KubeletNamesImages(_) => "KubeletNamesImages",
            Self::DeadlineTooShort { .. } => "DeadlineTooShort",
        }
    }
}

/// A request that fits its pod. Made by [`admit`] alone.
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

/// What a plan is made from.
pub(super) type Parts = (Request, PodRef, String, Owner, Option<Declared>, Vec<AdmittedTarget>, Vec<Hook>);

/// One container of an admitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdmittedTarget {
    pub(super) from: Incarnation,
    pub(super) container: Container,
    pub(super) image: Option<String>,
    /// Above every attempt that the name has seen.
    pub(super) next_attempt: u32,
    pub(super) choice: Choice,
    pub(super) shares_termination_log: bool,
}

impl Admitted {
    pub(super) fn into_parts(self) -> Parts {
        (self.request, self.pod, self.sandbox_id, self.owner, self.declared, self.targets, self.hooks)
    }
}

/// Checks `request` against what is seen.
pub fn admit(request: Request, situation: &Situation) -> Result<Admitted, Refusal> {
    request.check()?;
    let snapshot = &situation.snapshot;
    let sandbox = snapshot.sandbox.as_ref().ok_or_else(|| Refusal::PodNotFound(String::new()))?;
    let pod = || Box::new(sandbox.pod.clone());
    let declared = snapshot.declared.as_ref();
    // Before the sandbox: that of a pod that has ended is not ready for good.
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
    let mut targets = Vec::with_capacity(request.containers.len());
    for target in &request.containers {
        let container = replaceable(snapshot, sandbox, &target.name, target.image.is_some())?;
        let facts = Facts {
            pod: &sandbox.pod,
            owner: sandbox.owner,
            runtime: &situation.runtime,
            snapshot,
            container,
            image: target.image.as_deref(),
            source: situation.sources.get(&target.name),
            hashes: situation.hashes.get(&target.name),
            now: situation.now,
        };
        let choice = choose(request.engine, &facts)?;
        targets.push(AdmittedTarget {
            from: choice.before(container),
            choice,
            container: container.clone(),
            image: target.image.clone(),
            next_attempt: next_attempt(snapshot, &target.name),
            shares_termination_log: facts.source.is_some_and(|source| source.shares_termination_log),
        });
    }
    let stops = stopping_seconds(targets.iter().map(|target| target.container.grace.as_secs()));
    let waits = u64::from(request.grace_period_seconds) + request.seconds_to_prove();
    let there = stops.saturating_add(waits + SPARE_SECONDS);
    // What `Operation::forward_until` keeps for the way back of a swap must be left beside the way there.
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

/// The hooks that the request names, ready to be run.
fn hooks(request: &Request, pod: &PodRef, known: &Hooks) -> Result<Vec<Hook>, Refusal> {
    let both = [
        ("preHook", Moment::Before, &request.pre_hook, &known.pre),
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

/// The life of `name` to be replaced: the one that runs, or, where a kubelet tries to bring it up and is to try another
/// image, the last one.
fn replaceable<'a>(
    snapshot: &'a Snapshot,
    sandbox: &Sandbox,
    name: &str,
    swap: bool,
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
        // Created: its kubelet is about to start it once more.
        [] if swap && snapshot.declared.is_some() && newest.state != State::Unknown => Ok(newest),
        [] => {
            let state = match newest.state {
                State::Exited => format!("exited with code {}", newest.exit_code),
                state => state.to_string(),
            };
            let advice = if sandbox.owner.is_kubelet() {
                "Its kubelet will start it; ask again then"
            } else {
                "Nothing supervises it: remove the pod and run it again"
            };
            Err(Refusal::NotRunning { pod: pod(), name: name.to_owned(), state, advice })
        }
        [only] => Ok(only),
        many => Err(Refusal::Duplicate { pod: pod(), name: name.to_owned(), count: many.len() }),
    }
}

#[cfg(test)]
mod tests;
