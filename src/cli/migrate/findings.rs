//! What a takeover of a workload from a bk-bcs operator would change, and what should be resolved before. Pure: decides
//! from objects that were read.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::game_deployment::UpdateType;
use crate::api::hook_run::HookRun;
use crate::api::pod_template::PodTemplate;
use crate::api::{annotation, crd, workload_key};
use crate::cluster::server::MANAGER;
use crate::podtask::foreign::{ForeignStep, ForeignUpdate};
use crate::podtask::time::later;
use crate::workload::diff::Change;
use crate::workload::other_controller::OtherWriter;
use crate::workload::revision;
use crate::workload::spec::WorkloadSpec;
use crate::workload::unknown_fields::unknown_fields;

/// How many fields a message names.
const MAX_NAMED: usize = 10;

/// The label with which a webhook of bk-bcs lets an object be deleted.
const DELETION_ALLOW: &str = "io.tencent.bcs.dev/deletion-allow";

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Level {
    /// Should be resolved before the takeover.
    Resolve,
    /// Should be known; nothing has to be done.
    Note,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "to resolve",
            Self::Note => "note",
        })
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) message: String,
}

impl Finding {
    pub(super) fn resolve(message: impl Into<String>) -> Self {
        Self { level: Level::Resolve, message: message.into() }
    }

    fn note(message: impl Into<String>) -> Self {
        Self { level: Level::Note, message: message.into() }
    }
}

/// The record of a leader election.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leader {
    lock: String,
    holder: String,
    renewed: Timestamp,
    seconds: i64,
}

impl Leader {
    /// Parses the record of the lock of this name; `None` if nobody holds the lock.
    pub(super) fn read(lock: &str, record: &str) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Record {
            holder_identity: String,
            lease_duration_seconds: i64,
            renew_time: Timestamp,
        }
        let record: Record = serde_json::from_str(record).ok()?;
        let Record { holder_identity: holder, lease_duration_seconds: seconds, renew_time: renewed } = record;
        (!holder.is_empty()).then(|| Self { lock: lock.to_owned(), holder, renewed, seconds })
    }
}

/// A workload as it was read.
pub(super) struct Workload {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) labels: BTreeMap<String, String>,
    /// `None` if this release cannot decode it.
    pub(super) spec: Option<WorkloadSpec>,
    /// The spec as it is stored.
    pub(super) raw: Value,
    pub(super) managed: Vec<ManagedFieldsEntry>,
}

/// The objects that a workload controls.
pub(super) struct Owned<'a> {
    pub(super) pods: Vec<&'a Pod>,
    pub(super) revisions: Vec<&'a ControllerRevision>,
    pub(super) runs: Vec<&'a HookRun>,
}

/// The operators that hold their lock.
pub(super) fn operators(leaders: &[Leader], now: Timestamp) -> Vec<Finding> {
    let is_held = |leader: &&Leader| later(leader.renewed, SignedDuration::from_secs(leader.seconds)) > now;
    let finding = |leader: &Leader| {
        let Leader { lock, holder, .. } = leader;
        Finding::resolve(format!(
            "an operator runs: {holder} holds the lock {lock}; scale its Deployment to 0 replicas"
        ))
    };
    leaders.iter().filter(is_held).map(finding).collect()
}

/// All findings about one workload.
pub(super) fn workload(workload: &Workload, owned: &Owned<'_>, now: Timestamp) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(other) = OtherWriter::read(&workload.managed, MANAGER)
        && other.quiet_until(now).is_some()
    {
        findings.push(Finding::resolve(format!(
            "another controller ({}) has written its status less than two minutes ago: scale the operator to 0 replicas",
            other.manager
        )));
    }
    if workload.labels.contains_key(DELETION_ALLOW) {
        findings.push(Finding::note(format!(
            "the label {DELETION_ALLOW} has no effect: no workload is kept from being deleted, with or without it; restrict \
             the deletion by RBAC or an admission policy"
        )));
    }
    let Some(spec) = &workload.spec else {
        findings.push(Finding::resolve(
            "this release cannot decode it, and would do nothing for it: compare it with `kubectl explain` and the CRD of \
             `inplace crds`",
        ));
        return findings;
    };
    findings.extend(fields(workload, spec));
    findings.extend(template(spec, owned));
    findings.extend(updates(owned, now));
    findings.extend(hooks(owned));
    findings
}

/// Fields that have no effect, or another one than the manifest suggests.
fn fields(workload: &Workload, spec: &WorkloadSpec) -> Vec<Finding> {
    let mut findings = Vec::new();
    let schema = schema(&workload.kind);
    let mut unknown = Vec::new();
    without_schema("spec", &workload.raw, &schema, &mut unknown);
    if !unknown.is_empty() {
        findings.push(Finding::note(format!("fields without an effect: {}", list(&unknown))));
    }
    if spec.template.typed().is_err() {
        findings.push(Finding::resolve(
            "spec.template is not a valid pod template: no pod can be created from it",
        ));
    }
    let unknown = unknown_fields(&spec.template);
    if !unknown.is_empty() {
        let names = list(&unknown);
        findings.push(Finding::note(format!(
            "fields of the template that Kubernetes does not have, or has only in newer releases: {names}; pods are created without them"
        )));
    }
    if workload.raw.pointer("/updateStrategy/type").is_none() {
        findings.push(Finding::note(
            "updateStrategy.type is not set: RollingUpdate (the operator for GameStatefulSets may have used OnDelete); set it",
        ));
    }
    findings
}

/// What the first reconcile would do because of the template.
fn template(spec: &WorkloadSpec, owned: &Owned<'_>) -> Vec<Finding> {
    let active = |pod: &&&Pod| pod.metadata.deletion_timestamp.is_none();
    let pods = owned.pods.iter().filter(active).count();
    let templates = owned.revisions.iter().filter_map(|found| {
        let template = revision::template(&found.data.as_ref()?.0)?;
        Some((found.name_any(), found.revision, template))
    });
    let mut templates: Vec<_> = templates.collect();
    templates.sort_by_key(|(_, number, _)| *number);
    let equal = templates.iter().rfind(|(_, _, template)| revision::equal(template, &spec.template));
    if let Some((name, ..)) = equal {
        let label = |pod: &&&Pod| pod.labels().get(workload_key::REVISION) == Some(name);
        let others = pods - owned.pods.iter().filter(active).filter(label).count();
        let message = format!("{others} of {pods} pods are not at revision {name}: the update continues");
        return (others > 0).then(|| Finding::note(message)).into_iter().collect();
    }
    if pods == 0 {
        return Vec::new();
    }
    let way = match spec.update.way {
        UpdateType::RollingUpdate => "are created again",
        UpdateType::OnDelete => "are created again when they are deleted",
        UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate => "are updated",
    };
    let message = match templates.last() {
        None => format!("it has no ControllerRevision: {pods} pods {way}"),
        Some((name, _, last)) => {
            let what = difference(last, &spec.template);
            format!("its template is not that of its newest revision {name} ({what}): {pods} pods {way}")
        }
    };
    let hint = "set updateStrategy.paused to true before the takeover, or finish the update first";
    vec![if spec.update.paused {
        Finding::note(format!("{message}, when it is no longer paused"))
    } else {
        Finding::resolve(format!("{message}; {hint}"))
    }]
}

/// The paths that differ.
fn difference(old: &PodTemplate, new: &PodTemplate) -> String {
    let change = Change::between(old, new, false);
    let mut parts: Vec<_> = change.containers.iter().map(|name| format!("image of {name}")).collect();
    parts.extend(change.labels.keys().map(|key| format!("label {key}")));
    parts.extend(change.annotations.keys().map(|key| format!("annotation {key}")));
    parts.extend(change.elsewhere);
    list(&parts)
}

/// Updates in place that are not complete.
fn updates(owned: &Owned<'_>, now: Timestamp) -> Vec<Finding> {
    let finding = |pod: &&Pod| {
        let update = ForeignUpdate::read(pod, false)?;
        let name = pod.name_any();
        Some(match update.step(now) {
            ForeignStep::Open => {
                Finding::note(format!("pod {name}: its update is complete; its readiness gate is opened"))
            }
            ForeignStep::Wait => Finding::note(format!(
                "pod {name}: its kubelet restarts {}; its readiness gate is opened afterwards",
                update.restarting.join(", ")
            )),
            ForeignStep::Finish => Finding::note(format!(
                "pod {name}: the images of {} are not written yet; the update is finished by the agent",
                update.unwritten.join(", ")
            )),
            ForeignStep::Stuck => Finding::resolve(format!(
                "pod {name}: its update does not end, {} does not run its new image: change the template to an image that \
                 starts, or delete the pod",
                update.restarting.join(", ")
            )),
        })
    };
    owned.pods.iter().filter_map(finding).collect()
}

/// HookRuns that are not complete and were not created by this project.
fn hooks(owned: &Owned<'_>) -> Vec<Finding> {
    let foreign = |run: &&&HookRun| {
        !run.annotations().contains_key(workload_key::HOOK_POD)
            && !run.labels().contains_key(annotation::OPERATION)
    };
    let open = |run: &&&HookRun| {
        run.status.as_ref().and_then(|status| status.phase).is_none_or(|phase| !phase.is_completed())
    };
    let finding = |run: &&HookRun| {
        Finding::resolve(format!(
            "HookRun {} is not complete: wait for its end; at a takeover it is deleted, and the hook runs again",
            run.name_any()
        ))
    };
    owned.runs.iter().filter(foreign).filter(open).map(finding).collect()
}

/// The schema of the spec of a kind.
fn schema(kind: &str) -> Value {
    let definitions = crd::all().unwrap_or_default();
    let of_kind =
        |(_, crd): &&(&str, Value)| crd.pointer("/spec/names/kind").and_then(Value::as_str) == Some(kind);
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    definitions.iter().find(of_kind).and_then(|(_, crd)| crd.pointer(path)).cloned().unwrap_or_default()
}

/// Adds the paths of the fields of `value` that `schema` does not describe.
fn without_schema(path: &str, value: &Value, schema: &Value, unknown: &mut Vec<String>) {
    match value {
        _ if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) => {}
        Value::Object(fields) => {
            let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
            for (name, value) in fields {
                match properties.get(name) {
                    Some(schema) => without_schema(&format!("{path}.{name}"), value, schema, unknown),
                    None => unknown.push(format!("{path}.{name}")),
                }
            }
        }
        Value::Array(items) => {
            let schema = schema.get("items").cloned().unwrap_or_default();
            for (at, item) in items.iter().enumerate() {
                without_schema(&format!("{path}[{at}]"), item, &schema, unknown);
            }
        }
        _ => {}
    }
}

fn list(names: &[String]) -> String {
    let more = if names.len() > MAX_NAMED { " and more" } else { "" };
    format!("{}{more}", names[..names.len().min(MAX_NAMED)].join(", "))
}

#[cfg(test)]
mod tests;
