//! The fields of pods, HookRuns and workloads that the delete guard reads. Users decide how large these objects
//! are, and every caller of the webhook triggers the reads. Therefore all other fields are skipped by the parser:
//! they are neither stored nor built into a tree.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::Deserialize;
use serde_json::Value;

use crate::api::hook_run::{HookRun, HookRunStatus};
use crate::api::workload::WorkloadHook;
use crate::guard::Attempt;

/// The fields of a pod that decide about its deletion.
#[derive(Deserialize)]
pub(super) struct GuardedPod {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

/// Without `managedFields`, which is often the larger part.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    tolerations: Option<Vec<core::Toleration>>,
    containers: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "hostIP")]
    host_ip: Option<String>,
    conditions: Option<Vec<core::PodCondition>>,
    init_container_statuses: Option<Vec<core::ContainerStatus>>,
    container_statuses: Option<Vec<core::ContainerStatus>>,
}

impl From<Meta> for ObjectMeta {
    fn from(meta: Meta) -> Self {
        Self {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.resource_version,
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: meta.owner_references,
            creation_timestamp: meta.creation_timestamp,
            deletion_timestamp: meta.deletion_timestamp,
            ..Self::default()
        }
    }
}

impl From<GuardedPod> for core::Pod {
    fn from(pod: GuardedPod) -> Self {
        let GuardedPod { metadata, spec, status } = pod;
        let named = |container: Named| core::Container { name: container.name, ..Default::default() };
        Self {
            metadata: metadata.into(),
            spec: Some(core::PodSpec {
                node_name: spec.node_name,
                tolerations: spec.tolerations,
                containers: spec.containers.into_iter().map(named).collect(),
                ..core::PodSpec::default()
            }),
            status: Some(core::PodStatus {
                phase: status.phase,
                pod_ip: status.pod_ip,
                host_ip: status.host_ip,
                conditions: status.conditions,
                init_container_statuses: status.init_container_statuses,
                container_statuses: status.container_statuses,
                ..core::PodStatus::default()
            }),
        }
    }
}

/// The fields of a HookRun that describe an attempt of a pre-delete hook.
#[derive(Deserialize, Resource)]
#[serde(from = "RawAttempt")]
#[resource(inherit = HookRun)]
pub(super) struct AttemptRun {
    metadata: ObjectMeta,
    pub(super) attempt: Option<Attempt>,
}

#[derive(Deserialize)]
struct RawAttempt {
    #[serde(default)]
    metadata: Meta,
    /// Parsed into a tree, because the author of a HookRun does not write its status.
    status: Option<Value>,
}

impl From<RawAttempt> for AttemptRun {
    fn from(raw: RawAttempt) -> Self {
        let metadata = ObjectMeta::from(raw.metadata);
        let status = raw.status.and_then(|status| serde_json::from_value::<HookRunStatus>(status).ok());
        let attempt = Attempt::read(&metadata, &status.unwrap_or_default());
        Self { metadata: ObjectMeta { name: metadata.name, ..ObjectMeta::default() }, attempt }
    }
}

/// The fields of a workload that name its pre-delete hook.
#[derive(Deserialize)]
pub(super) struct Leaving {
    #[serde(default)]
    spec: LeavingSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeavingSpec {
    pre_delete_update_strategy: Option<LeavingHook>,
}

#[derive(Deserialize)]
struct LeavingHook {
    hook: Option<WorkloadHook>,
}

impl Leaving {
    pub(super) fn hook(self) -> Option<WorkloadHook> {
        self.spec.pre_delete_update_strategy?.hook
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_decides_is_read_and_nothing_else() {
        let managed = json!([{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}]);
        let meta = json!({"name": "web-0", "namespace": "shop", "uid": "u", "resourceVersion": "7",
            "labels": {"a": "b"}, "annotations": {"c": "d"}, "creationTimestamp": "2026-03-01T12:00:00Z",
            "deletionTimestamp": "2026-03-01T13:00:00Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "ju", "controller": true}]});
        let reported = json!([{"name": "app", "restartCount": 2, "image": "", "imageID": "", "ready": true}]);
        let status = json!({"phase": "Running", "podIP": "10.0.0.7", "hostIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": reported});
        let spec =
            json!({"nodeName": "n1", "containers": [{"name": "app"}], "tolerations": [{"key": "gone"}]});
        let mut whole = json!({"metadata": meta, "spec": spec, "status": status});
        let slim: core::Pod = serde_json::from_value(whole.clone()).unwrap();
        whole["metadata"]["managedFields"] = managed.clone();
        whole["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
        whole["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        whole["status"]["ephemeralContainerStatuses"] = reported;
        let read: GuardedPod = serde_json::from_value(whole).unwrap();
        assert_eq!(core::Pod::from(read), slim);
        let empty: GuardedPod = serde_json::from_value(json!({"metadata": {"name": "x"}})).unwrap();
        assert_eq!(core::Pod::from(empty).metadata.name.as_deref(), Some("x"));

        let run = json!({"metadata": {"name": "run", "managedFields": managed, "labels": {},
            "annotations": {"inplace.dev/task": "ScaleIn//1", "inplace.dev/pod-uid": "u"}},
            "spec": {"metrics": "anything"}, "status": {"phase": "Failed"}});
        let read: AttemptRun = serde_json::from_value(run.clone()).unwrap();
        let attempt = read.attempt.unwrap();
        assert_eq!((attempt.name.as_str(), attempt.phase.is_completed()), ("run", true));
        let mut odd = run;
        odd["status"] = json!("odd");
        let read: AttemptRun = serde_json::from_value(odd).unwrap();
        assert!(!read.attempt.unwrap().phase.is_completed());

        let leaving =
            json!({"spec": {"template": {}, "preDeleteUpdateStrategy": {"hook": {"templateName": "leave"}}}});
        let hook = serde_json::from_value::<Leaving>(leaving).unwrap().hook();
        assert_eq!(hook.unwrap().template_name, "leave");
        assert!(serde_json::from_value::<Leaving>(json!({"spec": {}})).unwrap().hook().is_none());
    }
}
