//! The metrics of rollouts. Must not have unbounded labels: phases, stages and kinds of objects only, no names.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::api::in_place_rollout::RolloutPhase;
use crate::api::status::Status;
use crate::cluster::error::Error;
use crate::podtask::state::Stage;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    result: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Written {
    object: &'static str,
    result: String,
}

/// All metrics of rollouts; cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Metrics {
    reconciles: Histogram,
    rollouts: Family<Ended, Counter>,
    pods: Family<Ended, Counter>,
    downtime: Histogram,
    writes: Family<Written, Counter>,
}

impl Metrics {
    pub(in crate::controller) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            reconciles: Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0]),
            rollouts: Family::default(),
            pods: Family::default(),
            downtime: Histogram::new([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0]),
            writes: Family::default(),
        };
        let reconciles = "Duration of one reconcile of an InPlaceRollout, with its writes";
        registry.register_with_unit(
            "rollout_reconcile_duration",
            reconciles,
            Unit::Seconds,
            metrics.reconciles.clone(),
        );
        registry.register(
            "rollouts_ended",
            "InPlaceRollouts that have ended, by phase",
            metrics.rollouts.clone(),
        );
        registry.register(
            "rollout_pods",
            "Pods whose task in a rollout has ended, by outcome; those of the way back in an abort begin with Back",
            metrics.pods.clone(),
        );
        let downtime = "Downtime of one container, as reported by its agent, over all rollouts";
        registry.register_with_unit("rollout_downtime", downtime, Unit::Seconds, metrics.downtime.clone());
        registry.register(
            "rollout_writes",
            "Attempts to write to the API server for InPlaceRollouts",
            metrics.writes.clone(),
        );
        metrics
    }

    pub(super) fn reconciled(&self, seconds: f64) {
        self.reconciles.observe(seconds);
    }

    pub(super) fn ended(&self, phase: RolloutPhase) {
        self.rollouts.get_or_create(&Ended { result: format!("{phase:?}") }).inc();
    }

    /// Counts a pod whose task ended at `stage`, with the downtimes of its agent's status. `back`: the task took the pod
    /// back in an abort.
    pub(super) fn pod_ended(&self, stage: Stage, back: bool, answer: Option<&Status>) {
        let result = if back { format!("Back{stage:?}") } else { format!("{stage:?}") };
        self.pods.get_or_create(&Ended { result }).inc();
        let containers = answer.into_iter().flat_map(|answer| &answer.containers);
        for down in containers.filter_map(|container| container.downtime_ms) {
            self.downtime.observe(jiff::SignedDuration::from_millis(down).as_secs_f64());
        }
    }

    pub(super) fn wrote<T>(&self, object: &'static str, how: &Result<T, &Error>) {
        let result = match how {
            Ok(_) => "Ok".to_owned(),
            Err(error) => error.class().name(),
        };
        self.writes.get_or_create(&Written { object, result }).inc();
    }
}
