//! A HookRun as the API server shows it: readable whatever stands in its spec, so that one that is not does not hide the
//! others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use serde_json::Value;

use crate::api::annotation;
use crate::api::hook_run::{HookPhase, HookRun, HookRunSpec, HookRunStatus, LARGEST_SPEC};
use crate::api::hook_template::Provider;

/// Why a spec or status is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is not what this release knows.
    #[error(
        "the {0} of the HookRun cannot be read: is the definition of the kind that of this release? `inplace crds` prints it"
    )]
    Unknown(&'static str),
    /// It is more than a process keeps.
    #[error("the spec of the HookRun is larger than {} KiB, it is not run", LARGEST_SPEC >> 10)]
    TooLarge,
}

/// One run.
#[derive(Clone, Debug, Deserialize, Resource)]
#[serde(from = "Raw")]
#[resource(inherit = HookRun)]
pub struct Run {
    metadata: ObjectMeta,
    spec: Result<HookRunSpec, Unreadable>,
    status: Result<HookRunStatus, Unreadable>,
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
        let status = match raw.status {
            Some(status) => serde_json::from_value(status).map_err(|_| Unreadable::Unknown("status")),
            None => Ok(HookRunStatus::default()),
        };
        let mut spec = if raw.spec.to_string().len() > LARGEST_SPEC {
            Err(Unreadable::TooLarge)
        } else {
            serde_json::from_value(raw.spec).map_err(|_| Unreadable::Unknown("spec"))
        };
        let mut run = Self { metadata, spec: Err(Unreadable::TooLarge), status };
        // Nobody asks any more whom a run has asked that has ended.
        if run.is_completed() {
            let metrics = spec.iter_mut().flat_map(|spec: &mut HookRunSpec| &mut spec.metrics);
            metrics.for_each(|metric| metric.provider = Provider::default());
        }
        run.spec = spec;
        run
    }
}

impl Run {
    /// What is to be run.
    pub fn spec(&self) -> Result<&HookRunSpec, &Unreadable> {
        self.spec.as_ref()
    }

    /// How far it is.
    pub fn status(&self) -> Result<&HookRunStatus, &Unreadable> {
        self.status.as_ref()
    }

    /// True once it has a verdict.
    pub fn is_completed(&self) -> bool {
        let phase = self.status().ok().and_then(|status| status.phase);
        phase.is_some_and(HookPhase::is_completed)
    }

    /// True once its deletion was asked for.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The node whose agent is to run it.
    pub fn node(&self) -> Option<&str> {
        self.label(annotation::NODE)
    }

    /// True when the controller runs it even where its node has an agent.
    pub fn is_for_controller(&self) -> bool {
        self.spec().is_ok_and(HookRunSpec::is_for_controller)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(body: usize, status: &Value) -> Run {
        let web = json!({"url": "http://a", "body": "x".repeat(body)});
        let spec = json!({"metrics": [{"name": "m", "provider": {"web": web}}]});
        serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn what_is_kept_of_a_run_is_bounded() {
        let large = run(LARGEST_SPEC, &json!({"phase": "Running"}));
        assert_eq!(large.spec(), Err(&Unreadable::TooLarge));
        assert!(!large.is_completed());
        assert!(run(LARGEST_SPEC / 2, &json!({})).spec().unwrap().metrics[0].provider.web.is_some());
        let ended = run(LARGEST_SPEC / 2, &json!({"phase": "Failed"}));
        assert_eq!(ended.spec().unwrap().metrics[0].provider, Provider::default());
        // Too large and ended: it is not taken up again.
        assert!(run(LARGEST_SPEC, &json!({"phase": "Error"})).is_completed());
    }
}
