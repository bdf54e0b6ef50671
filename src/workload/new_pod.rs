//! Builds a new pod: the template, its owner, its labels, and what only this pod has. Creates nothing.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};

use crate::api::pod_template::PodTemplate;
use crate::api::{annotation, workload_key};
use crate::workload::spec::{StatefulSet, WorkloadSpec};

/// The environment variable that holds the number of the pod.
const INDEX_VARIABLE: &str = "POD_INDEX";

/// A pod to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPod<'a> {
    /// Name of the pod.
    pub name: String,
    /// The revision whose template it is created from.
    pub revision: &'a str,
    /// The last part of the name, or the ordinal.
    pub instance: String,
    /// The number of the pod, if its workload numbers pods from a range.
    pub index: Option<u32>,
    /// True for a surge pod: it exists for an update only and is deleted after it.
    pub surge: bool,
}

/// The whole pod object.
pub fn pod(spec: &WorkloadSpec, new_pod: &NewPod<'_>, template: &PodTemplate) -> Value {
    let mut labels = template.labels();
    labels.insert(workload_key::REVISION.to_owned(), new_pod.revision.to_owned());
    // Only the controller marks surge pods: the same label in the template is ignored.
    labels.remove(workload_key::SURGE);
    if new_pod.surge {
        labels.insert(workload_key::SURGE.to_owned(), "true".to_owned());
    }
    if spec.stateful().is_some() {
        labels.insert(workload_key::SET_POD_NAME.to_owned(), new_pod.name.clone());
        labels.insert(workload_key::SET_ORDINAL.to_owned(), new_pod.instance.clone());
    } else {
        labels.insert(workload_key::INSTANCE.to_owned(), new_pod.instance.clone());
    }
    let mut annotations = template.annotations();
    let mut pod_spec = template.0.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    if let Some(index) = new_pod.index {
        annotations.insert(workload_key::INDEX.to_owned(), index.to_string());
        add_variable(&mut pod_spec, &index.to_string());
    }
    if spec.gate {
        add_gate(&mut pod_spec);
    }
    if let Some(set) = spec.stateful() {
        pod_spec.insert("hostname".to_owned(), json!(new_pod.name));
        pod_spec.insert("subdomain".to_owned(), json!(set.service));
        add_claims(&mut pod_spec, set, &spec.name, &new_pod.instance);
    }
    let mut metadata = template.0.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    metadata.retain(|field, _| field == "finalizers");
    metadata.insert("name".to_owned(), json!(new_pod.name));
    metadata.insert("namespace".to_owned(), json!(spec.namespace));
    metadata.insert("labels".to_owned(), json!(labels));
    metadata.insert("annotations".to_owned(), json!(annotations));
    metadata.insert("ownerReferences".to_owned(), json!([owner(spec)]));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec})
}

/// The owner reference to the workload, for the objects that it owns.
pub fn owner(spec: &WorkloadSpec) -> OwnerReference {
    OwnerReference {
        api_version: "tkex.tencent.com/v1alpha1".to_owned(),
        kind: spec.kind_name().to_owned(),
        name: spec.name.clone(),
        uid: spec.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The claims of the pod with the ordinal `instance`, by name. They stay when the pod is deleted.
pub fn claims(spec: &WorkloadSpec, set: &StatefulSet, instance: &str) -> Vec<(String, Value)> {
    let selected: BTreeMap<_, _> = spec.selector.match_labels.clone().unwrap_or_default();
    set.claims
        .iter()
        .map(|template| {
            let name = claim_name(template.name(), &spec.name, instance);
            let mut metadata = template.0.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
            let mut labels: Map<String, Value> =
                metadata.get("labels").and_then(Value::as_object).cloned().unwrap_or_default();
            labels.extend(selected.iter().map(|(key, value)| (key.clone(), json!(value))));
            metadata.insert("name".to_owned(), json!(name));
            metadata.insert("namespace".to_owned(), json!(spec.namespace));
            metadata.insert("labels".to_owned(), Value::Object(labels));
            let spec = template.0.get("spec").cloned().unwrap_or_default();
            let body = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec});
            (name, body)
        })
        .collect()
}

fn claim_name(claim: &str, set: &str, instance: &str) -> String {
    format!("{claim}-{set}-{instance}")
}

fn add_gate(spec: &mut Map<String, Value>) {
    edit(spec, "readinessGates", |gates| {
        let there =
            |gate: &Value| gate.get("conditionType").and_then(Value::as_str) == Some(annotation::GATE);
        if !gates.iter().any(there) {
            gates.push(json!({"conditionType": annotation::GATE}));
        }
    });
}

fn add_variable(spec: &mut Map<String, Value>, value: &str) {
    edit(spec, "containers", |containers| {
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            edit(container, "env", |variables| {
                variables
                    .retain(|variable| variable.get("name").and_then(Value::as_str) != Some(INDEX_VARIABLE));
                variables.insert(0, json!({"name": INDEX_VARIABLE, "value": value}));
            });
        }
    });
}

/// A claim replaces a volume of the same name.
fn add_claims(spec: &mut Map<String, Value>, set: &StatefulSet, workload: &str, instance: &str) {
    if set.claims.is_empty() {
        return;
    }
    edit(spec, "volumes", |volumes| {
        for template in &set.claims {
            let name = template.name();
            volumes.retain(|volume| volume.get("name").and_then(Value::as_str) != Some(name));
            let claim = json!({"claimName": claim_name(name, workload, instance)});
            volumes.push(json!({"name": name, "persistentVolumeClaim": claim}));
        }
    });
}

/// Changes the list `field`; an absent list counts as empty.
fn edit(fields: &mut Map<String, Value>, field: &str, change: impl FnOnce(&mut Vec<Value>)) {
    let mut items = match fields.remove(field) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    change(&mut items);
    fields.insert(field.to_owned(), Value::Array(items));
}

#[cfg(test)]
mod tests;
