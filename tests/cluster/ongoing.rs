//! A pod with a running request at a certain moment, in which a test then acts.

use std::{fmt, fs, path::PathBuf, process::Command, time::Duration};

use inplace::{
    api::{
        annotation::{CONTAINER_NAME, FENCE_NAME, GATE, OPERATION, POD_UID},
        status::{Engine, Phase, Status},
    },
    cri::{
        client::Client,
        endpoint::Endpoint,
        proto::v1::{Container, ContainerState},
    },
};
use jiff::{SignedDuration, Timestamp};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid as Process,
};
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::{
    agent::state,
    cluster::{Cluster, block_on},
    pod::{Pod, is, is_ready},
    registry_gate::RegistryGate,
    support::facts::Facts,
    support::lab::run,
    support::wait::{WAIT_LIMIT, eventually},
};

/// The moment of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The registry does not answer.
    Pull,
    /// The gate is closed, for long.
    Drain,
    /// The preStop handler of the old container runs.
    Swap,
    /// The new container is being verified.
    Verify,
    /// The new container never became Ready; its preStop handler runs.
    Rollback,
}

impl Moment {
    /// The version of the container whose preStop handler runs.
    fn stopping(self) -> Option<&'static str> {
        match self {
            Self::Swap => Some("v1"),
            Self::Rollback => Some("v3"),
            Self::Pull | Self::Drain | Self::Verify => None,
        }
    }
}

pub(crate) const MOMENTS: [Moment; 5] =
    [Moment::Pull, Moment::Drain, Moment::Swap, Moment::Verify, Moment::Rollback];
pub(crate) const ENGINES: [Engine; 2] = [Engine::Recreate, Engine::Respec];

/// The id of the running request.
pub(crate) const FIRST: &str = "first";

/// How long the preStop handler of a container takes, in seconds.
const HANDLER: u64 = 3;

/// A pod that is slow to stop, records each stop, and whose `v3` never becomes Ready. See [`OngoingOperation::hold`].
pub(crate) fn slow_to_stop(image: &str) -> Value {
    let held = "while [ -e /hold/$(cat /etc/version) ]; do sleep 1; done";
    let handler = format!("cat /etc/version >>/dev/shm/stops; sleep {HANDLER}; {held}");
    json!({
        "terminationGracePeriodSeconds": 10,
        "readinessGates": [{"conditionType": GATE}],
        "containers": [{
            "name": "app",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", handler]}}},
            "readinessProbe": {"exec": {"command": ["grep", "-qv", "v3", "/etc/version"]}, "periodSeconds": 1, "timeoutSeconds": 30},
        }],
    })
}

/// Waits until the containers of the pod with this sandbox have recorded these stops as the first ones (see [`slow_to_stop`]).
/// Reads the shared memory by way of the first process of the sandbox, which outlives the containers: on a busy node the pauses
/// between calls to the runtime are longer than a handler runs.
pub(crate) fn await_stops(cluster: &Cluster, sandbox: &str, stops: &[&str]) {
    let file = format!("/proc/{}/root/dev/shm/stops", first_process(cluster, sandbox));
    eventually(&format!("the stops {stops:?} in {file}"), || {
        let recorded = fs::read_to_string(&file).unwrap_or_default();
        recorded.lines().collect::<Vec<_>>().starts_with(stops).then_some(())
    });
}

/// The pod, the engine and the moment of its operation, and the state before.
pub(crate) struct OngoingOperation<'a> {
    pub(crate) pod: Pod<'a>,
    pub(crate) engine: Engine,
    pub(crate) moment: Moment,
    pub(crate) before: Facts,
    registry_gate: Option<RegistryGate>,
    /// A file of the node: a handler that runs in this moment goes on while it exists.
    hold_file: Option<PathBuf>,
    request: String,
}

impl<'a> OngoingOperation<'a> {
    /// A pod with a running request, at that moment.
    pub(crate) fn set(cluster: &'a Cluster, engine: Engine, moment: Moment) -> Self {
        let ongoing = Self::prepare(cluster, engine, moment);
        ongoing.begin();
        ongoing
    }

    /// A running pod and a request for a swap. With `Respec` the kubelet carries it out; with `Recreate` the
    /// agent alone, because only the image behind the tag has changed.
    pub(crate) fn prepare(cluster: &'a Cluster, engine: Engine, moment: Moment) -> Self {
        let name = format!("{engine}-{moment:?}").to_lowercase();
        let registry_gate = (moment == Moment::Pull).then(|| RegistryGate::before(&cluster.lab().registry));
        let image =
            |name: &str| registry_gate.as_ref().map_or_else(|| cluster.image(name), |gate| gate.image(name));
        let new = if moment == Moment::Rollback { "v3" } else { "v2" };
        let (old, wanted) = match engine {
            Engine::Recreate => {
                // The tag `latest`, which is known to move.
                let tag = format!("moved-{}:latest", unique());
                retag(cluster, "v1", &tag);
                (image(&tag), tag)
            }
            _ => (cluster.image("app:v1"), format!("app:{new}")),
        };
        let mut spec = slow_to_stop(&old);
        let hold_file = moment.stopping().map(|version| {
            let folder = cluster.node().dir.join(format!("hold-{}", unique()));
            fs::create_dir(&folder).unwrap();
            spec["volumes"] = json!([{"name": "hold", "hostPath": {"path": folder}}]);
            spec["containers"][0]["volumeMounts"] = json!([{"name": "hold", "mountPath": "/hold"}]);
            // A handler that is held must not exceed it.
            spec["terminationGracePeriodSeconds"] = 120.into();
            folder.join(version)
        });
        let pod = Pod::make(cluster, &name, json!({"spec": spec}));
        pod.wait("it is Ready", is_ready);
        let before = pod.facts().settled();
        if engine == Engine::Recreate {
            retag(cluster, new, &wanted);
        }
        registry_gate.iter().for_each(RegistryGate::shut);
        let mut request = json!({"id": FIRST, "containers": [{"name": "app", "image": image(&wanted)}]});
        match moment {
            Moment::Pull | Moment::Swap => {}
            Moment::Drain => request["gracePeriodSeconds"] = 300.into(),
            Moment::Verify => request["minReadySeconds"] = 6.into(),
            Moment::Rollback => request["readyTimeoutSeconds"] = 2.into(),
        }
        Self { pod, engine, moment, before, registry_gate, hold_file, request: request.to_string() }
    }

    /// Writes the request, and waits until it has come to the moment.
    pub(crate) fn begin(&self) {
        self.pod.request(&self.request);
        let stops = |stops: &[&str]| await_stops(self.pod.cluster, &self.before.sandbox, stops);
        match self.moment {
            Moment::Pull => self.registry_gate.as_ref().unwrap().await_somebody(WAIT_LIMIT),
            Moment::Drain => drop(self.pod.wait("it drains", |pod| !is(pod, GATE))),
            Moment::Swap => stops(&["v1"]),
            Moment::Rollback => stops(&["v1", "v3"]),
            Moment::Verify => eventually("the new one to run", || {
                let old = self.before.running("app").attempt;
                let is_new = |container: &Container| {
                    container.metadata.as_ref().is_some_and(|metadata| metadata.attempt > old)
                };
                let mut running = containers(&self.pod).into_iter().filter(is_running);
                running.any(|container| !is_fence(&container) && is_new(&container)).then_some(())
            }),
        }
    }

    /// Lets the preStop handler of this moment, before it begins, run until [`watch_it_go`] finds that the agent knows of the
    /// deletion: until then it may replace a container that has stopped.
    pub(crate) fn hold(&self) {
        if let Some(file) = &self.hold_file {
            fs::write(file, "").unwrap();
        }
    }

    /// True when nothing has been touched yet.
    pub(crate) fn untouched(&self) -> bool {
        matches!(self.moment, Moment::Pull | Moment::Drain)
    }

    /// The phase of the first request when it is not disturbed.
    pub(crate) fn end(&self) -> Phase {
        if self.moment == Moment::Rollback { Phase::RolledBack } else { Phase::Succeeded }
    }

    /// The version that runs when the first request has ended.
    pub(crate) fn version(&self) -> &'static str {
        if self.untouched() || self.moment == Moment::Rollback { "v1" } else { "v2" }
    }

    /// Asserts that this version runs, alone and Ready, with no incomplete container beside it.
    pub(crate) fn settled(&self, version: &str) -> Facts {
        self.settled_as(&[version])
    }

    /// The same where several versions are right.
    pub(crate) fn settled_as(&self, versions: &[&str]) -> Facts {
        self.pod.wait("it is Ready", is_ready);
        let facts = self.pod.facts().settled();
        assert!(versions.contains(&&*facts.running("app").version), "{self:?}: {facts:#?}");
        assert_eq!((&facts.sandbox, &facts.ip), (&self.before.sandbox, &self.before.ip), "{self:?}");
        facts
    }

    /// True if the first request ended because the kubelet was faster than the agent between the stop and the creation of a way
    /// back: it starts the image that the tag refers to by now, which is the one that failed (docs/limits.md).
    pub(crate) fn is_lost_to_kubelet(&self, phase: Phase, message: &str) -> bool {
        let is_way_back = (self.engine, self.moment) == (Engine::Recreate, Moment::Rollback);
        is_way_back && phase == Phase::Failed && message.contains("was created from")
    }

    /// Asserts the engine in the status.
    pub(crate) fn check_engine(&self, status: &Status) {
        assert_eq!(status.containers[0].engine, self.engine, "{self:?}: {status:#?}");
    }
}

impl std::fmt::Debug for OngoingOperation<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} in {:?}, {:?}", self.engine, self.moment, self.pod)
    }
}

/// The containers of a pod in its node's runtime, including fences.
pub(crate) fn containers(pod: &Pod<'_>) -> Vec<Container> {
    let endpoint = Endpoint::parse(&pod.cluster.node().endpoint).unwrap();
    block_on(async { Client::new(&endpoint, None).containers(Some((POD_UID, &pod.uid))).await.unwrap() })
}

/// The containers for a failure message: they are listed when the message is written.
pub(crate) struct Shown<'a>(pub(crate) &'a Pod<'a>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:#?}", containers(self.0))
    }
}

/// The running fence of a pod.
pub(crate) fn running_fence(pod: &Pod<'_>) -> Option<Container> {
    containers(pod).into_iter().find(|container| is_fence(container) && is_running(container))
}

pub(crate) fn is_running(container: &Container) -> bool {
    container.state() == ContainerState::ContainerRunning
}

/// A connection to the runtime of the first node, for calls that the product's own client does not make or refuses.
pub(crate) fn raw_channel(cluster: &Cluster) -> Channel {
    let endpoint = Endpoint::parse(&cluster.node().endpoint).unwrap();
    let socket = format!("unix://{}", endpoint.path());
    tonic::transport::Endpoint::from_shared(socket).unwrap().connect_lazy()
}

pub(crate) fn is_fence(container: &Container) -> bool {
    container.labels.get(CONTAINER_NAME).is_some_and(|name| name == FENCE_NAME)
}

/// Whether the runtime of its node has a sandbox of the pod.
pub(crate) fn has_sandbox(pod: &Pod<'_>) -> bool {
    let endpoint = Endpoint::parse(&pod.cluster.node().endpoint).unwrap();
    block_on(async {
        !Client::new(&endpoint, None).sandboxes(Some((POD_UID, &pod.uid))).await.unwrap().is_empty()
    })
}

/// Removes the sandboxes of a deleted pod, as its kubelet does sooner or later.
pub(crate) fn remove_sandboxes(pod: &Pod<'_>) {
    let endpoint = Endpoint::parse(&pod.cluster.node().endpoint).unwrap();
    block_on(async {
        let client = Client::new(&endpoint, None);
        for sandbox in client.sandboxes(Some((POD_UID, &pod.uid))).await.unwrap() {
            // It fails if the kubelet removes the sandbox at the same time.
            let _ = client.remove_sandbox(&sandbox.id).await;
        }
    });
    eventually(&format!("the sandboxes of {pod:?} to be removed"), || (!has_sandbox(pod)).then_some(()));
}

/// Waits until nothing runs in a terminating pod whose handler was held, within `limit`, and then until it is removed. Asserts
/// that meanwhile only its kubelet created containers, that nothing of it remains, and that its request has ended: as
/// failed, unless it had ended before the deletion, as on a busy machine.
pub(crate) fn watch_it_go(ongoing: &OngoingOperation<'_>, limit: Duration) {
    let pod = &ongoing.pod;
    let ids = |containers: &[Container]| containers.iter().map(|c| c.id.clone()).collect::<Vec<_>>();
    let there = ids(&containers(pod));
    let (mut made, mut held) = (Vec::new(), ongoing.hold_file.as_ref());
    let end = crate::traffic::now() + limit;
    loop {
        let left = containers(pod);
        if left.iter().all(has_ended) {
            break;
        }
        assert!(crate::traffic::now() < end, "{ongoing:?} does not go: {left:#?}");
        // The agent removes the fence as soon as it knows of the deletion.
        if !left.iter().any(|container| is_fence(container) && is_running(container))
            && let Some(file) = held.take()
        {
            fs::remove_file(file).unwrap();
        }
        for container in left {
            let ours = container.labels.contains_key(OPERATION) || is_fence(&container);
            if ours && !there.contains(&container.id) && !made.contains(&container.id) {
                made.push(container.id);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(made, Vec::<String>::new(), "{ongoing:?}: made in a pod that is to go");
    // A kubelet reports the end with a delay.
    pod.await_gone();
    let left = containers(pod);
    assert!(left.iter().all(has_ended), "{ongoing:?}: {left:#?}");
    let journal = state(&pod.cluster.node()).join("journal").join(format!("{}.json", pod.uid));
    eventually(&format!("the end of {ongoing:?} in the journal"), || {
        let text = fs::read_to_string(&journal);
        // A missing journal is right too: the journal of an open operation is never removed.
        let Ok(text) = text else { return Some(()) };
        let entry: Value = serde_json::from_str(&text).unwrap();
        entry["open"].is_null().then(|| {
            let last: Status = serde_json::from_value(entry["last"].clone()).unwrap();
            let was_over = last.phase == ongoing.end() && last.finished_at <= deleted_at(pod);
            assert!(last.phase == Phase::Failed || was_over, "{ongoing:?}: {entry:#}");
        })
    });
}

/// When the deletion of the pod was requested, rounded up to whole seconds.
fn deleted_at(pod: &Pod<'_>) -> Option<Timestamp> {
    pod.seen().versions().find_map(|object| {
        let grace = SignedDuration::from_secs(object.metadata.deletion_grace_period_seconds?);
        Some(object.metadata.deletion_timestamp.as_ref()?.0 - grace + SignedDuration::from_secs(1))
    })
}

/// Some kubelets leave exited containers for a while.
fn has_ended(container: &Container) -> bool {
    container.state() == ContainerState::ContainerExited
}

/// The first process of a container or a sandbox; 0 if it does not run.
fn first_process(cluster: &Cluster, id: &str) -> Process {
    let endpoint = Endpoint::parse(&cluster.node().endpoint).unwrap();
    let info = block_on(async {
        let client = Client::new(&endpoint, None);
        match client.container(id, true).await.unwrap() {
            Some(answer) => answer.info,
            None => client.sandbox(id, true).await.unwrap().unwrap().info,
        }
    });
    let info: Value = serde_json::from_str(&info["info"]).unwrap();
    Process::from_raw(info["pid"].as_i64().unwrap().try_into().unwrap())
}

/// Sends SIGKILL to the first process of a container or a sandbox; it has ended when this returns.
pub(crate) fn end_process(cluster: &Cluster, id: &str) {
    let process = first_process(cluster, id);
    if process.as_raw() > 0 && kill(process, Signal::SIGKILL).is_ok() {
        eventually("the process to end", || (kill(process, None) == Err(Errno::ESRCH)).then_some(()));
    }
}

/// Gives an image of the registry another tag, or the tag another image.
pub(crate) fn retag(cluster: &Cluster, version: &str, name: &str) {
    let [from, to] =
        [&format!("app:{version}"), name].map(|name| format!("docker://{}", cluster.image(name)));
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["--insecure-policy", "copy", "-q", "--preserve-digests"]);
    skopeo.args(["--src-tls-verify=false", "--dest-tls-verify=false", &from, &to]);
    run(&mut skopeo);
}

pub(crate) fn unique() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
