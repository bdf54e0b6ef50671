//! What every controller reads from a pod, and what follows from that alone: active, ready, available, taken by
//! another client. Decides nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;

use crate::api::quantity::Quantity;
use crate::api::request::Request;
use crate::api::status::Status;
use crate::api::{annotation, workload_key};
use crate::podtask::foreign::{self, ForeignUpdate};
use crate::podtask::resources::{self, Field, Resize, Resources};
use crate::podtask::state::TaskState;
use crate::podtask::task::PodTask;
use crate::podtask::time::later;

/// What is read from a pod.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "facts, each by itself")]
pub struct Pod {
    /// Name of the pod.
    pub name: String,
    /// Uid of the pod.
    pub uid: String,
    /// The resource version that was read: decisions based on it are written only if it is still the newest.
    pub version: String,
    /// Creation time.
    pub created: Timestamp,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// The revision that the label names; empty without the label.
    pub label: String,
    /// The instance label; without it the last part of the name, which is the ordinal in a set.
    pub instance: String,
    /// The number of the pod, if its workload numbers pods from a range.
    pub index: Option<u32>,
    /// Phase of the pod.
    pub phase: PodPhase,
    /// When its grace period ends, if the pod is being deleted.
    pub deletion: Option<Timestamp>,
    /// Since when the pod is Ready.
    pub ready_since: Option<Timestamp>,
    /// Since when the pod is not Ready, if its kubelet says so.
    pub unready_since: Option<Timestamp>,
    /// The node that the pod is scheduled to.
    pub node: Option<String>,
    /// IP address of the pod.
    pub ip: Option<String>,
    /// IP address of the node.
    pub host_ip: Option<String>,
    /// The pod's deletion cost.
    pub cost: Option<f64>,
    /// Number of container restarts, summed over the containers with init containers, as a Job counts them.
    pub restarts: i32,
    /// Name and image of each container that can be replaced, as in the pod's spec now: the regular containers, and
    /// after them the native sidecars.
    pub images: Vec<(String, String)>,
    /// cpu and memory of those of these containers that have any, by name, as in the pod's spec now.
    pub resources: Vec<(String, Resources)>,
    /// What the kubelet reports about these resources.
    pub resize: Resize,
    /// The containers that are not Ready, by name, as their kubelet reports them. True for one that it has not started
    /// again yet, for example because it delays the start.
    pub unready: Vec<(String, bool)>,
    /// True if the pod has the readiness gate `InPlaceUpdateReady`.
    pub gated: bool,
    /// True if that gate is closed as an operation that failed leaves it.
    pub gate_left_closed: bool,
    /// True for a surge pod: it was created beyond `replicas` for an update.
    pub surge: bool,
    /// True while an annotation asks autoscalers to ignore the pod.
    pub leaving: bool,
    /// What its workload does with the pod, or did last.
    pub task: Option<PodTask>,
    /// The id of the request on the pod, the controller's own or another client's.
    pub request: Option<String>,
    /// The images that the agent is to pull in advance for an update of the workload, as the annotation names them.
    pub prefetch: Option<String>,
    /// The status that the agent reports.
    pub answer: Option<Status>,
    /// An in-place update that a bk-bcs operator began and has not completed.
    pub foreign: Option<ForeignUpdate>,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "as Kubernetes names them")]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Pod {
    /// Reads a pod. A value that is missing or malformed counts as absent: one malformed pod must not stop a
    /// workload.
    pub fn read(pod: &core::Pod) -> Self {
        let metadata = &pod.metadata;
        let annotation =
            |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let label = |key: &str| metadata.labels.as_ref().and_then(|all| all.get(key)).cloned();
        let name = metadata.name.clone().unwrap_or_default();
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let created = metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let last = name.rsplit('-').next().unwrap_or_default().to_owned();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
        let since = |value: &str| {
            let ready = ready.filter(|ready| ready.status == value)?;
            Some(ready.last_transition_time.as_ref().map_or(created, |time| time.0))
        };
        let request = Request::parse(annotation(annotation::REQUEST)).ok().flatten();
        let resources = spec.map(resources::of_pod).unwrap_or_default();
        let task = metadata.annotations.as_ref().and_then(workload_key::task);
        let task: Option<PodTask> = task.and_then(|text| serde_json::from_str(text).ok());
        let gate_left_closed = foreign::is_closed(pod, annotation::GATE_FAILED);
        let taken_over = gate_left_closed && task.as_ref().is_some_and(|task| task.gate_closed);
        Self {
            foreign: ForeignUpdate::read(pod, taken_over),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            created,
            labels: metadata.labels.clone().unwrap_or_default(),
            label: label(workload_key::REVISION).unwrap_or_default(),
            instance: label(workload_key::INSTANCE).unwrap_or(last),
            index: annotation(workload_key::INDEX).and_then(|text| text.parse().ok()),
            phase: match status.and_then(|status| status.phase.as_deref()) {
                Some("Running") => PodPhase::Running,
                Some("Succeeded") => PodPhase::Succeeded,
                Some("Failed") => PodPhase::Failed,
                Some("Unknown") => PodPhase::Unknown,
                _ => PodPhase::Pending,
            },
            deletion: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            ready_since: since("True"),
            unready_since: since("False"),
            node: spec.and_then(|spec| spec.node_name.clone()),
            ip: status.and_then(|status| status.pod_ip.clone()),
            host_ip: status.and_then(|status| status.host_ip.clone()),
            cost: annotation(workload_key::POD_COST)
                .and_then(|text| text.parse().ok())
                .filter(|cost: &f64| cost.is_finite()),
            restarts: status.map_or(0, |status| {
                let lists = [&status.container_statuses, &status.init_container_statuses];
                lists.into_iter().flatten().flatten().map(|container| container.restart_count).sum()
            }),
            images: spec.map_or_else(Vec::new, |spec| {
                let image = |container: &core::Container| container.image.clone().unwrap_or_default();
                let sidecars = spec.init_containers.iter().flatten();
                let sidecars =
                    sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
                let lasting = spec.containers.iter().chain(sidecars);
                lasting.map(|container| (container.name.clone(), image(container))).collect()
            }),
            resize: Resize::read(pod, &resources),
            resources,
            unready: status.map_or_else(Vec::new, unready),
            gated: spec
                .and_then(|spec| spec.readiness_gates.as_ref())
                .is_some_and(|gates| gates.iter().any(|gate| gate.condition_type == annotation::GATE)),
            gate_left_closed,
            surge: label(workload_key::SURGE).as_deref() == Some("true"),
            leaving: annotation(workload_key::LEAVING) == Some("true"),
            task,
            request: request.map(|request| request.id),
            prefetch: annotation(workload_key::PREFETCH).map(str::to_owned),
            answer: annotation(annotation::STATUS).and_then(|text| serde_json::from_str(text).ok()),
            name,
        }
    }

    /// The pod's ordinal, if it is a pod of the set `set`.
    pub fn ordinal(&self, set: &str) -> Option<u32> {
        ordinal(set, &self.name)
    }

    /// True while the pod counts: it is neither being deleted nor ended.
    pub fn is_active(&self) -> bool {
        !self.is_deleting() && !self.has_ended()
    }

    /// True when the pod is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion.is_some()
    }

    /// True when all containers of the pod have ended for good.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// The image of the container `name`.
    pub fn image(&self, name: &str) -> Option<&str> {
        self.images.iter().find(|(found, _)| found == name).map(|(_, image)| image.as_str())
    }

    /// One of the resources of the container `name`.
    pub fn resource(&self, name: &str, field: Field) -> Option<Quantity> {
        self.resources.iter().find(|(found, _)| found == name)?.1.get(&field).copied()
    }

    /// True when the pod is Running and Ready.
    pub fn is_ready(&self) -> bool {
        self.phase == PodPhase::Running && self.ready_since.is_some() && !self.is_deleting()
    }

    /// When the pod has been Ready for `min_ready`; `None` while it is not Ready. The time counts from the last update
    /// in place, too: its pod may have stayed Ready. That is when the agent accepted the new container, or when the
    /// container started if the agent has not reported that.
    pub fn available_at(&self, min_ready: SignedDuration) -> Option<Timestamp> {
        let since = self.ready_since.filter(|_| self.is_ready())?;
        let reports = self.answer.iter().flat_map(|answer| &answer.containers);
        let restarted = reports.filter_map(|report| report.ready_at.or(report.started_at)).max();
        Some(later(since.max(restarted.unwrap_or(since)), min_ready))
    }

    /// True when the pod has been Ready for `min_ready`. If that is zero, times do not matter: they are of the node's clock,
    /// which may be ahead of the controller's.
    pub fn is_available(&self, min_ready: SignedDuration, now: Timestamp) -> bool {
        if min_ready.is_zero() {
            self.is_ready()
        } else {
            self.available_at(min_ready).is_some_and(|at| at <= now)
        }
    }

    /// True while an agent carries out a request other than `own` or a group restart, or is about to.
    pub fn is_taken(&self, own: Option<&str>) -> bool {
        let in_group = |answer: &&Status| answer.group.is_some() && !answer.phase.is_terminal();
        if self.answer.as_ref().filter(in_group).is_some_and(|answer| Some(answer.id.as_str()) != own) {
            return true;
        }
        let Some(request) = self.request.as_deref().filter(|request| Some(*request) != own) else {
            return false;
        };
        self.answer.as_ref().is_none_or(|answer| !answer.has_ended(request))
    }

    /// The number of the next task towards `target`. No id with it has been used on this pod, also when the record of
    /// the last task was removed or replaced by an older one: a number is at least the age of the pod in seconds, and
    /// above that of any request or answer towards `target` that the pod has.
    pub fn next_task_number(&self, target: &str, now: Timestamp) -> u32 {
        let hash = target.rsplit('-').next().unwrap_or_default();
        let of_id = |id: &str| id.rsplit_once('-').filter(|(of, _)| *of == hash)?.1.parse().ok();
        let last = self.task.as_ref().map(|task| task.number);
        let requested = self.request.as_deref().and_then(of_id);
        let answered = self.answer.as_ref().and_then(|answer| of_id(&answer.id));
        let used: Option<u32> = last.max(requested).max(answered);
        let age = u32::try_from(now.duration_since(self.created).as_secs()).unwrap_or(0);
        used.unwrap_or(0).saturating_add(1).max(age)
    }

    /// The state of the workload's task.
    pub fn task_state(&self, now: Timestamp) -> TaskState {
        let task = self.task.as_ref();
        task.map_or(TaskState::Over, |task| {
            task.task_state(self.request.as_deref(), self.answer.as_ref(), now)
        })
    }
}

/// The containers that are not Ready, and whether they wait for their start.
fn unready(status: &core::PodStatus) -> Vec<(String, bool)> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let reported = lists.into_iter().flatten().flatten();
    let waits = |container: &core::ContainerStatus| {
        container.state.as_ref().is_some_and(|state| state.waiting.is_some())
    };
    reported
        .filter(|container| !container.ready)
        .map(|container| (container.name.clone(), waits(container)))
        .collect()
}

/// The ordinal in the name of a pod of `set`.
pub fn ordinal(set: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(set)?.strip_prefix('-')?;
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::podtask::state::Stage;

    fn read(value: serde_json::Value) -> Pod {
        Pod::read(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn everything_is_read_that_decides() {
        let pod = read(json!({
            "metadata": {"name": "web-q78jd", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"controller-revision-hash": "web-1"},
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": "-1.5", "inplace.dev/request": "restart app #1",
                    "inplace.dev/turn": r#"{"purpose":"InPlace","target":"web-2","number":1,"at":"2026-01-01T00:00:00Z","stage":"Chosen"}"#}},
            "spec": {"nodeName": "n", "readinessGates": [{"conditionType": "InPlaceUpdateReady"}],
                "containers": [{"name": "app", "image": "app:1"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.0.0.2",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}],
                "initContainerStatuses": [{"name": "proxy", "restartCount": 1, "image": "", "imageID": "", "ready": true}],
                "containerStatuses": [{"name": "app", "restartCount": 2, "image": "", "imageID": "", "ready": true}]},
        }));
        assert_eq!((pod.instance.as_str(), pod.label.as_str(), pod.restarts), ("q78jd", "web-1", 3));
        assert_eq!((pod.cost, pod.gated, pod.phase), (Some(-1.5), true, PodPhase::Running));
        assert_eq!(pod.task.as_ref().unwrap().stage, Stage::Chosen);
        assert!(pod.request.is_some());
        assert!(pod.is_ready() && !pod.is_available(SignedDuration::from_secs(30), pod.created));
        assert_eq!(pod.task_state(pod.created), TaskState::Waiting);
        assert!(pod.is_taken(Some("2-1")) && !pod.is_taken(pod.request.as_deref()));
    }

    #[test]
    fn a_node_whose_clock_is_ahead_makes_no_pod_unavailable() {
        let instance = json!({"containerID": "a", "attempt": 0, "image": "app:1", "imageID": "sha256:1"});
        let report = json!({"name": "app", "action": "Restart", "engine": "Recreate", "from": instance,
            "readyAt": "2026-01-01T01:00:00Z"});
        let answer = json!({"id": "1", "phase": "Succeeded", "step": "Verify", "reason": "", "message": "",
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T01:00:00Z", "containers": [report]});
        let pod = read(json!({
            "metadata": {"annotations": {"inplace.dev/status": answer.to_string()}},
            "status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]},
        }));
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        assert!(pod.answer.is_some() && pod.is_available(SignedDuration::ZERO, now));
        assert!(!pod.is_available(SignedDuration::from_secs(1), now));
    }

    #[test]
    fn a_pod_of_which_nothing_is_known_is_no_reason_to_stop() {
        let pod =
            read(json!({"metadata": {"annotations": {"inplace.dev/task": "{", "inplace.dev/status": "x",
            "controller.kubernetes.io/pod-deletion-cost": "NaN", "inplace.dev/request": "{}"}}}));
        assert_eq!((pod.task, pod.cost, pod.request, pod.answer), (None, None, None, None));
    }

    #[test]
    fn an_ordinal_is_the_whole_rest_of_the_name() {
        let ordinal = |name: &str| read(json!({"metadata": {"name": name}})).ordinal("web");
        assert_eq!((ordinal("web-0"), ordinal("web-12")), (Some(0), Some(12)));
        for other in ["web", "web-", "web-01", "web-+1", "web-1a", "web-x-1", "db-1", "web-99999999999"] {
            assert_eq!(ordinal(other), None, "{other}");
        }
    }
}
