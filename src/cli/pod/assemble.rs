//! Builds the [`Situation`] of a pod from API objects alone, so that the CLI can run the same decisions as the
//! agent.
//! For what only the node's runtime knows it assumes the usual value and lists that in [`ObservedPod::unseen`]; the
//! agent on the node makes the final decision. A dry run that the agent answers would be exact. It is not used: it
//! needs the right to change the pod, an agent that runs, and a write to the pod, while `plan` changes nothing and
//! needs the right to read only. Pure. The only module of the CLI that depends on the fields of a
//! [`Situation`].

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as SpecContainer, ContainerPort, ContainerState, ContainerStateTerminated, ContainerStatus,
    Node, Pod, PodSpec,
};

use crate::api::image::ImageRef;
use crate::api::pod_ref::PodRef;
use crate::api::pod_template::asks_own_pod;
use crate::cli::pod::answer::MIRROR;
use crate::operation::port::Port;
use crate::operation::preflight::{Hashes, Hooks};
use crate::operation::preflight::{Runtime, Situation, Source};
use crate::operation::snapshot::{Container, Declared, Owner, Sandbox, Snapshot, State};
use crate::operation::spec_hash;

/// Kubernetes' default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// What the CLI can observe of a pod.
pub(super) struct ObservedPod {
    /// The input of the decisions.
    pub(super) situation: Situation,
    /// The facts that were not available to them.
    pub(super) unseen: Vec<String>,
}

/// Builds the situation at `now` from `pod` and its `node`. `node` is `None` if the user may not read nodes.
pub(super) fn assemble(pod: &Pod, declared: Declared, node: Option<&Node>, now: Timestamp) -> ObservedPod {
    let meta = &pod.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let reference = PodRef { namespace: text(&meta.namespace), name: text(&meta.name), uid: text(&meta.uid) };
    let annotations = meta.annotations.as_ref();
    let is_static = annotations.is_some_and(|annotations| annotations.contains_key(MIRROR));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let sandbox = Sandbox {
        // The API does not contain the sandbox id.
        id: String::new(),
        pod: reference,
        ready: phase == Some("Running"),
        owner: if is_static { Owner::KubeletStatic } else { Owner::Kubelet },
    };
    let created = meta.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let (mut containers, mut sources) = (Vec::new(), BTreeMap::new());
    for (spec, status) in replaceable(pod) {
        let spec_hash = if hashes_image_and_name(node) {
            spec_hash::of(&spec.name, spec.image.as_deref().unwrap_or_default())
        } else {
            String::new()
        };
        let instances = instances(pod, spec, status, created);
        containers.extend(
            instances.into_iter().map(|instance| Container { spec_hash: spec_hash.clone(), ..instance }),
        );
        let asks_registry = spec.image_pull_policy.as_deref() == Some("Always");
        let alias = status.and_then(|status| alias(spec.image.as_deref()?, asks_registry, &status.image_id));
        sources.insert(
            spec.name.clone(),
            Source {
                image_present: true,
                alias,
                uses_host_network: pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)),
                uses_devices: has_claims_or_block_volumes(spec),
                asks_own_pod: has_handler_for_own_pod(spec),
                runs_declared: true,
                ..Source::default()
            },
        );
    }
    let (runtime, reported) = runtime(node);
    let mut unseen = vec![
        "whether the runtime's configuration of a container can be cloned without loss".to_owned(),
        "whether an image is on the node, and can be pulled there".to_owned(),
        "which requests have ended on this pod before the last one".to_owned(),
    ];
    if !reported {
        unseen.insert(
            0,
            "the node's runtime and kubelet (the node cannot be read): containerd and a kubelet of 1.31 or newer \
             are assumed"
                .to_owned(),
        );
    }
    if pod.spec.as_ref().is_some_and(may_own_cpus) {
        unseen.push("whether the node's CPU manager has assigned exclusive CPUs to a container".to_owned());
    }
    let snapshot = Snapshot { declared: Some(declared), ..Snapshot::of_runtime(Some(sandbox), containers) };
    ObservedPod {
        situation: Situation {
            snapshot,
            runtime,
            sources,
            hashes: Hashes::new(),
            hooks: Hooks::default(),
            memory: None,
            group: None,
            now,
        },
        unseen,
    }
}

fn port(declared: &ContainerPort) -> Option<Port> {
    let number = u16::try_from(declared.container_port).ok()?;
    Port::declared(number, declared.protocol.as_deref().unwrap_or_default())
}

/// True when the spec gives the container claims of Dynamic Resource Allocation or block volumes.
fn has_claims_or_block_volumes(container: &SpecContainer) -> bool {
    let claims = container.resources.as_ref().and_then(|resources| resources.claims.as_ref());
    let is_some = |count: Option<usize>| count.is_some_and(|count| count > 0);
    is_some(claims.map(Vec::len)) || is_some(container.volume_devices.as_ref().map(Vec::len))
}

/// True when the preStop handler of the container connects to the pod.
fn has_handler_for_own_pod(container: &SpecContainer) -> bool {
    let handler = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    handler.and_then(|handler| serde_json::to_value(handler).ok()).as_ref().is_some_and(asks_own_pod)
}

/// The containers of `pod` that can be replaced, with the kubelet's status of each: the regular ones, and init
/// containers with `restartPolicy: Always` (native sidecars).
pub(super) fn replaceable(pod: &Pod) -> Vec<(&SpecContainer, Option<&ContainerStatus>)> {
    let (Some(spec), status) = (&pod.spec, &pod.status) else { return Vec::new() };
    let reported = |name: &str| {
        let status = status.as_ref()?;
        let lists = [&status.container_statuses, &status.init_container_statuses];
        lists.into_iter().flatten().flatten().find(|status| status.name == name)
    };
    let stays = |init: &&SpecContainer| init.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(stays);
    spec.containers.iter().chain(sidecars).map(|container| (container, reported(&container.name))).collect()
}

/// The current and the previous instance of a container, as far as the kubelet reports them.
fn instances(
    pod: &Pod,
    spec: &SpecContainer,
    status: Option<&ContainerStatus>,
    created: Timestamp,
) -> Vec<Container> {
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let grace =
        grace.and_then(|seconds| u64::try_from(seconds).ok()).map_or(DEFAULT_GRACE, Duration::from_secs);
    let count = status.map_or(0, |status| u32::try_from(status.restart_count).unwrap_or_default());
    let blank = Container {
        id: status.and_then(|status| status.container_id.as_deref()).map(bare_id).unwrap_or_default(),
        name: spec.name.clone(),
        fence: false,
        holder: false,
        standby: false,
        attempt: count,
        state: State::Created,
        image: spec.image.clone().unwrap_or_default(),
        image_id: status.map(|status| status.image_id.clone()).unwrap_or_default(),
        spec_hash: String::new(),
        operation: None,
        created_at: created,
        started_at: None,
        finished_at: None,
        exit_code: 0,
        start_error: None,
        grace,
        has_pre_stop: spec.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some()),
        ports: spec.ports.iter().flatten().filter_map(port).collect(),
    };
    let state = status.and_then(|status| status.state.as_ref());
    let before = status.and_then(|status| status.last_state.as_ref()?.terminated.as_ref());
    let ended = |of: &ContainerStateTerminated, attempt: u32| Container {
        id: of.container_id.as_deref().map(bare_id).unwrap_or_default(),
        attempt,
        state: State::Exited,
        created_at: of.started_at.as_ref().map_or(created, |time| time.0),
        started_at: of.started_at.as_ref().map(|time| time.0),
        finished_at: of.finished_at.as_ref().map(|time| time.0),
        exit_code: of.exit_code,
        ..blank.clone()
    };
    match (state, before) {
        (Some(ContainerState { running: Some(running), .. }), before) => {
            let started_at = running.started_at.as_ref().map(|time| time.0);
            let now = Container {
                state: State::Running,
                created_at: started_at.unwrap_or(created),
                started_at,
                ..blank.clone()
            };
            before.map(|before| ended(before, count.saturating_sub(1))).into_iter().chain([now]).collect()
        }
        (Some(ContainerState { terminated: Some(over), .. }), _) => vec![ended(over, count)],
        // The container is waiting for a restart: the count is that of the instance that has ended.
        (_, Some(before)) => vec![ended(before, count)],
        (_, None) => vec![blank],
    }
}

/// `containerd://0123` without the runtime's name.
fn bare_id(id: &str) -> String {
    id.split_once("://").map_or(id, |(_, id)| id).to_owned()
}

/// The running image by digest, in the repository that the spec names; `None` unless the kubelet reports a digest
/// of that same repository. If the spec names the digest and its kubelet asks the registry before each start, the same digest
/// with a tag, or without one.
fn alias(spec: &str, asks_registry: bool, image_id: &str) -> Option<String> {
    let requested = ImageRef::parse(spec).ok()?;
    if requested.digest().is_some() {
        return requested.respelled().filter(|_| asks_registry);
    }
    let reported =
        ImageRef::parse(bare_id(image_id).strip_prefix("docker-pullable://").unwrap_or(&bare_id(image_id)))
            .ok()?;
    (reported.full_repository() == requested.full_repository())
        .then(|| Some(format!("{}@{}", requested.repository(), reported.digest()?)))?
}

/// The node's runtime, and whether the node reported it.
fn runtime(node: Option<&Node>) -> (Runtime, bool) {
    let reported = node
        .and_then(|node| node.status.as_ref()?.node_info.as_ref())
        .and_then(|info| info.container_runtime_version.split_once("://"));
    match reported {
        Some((name, version)) => (Runtime { name: name.to_owned(), version: version.to_owned() }, true),
        None => (Runtime { name: "containerd".to_owned(), version: String::new() }, false),
    }
}

/// True unless the node is known to have a kubelet before 1.31, whose container hash only that kubelet can
/// compute.
fn hashes_image_and_name(node: Option<&Node>) -> bool {
    let info = node.and_then(|node| node.status.as_ref()?.node_info.as_ref());
    let minor = info
        .and_then(|info| info.kubelet_version.strip_prefix("v1.")?.split('.').next()?.parse::<u32>().ok());
    minor.is_none_or(|minor| minor >= 31)
}

/// True when a static CPU manager would assign exclusive CPUs to a container: whole CPUs, limit equal to request.
fn may_own_cpus(spec: &PodSpec) -> bool {
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|container| {
        let Some(resources) = &container.resources else { return false };
        let cpu = |of: &Option<BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>| {
            of.as_ref().and_then(|map| map.get("cpu")).map(|quantity| quantity.0.clone())
        };
        let (limit, request) = (cpu(&resources.limits), cpu(&resources.requests));
        let whole = |text: &str| text.parse::<u32>().is_ok_and(|cpus| cpus > 0);
        limit.as_deref().is_some_and(whole) && (request.is_none() || request == limit)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::request::Request;
    use crate::cluster;
    use crate::operation::preflight::admit;

    /// A pod as the kubelet and the API server report it: `app` restarted, `side` with a configuration from
    /// objects, the sidecar `proxy` in back-off, the init container `setup` done.
    pub(in crate::cli::pod) fn pod() -> Pod {
        serde_json::from_str(include_str!("golden/pod.json")).unwrap()
    }

    /// The time of that observation.
    pub(in crate::cli::pod) fn now() -> Timestamp {
        "2026-11-20T16:43:00Z".parse().unwrap()
    }

    fn node(runtime: &str) -> Node {
        node_of(runtime, "v1.36.2")
    }

    fn node_of(runtime: &str, version: &str) -> Node {
        serde_json::from_value(serde_json::json!({"status": {"nodeInfo": {
            "architecture": "amd64", "bootID": "", "containerRuntimeVersion": runtime, "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": version, "machineID": "", "operatingSystem": "linux",
            "osImage": "", "systemUUID": "",
        }}}))
        .unwrap()
    }

    /// The observation of `pod` on a node that can be read.
    pub(in crate::cli::pod) fn seen(pod: &Pod) -> ObservedPod {
        assemble(pod, declared(pod), Some(&node("containerd://1.6.20")), now())
    }

    fn declared(pod: &Pod) -> Declared {
        let trimmed: cluster::pod::Pod = serde_json::from_value(serde_json::to_value(pod).unwrap()).unwrap();
        trimmed.declared(true)
    }

    #[test]
    fn a_kubelets_word_becomes_a_snapshot() {
        let snapshot = seen(&pod()).situation.snapshot;
        let sandbox = snapshot.sandbox.as_ref().unwrap();
        assert_eq!((sandbox.pod.to_string().as_str(), sandbox.ready), ("default/web", true));
        assert_eq!(sandbox.owner, Owner::Kubelet);
        let instances: Vec<_> = ["app", "side", "proxy"]
            .into_iter()
            .flat_map(|name| snapshot.instances(name))
            .map(|instance| {
                (
                    instance.name.as_str(),
                    &instance.id[..4],
                    instance.attempt,
                    instance.state,
                    instance.exit_code,
                )
            })
            .collect();
        assert_eq!(
            instances,
            [
                ("app", "726d", 0, State::Exited, 0),
                ("app", "816c", 1, State::Running, 0),
                ("side", "f5ad", 0, State::Running, 0),
                ("proxy", "77da", 1, State::Exited, 1),
            ]
        );
        assert_eq!(
            snapshot.names(),
            ["app", "proxy", "side"],
            "an init container that is done is none of them"
        );
        let app = snapshot.running("app")[0];
        assert_eq!(
            (app.grace.as_secs(), app.has_pre_stop, app.image.as_str()),
            (20, true, "registry.local:5000/app:v1")
        );
        assert_eq!(app.started_at, Some("2026-11-20T16:42:05Z".parse().unwrap()));
        assert!(snapshot.declared.unwrap().container("side").unwrap().env_from_objects);
    }

    #[test]
    fn a_second_name_of_the_image_is_in_the_repository_that_the_spec_names_or_none() {
        let hex = "1".repeat(64);
        for (spec, image_id, expect) in [
            ("r:5000/app:v1", format!("r:5000/app@sha256:{hex}"), Some(format!("r:5000/app@sha256:{hex}"))),
            ("nginx", format!("docker.io/library/nginx@sha256:{hex}"), Some(format!("nginx@sha256:{hex}"))),
            (
                "team/app:v1",
                format!("docker.io/team/app@sha256:{hex}"),
                Some(format!("team/app@sha256:{hex}")),
            ),
            ("nginx:1", format!("docker-pullable://nginx@sha256:{hex}"), Some(format!("nginx@sha256:{hex}"))),
            ("r:5000/app:v1", format!("other:5000/app@sha256:{hex}"), None),
            ("r:5000/app:v1", format!("sha256:{hex}"), None),
            ("r:5000/app:v1", String::new(), None),
        ] {
            assert_eq!(alias(spec, false, &image_id), expect, "{spec} {image_id}");
        }
        let digest = format!("r:5000/app@sha256:{hex}");
        let tagged = format!("r:5000/app:latest@sha256:{hex}");
        assert_eq!(alias(&digest, false, &digest), None);
        assert_eq!(alias(&digest, true, &digest), Some(tagged.clone()));
        assert_eq!(alias(&tagged, true, &digest), Some(digest));
    }

    #[test]
    fn what_cannot_be_seen_is_said() {
        let (pod, declared) = (pod(), declared(&pod()));
        let about = |node: Option<&Node>, word: &str| {
            assemble(&pod, declared.clone(), node, now()).unseen.iter().any(|line| line.contains(word))
        };
        assert!(about(None, "containerd and a kubelet"));
        assert!(!about(Some(&node("containerd://2.1.9")), "containerd and a kubelet"));
        assert!(about(None, "exclusive CPUs"), "side has a whole CPU");
        let reported =
            assemble(&pod, declared.clone(), Some(&node("cri-o://1.30.0")), now()).situation.runtime;
        assert_eq!((reported.name.as_str(), reported.version.as_str()), ("cri-o", "1.30.0"));
        for (version, computed) in
            [("v1.30.14", false), ("v1.20.2", false), ("v1.31.0-rc.1", true), ("v1.36.2", true)]
        {
            let node = node_of("containerd://1.6.20", version);
            let snapshot = assemble(&pod, declared.clone(), Some(&node), now()).situation.snapshot;
            assert_eq!(
                snapshot.containers.iter().all(|instance| !instance.spec_hash.is_empty()),
                computed,
                "{version}"
            );
        }
    }

    #[test]
    fn refusals_that_are_the_pods_own_are_the_same_from_afar() {
        let refusal = |text: &str, change: fn(&mut Pod)| {
            let mut pod = pod();
            change(&mut pod);
            admit(Request::parse(Some(text)).unwrap().unwrap(), &seen(&pod).situation).unwrap_err().reason()
        };
        assert_eq!(refusal("restart db", |_| ()), "UnknownContainer");
        assert_eq!(refusal("restart proxy", |_| ()), "NotRunning");
        let pending: fn(&mut Pod) = |pod| pod.status.as_mut().unwrap().phase = Some("Pending".into());
        assert_eq!(refusal("restart app", pending), "SandboxNotReady");
    }
}
