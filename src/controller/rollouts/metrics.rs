//! The metrics of rollouts. Must not have unbounded labels: phases, stages and kinds of objects only, no names.

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::api::group::{GroupPhase, GroupStatus};
use crate::api::in_place_rollout::{InPlaceRolloutStatus, RolloutPhase};
use crate::api::status::Status;
use crate::cluster::error::Error;
use crate::controller::observed::Observed;
use crate::controller::rollouts::cache::Rollouts;
use crate::group_restart::NAME_PART;
use crate::podtask::state::Stage;
use crate::process::clock;
use crate::rollout::desired::Rollout;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    result: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Written {
    object: &'static str,
    result: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupEnded {
    cause: String,
    result: String,
}

/// Every phase: a gauge must return to 0 when no rollout has its phase.
const PHASES: [RolloutPhase; 9] = [
    RolloutPhase::Pending,
    RolloutPhase::Running,
    RolloutPhase::Paused,
    RolloutPhase::Succeeded,
    RolloutPhase::Failed,
    RolloutPhase::Superseded,
    RolloutPhase::Aborting,
    RolloutPhase::Aborted,
    RolloutPhase::AbortFailed,
];
/// Why a group is restarted.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// A container of it failed.
    Failure,
    /// A user created the rollout.
    Request,
}

impl Cause {
    fn of(rollout: &Rollout) -> Self {
        let is_after_failure = rollout.is_of_group && rollout.name.contains(NAME_PART);
        if is_after_failure { Self::Failure } else { Self::Request }
    }
}

/// All metrics of rollouts; cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Metrics {
    reconciles: Histogram,
    rollouts: Family<Ended, Counter>,
    pods: Family<Ended, Counter>,
    downtime: Histogram,
    writes: Family<Written, Counter>,
    group_restarts: Family<GroupEnded, Counter>,
    group_phases: Family<PhaseLabel, Histogram>,
    /// The rollouts that this process works on while it leads.
    pub(super) observed: Observed<Rollouts>,
}

/// Counts the rollouts in the cache.
#[derive(Debug)]
struct State(Observed<Rollouts>);

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let all = self.0.get().map(|cache| cache.all()).unwrap_or_default();
        let now = clock::now();
        let phases: Family<PhaseLabel, Gauge> = Family::default();
        for phase in PHASES {
            let count = all.iter().filter(|rollout| rollout.before.phase == phase).count();
            phases
                .get_or_create(&PhaseLabel { phase: format!("{phase:?}") })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        phases.encode(encoder.encode_descriptor(
            "rollouts",
            "InPlaceRollouts that exist, by phase",
            None,
            phases.metric_type(),
        )?)?;
        let idle = ConstGauge::new(all.iter().map(|rollout| idle_seconds(rollout, now)).fold(0.0, f64::max));
        idle.encode(encoder.encode_descriptor(
            "rollout_idle_seconds",
            "Longest time without progress of an InPlaceRollout that is in progress and not paused, 0 if there is none",
            None,
            idle.metric_type(),
        )?)
    }
}

/// The time since the last progress of a rollout that is in progress and not paused.
fn idle_seconds(rollout: &Rollout, now: Timestamp) -> f64 {
    let progressed = rollout.before.progressed_at.filter(|_| rollout.is_active());
    progressed.map_or(0.0, |at| now.duration_since(at).as_secs_f64())
}

impl Metrics {
    pub(in crate::controller) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            reconciles: Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0]),
            rollouts: Family::default(),
            pods: Family::default(),
            downtime: Histogram::new([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0]),
            writes: Family::default(),
            group_restarts: Family::default(),
            group_phases: Family::new_with_constructor(|| {
                Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0])
            }),
            observed: Observed::default(),
        };
        metrics.begin_at_zero();
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
        registry.register(
            "group_restarts",
            "Group restarts that have ended, by cause (Failure: a container failed; Request: a user created the rollout) and phase of \
             the rollout",
            metrics.group_restarts.clone(),
        );
        let phases = "Duration of each phase of a group restart";
        registry.register_with_unit(
            "group_restart_phase_duration",
            phases,
            Unit::Seconds,
            metrics.group_phases.clone(),
        );
        registry.register_collector(Box::new(State(metrics.observed.clone())));
        metrics
    }

    /// Creates the counters of the ends, so that the first one is an increase.
    fn begin_at_zero(&self) {
        for phase in PHASES.into_iter().filter(|phase| phase.is_terminal()) {
            let result = format!("{phase:?}");
            drop(self.rollouts.get_or_create(&Ended { result: result.clone() }));
            for cause in [Cause::Failure, Cause::Request] {
                let ended = GroupEnded { cause: format!("{cause:?}"), result: result.clone() };
                drop(self.group_restarts.get_or_create(&ended));
            }
        }
    }

    pub(super) fn reconciled(&self, seconds: f64) {
        self.reconciles.observe(seconds);
    }

    /// Counts the end of a rollout with its last status.
    pub(super) fn ended(&self, rollout: &Rollout, status: &InPlaceRolloutStatus) {
        let result = format!("{:?}", status.phase);
        self.rollouts.get_or_create(&Ended { result: result.clone() }).inc();
        let Some(group) = &status.group else { return };
        let cause = format!("{:?}", Cause::of(rollout));
        self.group_restarts.get_or_create(&GroupEnded { cause, result }).inc();
        for (phase, seconds) in phase_seconds(group, status.finished_at) {
            self.group_phases.get_or_create(&PhaseLabel { phase: format!("{phase:?}") }).observe(seconds);
        }
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

/// How long each phase of a group restart took. A phase that was left out has no duration.
fn phase_seconds(group: &GroupStatus, finished: Option<Timestamp>) -> Vec<(GroupPhase, f64)> {
    let (stop, start) = (group.stop_at, group.start_at);
    let phases = [
        (GroupPhase::Prepare, group.prepare_at, stop.or(start).or(finished)),
        (GroupPhase::Stop, stop, start.or(finished)),
        (GroupPhase::Start, start, finished),
    ];
    let took = |(phase, from, to): (GroupPhase, Option<Timestamp>, Option<Timestamp>)| {
        Some((phase, to?.duration_since(from?).as_secs_f64().max(0.0)))
    };
    phases.into_iter().filter_map(took).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::annotation;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn each_phase_ends_where_the_next_one_begins() {
        let whole = GroupStatus {
            prepare_at: Some(at(1)),
            stop_at: Some(at(3)),
            start_at: Some(at(6)),
            ..GroupStatus::default()
        };
        let all = [(GroupPhase::Prepare, 2.0), (GroupPhase::Stop, 3.0), (GroupPhase::Start, 4.0)];
        assert_eq!(phase_seconds(&whole, Some(at(10))), all);
        let without_barrier = GroupStatus { stop_at: None, ..whole.clone() };
        assert_eq!(phase_seconds(&without_barrier, Some(at(10))), [(GroupPhase::Prepare, 5.0), all[2]]);
        let unprepared = GroupStatus { stop_at: None, start_at: None, ..whole };
        assert_eq!(phase_seconds(&unprepared, Some(at(31))), [(GroupPhase::Prepare, 30.0)]);
    }

    fn rollout(name: &str, label: &str, status: &serde_json::Value) -> Rollout {
        let object = serde_json::json!({
            "apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
            "metadata": {"name": name, "labels": {label: "train"}},
            "spec": {"target": {}, "containers": [{"name": "app"}]}, "status": status,
        });
        Rollout::read(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn only_a_rollout_of_the_controller_has_a_failure_as_its_cause() {
        let cause = |name: &str, label: &str| {
            let rollout = rollout(name, label, &serde_json::json!({}));
            format!("{:?}", Cause::of(&rollout))
        };
        assert_eq!(cause("train-failed-00", annotation::GROUP_RESTART), "Failure");
        assert_eq!(cause("train-again", annotation::GROUP_RESTART), "Request");
        assert_eq!(cause("train-failed-00", "app"), "Request");
    }

    #[test]
    fn only_a_rollout_in_progress_is_idle() {
        let idle = |phase: &str, progressed: Option<i64>| {
            let progressed = progressed.map(at);
            let status = serde_json::json!({"phase": phase, "progressedAt": progressed});
            idle_seconds(&rollout("r", "app", &status), at(100))
        };
        for (phase, progressed, expected) in [
            ("Running", Some(40), 60.0),
            ("Aborting", Some(40), 60.0),
            // A rollout that is paused has no time of progress.
            ("Paused", None, 0.0),
            ("Failed", Some(40), 0.0),
        ] {
            assert!((idle(phase, progressed) - expected).abs() < 1e-9, "{phase}");
        }
    }

    #[test]
    fn the_ends_are_there_before_the_first_one() {
        let mut registry = Registry::default();
        let _metrics = Metrics::new(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"rollouts_ended_total{result="Failed"} 0"#,
            r#"rollouts{phase="Failed"} 0"#,
            "rollout_idle_seconds 0",
            r#"group_restarts_total{cause="Failure",result="Failed"} 0"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
