//! What is seen of one pod at one moment, in the words of the decisions.
//!
//! Filled by `cri::convert` from the runtime's answers; holds no environment values and no configuration.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::annotation;
use crate::api::status::Incarnation;

/// One pod as the runtime shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The newest sandbox of the pod; `None` when the runtime knows none.
    pub sandbox: Option<Sandbox>,
    /// All its containers, fences and exited ones too, in no order.
    pub containers: Vec<Container>,
    /// The same pod as the API server shows it; `None` where there is none, or when it does not know the pod.
    pub declared: Option<Declared>,
    /// True when the API server has been heard and does not know the pod: where it knew it before, the pod was deleted by
    /// force. A list of its memory may be older than the pod.
    pub absent: bool,
    /// The names of the `EndpointSlice`s that say it serves; `None` when that is not known, or was not asked for.
    pub serving: Option<Vec<String>>,
}

/// Which pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: a pod of the same name made again is another pod.
    pub uid: String,
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What the API server says of where a pod comes from. Its own word: users can write the annotation of a mirror pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the API server itself.
    Api,
    /// It is called the copy of a pod that a kubelet has from a file or URL.
    Mirror,
    /// There is no API server, or it does not show the pod.
    Unknown,
}

/// The pod's sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's id.
    pub id: String,
    /// Whose it is.
    pub pod: PodRef,
    /// False once it is being stopped or has died.
    pub ready: bool,
    /// Who looks after it.
    pub owner: Owner,
}

/// Who looks after a pod on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A kubelet, from the API server.
    Kubelet,
    /// A kubelet, from a file or URL on the node.
    KubeletStatic,
    /// `inplace node run`.
    NodeRun,
    /// Somebody else, without a kubelet's marks.
    Nobody,
}

impl Owner {
    /// True when a kubelet restarts and cleans up behind the pod.
    pub fn is_kubelet(self) -> bool {
        matches!(self, Self::Kubelet | Self::KubeletStatic)
    }
}

/// A pod as the API server shows it: what is wished of it, and what its kubelet last told. Filled by `cluster::pod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// False while the API server cannot be heard: all of this may be old.
    pub current: bool,
    /// True once its deletion was asked for.
    pub deleting: bool,
    /// Why its kubelet ends it, or is about to, although nobody asked for its deletion: an eviction, a preemption, a
    /// deadline, the shutdown of the node.
    pub ending: Option<String>,
    /// The readiness gate `InPlaceUpdateReady`.
    pub gate: Gate,
    /// The second in which its kubelet said that the pod is to get no traffic; `None` while it is to.
    pub unready_since: Option<Timestamp>,
    /// True when it names secrets to pull images with.
    pub has_pull_secrets: bool,
    /// Its containers that can be replaced: the regular ones, and init containers that stay (native sidecars).
    pub containers: Vec<DeclaredContainer>,
}

/// The readiness gate of a pod and its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The pod's spec has no such gate.
    Absent,
    /// The gate is there, its condition not yet.
    Unset,
    /// The pod may take traffic.
    Open,
    /// The pod takes no traffic; the condition's reason tells who closed it.
    Closed {
        /// The condition's reason.
        reason: String,
    },
}

impl Gate {
    /// True when an operation that failed has left it closed.
    pub fn left_closed(&self) -> bool {
        matches!(self, Self::Closed { reason } if reason == annotation::GATE_FAILED)
    }
}

/// One container as the API server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts, each by itself")]
pub struct DeclaredContainer {
    /// Its name.
    pub name: String,
    /// True for an init container with restartPolicy Always.
    pub sidecar: bool,
    /// The image as the spec spells it.
    pub image: String,
    /// When the kubelet pulls.
    pub pull_policy: PullPolicy,
    /// When its kubelet starts it again: its own policy where it has one, else the pod's.
    pub restart_policy: RestartPolicy,
    /// True when an exit code decides what happens (`restartPolicyRules`).
    pub has_restart_rules: bool,
    /// True when the kubelet runs something in it after each start.
    pub has_post_start: bool,
    /// True when a probe decides whether it is Ready; without one it is as soon as it runs.
    pub is_probed: bool,
    /// Its liveness probe, which goes on while it is stopped.
    pub liveness: Option<Liveness>,
    /// Extended resources that it asks for, by name: what device plugins hand out.
    pub devices: Vec<String>,
    /// True when environment values come from `ConfigMaps`, `Secrets`, or the pod's labels and annotations.
    pub env_from_objects: bool,
    /// True when a part of a volume that follows such an object is mounted (`subPath`), which each start mounts anew.
    pub sub_path_of_objects: bool,
    /// The runtime's id of the life that the kubelet reports, without the runtime's name.
    pub container_id: Option<String>,
    /// Whether the kubelet calls that life Ready.
    pub ready: bool,
    /// Whether the kubelet calls that life running.
    pub running: bool,
    /// The kubelet's restart count.
    pub restarts: u32,
    /// The image id that the kubelet reports.
    pub image_id: String,
}

/// What a liveness probe means for a container that stops (`livenessProbe`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// How long it fails until the kubelet kills the container (`failureThreshold` times `periodSeconds`).
    pub kills_after: Duration,
    /// The grace that the kubelet gives then, where the probe has its own (`terminationGracePeriodSeconds`).
    pub grace: Option<Duration>,
}

/// When a kubelet pulls an image (`imagePullPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before every start: the registry must answer.
    Always,
    /// When it is not there.
    IfNotPresent,
    /// It must be there.
    Never,
}

/// When a kubelet starts a container again (`restartPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whatever its exit code.
    Always,
    /// After a code other than 0.
    OnFailure,
    /// It does not.
    Never,
}

impl Declared {
    /// The container `name`.
    pub fn container(&self, name: &str) -> Option<&DeclaredContainer> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// True once its kubelet ends it, or is about to, whoever asked for that.
    pub fn leaves(&self) -> bool {
        self.deleting || self.ending.is_some()
    }
}

/// One container, or one fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id.
    pub id: String,
    /// Name in the pod spec; for a fence the name it guards.
    pub name: String,
    /// True for a container that only holds a name.
    pub fence: bool,
    /// True for a fence that is no clone of its container: it runs, and does nothing.
    pub holder: bool,
    /// The attempt in its name.
    pub attempt: u32,
    /// Where it stands.
    pub state: State,
    /// The image as the pod names it, or as near to it as the runtime tells.
    pub image: String,
    /// The runtime's id of the image.
    pub image_id: String,
    /// The kubelet's hash of the spec that it was made from; empty where no kubelet's mark is.
    pub spec_hash: String,
    /// The request that made it, when one of ours did.
    pub operation: Option<String>,
    /// When the runtime made it.
    pub created_at: Timestamp,
    /// When its process started.
    pub started_at: Option<Timestamp>,
    /// When its process ended.
    pub finished_at: Option<Timestamp>,
    /// How its process ended.
    pub exit_code: i32,
    /// Seconds it gets to stop, by the pod's spec.
    pub grace: Duration,
    /// True when the pod's spec has a preStop handler for it.
    pub has_pre_stop: bool,
}

/// The runtime's container states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Made, never started.
    Created,
    /// Its process runs.
    Running,
    /// Its process has ended.
    Exited,
    /// The runtime cannot tell.
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
    /// This life of the container, for reports.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation {
            container_id: self.id.clone(),
            attempt: self.attempt,
            image: self.image.clone(),
            image_id: self.image_id.clone(),
        }
    }
}

impl Snapshot {
    /// The container with this id.
    pub fn by_id(&self, id: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// All lives of the container `name`, oldest attempt first; no fences.
    pub fn instances(&self, name: &str) -> Vec<&Container> {
        let mut instances: Vec<_> = self.containers.iter().filter(|c| !c.fence && c.name == name).collect();
        instances.sort_by_key(|container| (container.attempt, container.created_at));
        instances
    }

    /// All fences that guard `name`.
    pub fn fences(&self, name: &str) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(move |container| container.fence && container.name == name)
    }

    /// The lives of `name` that run. More than one is what must never be.
    pub fn running(&self, name: &str) -> Vec<&Container> {
        self.instances(name).into_iter().filter(|container| container.state == State::Running).collect()
    }

    /// The names of the pod's containers, sorted, each once.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> =
            self.containers.iter().filter(|c| !c.fence).map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
