//! What a rollout reads from a pod. Nothing is decided here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::api::annotation;
use crate::api::group::epoch;
use crate::podtask::pod;
use crate::rollout::record::PodRecord;

/// What a rollout reads from a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// What all controllers of this project read.
    pub base: pod::Pod,
    /// The owner reference of its controller.
    pub owner: Option<OwnerReference>,
    /// What a rollout does with the pod, or did last.
    pub record: Option<PodRecord>,
    /// The uid of the rollout that works on the pod.
    pub worked_on: Option<String>,
    /// Name and image of all containers, including init containers.
    pub images: BTreeMap<String, String>,
    /// True when the pod is about to be evicted.
    pub evicted: bool,
    /// The number of the last group restart of the pod; 0 without one.
    pub epoch: i64,
    /// The images that the agent is to pull in advance for a rollout, as the annotation names them.
    pub prefetch: Option<String>,
}

impl Pod {
    /// Reads a pod. A value that is missing or malformed counts as absent.
    pub fn read(pod: &core::Pod) -> Self {
        let metadata = &pod.metadata;
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
        let label = |key: &str| metadata.labels.as_ref().and_then(|all| all.get(key)).cloned();
        let owners = metadata.owner_references.iter().flatten();
        let containers =
            pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            base: pod::Pod::read(pod),
            owner: owners.clone().find(|owner| owner.controller == Some(true)).cloned(),
            record: annotation(annotation::ROLLOUT).and_then(|text| serde_json::from_str(text).ok()),
            prefetch: annotation(annotation::ROLLOUT_PREFETCH).cloned(),
            epoch: epoch(annotation(annotation::GROUP_EPOCH).map(String::as_str)),
            worked_on: label(annotation::ROLLOUT_UID),
            images: containers.map(|one| (one.name.clone(), one.image.clone().unwrap_or_default())).collect(),
            evicted: conditions
                .into_iter()
                .any(|one| one.type_ == "DisruptionTarget" && one.status == "True"),
        }
    }

    /// True when nothing but the resource version differs from `before`.
    pub fn is_unchanged_since(&self, before: &Self) -> bool {
        let unversioned = |pod: &Self| {
            let base = pod::Pod { version: String::new(), ..pod.base.clone() };
            Self { base, ..pod.clone() }
        };
        unversioned(self) == unversioned(before)
    }
}
