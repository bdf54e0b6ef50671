//! The fields of a pod that are parsed, and their conversion into the types of the decisions.
//!
//! The parser skips all other fields without storing them. Fields that are newer than the oldest supported release
//! are absent there. `null` is the same as absent: one odd pod must not make the list of the whole node unreadable.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::api::pod_template::{is_changeable_field, is_extended_resource};
use crate::api::quantity::Quantity;
use crate::cluster::pod::Place;
use crate::cluster::pod::gates::split;
use crate::cluster::pod::membership::membership;
use crate::cluster::pod::user::SecurityContext;
use crate::operation::snapshot::{
    Declared, DeclaredContainer, ExecProbe, Liveness, PullPolicy, RestartPolicy, UserSource,
};

/// The prefixes of the annotations that are cached.
const CACHED_PREFIXES: [&str; 2] = ["inplace.dev/", "kubernetes.io/config."];

#[derive(Deserialize)]
pub(super) struct Pod {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "or_default")]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    #[serde(default, deserialize_with = "or_default")]
    annotations: Annotations,
    #[serde(default, deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    owner_references: Vec<OwnerReference>,
}

/// The annotations that are cached, and whether there were any at all.
#[derive(Default)]
struct Annotations {
    cached: BTreeMap<String, String>,
    any: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    restart_policy: Option<String>,
    active_deadline_seconds: Option<i64>,
    #[serde(deserialize_with = "or_default")]
    readiness_gates: Vec<ReadinessGate>,
    #[serde(deserialize_with = "or_default")]
    image_pull_secrets: Vec<LocalObject>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    volumes: Vec<Volume>,
    #[serde(deserialize_with = "or_default")]
    security_context: SecurityContext,
    #[serde(deserialize_with = "or_default")]
    resources: Resources,
    #[serde(deserialize_with = "or_default")]
    overhead: Limits,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadinessGate {
    condition_type: String,
}

#[derive(Deserialize)]
struct LocalObject {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    image: String,
    image_pull_policy: Option<String>,
    restart_policy: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    restart_policy_rules: Vec<IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    lifecycle: Lifecycle,
    readiness_probe: Option<ReadinessProbe>,
    startup_probe: Option<StartupProbe>,
    liveness_probe: Option<LivenessProbe>,
    #[serde(default, deserialize_with = "or_default")]
    resources: Resources,
    #[serde(default, deserialize_with = "or_default")]
    env: Vec<Env>,
    #[serde(default, deserialize_with = "or_default")]
    env_from: Vec<IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    volume_mounts: Vec<VolumeMount>,
    #[serde(default, deserialize_with = "or_default")]
    security_context: SecurityContext,
}

/// The API server fills in the number.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StartupProbe {
    period_seconds: Option<u32>,
}

/// The API server fills in the numbers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LivenessProbe {
    period_seconds: Option<u32>,
    failure_threshold: Option<u32>,
    termination_grace_period_seconds: Option<i64>,
}

/// The API server fills in the numbers, except for `initialDelaySeconds` of 0.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadinessProbe {
    exec: Option<ExecAction>,
    initial_delay_seconds: Option<u32>,
    period_seconds: Option<u32>,
    timeout_seconds: Option<u32>,
    success_threshold: Option<u32>,
}

#[derive(Deserialize)]
struct ExecAction {
    #[serde(default, deserialize_with = "or_default")]
    command: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "or_default")]
    limits: Limits,
}

/// The memory limit in bytes, and the names of extended resources, whose limits equal their requests.
#[derive(Default)]
struct Limits {
    memory: Option<u64>,
    devices: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lifecycle {
    post_start: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Env {
    value_from: Option<ValueFrom>,
}

/// The source of an environment value. Only these two sources give the same value at every start, except for some
/// fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ValueFrom {
    field_ref: Option<FieldRef>,
    resource_field_ref: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FieldRef {
    #[serde(default, deserialize_with = "or_default")]
    field_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    sub_path: Option<String>,
    sub_path_expr: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    config_map: Option<IgnoredAny>,
    secret: Option<IgnoredAny>,
    projected: Option<IgnoredAny>,
    #[serde(rename = "downwardAPI")]
    downward_api: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Option<String>,
    reason: Option<String>,
    start_time: Option<Timestamp>,
    #[serde(rename = "podIP", deserialize_with = "or_default")]
    pod_ip: String,
    #[serde(rename = "hostIP", deserialize_with = "or_default")]
    host_ip: String,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<Condition>,
    #[serde(deserialize_with = "or_default")]
    container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    #[serde(default, deserialize_with = "or_default")]
    status: String,
    reason: Option<String>,
    #[serde(rename = "lastTransitionTime")]
    since: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    ready: bool,
    #[serde(default, deserialize_with = "or_default")]
    started: bool,
    #[serde(default, deserialize_with = "or_default")]
    restart_count: u32,
    #[serde(default, rename = "imageID", deserialize_with = "or_default")]
    image_id: String,
    #[serde(default, deserialize_with = "or_default")]
    state: State,
    #[serde(default, deserialize_with = "or_default")]
    last_state: State,
    #[serde(default, deserialize_with = "or_default")]
    resources: Resources,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    started_at: Option<IgnoredAny>,
}

impl From<Pod> for super::Pod {
    fn from(pod: Pod) -> Self {
        let Pod { metadata, spec, status } = pod;
        let memory_limit = memory_limit(&spec, &status);
        let names = spec.readiness_gates.into_iter().map(|gate| gate.condition_type);
        let (gate, other_gates) = split(names, |name| {
            let condition = status.conditions.iter().find(|condition| condition.r#type == name)?;
            Some((condition.status.as_str(), condition.reason.as_deref()))
        });
        let pull_secrets: Vec<_> = spec
            .image_pull_secrets
            .into_iter()
            .map(|secret| secret.name)
            .filter(|name| !name.is_empty())
            .collect();
        let policy = restart_policy(spec.restart_policy.as_deref().unwrap_or("Always"));
        let of_objects = spec.volumes.iter().filter(|volume| volume.follows_an_object());
        let of_objects: HashSet<_> = of_objects.map(|volume| volume.name.as_str()).collect();
        let declared = |container: &Container, sidecar: bool, statuses: &[ContainerStatus]| {
            let user = container.security_context.user(&spec.security_context);
            declare(container, sidecar, policy, user, &of_objects, statuses)
        };
        let mut places = Vec::new();
        let mut containers = Vec::new();
        for (index, container) in spec.init_containers.iter().enumerate() {
            // Other init containers have ended when the pod runs, and must not be restarted.
            if container.restart_policy.as_deref() == Some("Always") {
                places.push(Place { init: true, index });
                containers.push(declared(container, true, &status.init_container_statuses));
            }
        }
        for (index, container) in spec.containers.iter().enumerate() {
            places.push(Place { init: false, index });
            containers.push(declared(container, false, &status.container_statuses));
        }
        Self {
            finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            annotated: metadata.annotations.any,
            membership: membership(metadata.labels, metadata.owner_references, metadata.creation_timestamp),
            node: spec.node_name.unwrap_or_default(),
            ends_at: ends_at(spec.active_deadline_seconds, status.start_time),
            addresses: (status.pod_ip.clone(), status.host_ip.clone()),
            places,
            other_gates,
            declared: Declared {
                current: false,
                deleting: metadata.deletion_timestamp.is_some(),
                ending: ending(&status),
                gate,
                unready_since: unready_since(&status),
                has_pull_secrets: !pull_secrets.is_empty(),
                memory_limit,
                containers,
            },
            pull_secrets,
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                deletion_timestamp: metadata.deletion_timestamp,
                annotations: Some(metadata.annotations.cached),
                ..Default::default()
            },
        }
    }
}

/// Why the kubelet ends the pod, or is about to, although the pod is not being deleted. A terminal phase never
/// changes again. Other writers of `DisruptionTarget` request the pod's deletion next, which may be refused, so
/// only the kubelet's reason counts.
fn ending(status: &Status) -> Option<String> {
    let because = |what: &str, reason: Option<&str>| match reason.filter(|reason| !reason.is_empty()) {
        Some(reason) => format!("{what} ({reason})"),
        None => what.to_owned(),
    };
    if let Some(phase @ ("Failed" | "Succeeded")) = status.phase.as_deref() {
        return Some(because(phase, status.reason.as_deref()));
    }
    let by_kubelet = |condition: &Condition| {
        condition.r#type == "DisruptionTarget"
            && condition.status == "True"
            && condition.reason.as_deref() == Some("TerminationByKubelet")
    };
    status.conditions.iter().any(by_kubelet).then(|| "about to be ended by its kubelet".to_owned())
}

/// When the kubelet ends the pod (`activeDeadlineSeconds`; `active_deadline.go` in pkg/kubelet counts from the
/// start time in the status).
fn ends_at(seconds: Option<i64>, started: Option<Timestamp>) -> Option<Timestamp> {
    started?.checked_add(SignedDuration::from_secs(seconds?)).ok()
}

/// Since when the pod is not Ready; the epoch if the status does not say.
fn unready_since(status: &Status) -> Option<Timestamp> {
    let ready = status.conditions.iter().find(|condition| condition.r#type == "Ready");
    match ready {
        Some(ready) if ready.status == "True" => None,
        reported => Some(reported.and_then(|reported| reported.since).unwrap_or(Timestamp::UNIX_EPOCH)),
    }
}

fn declare(
    container: &Container,
    sidecar: bool,
    pod_policy: RestartPolicy,
    user: UserSource,
    of_objects: &HashSet<&str>,
    statuses: &[ContainerStatus],
) -> DeclaredContainer {
    let reported = statuses.iter().find(|status| status.name == container.name);
    let follows_an_object =
        |mount: &VolumeMount| mount.is_partial() && of_objects.contains(mount.name.as_str());
    DeclaredContainer {
        name: container.name.clone(),
        sidecar,
        image: container.image.clone(),
        pull_policy: match container.image_pull_policy.as_deref() {
            Some("IfNotPresent") => PullPolicy::IfNotPresent,
            Some("Never") => PullPolicy::Never,
            // The API server fills in the policy; an unknown value is treated as the most demanding one.
            _ => PullPolicy::Always,
        },
        restart_policy: container.restart_policy.as_deref().map_or(pod_policy, restart_policy),
        has_restart_rules: !container.restart_policy_rules.is_empty(),
        has_post_start: container.lifecycle.post_start.is_some(),
        is_probed: container.readiness_probe.is_some() || container.startup_probe.is_some(),
        readiness: container.readiness_probe.as_ref().and_then(ReadinessProbe::read),
        liveness: container.liveness_probe.as_ref().map(LivenessProbe::read),
        has_startup_probe: container.startup_probe.is_some(),
        startup_period: container.startup_probe.as_ref().map(StartupProbe::period),
        devices: container.resources.limits.devices.clone(),
        env_from_objects: !container.env_from.is_empty() || container.env.iter().any(Env::follows_an_object),
        sub_path_of_objects: container.volume_mounts.iter().any(follows_an_object),
        user,
        container_id: reported.and_then(|reported| reported.container_id.as_deref()).and_then(bare_id),
        ready: reported.is_some_and(|reported| reported.ready),
        started: reported.is_some_and(|reported| reported.started),
        running: reported.is_some_and(|reported| reported.state.running.is_some()),
        unstarted: reported.is_some_and(ContainerStatus::is_unstarted),
        restarts: reported.map_or(0, |reported| reported.restart_count),
        image_id: reported.map(|reported| reported.image_id.clone()).unwrap_or_default(),
    }
}

impl ContainerStatus {
    /// True for a container that is created and not started. Kubelets report it as waiting, or as terminated without a
    /// start (`convertToAPIContainerStatuses` in pkg/kubelet). A container that waits for its next start after an exit
    /// has the same ID in the status; its start is in `lastState`.
    fn is_unstarted(&self) -> bool {
        let has_started = |state: &State| {
            let terminated = state.terminated.as_ref();
            terminated.is_some_and(|terminated| {
                terminated.container_id == self.container_id && terminated.started_at.is_some()
            })
        };
        self.container_id.as_deref().is_some_and(|id| !id.is_empty())
            && self.state.running.is_none()
            && !has_started(&self.state)
            && !has_started(&self.last_state)
    }
}

impl ReadinessProbe {
    fn read(&self) -> Option<ExecProbe> {
        let seconds = |given: Option<u32>, default: u32| Duration::from_secs(given.unwrap_or(default).into());
        Some(ExecProbe {
            command: self.exec.as_ref()?.command.clone().into(),
            initial_delay: seconds(self.initial_delay_seconds, 0),
            period: seconds(self.period_seconds, 10),
            timeout: seconds(self.timeout_seconds, 1),
            success_threshold: self.success_threshold.unwrap_or(1),
        })
    }
}

/// The memory limit of the pod's cgroup, as kubelets compute it (`ResourceConfigForPod` in pkg/kubelet/cm): that of the
/// pod, or the sum of its containers if each of them has one. Init containers run one after the other, beside the native
/// sidecars before them. While a resize is under way, the smaller one of the old and the new limit counts.
fn memory_limit(spec: &Spec, status: &Status) -> Option<u64> {
    let statuses = || status.container_statuses.iter().chain(&status.init_container_statuses);
    let own = |container: &Container| {
        let desired = container.resources.limits.memory.filter(|limit| *limit > 0)?;
        let reported = statuses().find(|status| status.name == container.name);
        let actual = reported.and_then(|status| status.resources.limits.memory.filter(|limit| *limit > 0));
        Some(actual.map_or(desired, |actual| actual.min(desired)))
    };
    let of_containers = || {
        let (mut sidecars, mut highest) = (0_u64, 0_u64);
        for container in &spec.init_containers {
            let limit = own(container)?;
            highest = highest.max(sidecars.saturating_add(limit));
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars = sidecars.saturating_add(limit);
            }
        }
        let limits = spec.containers.iter().map(own).collect::<Option<Vec<_>>>()?;
        Some(limits.into_iter().fold(sidecars, u64::saturating_add).max(highest))
    };
    let limit = spec.resources.limits.memory.or_else(of_containers)?;
    Some(limit.saturating_add(spec.overhead.memory.unwrap_or(0)))
}

impl StartupProbe {
    fn period(&self) -> Duration {
        Duration::from_secs(self.period_seconds.unwrap_or(10).into())
    }
}

impl LivenessProbe {
    fn read(&self) -> Liveness {
        let (threshold, period) = (self.failure_threshold.unwrap_or(3), self.period_seconds.unwrap_or(10));
        let grace = self.termination_grace_period_seconds.map(|own| u64::try_from(own).unwrap_or(0));
        Liveness {
            kills_after: Duration::from_secs(period.into()).saturating_mul(threshold),
            grace: grace.map(Duration::from_secs),
        }
    }
}

/// An unknown policy is treated as `Never`, the policy under which a lost container is not replaced.
fn restart_policy(text: &str) -> RestartPolicy {
    match text {
        "Always" => RestartPolicy::Always,
        "OnFailure" => RestartPolicy::OnFailure,
        _ => RestartPolicy::Never,
    }
}

/// Removes the runtime's prefix: `containerd://4f5c` becomes `4f5c`.
fn bare_id(id: &str) -> Option<String> {
    let bare = id.split_once("://").map_or(id, |(_, bare)| bare);
    (!bare.is_empty()).then(|| bare.to_owned())
}

impl Env {
    /// True if the value may differ at the next start.
    fn follows_an_object(&self) -> bool {
        let Some(from) = &self.value_from else { return false };
        match (&from.field_ref, &from.resource_field_ref) {
            (Some(field), _) => is_changeable_field(&field.field_path),
            (None, Some(_)) => false,
            // ConfigMaps, Secrets, and sources of later releases.
            (None, None) => true,
        }
    }
}

impl VolumeMount {
    fn is_partial(&self) -> bool {
        [&self.sub_path, &self.sub_path_expr].into_iter().flatten().any(|path| !path.is_empty())
    }
}

impl Volume {
    fn follows_an_object(&self) -> bool {
        [&self.config_map, &self.secret, &self.projected, &self.downward_api].into_iter().any(Option::is_some)
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct AnnotationsVisitor;
        impl<'de> Visitor<'de> for AnnotationsVisitor {
            type Value = Annotations;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Annotations, M::Error> {
                let mut annotations = Annotations::default();
                while let Some(key) = map.next_key::<String>()? {
                    annotations.any = true;
                    if CACHED_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
                        annotations.cached.insert(key, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(annotations)
            }
        }
        input.deserialize_map(AnnotationsVisitor)
    }
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Limits;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("resources by name")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Limits, M::Error> {
                let mut limits = Limits::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "memory" {
                        limits.memory = Quantity::read(&map.next_value()?).map(Quantity::bytes);
                        continue;
                    }
                    map.next_value::<IgnoredAny>()?;
                    limits.devices.extend(Some(name).filter(|name| is_extended_resource(name)));
                }
                Ok(limits)
            }
        }
        input.deserialize_map(Names)
    }
}

fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(input: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(input)?.unwrap_or_default())
}
