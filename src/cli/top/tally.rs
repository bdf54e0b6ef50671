//! Sums the last operations of pods by workload or by node. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use crate::api::status::{Phase, Status};
use crate::cli::pod::answer::Notes;

/// The label of a Deployment's pods whose value ends the name of their `ReplicaSet`.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// What the operations are summed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum By {
    /// By workload
    #[default]
    Workloads,
    /// By node
    Nodes,
}

/// The operations of one workload or node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sum {
    /// Absent for a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    /// `deployment/web`, or the name of a node.
    pub(super) name: String,
    /// Operations that have ended, whatever the result.
    pub(super) operations: usize,
    /// Operations that have not ended.
    pub(super) running: usize,
    /// Operations that failed.
    pub(super) failed: usize,
    /// Operations that were rolled back.
    pub(super) rolled_back: usize,
    /// Operations that were refused.
    pub(super) refused: usize,
    /// The median downtime of a container.
    pub(super) median_downtime_ms: Option<i64>,
    /// The longest downtime of a container.
    pub(super) longest_downtime_ms: Option<i64>,
    /// The pod of the last operation that failed, was rolled back or refused, and its reason.
    pub(super) last_failure: Option<String>,
    #[serde(skip)]
    failed_at: Option<Timestamp>,
    #[serde(skip)]
    downtimes: Vec<i64>,
}

/// The sums, the one with the most failures first. Only operations are counted that ended within `since`, or have not
/// ended.
pub(super) fn sums(pods: &[Pod], by: By, since: SignedDuration, now: Timestamp) -> Vec<Sum> {
    let mut sums: BTreeMap<(Option<String>, String), Sum> = BTreeMap::new();
    for pod in pods {
        let Some(status) = Notes::of(&pod.metadata).status else { continue };
        let ended = status.finished_at.or(status.started_at);
        let is_old = ended.is_some_and(|at| now.duration_since(at) > since);
        if status.phase.is_terminal() && is_old {
            continue;
        }
        let key = match by {
            By::Workloads => (pod.metadata.namespace.clone(), workload(pod)),
            By::Nodes => {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
                (None, node.unwrap_or_default())
            }
        };
        let (namespace, name) = key.clone();
        sums.entry(key).or_insert_with(|| Sum::new(namespace, name)).add(pod, &status);
    }
    let mut sums: Vec<_> = sums.into_values().map(Sum::finished).collect();
    sums.sort_by_key(|sum| std::cmp::Reverse((sum.failed + sum.rolled_back + sum.refused, sum.operations)));
    sums
}

/// The workload of the pod: its controller, and for a Deployment's `ReplicaSet` the Deployment.
pub(in crate::cli) fn workload(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let mut owners = meta.owner_references.iter().flatten();
    let Some(owner) = owners.find(|owner| owner.controller == Some(true)) else {
        return format!("pod/{}", meta.name.as_deref().unwrap_or_default());
    };
    let hash = meta.labels.as_ref().and_then(|labels| labels.get(TEMPLATE_HASH));
    let deployment = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
    match deployment.filter(|_| owner.kind == "ReplicaSet") {
        Some(deployment) => format!("deployment/{deployment}"),
        None => format!("{}/{}", owner.kind.to_ascii_lowercase(), owner.name),
    }
}

impl Sum {
    fn new(namespace: Option<String>, name: String) -> Self {
        Self {
            namespace,
            name,
            operations: 0,
            running: 0,
            failed: 0,
            rolled_back: 0,
            refused: 0,
            median_downtime_ms: None,
            longest_downtime_ms: None,
            last_failure: None,
            failed_at: None,
            downtimes: Vec::new(),
        }
    }

    fn add(&mut self, pod: &Pod, status: &Status) {
        self.downtimes.extend(status.containers.iter().filter_map(|report| report.downtime_ms));
        if !status.phase.is_terminal() {
            self.running += 1;
            return;
        }
        self.operations += 1;
        match status.phase {
            Phase::Failed => self.failed += 1,
            Phase::RolledBack => self.rolled_back += 1,
            Phase::Refused => self.refused += 1,
            _ => return,
        }
        if self.last_failure.is_none() || status.finished_at > self.failed_at {
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            let reason =
                if status.reason.is_empty() { status.phase.to_string() } else { status.reason.clone() };
            self.last_failure = Some(format!("{pod}: {reason}"));
            self.failed_at = status.finished_at;
        }
    }

    fn finished(mut self) -> Self {
        self.downtimes.sort_unstable();
        self.longest_downtime_ms = self.downtimes.last().copied();
        self.median_downtime_ms = self.downtimes.get(self.downtimes.len().saturating_sub(1) / 2).copied();
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, node: &str, owner: &Value, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "labels": {TEMPLATE_HASH: "7f9c"},
                "ownerReferences": if owner.is_null() { json!([]) } else { json!([owner]) },
                "annotations": {"inplace.dev/status": status.to_string()}},
            "spec": {"nodeName": node, "containers": []},
        }))
        .unwrap()
    }

    fn status(phase: &str, finished: Option<&str>, downtimes: &[i64]) -> Value {
        let container = |ms: &i64| {
            json!({"name": "app", "action": "Restart", "engine": "Recreate", "downtimeMs": ms,
                "from": {"containerID": "a", "attempt": 0, "image": "i", "imageID": "s"}})
        };
        json!({"id": "r", "phase": phase, "reason": if phase == "Failed" { "NotReady" } else { "" }, "message": "",
            "startedAt": "2026-11-20T08:00:00.000Z", "finishedAt": finished,
            "containers": downtimes.iter().map(container).collect::<Vec<_>>()})
    }

    #[test]
    fn operations_within_the_time_are_summed() {
        let owner = |kind: &str, name: &str| json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": true});
        let (set, stateful) = (owner("ReplicaSet", "web-7f9c"), owner("StatefulSet", "db"));
        let pods = [
            pod("web-a", "n1", &set, &status("Succeeded", Some("2026-11-20T09:59:00.000Z"), &[60, 90])),
            pod("web-b", "n2", &set, &status("Failed", Some("2026-11-20T09:58:00.000Z"), &[700])),
            pod("web-c", "n1", &set, &status("Succeeded", Some("2026-11-20T07:00:00.000Z"), &[5])),
            pod("web-d", "n1", &set, &status("Running", None, &[])),
            pod("db-0", "n1", &stateful, &status("RolledBack", Some("2026-11-20T09:50:00.000Z"), &[])),
            pod("bare", "n1", &Value::Null, &status("Succeeded", Some("2026-11-20T09:50:00.000Z"), &[1])),
        ];
        let now = "2026-11-20T10:00:00Z".parse().unwrap();
        let found = sums(&pods, By::Workloads, SignedDuration::from_hours(1), now);
        let names: Vec<_> = found.iter().map(|sum| sum.name.as_str()).collect();
        assert_eq!(names, ["deployment/web", "statefulset/db", "pod/bare"]);
        let web = &found[0];
        assert_eq!((web.operations, web.running, web.failed, web.rolled_back), (2, 1, 1, 0));
        assert_eq!((web.median_downtime_ms, web.longest_downtime_ms), (Some(90), Some(700)));
        assert_eq!(web.last_failure.as_deref(), Some("web-b: NotReady"));
        assert_eq!(
            (found[1].median_downtime_ms, found[1].last_failure.as_deref()),
            (None, Some("db-0: RolledBack"))
        );
        let nodes = sums(&pods, By::Nodes, SignedDuration::from_hours(24), now);
        let nodes: Vec<_> =
            nodes.iter().map(|sum| (sum.name.as_str(), sum.operations, sum.running)).collect();
        assert_eq!(nodes, [("n1", 4, 1), ("n2", 1, 0)]);
    }
}
