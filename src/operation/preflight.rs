//! May this request be carried out on this pod? Decided once, before anything is touched.
//!
//! The answer is a [`Refusal`] that says what to change, or an [`Admitted`], which nothing else can make.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::api::request::{EngineWish, InvalidRequest, Request};
use crate::api::status::Incarnation;
use crate::operation::engine::{Choice, Facts, choose};
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
    /// The time.
    pub now: Timestamp,
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
    /// A drain that drains nothing is a lie.
    #[error(
        "gracePeriodSeconds is set, but pod {0} has no readiness gate InPlaceUpdateReady that could take it out of \
         traffic: remove gracePeriodSeconds, or add the gate to the pod's template"
    )]
    NoReadinessGate(Box<PodRef>),
    /// Hooks need what is not there.
    #[error("{0} is set, but this agent runs no hooks: remove it")]
    HooksUnavailable(&'static str),
    /// The engine asked for cannot be had for this container.
    #[error("engine {engine:?} cannot be used for container {name} of pod {pod}: {why}")]
    EngineUnavailable {
        /// The pod.
        pod: Box<PodRef>,
        /// The container.
        name: String,
        /// The engine.
        engine: EngineWish,
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
            Self::SandboxNotReady(_) => "SandboxNotReady",
            Self::Deleting(_) => "Deleting",
            Self::UnknownContainer { .. } => "UnknownContainer",
            Self::NotRunning { .. } => "NotRunning",
            Self::Duplicate { .. } => "Duplicate",
            Self::NoReadinessGate(_) => "NoReadinessGate",
            Self::HooksUnavailable(_) => "HooksUnavailable",
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
}

/// What a plan is made from.
pub(super) type Parts = (Request, PodRef, String, Owner, Option<Declared>, Vec<AdmittedTarget>);

/// One container of an admitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdmittedTarget {
    pub(super) from: Incarnation,
    pub(super) container: Container,
    pub(super) image: Option<String>,
    /// Above every attempt that the name has seen.
    pub(super) next_attempt: u32,
    pub(super) choice: Choice,
}

impl Admitted {
    pub(super) fn into_parts(self) -> Parts {
        (self.request, self.pod, self.sandbox_id, self.owner, self.declared, self.targets)
    }
}

/// Checks `request` against what is seen.
pub fn admit(request: Request, situation: &Situation) -> Result<Admitted, Refusal> {
    request.check()?;
    let snapshot = &situation.snapshot;
    let sandbox = snapshot.sandbox.as_ref().ok_or_else(|| Refusal::PodNotFound(String::new()))?;
    let pod = || Box::new(sandbox.pod.clone());
    if !sandbox.ready {
        return Err(Refusal::SandboxNotReady(pod()));
    }
    let declared = snapshot.declared.as_ref();
    if declared.is_some_and(|declared| declared.deleting) {
        return Err(Refusal::Deleting(pod()));
    }
    if request.grace_period_seconds > 0 && declared.is_none_or(|declared| declared.gate == Gate::Absent) {
        return Err(Refusal::NoReadinessGate(pod()));
    }
    for (field, hook) in [("preHook", &request.pre_hook), ("postHook", &request.post_hook)] {
        if hook.is_some() {
            return Err(Refusal::HooksUnavailable(field));
        }
    }
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
        });
    }
    let stops = stopping_seconds(targets.iter().map(|target| target.container.grace.as_secs()));
    let waits = u64::from(request.grace_period_seconds) + u64::from(request.min_ready_seconds);
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
    })
}

fn next_attempt(snapshot: &Snapshot, name: &str) -> u32 {
    snapshot.lives(name).iter().map(|life| life.attempt).max().unwrap_or(0).saturating_add(1)
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
    let lives = snapshot.lives(name);
    let Some(newest) = lives.last() else {
        let known = snapshot.names().join(", ");
        return Err(Refusal::UnknownContainer { pod: pod(), name: name.to_owned(), known });
    };
    let running: Vec<_> = lives.iter().filter(|life| life.state == State::Running).collect();
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
mod tests {
    use super::*;
    use crate::operation::fixtures::{ask, find, life, pod, pod_in_cluster, situation, source};

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn every_refusal_has_its_word_and_says_what_to_change() {
        type Change = fn(&mut Situation);
        fn keep(_: &mut Situation) {}
        let cases: [(&str, Change, &str, &str); 21] = [
            ("restart App", keep, "InvalidRequest", "`App` is not a container name"),
            ("restart app", |s| s.snapshot.sandbox = None, "PodNotFound", "no pod"),
            (
                "restart app",
                |s| s.snapshot.sandbox.iter_mut().for_each(|b| b.ready = false),
                "SandboxNotReady",
                "not ready",
            ),
            (
                r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":5}"#,
                keep,
                "NoReadinessGate",
                "remove gracePeriodSeconds",
            ),
            (
                r#"{"containers":[{"name":"app"}],"preHook":{"templateName":"t"}}"#,
                keep,
                "HooksUnavailable",
                "preHook is set",
            ),
            (
                r#"{"containers":[{"name":"app"}],"postHook":{"templateName":"t"}}"#,
                keep,
                "HooksUnavailable",
                "postHook is set",
            ),
            (
                r#"{"containers":[{"name":"app"}],"engine":"Respec"}"#,
                keep,
                "EngineUnavailable",
                "needs an API server",
            ),
            (
                r#"{"containers":[{"name":"app"}],"engine":"Stop"}"#,
                keep,
                "EngineUnavailable",
                "would start the container again",
            ),
            ("restart app", |s| s.runtime.name = "cri-o".into(), "RuntimeUnsupported", "containerd only"),
            ("restart db", keep, "UnknownContainer", "no container db; it has app, side"),
            (
                "restart app",
                |s| find(&mut s.snapshot, "app-2").state = State::Exited,
                "NotRunning",
                "remove the pod and run it again",
            ),
            (
                "restart app",
                |s| s.snapshot.containers.push(life("app", 3, State::Running)),
                "Duplicate",
                "2 containers named app",
            ),
            (
                "swap app=repo/app:v2",
                |s| s.snapshot.sandbox.iter_mut().for_each(|b| b.owner = Owner::Kubelet),
                "KubeletNamesImages",
                "swap it there",
            ),
            (
                "swap app=repo/app:v2",
                |s| s.snapshot.sandbox.iter_mut().for_each(|b| b.owner = Owner::KubeletStatic),
                "KubeletNamesImages",
                "manifest",
            ),
            ("restart app", |s| s.sources.clear(), "NotCloneable", "did not tell"),
            (
                "restart side",
                |s| {
                    s.sources
                        .insert("side".into(), Source { not_cloneable: Some("field 99".into()), ..source() });
                },
                "NotCloneable",
                "field 99",
            ),
            (
                "restart app",
                |s| {
                    s.sources.insert("app".into(), Source { image_present: false, ..source() });
                },
                "ImageMissing",
                "repo/app:v1",
            ),
            (
                r#"{"containers":[{"name":"app"}],"deadlineSeconds":36}"#,
                keep,
                "DeadlineTooShort",
                "may take 37 s",
            ),
            (
                r#"{"containers":[{"name":"app"}],"deadlineSeconds":38,"minReadySeconds":2}"#,
                keep,
                "DeadlineTooShort",
                "may take 39 s",
            ),
            (
                r#"{"containers":[{"name":"app","image":"a:v2"}],"deadlineSeconds":55}"#,
                keep,
                "DeadlineTooShort",
                "may take 56 s",
            ),
            (
                r#"{"containers":[{"name":"app"},{"name":"side"}],"deadlineSeconds":68}"#,
                keep,
                "DeadlineTooShort",
                "may take 69 s",
            ),
        ];
        for (text, change, reason, says) in cases {
            let mut situation = situation(pod(Owner::Nobody));
            change(&mut situation);
            let refusal = ask(text, &situation).unwrap_err();
            assert_eq!(refusal.reason(), reason, "{text}");
            assert!(refusal.to_string().contains(says), "{text}: {refusal}");
        }
    }

    #[test]
    fn what_the_api_server_shows_can_stand_in_the_way() {
        type Change = fn(&mut Declared);
        let drained = r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":20,"deadlineSeconds":57}"#;
        let swapped =
            r#"{"containers":[{"name":"app","image":"a:v2"}],"gracePeriodSeconds":20,"deadlineSeconds":98}"#;
        let (short, keep): (_, Change) = (drained.replace("57", "56"), |_| {});
        let cases: [(&str, Change, &str, &str); 7] = [
            ("restart app", keep, "", ""),
            ("restart app", |it| it.deleting = true, "Deleting", "is being deleted"),
            (drained, keep, "", ""),
            (drained, |it| it.gate = Gate::Unset, "", ""),
            (drained, |it| it.gate = Gate::Absent, "NoReadinessGate", "add the gate to the pod's template"),
            // The drain is part of what it takes.
            (&short, keep, "DeadlineTooShort", "may take 57 s"),
            (swapped, keep, "", ""),
        ];
        for (text, change, reason, says) in cases {
            let mut situation = situation(pod_in_cluster());
            change(situation.snapshot.declared.as_mut().unwrap());
            match ask(text, &situation) {
                Ok(_) => assert_eq!(reason, "", "{text}"),
                Err(refusal) => {
                    assert_eq!(refusal.reason(), reason, "{text}: {refusal}");
                    assert!(refusal.to_string().contains(says), "{text}: {refusal}");
                }
            }
        }
    }

    #[test]
    fn what_is_admitted_gets_an_attempt_above_all_that_the_name_has_seen() {
        let mut situation = situation(pod(Owner::Kubelet));
        situation.snapshot.containers.push(life("app", 7, State::Created));
        let (.., targets) = ask("restart app,side", &situation).unwrap().into_parts();
        assert_eq!(targets.iter().map(|target| target.next_attempt).collect::<Vec<_>>(), [8, 3]);
    }

    #[test]
    fn the_shortest_deadline_that_is_admitted_leaves_time_to_begin() {
        for (text, admitted) in [
            (r#"{"containers":[{"name":"app"}],"deadlineSeconds":37}"#, 5),
            (r#"{"containers":[{"name":"app","image":"a:v2"}],"deadlineSeconds":56}"#, 5),
            (
                r#"{"containers":[{"name":"app","image":"a:v2"}],"deadlineSeconds":600,"minReadySeconds":520}"#,
                6,
            ),
        ] {
            let operation = crate::operation::fixtures::Bench::new(text, pod(Owner::Nobody)).operation;
            let left = operation.touch_until().duration_since(operation.begun_at).as_secs();
            assert_eq!(left, admitted, "{text}");
        }
    }
}
