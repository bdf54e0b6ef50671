//! `HookRun`: one run of a hook, with its measurements so far. Fields, phases and their names are those of bk-bcs
//! (`tkex.tencent.com/v1alpha1`).
//!
//! Types only: `hook` decides when to measure and what the verdict is.

use jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::hook_template::{Argument, Metric, Policy, Provider};

/// Maximum length of a spec as JSON, in bytes. An agent keeps all specs of its node in memory, and the bounds of the single
/// fields together allow more than this.
pub const MAX_SPEC_BYTES: usize = 128 << 10;

/// What to run: a template's metrics with all arguments resolved. The metrics keep their `{{ }}`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tkex.tencent.com",
    version = "v1alpha1",
    kind = "HookRun",
    doc = "One run of a hook, with its measurements so far.",
    namespaced,
    status = "HookRunStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"PHASE","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct HookRunSpec {
    /// The metrics to measure.
    #[schemars(length(min = 1, max = 64))]
    pub metrics: Vec<Metric>,
    /// The values of `{{ args.NAME }}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<Argument>,
    /// True to stop measuring. This does not approve the run: see the annotation `inplace.dev/approve`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub terminate: bool,
    /// The order of the metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Parallel"))]
    pub policy: Option<Policy>,
}

impl HookRunSpec {
    /// True for a spec whose providers were left out, as in the journal of an agent.
    pub fn lacks_providers(&self) -> bool {
        self.metrics.iter().any(|metric| metric.provider == Provider::default())
    }

    /// True if the controller runs the hook, and not the agent of the pod's node: the hook sets annotations of the pod, which
    /// an agent has no permission to do, and it runs no command, which only an agent can do.
    pub fn is_for_controller(&self) -> bool {
        let sets_annotations = self.metrics.iter().any(|metric| metric.provider.sets_annotations());
        sets_annotations && !self.runs_commands()
    }

    /// True if the hook runs a command in a container, which only the agent of the pod's node can do.
    pub fn runs_commands(&self) -> bool {
        self.metrics.iter().any(|metric| metric.provider.exec.is_some())
    }
}
/// The progress and the verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookRunStatus {
    /// Absent until a runner has started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<HookPhase>,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// One entry per metric that has started, in no particular order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metric_results: Vec<MetricResult>,
}
/// The phase of a run, a metric or a measurement. Ordered from best to worst: the worst metric decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HookPhase {
    /// Passed.
    Successful,
    /// Being measured.
    Running,
    /// Not started.
    Pending,
    /// Neither condition held, more often than tolerated.
    Inconclusive,
    /// Measurements ended with an error more often than tolerated, or the hook is not valid.
    Error,
    /// Not passed.
    Failed,
}

impl HookPhase {
    /// True if no further measurement follows.
    pub fn is_completed(self) -> bool {
        !matches!(self, Self::Running | Self::Pending)
    }
}
/// The measurements of one metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricResult {
    /// The name of the metric.
    pub name: String,
    /// The phase of the metric.
    pub phase: HookPhase,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Measurements that have ended, excluding errors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: i32,
    /// Successful measurements.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub successful: i32,
    /// Failed measurements.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: i32,
    /// Inconclusive measurements.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inconclusive: i32,
    /// Measurements that ended with an error.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub error: i32,
    /// The number of most recent measurements in a row that ended with an error.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub consecutive_error: i32,
    /// The number of most recent measurements in a row that were successful.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub consecutive_successful: i32,
    /// The last ten measurements, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurement>,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Measurement {
    /// The phase of the measurement.
    pub phase: HookPhase,
    /// Why it is not successful.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the measurement started.
    pub started_at: Timestamp,
    /// When the measurement ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The measured value, always as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}
