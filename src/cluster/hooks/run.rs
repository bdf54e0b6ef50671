//! A HookRun as the API server returns it. It parses whatever its spec contains, so that one unreadable run does
//! not hide the others. Must not decide what is run.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use serde_json::Value;

use crate::api::annotation;
use crate::api::hook_run::{HookPhase, HookRun, HookRunSpec, HookRunStatus, MAX_SPEC_BYTES};
use crate::api::hook_template::Argument;
use crate::api::workload_key;

/// The labels that are cached of a run that is not in progress here.
const LABELS: [&str; 5] = [
    annotation::NODE,
    annotation::OPERATION,
    annotation::HOOK_TYPE,
    annotation::DELETE_GUARD,
    workload_key::HOOK_INSTANCE,
];
/// The annotations that are cached of such a run.
const ANNOTATIONS: [&str; 5] = [
    annotation::RUNNER,
    annotation::APPROVE,
    workload_key::HOOK_POD,
    workload_key::TASK,
    workload_key::OLD_TASK,
];
/// The longest cached value in bytes: `node/` and the name of a node; kind, name and uid of an owner.
const MAX_VALUE: usize = 512;
/// The most owners that are cached. A run that this project creates has one.
const MAX_OWNERS: usize = 8;

/// Why a spec or status is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It does not match the definition of this release.
    #[error(
        "the {0} of the HookRun cannot be read: is the definition of the kind that of this release? `inplace crds` prints it"
    )]
    Unknown(&'static str),
    /// It is larger than a process may hold.
    #[error("the spec of the HookRun is larger than {} KiB, it is not run", MAX_SPEC_BYTES >> 10)]
    TooLarge,
}

/// A complete run.
#[derive(Clone, Debug, Deserialize, Resource)]
#[serde(from = "Raw")]
#[resource(inherit = HookRun)]
pub struct Run {
    metadata: ObjectMeta,
    spec: Result<HookRunSpec, Unreadable>,
    status: Result<HookRunStatus, Unreadable>,
    bytes: usize,
}

/// The cached part of a run that is not in progress here. It is small whatever the run contains, because any user
/// can create any number of runs.
#[derive(Clone, Debug, Deserialize, Resource)]
#[serde(from = "Raw")]
#[resource(inherit = HookRun)]
pub struct Summary {
    metadata: ObjectMeta,
    /// Without the measurements.
    status: Result<HookRunStatus, Unreadable>,
    terminate: bool,
    runs_on: RunsOn,
    has_annotations: bool,
    subject: Option<Subject>,
    bytes: usize,
}

/// The process that can run a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunsOn {
    Controller,
    Agent,
    Either,
}

/// The pod that the arguments of a run name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The namespace of the pod, if the arguments name one.
    pub namespace: Option<String>,
    /// The name of the pod.
    pub name: String,
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
        // The managed fields are large and not needed.
        metadata.managed_fields = None;
        let size = |value: &Value| value.to_string().len();
        let spec_bytes = size(&raw.spec);
        let annotations = metadata.annotations.iter().flatten().map(|(key, value)| key.len() + value.len());
        let bytes = spec_bytes + raw.status.as_ref().map_or(0, size) + annotations.sum::<usize>();
        let status = match raw.status {
            Some(status) => serde_json::from_value(status).map_err(|_| Unreadable::Unknown("status")),
            None => Ok(HookRunStatus::default()),
        };
        let spec = if spec_bytes > MAX_SPEC_BYTES {
            Err(Unreadable::TooLarge)
        } else {
            serde_json::from_value(raw.spec).map_err(|_| Unreadable::Unknown("spec"))
        };
        Self { metadata, spec, status, bytes }
    }
}

impl From<Raw> for Summary {
    fn from(raw: Raw) -> Self {
        Run::from(raw).summary()
    }
}

impl Run {
    /// The spec of the run, or why it is not used.
    pub fn spec(&self) -> Result<&HookRunSpec, &Unreadable> {
        self.spec.as_ref()
    }

    /// The status of the run, or why it is not used.
    pub fn status(&self) -> Result<&HookRunStatus, &Unreadable> {
        self.status.as_ref()
    }

    /// The part of the run that is cached.
    pub fn summary(&self) -> Summary {
        let without_results = |status: &HookRunStatus| HookRunStatus {
            phase: status.phase,
            started_at: status.started_at,
            ..HookRunStatus::default()
        };
        let args = self.spec().map(|spec| spec.args.as_slice()).unwrap_or_default();
        Summary {
            metadata: outline(&self.metadata),
            status: self.status().map(without_results).map_err(Clone::clone),
            terminate: self.spec().is_ok_and(|spec| spec.terminate),
            runs_on: match self.spec() {
                Ok(spec) if spec.is_for_controller() => RunsOn::Controller,
                Ok(spec) if spec.runs_commands() => RunsOn::Agent,
                _ => RunsOn::Either,
            },
            has_annotations: !self.annotations().is_empty(),
            subject: Subject::of(args),
            bytes: self.bytes,
        }
    }
}

impl Summary {
    /// The status without the measurements, or why it is not used.
    pub fn status(&self) -> Result<&HookRunStatus, &Unreadable> {
        self.status.as_ref()
    }

    /// True once the run has a verdict.
    pub fn is_completed(&self) -> bool {
        let phase = self.status().ok().and_then(|status| status.phase);
        phase.is_some_and(HookPhase::is_completed)
    }

    /// True once the run is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The node whose agent has to run it.
    pub fn node(&self) -> Option<&str> {
        self.label(annotation::NODE)
    }

    /// True if the controller runs it even if its node has an agent.
    pub fn is_for_controller(&self) -> bool {
        self.runs_on == RunsOn::Controller
    }

    /// True if it runs a command, which only the agent of its node can do.
    pub fn runs_commands(&self) -> bool {
        self.runs_on == RunsOn::Agent
    }

    /// True if the run belongs to an operation.
    pub fn is_of_operation(&self) -> bool {
        self.label(annotation::OPERATION).is_some()
    }

    /// The present runner of the run.
    pub fn runner(&self) -> Option<&str> {
        self.annotations().get(annotation::RUNNER).map(String::as_str)
    }

    /// True if a user has approved the run by its annotation.
    pub fn is_approved(&self) -> bool {
        self.annotations().get(annotation::APPROVE).is_some_and(|value| value == "true")
    }

    /// True if the run has to end without a verdict.
    pub fn is_terminated(&self) -> bool {
        self.terminate
    }

    /// The pod that the arguments name.
    pub fn subject(&self) -> Option<&Subject> {
        self.subject.as_ref()
    }

    /// True if the object has any annotation, cached or not.
    pub(super) fn has_annotations(&self) -> bool {
        self.has_annotations
    }

    /// The size of the complete run, in bytes of its JSON.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True unless `other` is known to be the newer state.
    pub fn is_not_older_than(&self, other: &Self) -> bool {
        crate::cluster::store::is_not_older(self, other)
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

impl Subject {
    /// The pod that these arguments name. An empty value, or one that is too long for an object's name, is
    /// ignored.
    fn of(args: &[Argument]) -> Option<Self> {
        let value = |name: &str| {
            let found = args.iter().find(|arg| arg.name == name)?;
            found.value.clone().filter(|value| !value.is_empty() && value.len() <= MAX_VALUE)
        };
        Some(Self { namespace: value("PodNamespace"), name: value("PodName")? })
    }
}

/// The cached part of a run's metadata.
fn outline(metadata: &ObjectMeta) -> ObjectMeta {
    let chosen = |map: &Option<BTreeMap<String, String>>, keys: &[&str]| {
        let trimmed = map.iter().flatten();
        let trimmed = trimmed.filter(|(key, value)| keys.contains(&key.as_str()) && value.len() <= MAX_VALUE);
        Some(trimmed.map(|(key, value)| (key.clone(), value.clone())).collect())
    };
    let short = |owner: &&OwnerReference| owner.kind.len() + owner.name.len() + owner.uid.len() <= MAX_VALUE;
    let owner = |owner: &OwnerReference| OwnerReference {
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: owner.controller,
        ..OwnerReference::default()
    };
    let owners = metadata.owner_references.iter().flatten().filter(short).take(MAX_OWNERS).map(owner);
    ObjectMeta {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        creation_timestamp: metadata.creation_timestamp.clone(),
        deletion_timestamp: metadata.deletion_timestamp.clone(),
        labels: chosen(&metadata.labels, &LABELS),
        annotations: chosen(&metadata.annotations, &ANNOTATIONS),
        owner_references: Some(owners.collect()),
        ..ObjectMeta::default()
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
    fn a_spec_that_is_too_large_is_not_run() {
        assert_eq!(run(MAX_SPEC_BYTES, &json!({})).spec(), Err(&Unreadable::TooLarge));
        assert!(run(MAX_SPEC_BYTES / 2, &json!({})).spec().unwrap().metrics[0].provider.web.is_some());
        // A run that is too large but has ended is not started again.
        assert!(run(MAX_SPEC_BYTES, &json!({"phase": "Error"})).summary().is_completed());
    }

    #[test]
    fn little_is_cached_of_an_inactive_run_whatever_its_content() {
        let much = || "x".repeat(MAX_SPEC_BYTES / 4);
        let many = |key: &str| (0..500).map(|at| (format!("{key}{at}"), json!(much()))).collect::<Value>();
        let mut labels = many("label-");
        labels[annotation::NODE] = json!("a");
        let mut annotations = many("inplace.dev/");
        annotations[annotation::RUNNER] = json!("node/a");
        annotations[annotation::APPROVE] = json!(much());
        let owner =
            |at: usize| json!({"apiVersion": much(), "kind": "Pod", "name": "web", "uid": at.to_string()});
        let metadata = json!({"name": "r", "namespace": "shop", "uid": "1", "labels": labels,
            "annotations": annotations, "ownerReferences": (0..500).map(owner).collect::<Vec<_>>()});
        let web = json!({"url": "http://a", "body": much()});
        let args = json!([{"name": "PodName", "value": "web"}, {"name": "other", "value": much()}]);
        let spec =
            json!({"metrics": [{"name": "m", "provider": {"web": web}}], "args": args, "terminate": true});
        let results = json!([{"name": "m", "phase": "Running", "message": much()}]);
        let status = json!({"phase": "Running", "message": much(), "metricResults": results});
        let object = json!({"metadata": metadata, "spec": spec, "status": status});

        let trimmed: Summary = serde_json::from_value(object.clone()).unwrap();
        assert!(format!("{trimmed:?}").len() < 8 << 10, "{trimmed:?}");
        let phase = trimmed.status().unwrap().phase;
        assert_eq!(
            (trimmed.node(), trimmed.runner(), phase),
            (Some("a"), Some("node/a"), Some(HookPhase::Running))
        );
        assert!(trimmed.is_terminated() && trimmed.has_annotations() && !trimmed.is_approved());
        let subject = Subject { namespace: None, name: "web".to_owned() };
        assert_eq!(trimmed.subject(), Some(&subject));
        assert!(trimmed.bytes() > MAX_SPEC_BYTES && trimmed.bytes() <= object.to_string().len());
    }

    #[test]
    fn the_arguments_name_a_pod() {
        let of = |args: &[(&str, Option<&str>)]| {
            let args: Vec<_> = args
                .iter()
                .map(|(name, value)| Argument { name: (*name).into(), value: value.map(Into::into) })
                .collect();
            Subject::of(&args).map(|of| (of.namespace.unwrap_or_default(), of.name))
        };
        let web = |namespace: &str| Some((namespace.to_owned(), "web".to_owned()));
        assert_eq!(of(&[("PodName", Some("web"))]), web(""));
        assert_eq!(
            of(&[("PodName", Some("web")), ("PodNamespace", Some("kube-system"))]),
            web("kube-system")
        );
        assert_eq!(of(&[("PodName", Some(""))]), None);
        assert_eq!(of(&[("PodName", None)]), None);
    }
}
