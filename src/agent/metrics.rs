//! Metrics of the agent about operations, the runtime and files. Labels are bounded: no pod names.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use crate::api::status::{Phase, Status};
use crate::cri::client::Observer;
use crate::failure::Class;
use crate::node::pulls::Pulls;
use crate::operation::effect::Verb;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    action: String,
    engine: String,
    outcome: String,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ActionLabel {
    action: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Attempted {
    step: String,
    result: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Called {
    call: &'static str,
    result: String,
}

/// All metrics of the agent's operations. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    operations: Family<Ended, Counter>,
    requests_ended: Family<OutcomeLabel, Counter>,
    downtime: Family<ActionLabel, Histogram>,
    steps: Family<Attempted, Histogram>,
    calls: Family<Called, Histogram>,
    /// The number of operations in progress.
    pub(super) open: Gauge,
    /// The number of requests that have not started yet.
    pub(super) waiting: Gauge,
    /// The oldest request that has not started yet.
    pub(super) oldest: OldestRequest,
    /// Counts fences and half-created containers that were found without an operation and removed.
    pub(super) swept: Counter,
    /// The number of manifests and journal files that cannot be read.
    pub(super) unreadable: Gauge,
}

/// Reports the number of images that operations pull now. Prefetches take no permit and do not count.
#[derive(Debug)]
struct OpenPulls(Pulls);

impl Collector for OpenPulls {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = ConstGauge::new(i64::try_from(self.0.open()).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor(
            "open_pulls",
            "Image pulls of operations in progress, without prefetches",
            None,
            gauge.metric_type(),
        )?)
    }
}

/// Since when the oldest waiting request waits. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct OldestRequest(Arc<Mutex<Option<Instant>>>);

impl OldestRequest {
    /// Sets it; `None` if no request waits.
    pub(super) fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

impl Collector for OldestRequest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = ConstGauge::new(since.map_or(0.0, |since| since.elapsed().as_secs_f64()));
        age.encode(encoder.encode_descriptor(
            "oldest_waiting_request_seconds",
            "Time since this agent first saw the oldest request that waits; 0 if none waits",
            None,
            age.metric_type(),
        )?)
    }
}

/// Registers the gauge of the operations' pulls in progress.
pub(super) fn register_pulls(registry: &mut Registry, pulls: &Pulls) {
    registry.register_collector(Box::new(OpenPulls(pulls.clone())));
}

/// Buckets in seconds, fine around a tenth of a second.
fn seconds() -> Histogram {
    Histogram::new([
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0,
    ])
}

impl Metrics {
    /// Creates the metrics and registers them in `registry`.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            operations: Family::default(),
            requests_ended: Family::default(),
            downtime: Family::new_with_constructor(seconds),
            steps: Family::new_with_constructor(seconds),
            calls: Family::new_with_constructor(seconds),
            open: Gauge::default(),
            waiting: Gauge::default(),
            oldest: OldestRequest::default(),
            swept: Counter::default(),
            unreadable: Gauge::default(),
        };
        let Self {
            operations,
            requests_ended,
            downtime,
            steps,
            calls,
            open,
            waiting,
            oldest,
            swept,
            unreadable,
        } = metrics.clone();
        // From 0 on: a series that appears with its first end has no increase.
        for outcome in Phase::ENDS {
            drop(requests_ended.get_or_create(&OutcomeLabel { outcome: outcome.to_string() }));
        }
        registry.register(
            "operations",
            "Containers of requests that have ended, by action, engine, outcome and reason",
            operations,
        );
        registry.register("requests_ended", "Requests that have ended, by outcome", requests_ended);
        registry.register_with_unit(
            "downtime",
            "Time from the end of the old container to the start of the new one, by action",
            Unit::Seconds,
            downtime,
        );
        registry.register_with_unit(
            "step_duration",
            "Duration of one effect of an operation, including pulls",
            Unit::Seconds,
            steps,
        );
        registry.register_with_unit(
            "cri_request_duration",
            "Duration of one call to the container runtime",
            Unit::Seconds,
            calls,
        );
        registry.register("open_operations", "Operations in progress", open);
        registry.register(
            "waiting_requests",
            "Requests that wait for a permit or for an earlier request on their pod",
            waiting,
        );
        registry.register_collector(Box::new(oldest));
        registry.register(
            "fences_swept",
            "Orphans that a sweep removed: fences, standbys, and containers that were never started",
            swept,
        );
        registry.register("unreadable_files", "Manifests and journal files that cannot be read", unreadable);
        metrics
    }

    /// Returns an observer that records every call to the runtime.
    pub(super) fn observer(&self) -> Observer {
        let calls = self.calls.clone();
        Arc::new(move |call, took, result| {
            let result = result.map_or_else(Class::name, |()| "Ok".to_owned());
            calls.get_or_create(&Called { call, result }).observe(took.as_secs_f64());
        })
    }

    pub(super) fn effect(&self, verb: Verb, took: Duration, effect_error: Option<Class>) {
        let result = effect_error.map_or_else(|| "Ok".to_owned(), Class::name);
        self.steps
            .get_or_create(&Attempted { step: format!("{verb:?}"), result })
            .observe(took.as_secs_f64());
    }

    /// Records the end of a request.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of downtime stay far below 2^52")]
    pub(super) fn ended(&self, status: &Status) {
        let (outcome, reason) = (status.phase.to_string(), status.reason.clone());
        self.requests_ended.get_or_create(&OutcomeLabel { outcome: outcome.clone() }).inc();
        if status.containers.is_empty() {
            let none = || "None".to_owned();
            let ended = Ended { action: none(), engine: none(), outcome, reason };
            self.operations.get_or_create(&ended).inc();
            return;
        }
        for container in &status.containers {
            let (action, engine) = (container.action.to_string(), container.engine.to_string());
            let ended =
                Ended { action: action.clone(), engine, outcome: outcome.clone(), reason: reason.clone() };
            self.operations.get_or_create(&ended).inc();
            if let Some(ms) = container.downtime_ms {
                self.downtime.get_or_create(&ActionLabel { action }).observe(ms as f64 / 1000.0);
            }
        }
    }
}
