//! A pod as a rollout sees it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::api::annotation;
use crate::rollout::record::PodRecord;
use crate::workload::pods;

/// What is read from a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// What every controller here reads.
    pub base: pods::Pod,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its controller.
    pub owner: Option<OwnerReference>,
    /// What a rollout does with it, or did last.
    pub record: Option<PodRecord>,
    /// The uid of the rollout that works on it.
    pub worked_on: Option<String>,
    /// Name and image of all its containers, those that run from the start on too.
    pub images: BTreeMap<String, String>,
    /// True when it is about to be evicted.
    pub evicted: bool,
}

impl Pod {
    /// Reads a pod. What is missing or not understood is taken as absent.
    pub fn read(pod: &core::Pod) -> Self {
        let metadata = &pod.metadata;
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
        let labels = metadata.labels.clone().unwrap_or_default();
        let owners = metadata.owner_references.iter().flatten();
        let containers =
            pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            base: pods::Pod::read(pod),
            owner: owners.clone().find(|owner| owner.controller == Some(true)).cloned(),
            record: annotation(annotation::ROLLOUT).and_then(|text| serde_json::from_str(text).ok()),
            worked_on: labels.get(annotation::ROLLOUT_UID).cloned(),
            labels,
            images: containers.map(|one| (one.name.clone(), one.image.clone().unwrap_or_default())).collect(),
            evicted: conditions
                .into_iter()
                .any(|one| one.type_ == "DisruptionTarget" && one.status == "True"),
        }
    }

    /// True when it says the same as `before`, whatever the versions.
    pub fn says_the_same(&self, before: &Self) -> bool {
        let unversioned = |pod: &Self| {
            let base = pods::Pod { version: String::new(), ..pod.base.clone() };
            Self { base, ..pod.clone() }
        };
        unversioned(self) == unversioned(before)
    }
}
