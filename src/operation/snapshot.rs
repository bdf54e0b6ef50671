//! The observed state of one pod at one moment: its sandbox, its containers and its API object.
//!
//! `cri::convert` fills it from the runtime's responses. It holds no environment values and no configuration, and it
//! decides nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::annotation;
use crate::api::group::GroupPhase;
use crate::api::pod_ref::PodRef;
use crate::api::status::ContainerInstance;
use crate::operation::port::{Listeners, Port};

/// One pod as observed in the runtime and, where there is one, in the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// When its observation began; `None` when it was made at the time of the decision.
    pub observed_at: Option<Timestamp>,
    /// The newest sandbox of the pod; `None` when the runtime has none.
    pub sandbox: Option<Sandbox>,
    /// All its containers in no particular order, including fences and exited containers.
    pub containers: Vec<Container>,
    /// The same pod from the API server; `None` when there is no API server or when it has no such pod.
    pub declared: Option<Declared>,
    /// True when the API server answered and has no such pod. If it had the pod before, the pod was force deleted.
    /// Otherwise this proves nothing: a list served from its cache may be older than the pod.
    pub absent: bool,
    /// The names of the `EndpointSlice`s that list the pod as serving; `None` when this is unknown or was not queried.
    pub serving: Option<Vec<String>>,
    /// How many sockets listen on each port in the pod's network namespace; `None` when it was not observed.
    pub listeners: Option<Listeners>,
    /// The readiness probe that was run in a standby for this snapshot; `None` when none was run.
    pub probed: Option<Probed>,
    /// What is known about the group restart that the operation is part of.
    pub group: GroupSignal,
}

impl Snapshot {
    /// What the runtime has of a pod: nothing from the API server, and nothing that only some snapshots contain.
    pub fn of_runtime(sandbox: Option<Sandbox>, containers: Vec<Container>) -> Self {
        Self {
            observed_at: None,
            sandbox,
            containers,
            declared: None,
            absent: false,
            serving: None,
            listeners: None,
            probed: None,
            group: GroupSignal::Unknown,
        }
    }

    /// Until when a container that is shown as running is known to have run. That is before `now`, because an
    /// observation and what follows it take time, during which the container may have exited.
    pub fn known_until(&self, now: Timestamp) -> Timestamp {
        self.observed_at.map_or(now, |observed_at| observed_at.min(now))
    }
}

/// What an agent knows about a group restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupSignal {
    /// Nothing: there is none, or the API server cannot be reached.
    #[default]
    Unknown,
    /// It has ended, or its rollout was deleted.
    Over,
    /// It is in progress.
    Phase(GroupPhase),
    /// It goes on without the pod, which was not prepared in time.
    LeftOut,
}

/// Where a pod comes from, according to the API server. Not proof by itself: users can write
/// the annotation of a mirror pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Created through the API server.
    Api,
    /// Annotated as the mirror of a static pod, which a kubelet reads from a file or URL.
    Mirror,
    /// There is no API server, or it does not have the pod.
    Unknown,
}

/// The pod's sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's ID of the sandbox.
    pub id: String,
    /// The pod that the sandbox belongs to.
    pub pod: PodRef,
    /// False once the sandbox is being stopped or has died.
    pub ready: bool,
    /// The program that manages the pod.
    pub owner: Owner,
}

/// The program that manages a pod on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A kubelet; the pod comes from the API server.
    Kubelet,
    /// A kubelet; the pod comes from a file or URL on the node.
    KubeletStatic,
    /// `inplace node run`.
    NodeRun,
    /// An unknown program: the sandbox has neither a kubelet's annotation nor the label of `inplace node run`.
    Nobody,
}

impl Owner {
    /// True when a kubelet restarts the pod's containers and removes old ones.
    pub fn is_kubelet(self) -> bool {
        matches!(self, Self::Kubelet | Self::KubeletStatic)
    }
}

/// A pod from the API server: its spec, and the status that its kubelet last reported. Filled by `cluster::pod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// False while the API server is unreachable: every field may be out of date.
    pub current: bool,
    /// True once the pod's deletion was requested.
    pub deleting: bool,
    /// Why the kubelet is terminating the pod, or is about to, without a deletion request: an eviction, a preemption,
    /// a deadline, the shutdown of the node.
    pub ending: Option<String>,
    /// The readiness gate: `InPlaceUpdateReady`, or one that the agent is set to use in its place.
    pub gate: Gate,
    /// Since when the kubelet reports the pod as not Ready, in whole seconds; `None` while it is Ready.
    pub unready_since: Option<Timestamp>,
    /// True when the pod names secrets for pulling images.
    pub has_pull_secrets: bool,
    /// The memory limit of the pod's cgroup in bytes; `None` when its kubelet sets none.
    pub memory_limit: Option<u64>,
    /// The containers that can be replaced: the regular ones and native sidecars (init containers that keep running).
    pub containers: Vec<DeclaredContainer>,
}

/// The readiness gate of a pod and its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The pod's spec has no such gate.
    Absent,
    /// The gate exists; its condition was not set yet.
    Unset,
    /// The condition is True: the pod may receive traffic.
    Open,
    /// The condition is False: the pod receives no traffic. The reason says which operation state closed it.
    Closed {
        /// The condition's reason.
        reason: String,
    },
}

impl Gate {
    /// True when a failed operation left the gate closed.
    pub fn left_closed(&self) -> bool {
        matches!(self, Self::Closed { reason } if reason == annotation::GATE_FAILED)
    }

    /// True when an operation closed the gate for its drain, and nothing has been written since.
    pub fn is_drained(&self) -> bool {
        matches!(self, Self::Closed { reason } if reason == annotation::GATE_DRAIN)
    }
}

/// One container from the API server: the fields of its spec and status that decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts, each by itself")]
pub struct DeclaredContainer {
    /// The container's name.
    pub name: String,
    /// True for an init container with restartPolicy Always.
    pub sidecar: bool,
    /// The image reference exactly as the spec writes it.
    pub image: String,
    /// When the kubelet pulls the image.
    pub pull_policy: PullPolicy,
    /// When the kubelet restarts the container: the container's own policy if it has one, else the pod's.
    pub restart_policy: RestartPolicy,
    /// True when restarts depend on the exit code (`restartPolicyRules`).
    pub has_restart_rules: bool,
    /// True when the container has a postStart handler, which the kubelet runs after each start.
    pub has_post_start: bool,
    /// True when a probe determines Ready. A container without a probe is Ready as soon as it runs.
    pub is_probed: bool,
    /// The readiness probe, if it runs a command in the container. Probes over the network cannot tell the containers of
    /// a pod apart, and neither can a command that connects to a port that they share.
    pub readiness: Option<ExecProbe>,
    /// The liveness probe. The kubelet keeps running it while the container is stopped.
    pub liveness: Option<Liveness>,
    /// True when the container has a startup probe, whose failure makes the kubelet end the container.
    pub has_startup_probe: bool,
    /// The interval between two runs of the startup probe, if it has one.
    pub startup_period: Option<Duration>,
    /// The names of the extended resources that it requests; device plugins provide these.
    pub devices: Vec<String>,
    /// True when environment values come from `ConfigMaps`, `Secrets`, or the pod's labels and annotations.
    pub env_from_objects: bool,
    /// True when a `subPath` of a volume that is filled from such an object is mounted. Each start resolves it again.
    pub sub_path_of_objects: bool,
    /// Where the kubelet takes the user from that it runs as.
    pub user: UserSource,
    /// The runtime's ID of the container instance that the kubelet reports, without the runtime's prefix.
    pub container_id: Option<String>,
    /// True when the kubelet reports this instance as Ready.
    pub ready: bool,
    /// True when the kubelet reports that the startup probe of this instance has passed.
    pub started: bool,
    /// True when the kubelet reports this instance as running.
    pub running: bool,
    /// True when the kubelet reports this instance as created and not started.
    pub unstarted: bool,
    /// The kubelet's restart count.
    pub restarts: u32,
    /// The image ID that the kubelet reports.
    pub image_id: String,
}

/// A readiness probe that runs a command in its container (`readinessProbe.exec`).
#[derive(Clone, PartialEq, Eq)]
pub struct ExecProbe {
    /// The program and its arguments, which may be confidential.
    pub command: Arc<[String]>,
    /// How long after the start of the container it is first run.
    pub initial_delay: Duration,
    /// The interval between two runs.
    pub period: Duration,
    /// How long the command may take.
    pub timeout: Duration,
    /// How often in a row it must pass.
    pub success_threshold: u32,
}

/// The result of a readiness probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// When it ended.
    pub at: Timestamp,
    /// Why it failed.
    pub result: Result<(), String>,
}

impl fmt::Debug for ExecProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecProbe").field("period", &self.period).finish_non_exhaustive()
    }
}

/// What a liveness probe does to a container that is stopping (`livenessProbe`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// How long the probe must fail before the kubelet kills the container (`failureThreshold` times
    /// `periodSeconds`).
    pub kills_after: Duration,
    /// The grace period for that kill, when the probe sets its own (`terminationGracePeriodSeconds`).
    pub grace: Option<Duration>,
}

/// Where a kubelet takes the user of a container from (`runAsUser` and `runAsNonRoot` of the container, else of its
/// pod).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserSource {
    /// From the spec. Also without a spec: then every configuration keeps the user that it has.
    #[default]
    Spec,
    /// From the image: the kubelet writes the user of the image into the configuration.
    Image,
    /// From the image, and the kubelet refuses one that may run as root.
    ImageNotRoot,
}

/// When a kubelet pulls an image (`imagePullPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before every start; the registry must be reachable.
    Always,
    /// When the image is not on the node.
    IfNotPresent,
    /// Never; the image must be on the node.
    Never,
}

/// When a kubelet restarts a container (`restartPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// After every exit code.
    Always,
    /// After every exit code except 0.
    OnFailure,
    /// Never.
    Never,
}

impl Declared {
    /// Returns the container `name`.
    pub fn container(&self, name: &str) -> Option<&DeclaredContainer> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// True once the kubelet terminates the pod or is about to, for whatever reason.
    pub fn leaves(&self) -> bool {
        self.deleting || self.ending.is_some()
    }
}

/// One container instance, or one fence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of the runtime")]
pub struct Container {
    /// The runtime's ID of the container.
    pub id: String,
    /// The container's name in the pod spec; for a fence, the name that it reserves; for a standby, the name of the
    /// container that it stands in for.
    pub name: String,
    /// True for a fence: a container that only reserves a name.
    pub fence: bool,
    /// True for a fence that is not a clone of its container: its process runs and does nothing.
    pub holder: bool,
    /// True for a standby: a container beside the one with this name, which the pod's spec does not name.
    pub standby: bool,
    /// The attempt number in the container's CRI name.
    pub attempt: u32,
    /// The runtime's state of the container.
    pub state: State,
    /// The image reference from the pod spec, or the closest to it that the runtime reports.
    pub image: String,
    /// The runtime's ID of the image.
    pub image_id: String,
    /// The kubelet's hash of the container spec that it was created from; empty without the kubelet's annotation.
    pub spec_hash: String,
    /// The ID of the request that created it, if it was created by this program.
    pub operation: Option<String>,
    /// When the runtime created it.
    pub created_at: Timestamp,
    /// When its process started.
    pub started_at: Option<Timestamp>,
    /// When its process ended.
    pub finished_at: Option<Timestamp>,
    /// The exit code of its process.
    pub exit_code: i32,
    /// Why it was not started; `None` unless a start has failed.
    pub start_error: Option<StartError>,
    /// The grace period for its stop, from the pod's spec.
    pub grace: Duration,
    /// True when the pod's spec has a preStop handler for it.
    pub has_pre_stop: bool,
    /// The TCP and UDP ports that the pod's spec declares for it.
    pub ports: Vec<Port>,
}

/// The failure of a start, as the runtime reports it of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// In the words of the runtime.
    pub message: String,
    /// True when the caller of the start went away: this says nothing about the image.
    pub canceled: bool,
}

/// The runtime's container states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Created, never started.
    Created,
    /// Its process runs.
    Running,
    /// Its process has ended.
    Exited,
    /// The runtime cannot determine the state.
    Unknown,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Unknown => "unknown",
        })
    }
}

impl Container {
    /// True for an instance of a container in the pod's spec, and not for a fence or a standby.
    pub fn is_instance(&self) -> bool {
        !self.fence && !self.standby
    }

    /// True when its process runs, or may run because the runtime cannot report its state.
    pub(super) fn may_run(&self) -> bool {
        matches!(self.state, State::Running | State::Unknown)
    }

    /// This container instance in the form that the status reports.
    pub fn reported(&self) -> ContainerInstance {
        ContainerInstance {
            container_id: self.id.clone(),
            attempt: self.attempt,
            image: self.image.clone(),
            image_id: self.image_id.clone(),
        }
    }
}

impl Snapshot {
    /// Returns the container with this ID.
    pub fn by_id(&self, id: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// All instances of the container `name`, lowest attempt first, without fences and standbys.
    pub fn instances(&self, name: &str) -> Vec<&Container> {
        let mut instances: Vec<_> =
            self.containers.iter().filter(|c| c.is_instance() && c.name == name).collect();
        instances.sort_by_key(|container| (container.attempt, container.created_at));
        instances
    }

    /// All fences that reserve `name`.
    pub fn fences(&self, name: &str) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(move |container| container.fence && container.name == name)
    }

    /// All standbys of `name`.
    pub fn standbys(&self, name: &str) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(move |container| container.standby && container.name == name)
    }

    /// The running instances of `name`. There must never be more than one.
    pub fn running(&self, name: &str) -> Vec<&Container> {
        self.instances(name).into_iter().filter(|container| container.state == State::Running).collect()
    }

    /// The names of the pod's containers, sorted, without duplicates.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> =
            self.containers.iter().filter(|c| c.is_instance()).map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
