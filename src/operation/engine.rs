//! Chooses the engine that replaces a container, with the reason: what each engine may do to which container.
//!
//! For a restart, `Auto` takes the first engine that is allowed: Recreate, Respec, Stop. For a swap in a
//! cluster it takes Respec, or Recreate if the spec already names the image; without a cluster it takes Recreate.
//! Whatever an engine may not do is a [`Refusal`] with the reason. It executes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::image::may_move;
use crate::api::pod_ref::PodRef;
use crate::api::request::RequestedEngine;
use crate::api::status::{ContainerInstance, Engine};
use crate::operation::memory::Memory;
use crate::operation::preflight::{Refusal, Runtime, Source};
use crate::operation::snapshot::{
    Container, DeclaredContainer, Owner, PullPolicy, RestartPolicy, Snapshot, State,
};
use crate::operation::spec_hash;

/// The longest time that a kubelet delays a container after it ended (the cap of its back-off).
pub(super) const MAX_BACK_OFF: SignedDuration = SignedDuration::from_secs(300);

/// The engine chosen for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) engine: Engine,
    pub(super) why: String,
    /// For [`Engine::Respec`]: the change to the pod spec.
    pub(super) change: Option<SpecChange>,
}

impl Choice {
    /// The instance that is to be replaced, with its image as the pod's spec writes it. A rollback restores that
    /// reference, whatever name the runtime uses.
    pub(super) fn before(&self, container: &Container) -> ContainerInstance {
        let mut before = container.reported();
        if let Some(change) = &self.change {
            before.image.clone_from(&change.from);
        }
        before
    }
}

/// The change of an image in a pod's spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecChange {
    /// The image before the change.
    pub from: String,
    /// The image after the change.
    pub to: String,
    /// True when this program may create a clone in place of a container that a kubelet delays.
    pub cloneable: bool,
    /// The hash that the kubelet expects on a container created from the changed spec, when it is known for certain.
    pub hash: Option<String>,
    /// False while the container appears to run something other than the spec says: the
    /// kubelet may be about to replace it.
    #[serde(default)]
    pub settled: bool,
}

/// The input of the choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) pod: &'a PodRef,
    pub(super) owner: Owner,
    pub(super) runtime: &'a Runtime,
    pub(super) snapshot: &'a Snapshot,
    /// The instance that is to be replaced.
    pub(super) container: &'a Container,
    /// The requested image; `None` for a restart.
    pub(super) image: Option<&'a str>,
    pub(super) source: Option<&'a Source>,
    /// The memory that is in use.
    pub(super) memory: Option<&'a Memory>,
    /// The hashes that the kubelet wrote on it earlier, by the image in the spec at that time.
    pub(super) hashes: Option<&'a BTreeMap<String, String>>,
    /// How long it has to stop: that of its pod, or that of the request.
    pub(super) grace: Duration,
    /// True in a group restart, whose request is in no annotation of the pod.
    pub(super) in_group: bool,
    /// Whether the environment of a clone may have values of objects that have changed since.
    pub(super) allows_stale_env: bool,
    pub(super) now: Timestamp,
}

impl Facts<'_> {
    #[expect(clippy::unnecessary_box_returns, reason = "what refusals hold")]
    fn pod(&self) -> Box<PodRef> {
        Box::new(self.pod.clone())
    }

    fn declared(&self) -> Option<&DeclaredContainer> {
        self.snapshot.declared.as_ref()?.container(&self.container.name)
    }

    /// True where an API server defines the pod's images.
    fn in_cluster(&self) -> bool {
        self.snapshot.declared.is_some()
    }

    fn unavailable(&self, engine: RequestedEngine, why: &str) -> Refusal {
        Refusal::EngineUnavailable {
            pod: self.pod(),
            name: self.container.name.clone(),
            engine,
            why: why.to_owned(),
        }
    }
}

/// The engine for `requested`, or why there is none.
pub(super) fn choose(requested: RequestedEngine, facts: &Facts<'_>) -> Result<Choice, Refusal> {
    match requested {
        RequestedEngine::Recreate => recreate(facts).map(|why| by(Engine::Recreate, why)),
        RequestedEngine::Respec => respec(facts),
        RequestedEngine::Stop => stop(facts).map(|why| by(Engine::Stop, why)),
        RequestedEngine::Auto if !facts.in_cluster() => recreate(facts).map(|why| by(Engine::Recreate, why)),
        RequestedEngine::Auto if facts.image.is_some() => match (respec(facts), recreate(facts)) {
            (Ok(choice), _) => Ok(choice),
            // The spec already names this image, and only the tag resolves to another one now:
            // there is no change for the kubelet.
            (Err(_), Ok(why)) => Ok(by(Engine::Recreate, why)),
            (Err(refusal), Err(_)) => Err(refusal),
        },
        RequestedEngine::Auto => any(facts),
    }
}

fn by(engine: Engine, why: &str) -> Choice {
    Choice { engine, why: why.to_owned(), change: None }
}

/// The first engine that may restart the container.
fn any(facts: &Facts<'_>) -> Result<Choice, Refusal> {
    let not_recreate = match recreate(facts) {
        Ok(why) => return Ok(by(Engine::Recreate, why)),
        Err(refusal) => refusal,
    };
    let not_respec = match respec(facts) {
        Ok(choice) => return Ok(Choice { why: format!("{}; {not_recreate}", choice.why), ..choice }),
        // The user should ask again later; a weaker engine now is not the better choice.
        Err(refusal @ Refusal::BackOff { .. }) => return Err(refusal),
        Err(refusal) => refusal,
    };
    match stop(facts) {
        Ok(why) => Ok(by(Engine::Stop, &format!("{why}; {not_recreate}; {not_respec}"))),
        Err(not_stop) => Err(Refusal::NoEngine {
            pod: facts.pod(),
            name: facts.container.name.clone(),
            why: format!("{not_recreate}; {not_respec}; {not_stop}"),
        }),
    }
}

/// Decides whether the container may be created again through the runtime's socket.
fn recreate(facts: &Facts<'_>) -> Result<&'static str, Refusal> {
    if facts.image.is_some() && facts.owner.is_kubelet() {
        let same = facts.declared().is_some_and(|declared| Some(declared.image.as_str()) == facts.image);
        if !same || facts.owner == Owner::KubeletStatic {
            return Err(Refusal::KubeletNamesImages(facts.pod()));
        }
    }
    // In a swap the values of the environment are the present ones, whoever creates the container.
    clone(&Facts { allows_stale_env: facts.allows_stale_env && facts.image.is_none(), ..*facts })?;
    Ok(match (facts.image, facts.in_cluster()) {
        (Some(_), true) => "the pod's spec already names this image, but it now resolves to another image ID",
        (_, true) if facts.declared().is_some_and(|declared| declared.env_from_objects) => {
            "its configuration can be cloned, with the environment that it was created with (allowStaleEnv), and its kubelet \
             adopts the clone"
        }
        (_, true) => "its configuration can be cloned, and its kubelet adopts the clone",
        (_, false) => {
            "the runtime reports the whole configuration and rejects duplicate names; no API server is needed"
        }
    })
}

/// Decides whether a clone may replace the container, whatever its image.
fn clone(facts: &Facts<'_>) -> Result<(), Refusal> {
    if !facts.runtime.has_fences() {
        return Err(Refusal::RuntimeUnsupported(facts.runtime.name.clone()));
    }
    let name = || facts.container.name.clone();
    let not = |why: &str| Err(Refusal::NotCloneable { pod: facts.pod(), name: name(), why: why.to_owned() });
    let Some(source) = facts.source else { return not("the runtime did not report its configuration") };
    if let Some(why) = &source.not_cloneable {
        return not(why);
    }
    if source.has_assigned_cpus && facts.owner.is_kubelet() {
        return not("its kubelet has assigned exclusive CPUs to it");
    }
    if let Some(declared) = facts.declared() {
        if declared.restart_policy != RestartPolicy::Always {
            return not(
                "its restartPolicy is not Always: its kubelet might treat it as finished between stop and start",
            );
        }
        if declared.has_restart_rules {
            return not("its kubelet acts on its exit code (restartPolicyRules)");
        }
        if declared.has_post_start {
            return not("it has a postStart handler, which its kubelet runs");
        }
        if declared.env_from_objects && !facts.allows_stale_env {
            return not(
                "its environment comes from objects that may have changed, which its kubelet reads again",
            );
        }
        // The files that it was created with are removed when an object changes: a clone could not start.
        if declared.sub_path_of_objects {
            return not(
                "it mounts a subPath of objects that may have changed, which its kubelet mounts again",
            );
        }
    }
    if !source.image_present {
        let image = facts.container.image.clone();
        return Err(Refusal::ImageMissing { pod: facts.pod(), name: name(), image });
    }
    Ok(())
}

/// Decides whether a standby may run beside the container. Returns what is known about the memory for both.
pub(super) fn start_first(
    facts: &Facts<'_>,
    containers: usize,
    engine: Engine,
) -> Result<Option<String>, Refusal> {
    let not = |why: String| {
        Err(Refusal::CannotStartFirst { pod: facts.pod(), name: facts.container.name.clone(), why })
    };
    let Some(declared) = facts.declared().filter(|_| facts.owner.is_kubelet()) else {
        return not(
            "it needs a cluster, where the agent's image counts the pod's listening sockets".to_owned()
        );
    };
    if containers > 1 {
        return not(format!("the request names {containers} containers; request one after the other"));
    }
    if engine == Engine::Stop {
        return not("the engine Stop leaves the attempt numbers to the kubelet".to_owned());
    }
    if facts.container.state != State::Running {
        return not(format!("it does not run: it is {}", facts.container.state));
    }
    if !declared.ready {
        return not("it is not Ready, so that there is nothing to compare a second one with".to_owned());
    }
    if let Err(refusal) = clone(facts) {
        return not(refusal.to_string());
    }
    if facts.source.is_some_and(|source| source.uses_host_network) {
        return not(
            "its pod uses the network of the node, where the sockets of other processes count too".to_owned()
        );
    }
    if facts.source.is_some_and(|source| source.asks_own_pod) {
        return not(
            "its preStop handler connects to the pod, where either of two containers may answer".to_owned()
        );
    }
    if facts.source.is_some_and(|source| source.uses_devices) && declared.devices.is_empty() {
        return not("it has devices or block volumes, which no second container can use".to_owned());
    }
    if !declared.devices.is_empty() {
        return not(format!("it uses {}, which no second container can use", declared.devices.join(", ")));
    }
    let limit = facts.snapshot.declared.as_ref().and_then(|declared| declared.memory_limit);
    match facts.memory.map(|memory| memory.room(&facts.container.name, limit)) {
        Some(Err(why)) => not(why),
        Some(Ok(room)) => Ok(Some(room)),
        None => Ok(None),
    }
}

/// Decides whether the image in the pod's spec may be changed, so that the kubelet replaces the container.
fn respec(facts: &Facts<'_>) -> Result<Choice, Refusal> {
    let not = |why: &str| Err(facts.unavailable(RequestedEngine::Respec, why));
    let Some(declared) = facts.declared() else {
        return not("it changes the pod's spec, which needs an API server");
    };
    if facts.owner == Owner::KubeletStatic {
        return not("the pod is a static pod: change its spec in the manifest on its node");
    }
    // An admission policy knows the images that an agent may set by the request in the pod's annotation.
    if facts.in_group {
        return not("a group restart does not change the pod's spec");
    }
    if facts.grace != facts.container.grace {
        return not(
            "its kubelet would stop it, with the grace period of the pod, not with that of the request",
        );
    }
    let alias = facts.source.and_then(|source| source.alias.as_deref());
    let (to, why) = match (facts.image, alias) {
        (Some(image), _) if image == declared.image => {
            return not("the spec already names this image, so its kubelet would see no change");
        }
        (Some(image), _) => (image, "the pod's spec names the image, and its kubelet replaces the container"),
        (None, Some(alias)) => (
            alias,
            "the spec gets another reference to the same image, and its kubelet replaces the container",
        ),
        (None, None) => {
            return not(
                "the node has no second reference to the running image in the repository that the spec names",
            );
        }
    };
    // The registry may have another image under the tag, which a restart must not start.
    if facts.image.is_none() && may_move(to) && declared.pull_policy == PullPolicy::Always {
        return not("the node has no second reference with a digest, and its kubelet asks the registry \
             (imagePullPolicy Always), where a tag may refer to another image");
    }
    if declared.restart_policy != RestartPolicy::Always {
        // Such a container is lost if a start fails after the stop.
        if declared.pull_policy == PullPolicy::Always {
            return not(
                "its kubelet would contact the registry while it is down (imagePullPolicy Always), and with its \
                 restartPolicy it would not start again if the registry does not answer",
            );
        }
        if let Some(seconds) = held_back(facts) {
            return Err(Refusal::BackOff { pod: facts.pod(), name: facts.container.name.clone(), seconds });
        }
    }
    let change = SpecChange {
        from: declared.image.clone(),
        to: to.to_owned(),
        // The environment of a swapped container does not depend on who creates it.
        cloneable: clone(&Facts { allows_stale_env: false, ..*facts }).is_ok(),
        hash: expected_hash(facts, declared, to),
        settled: facts.source.is_none_or(|source| source.runs_declared),
    };
    Ok(Choice { engine: Engine::Respec, why: why.to_owned(), change: Some(change) })
}

/// The hash that the kubelet will expect once the spec says `to`: computed as newer kubelets do, or the hash it wrote
/// when the spec said the same before. Either is used only if the same method gives the hash of the present
/// container, because another kubelet release may compute another hash.
fn expected_hash(facts: &Facts<'_>, declared: &DeclaredContainer, to: &str) -> Option<String> {
    let present = &facts.container.spec_hash;
    if *present == spec_hash::of(&declared.name, &declared.image) {
        return Some(spec_hash::of(&declared.name, to));
    }
    let seen = facts.hashes?;
    (seen.get(&declared.image) == Some(present)).then(|| seen.get(to).cloned()).flatten()
}

/// How long a kubelet might delay the container. With a policy other than Always, it would then treat it as finished.
fn held_back(facts: &Facts<'_>) -> Option<u64> {
    let instances = facts.snapshot.instances(&facts.container.name);
    let ends = instances
        .iter()
        .filter(|instance| instance.state == State::Exited)
        .filter_map(|instance| instance.finished_at);
    let free = ends.max()?.checked_add(MAX_BACK_OFF).ok()?;
    (facts.now < free).then(|| free.duration_since(facts.now).as_secs().unsigned_abs() + 1)
}

/// Decides whether the container may be stopped so that its kubelet restarts it.
fn stop(facts: &Facts<'_>) -> Result<&'static str, Refusal> {
    let not = |why: &str| Err(facts.unavailable(RequestedEngine::Stop, why));
    if facts.image.is_some() {
        return not("it starts the same image again");
    }
    if !facts.owner.is_kubelet() {
        return not("there is no kubelet that would start the container again");
    }
    let Some(declared) = facts.declared() else {
        return not("without an API server it is unknown whether its kubelet starts it again");
    };
    if declared.restart_policy != RestartPolicy::Always || declared.has_restart_rules {
        return not("its kubelet does not start it again after every exit code (restartPolicy)");
    }
    Ok("its kubelet starts it again after a stop")
}

#[cfg(test)]
mod tests;
