//! The API calls for rollouts. Each call is made once. Every write applies only to the object that was seen, and to
//! the version that was seen if a decision depends on it. Must not decide.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::Resource as _;
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, ListParams, Patch, Preconditions};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::api::annotation;
use crate::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutStatus, WorkloadRef};
use crate::api::selector;
use crate::api::workload_kind::{Kind, REPLICA_SET};
use crate::cluster::error::{Class, Error};
use crate::cluster::patch::{as_us, status_patch};
use crate::cluster::server::Server;
use crate::cluster::trim::Trimmed;
use crate::controller::rollouts::cache::{CachedRollout, Key, Rollouts};
use crate::rollout::desired::Rollout;
use crate::rollout::target::{TargetState, Template};

/// A rollout's target as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The label selector of its pods.
    pub(crate) labels: String,
    /// The owners and templates of its pods.
    pub(crate) target: TargetState,
}

/// The fields that all kinds of workloads have in common.
#[derive(Deserialize)]
struct Workload {
    metadata: Meta,
    spec: Spec,
    #[serde(default)]
    status: WorkloadStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadStatus {
    /// Only a `DaemonSet` has it.
    desired_number_scheduled: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    selector: Option<LabelSelector>,
    #[serde(default)]
    template: Value,
    /// A `Job` and a `DaemonSet` have none.
    replicas: Option<i64>,
    /// Only a `Job` has it.
    backoff_limit: Option<usize>,
}

impl Spec {
    /// The number of restarts at which a `Job` fails. A `Job` whose pods have the restart policy `OnFailure` counts
    /// every restart of its pods, whatever caused it, and tolerates none if the limit is 0.
    fn gives_up_at(&self) -> Option<usize> {
        let counts = self.template["spec"]["restartPolicy"] == "OnFailure";
        self.backoff_limit.filter(|_| counts).map(|limit| limit.max(1))
    }
}

#[derive(Deserialize)]
struct Owned {
    metadata: Meta,
}

/// The metadata that is used. The rest is not read: a user may write any time into managed fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    uid: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl Meta {
    fn is_controlled_by(&self, uid: &str) -> bool {
        let owner = self.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        owner.is_some_and(|owner| owner.uid == uid)
    }
}

#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

fn workloads(kind: Kind, namespace: &str) -> Request {
    Request::new(format!("/apis/{}/namespaces/{namespace}/{}", kind.api_version(), kind.plural()))
}

fn rollouts(namespace: &str) -> Request {
    Request::new(InPlaceRollout::url_path(&(), Some(namespace)))
}

impl Server {
    /// Reads the target of a rollout.
    ///
    /// # Errors
    /// As any call. A missing target is not an error.
    pub(crate) async fn find_target(&self, rollout: &Rollout) -> Result<Found, Error> {
        let target = &rollout.spec.target;
        let absent = || Found {
            labels: format!("{}={}", annotation::ROLLOUT_UID, rollout.uid),
            target: TargetState::Absent,
        };
        let Some(reference) = &target.workload_ref else {
            let labels = target.selector.as_ref().map(selector::text).unwrap_or_default();
            let target = TargetState::Present {
                owners: None,
                templates: Vec::new(),
                desired: None,
                gives_up_at: None,
            };
            return Ok(Found { labels, target });
        };
        let Some(kind) = Kind::of(reference) else { return Ok(absent()) };
        let Some(workload) = self.workload(kind, &rollout.namespace, &reference.name).await? else {
            return Ok(absent());
        };
        let labels = workload.spec.selector.as_ref().map(selector::text).unwrap_or_default();
        let (Some(uid), false) = (&workload.metadata.uid, labels.is_empty()) else { return Ok(absent()) };
        let owners = if kind.owns_replica_sets() {
            self.replica_sets(&rollout.namespace, &labels, uid).await?
        } else {
            [uid.clone()].into()
        };
        let template = Template { owner: rollout.target(), images: images(&workload.spec.template) };
        let (owners, templates) = (Some(owners), vec![template]);
        let desired = workload.spec.replicas.or(workload.status.desired_number_scheduled);
        let desired = desired.map(|desired| usize::try_from(desired).unwrap_or(0));
        let target =
            TargetState::Present { owners, templates, desired, gives_up_at: workload.spec.gives_up_at() };
        Ok(Found { labels, target })
    }

    /// The template of a pod's owner; `None` if the owner is gone or of an unknown kind.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn template_of(
        &self,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<Template>, Error> {
        let reference = WorkloadRef {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        };
        let Some(kind) = Kind::of(&reference) else { return Ok(None) };
        let workload = self.workload(kind, namespace, &owner.name).await?;
        let own = workload.filter(|workload| workload.metadata.uid.as_ref() == Some(&owner.uid));
        Ok(own.map(|workload| Template {
            owner: format!("{}/{}", owner.kind, owner.name),
            images: images(&workload.spec.template),
        }))
    }

    async fn workload(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Workload>, Error> {
        let doing = format!("reading {} {namespace}/{name}", kind.name);
        match self.ask(&doing, workloads(kind, namespace).get(name, &GetParams::default())).await {
            Ok(workload) => Ok(Some(workload)),
            Err(error) if error.class() == Class::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The uids of the `ReplicaSet`s of a `Deployment` or a `Rollout`.
    async fn replica_sets(
        &self,
        namespace: &str,
        labels: &str,
        uid: &str,
    ) -> Result<BTreeSet<String>, Error> {
        let doing = format!("listing the ReplicaSets {labels} of namespace {namespace}");
        let params = ListParams { label_selector: Some(labels.to_owned()), ..ListParams::default() };
        let list: List<Owned> = self.ask(&doing, workloads(REPLICA_SET, namespace).list(&params)).await?;
        let own = list.items.into_iter().flatten().filter(|set| set.metadata.is_controlled_by(uid));
        Ok(own.filter_map(|set| set.metadata.uid).collect())
    }

    /// True if the rollout with this uid exists and is in progress.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn is_under_way(&self, key: &Key, uid: &str) -> Result<bool, Error> {
        let request = rollouts(&key.namespace).get(&key.name, &GetParams::default());
        match self.ask::<Trimmed<CachedRollout>>(&format!("reading {key}"), request).await {
            Ok(seen) => Ok(seen.value.0.is_some_and(|rollout| rollout.uid == uid && rollout.is_active())),
            Err(error) if error.class() == Class::Gone => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes the status of a rollout, provided that it is unchanged since it was read; stores the result in the
    /// cache `cache`.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn rollout_status(
        &self,
        cache: &Rollouts,
        rollout: &Rollout,
        status: &InPlaceRolloutStatus,
    ) -> Result<(), Error> {
        let doing = format!("writing the status of {}", Key::of(rollout));
        let patch = status_patch((&rollout.uid, &rollout.version), json!(status));
        let request =
            rollouts(&rollout.namespace).patch_subresource("status", &rollout.name, &as_us(), &patch);
        cache.store.upsert(self.ask(&doing, request).await?);
        Ok(())
    }

    /// Gives a rollout the label with which agents watch it.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn label_rollout(&self, rollout: &Rollout) -> Result<(), Error> {
        let doing = format!("labelling {}", Key::of(rollout));
        let body = json!({"metadata": {"uid": rollout.uid, "labels": {annotation::TOGETHER: "true"}}});
        let request = rollouts(&rollout.namespace).patch(&rollout.name, &as_us(), &Patch::Merge(body));
        self.ask::<IgnoredAny>(&doing, request).await.map(drop)
    }

    /// Deletes a rollout. It is not an error if it is gone.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn delete_rollout(&self, rollout: &Rollout) -> Result<(), Error> {
        let doing = format!("deleting {}", Key::of(rollout));
        let preconditions = Preconditions { uid: Some(rollout.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self
            .ask::<IgnoredAny>(&doing, rollouts(&rollout.namespace).delete(&rollout.name, &params))
            .await
        {
            Err(error) if error.class() == Class::Gone => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

/// The containers of a pod template and their images.
fn images(template: &Value) -> BTreeMap<String, String> {
    let text =
        |container: &Value, field: &str| container.get(field).and_then(Value::as_str).map(str::to_owned);
    ["/spec/initContainers", "/spec/containers"]
        .into_iter()
        .filter_map(|path| template.pointer(path)?.as_array())
        .flatten()
        .filter_map(|container| Some((text(container, "name")?, text(container, "image")?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_fields_that_cannot_be_read_hide_no_replica_set() {
        let owner = |uid: &str, controller: bool| {
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": uid, "uid": uid,
                "controller": controller})
        };
        let managed = json!([{"manager": "curl", "time": "9999-12-31T23:59:59Z"}]);
        let list = json!({"items": [{"metadata": {"uid": "set-1", "managedFields": managed,
            "ownerReferences": [owner("other", false), owner("web", true)]}}, {"metadata": {}}]});
        let sets = serde_json::from_value::<List<Owned>>(list).unwrap().items.unwrap();
        assert_eq!(sets[0].metadata.uid.as_deref(), Some("set-1"));
        assert!(sets[0].metadata.is_controlled_by("web") && !sets[0].metadata.is_controlled_by("other"));
        assert!(!sets[1].metadata.is_controlled_by("web"));
    }
}
