//! Metrics of the agent about the API server. Labels are bounded: no pod names.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::failure::Class;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Written {
    verb: &'static str,
    result: String,
}

/// Counts writes to the API server. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Writes {
    writes: Family<Written, Counter>,
    /// The number of pods with unwritten statuses or events.
    pub(super) pending: Gauge,
}

impl Writes {
    /// Creates the metrics and registers them in `registry`.
    pub(in crate::agent) fn new(registry: &mut Registry) -> Self {
        let writes = Self::default();
        let attempts = "Attempts to write to the API server";
        registry.register("api_writes", attempts, writes.writes.clone());
        let pending = "Pods with statuses or events that are not written yet";
        registry.register("pending_answers", pending, writes.pending.clone());
        writes
    }

    pub(super) fn count(&self, verb: &'static str, failed: Option<Class>) {
        let result = failed.map_or_else(|| "Ok".to_owned(), Class::name);
        self.writes.get_or_create(&Written { verb, result }).inc();
    }
}

/// Reports whether the watch of the pods is connected, and how many pods a failed operation left closed.
#[derive(Debug)]
struct Cache(NodePods);

impl Collector for Cache {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = ConstGauge::new(i64::from(self.0.is_current()));
        let help = "1 while the watch of this node's pods is connected, 0 while it is not";
        gauge.encode(encoder.encode_descriptor("watch_connected", help, None, gauge.metric_type())?)?;
        let count = closed_pods(&self.0.list(), |pod| self.0.gate(pod).1.left_closed());
        let left_closed = ConstGauge::new(count);
        let help =
            "Pods of this node whose readiness gate a failed operation left closed: they get no traffic";
        left_closed.encode(encoder.encode_descriptor("closed_pods", help, None, left_closed.metric_type())?)
    }
}

/// The number of pods that a failed operation left closed. A pod that has finished or is being deleted does not count.
fn closed_pods(pods: &[Arc<Pod>], left_closed: impl Fn(&Pod) -> bool) -> i64 {
    let is_closed = |pod: &&Arc<Pod>| left_closed(pod) && !pod.is_deleting() && !pod.is_finished();
    i64::try_from(pods.iter().filter(is_closed).count()).unwrap_or(i64::MAX)
}

pub(in crate::agent) fn register_cache(registry: &mut Registry, pods: &NodePods) {
    registry.register_collector(Box::new(Cache(pods.clone())));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::annotation;
    use crate::cluster::pod::FurtherGates;

    /// A pod with a closed gate.
    fn pod(reason: &str, change: &Value) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "1",
                "creationTimestamp": "2026-11-20T10:00:00Z"},
            "spec": {"nodeName": "node-1", "readinessGates": [{"conditionType": annotation::GATE}],
                "containers": [{"name": "app", "image": "app:v1"}]},
            "status": {"phase": "Running", "conditions": [{"type": annotation::GATE, "status": "False", "reason": reason,
                "lastTransitionTime": "2026-11-20T10:01:00Z"}]},
        });
        json_patch::merge(&mut pod, change);
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pod_counts_while_a_failed_operation_keeps_it_closed() {
        let closed =
            |pods: &[Arc<Pod>]| closed_pods(pods, |pod| pod.gate(&FurtherGates::default()).1.left_closed());
        let (failed, same) = (annotation::GATE_FAILED, json!({}));
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-11-20T10:02:00Z"}});
        let finished = json!({"status": {"phase": "Failed"}});
        let open = json!({"status": {"conditions": [{"type": annotation::GATE, "status": "True", "reason": failed,
            "lastTransitionTime": "2026-11-20T10:01:00Z"}]}});
        for (reason, change, expected) in [
            (failed, &same, 1),
            (annotation::GATE_DRAIN, &same, 0),
            ("Maintenance", &same, 0),
            (failed, &deleted, 0),
            (failed, &finished, 0),
            (failed, &open, 0),
        ] {
            assert_eq!(closed(&[pod(reason, change)]), expected, "{reason} {change}");
        }
        assert_eq!(closed(&[pod(failed, &same), pod(failed, &same)]), 2);
    }
}
