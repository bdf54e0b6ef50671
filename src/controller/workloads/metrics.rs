//! The metrics of workloads. Must not have unbounded labels: kinds and verbs only, no names.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::api::status::Status;
use crate::cluster::error::Error;
use crate::controller::workloads::cache::Kind;

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
        metrics
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

    pub(super) fn wrote<T>(&self, verb: &'static str, how: &Result<T, Error>) {
        let result = match how {
            Ok(_) => "Ok".to_owned(),
            Err(error) => error.class().name(),
        };
        self.writes.get_or_create(&Written { verb, result }).inc();
    }
}
