//! The metrics of workloads. Must not have unbounded labels: kinds and verbs only, no names.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::api::kstatus::STALLED;
use crate::api::status::Status;
use crate::api::workload::Condition;
use crate::cluster::error::Error;
use crate::controller::observed::Observed;
use crate::controller::workloads::cache::{Kind, Workloads};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Written {
    verb: &'static str,
    result: String,
}

/// All metrics of workloads; cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Metrics {
    /// Workloads that are due and wait for a free place.
    pub(super) queue: Gauge,
    reconciles: Family<OfKind, Histogram>,
    updates: Family<Ended, Counter>,
    downtime: Family<OfKind, Histogram>,
    writes: Family<Written, Counter>,
    /// The workloads that this process works on while it leads.
    pub(super) observed: Observed<Workloads>,
}

/// Counts the workloads in the cache.
#[derive(Debug)]
struct State(Observed<Workloads>);

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let count: Family<OfKind, Gauge> = Family::default();
        let stalled: Family<OfKind, Gauge> = Family::default();
        for kind in [Kind::Deployment, Kind::StatefulSet] {
            let all = self.0.get().map(|cache| cache.all(kind)).unwrap_or_default();
            let of_kind = OfKind { kind: kind.name() };
            let is_stalled = all.iter().filter(|workload| is_stalled(&workload.report.conditions)).count();
            count.get_or_create(&of_kind).set(i64::try_from(all.len()).unwrap_or(i64::MAX));
            stalled.get_or_create(&of_kind).set(i64::try_from(is_stalled).unwrap_or(i64::MAX));
        }
        let help = "GameDeployments and GameStatefulSets, by kind";
        count.encode(encoder.encode_descriptor("workloads", help, None, count.metric_type())?)?;
        let help =
            "Workloads with the condition Stalled: nothing more happens before a person changes something";
        stalled.encode(encoder.encode_descriptor("stalled_workloads", help, None, stalled.metric_type())?)
    }
}

fn is_stalled(conditions: &[Condition]) -> bool {
    conditions.iter().any(|condition| condition.kind == STALLED && condition.status == "True")
}

impl Metrics {
    pub(in crate::controller) fn new(registry: &mut Registry) -> Self {
        let spans = || Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0]);
        let downs = || Histogram::new([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0]);
        let metrics = Self {
            queue: Gauge::default(),
            reconciles: Family::new_with_constructor(spans),
            updates: Family::default(),
            downtime: Family::new_with_constructor(downs),
            writes: Family::default(),
            observed: Observed::default(),
        };
        registry.register(
            "workload_queue",
            "Workloads that wait for a reconcile that is due",
            metrics.queue.clone(),
        );
        let reconciles = "Duration of one reconcile of a workload, with its writes";
        registry.register_with_unit(
            "workload_reconcile_duration",
            reconciles,
            Unit::Seconds,
            metrics.reconciles.clone(),
        );
        let updates = "Pods whose update in place has ended, by outcome";
        registry.register("pods_updated", updates, metrics.updates.clone());
        let downtime = "Downtime of one container in an update in place, as reported by its agent, by kind of the workload";
        registry.register_with_unit("workload_downtime", downtime, Unit::Seconds, metrics.downtime.clone());
        registry.register(
            "workload_writes",
            "Attempts to write to the API server for workloads",
            metrics.writes.clone(),
        );
        registry.register_collector(Box::new(State(metrics.observed.clone())));
        metrics
    }

    /// Sets the gauge back: this process reconciles no workloads any more.
    pub(in crate::controller) fn reset(&self) {
        self.queue.set(0);
    }

    pub(super) fn reconciled(&self, kind: Kind, seconds: f64) {
        self.reconciles.get_or_create(&OfKind { kind: kind.name() }).observe(seconds);
    }

    /// Counts a pod whose update in place succeeded, with the downtimes of its agent's status.
    pub(super) fn updated(&self, kind: Kind, answer: Option<&Status>) {
        self.ended(kind, "Updated");
        let containers = answer.into_iter().flat_map(|answer| &answer.containers);
        for down in containers.filter_map(|container| container.downtime_ms) {
            let seconds = jiff::SignedDuration::from_millis(down).as_secs_f64();
            self.downtime.get_or_create(&OfKind { kind: kind.name() }).observe(seconds);
        }
    }

    pub(super) fn not_updated(&self, kind: Kind) {
        self.ended(kind, "Failed");
    }

    fn ended(&self, kind: Kind, result: &'static str) {
        self.updates.get_or_create(&Ended { kind: kind.name(), result }).inc();
    }

    /// Counts a claim at a `PodDisruptionBudget`.
    pub(super) fn claimed(&self, how: Result<(), &Error>) {
        let result = match how {
            Ok(()) => "Ok".to_owned(),
            Err(error) => error.class().name(),
        };
        self.writes.get_or_create(&Written { verb: "patch", result }).inc();
    }

    /// Counts a write. What a namespace refuses to have created in it is its owner's matter, and no fault of the controller.
    pub(super) fn wrote<T>(&self, verb: &'static str, how: &Result<T, Error>) {
        let result = match how {
            Ok(_) => "Ok".to_owned(),
            Err(error) if verb == "create" && error.is_object_refused() => "NotAdmitted".to_owned(),
            Err(error) => error.class().name(),
        };
        self.writes.get_or_create(&Written { verb, result }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_stalled_while_that_condition_is_true() {
        let conditions = |kind: &str, status: &str| -> Vec<Condition> {
            serde_json::from_value(serde_json::json!([{"type": kind, "status": status}])).unwrap()
        };
        assert!(is_stalled(&conditions(STALLED, "True")));
        assert!(!is_stalled(&conditions(STALLED, "False")));
        assert!(!is_stalled(&conditions("Ready", "True")));
        assert!(!is_stalled(&[]));
    }
}
