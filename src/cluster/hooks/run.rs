//! A HookRun as the API server shows it: readable whatever stands in its spec, so that one that is not does not hide the
//! others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use serde_json::Value;

use crate::api::annotation;
use crate::api::hook_run::{HookRun, HookRunSpec, HookRunStatus};

/// A spec or status that is not what this release knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {part} of the HookRun cannot be read: is the definition of the kind that of this release? `inplace crds` prints it"
)]
pub struct Unreadable {
    part: &'static str,
}

/// One run.
#[derive(Clone, Debug, Deserialize, Resource)]
#[serde(from = "Raw")]
#[resource(inherit = HookRun)]
pub struct Run {
    metadata: ObjectMeta,
    content: Result<(HookRunSpec, HookRunStatus), Unreadable>,
}

#[derive(Deserialize)]
struct Raw {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    status: Option<Value>,
}

impl From<Raw> for Run {
    fn from(raw: Raw) -> Self {
        let mut metadata = raw.metadata;
        // Large, and nobody asks for it.
        metadata.managed_fields = None;
        let content = serde_json::from_value(raw.spec).map_err(|_| Unreadable { part: "spec" }).and_then(
            |spec: HookRunSpec| {
                let status = raw.status.map_or_else(|| Ok(HookRunStatus::default()), serde_json::from_value);
                Ok((spec, status.map_err(|_| Unreadable { part: "status" })?))
            },
        );
        Self { metadata, content }
    }
}

impl Run {
    /// What is to be run.
    pub fn spec(&self) -> Result<&HookRunSpec, &Unreadable> {
        self.content.as_ref().map(|(spec, _)| spec)
    }

    /// How far it is.
    pub fn status(&self) -> Result<&HookRunStatus, &Unreadable> {
        self.content.as_ref().map(|(_, status)| status)
    }

    /// True once it has a verdict.
    pub fn is_completed(&self) -> bool {
        let phase = self.status().ok().and_then(|status| status.phase);
        phase.is_some_and(crate::api::hook_run::HookPhase::is_completed)
    }

    /// True once its deletion was asked for.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The node whose agent is to run it.
    pub fn node(&self) -> Option<&str> {
        self.label(annotation::NODE)
    }

    /// True when an operation drives it.
    pub fn is_of_operation(&self) -> bool {
        self.label(annotation::OPERATION).is_some()
    }

    /// Who runs it.
    pub fn runner(&self) -> Option<&str> {
        self.annotations().get(annotation::RUNNER).map(String::as_str)
    }

    /// True when somebody has approved it by hand.
    pub fn is_approved(&self) -> bool {
        self.annotations().get(annotation::APPROVE).is_some_and(|value| value == "true")
    }

    /// True when it is to end without a verdict.
    pub fn is_terminated(&self) -> bool {
        self.spec().is_ok_and(|spec| spec.terminate)
    }

    /// True unless `other` is known to be the newer state.
    pub fn is_not_older_than(&self, other: &Self) -> bool {
        crate::cluster::store::is_not_older(self, other)
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}
