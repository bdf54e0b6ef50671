//! Reads the objects that a takeover concerns: workloads, their pods, revisions and HookRuns, HookTemplates, and the locks of
//! operators.
//! Decides nothing, and writes nothing.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Endpoints, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde::Deserialize as _;
use serde_json::Value;

use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::hook_run::HookRun;
use crate::api::hook_template::{HookTemplate, HookTemplateSpec};
use crate::cli::cluster::{Failed, listed};
use crate::cli::migrate::findings::{Leader, Owned, Workload};
use crate::cli::migrate::hooks::Templates;
use crate::failure::Class;
use crate::workload::spec::WorkloadSpec;

/// The annotation in which a leader election by an `Endpoints` object stores its record.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// The API server, and the namespace to check; `None`: all.
pub(super) struct MigrationClient {
    client: Client,
    namespace: Option<String>,
}

/// All objects of the namespaces.
pub(super) struct Objects {
    pub(super) workloads: Vec<Workload>,
    pub(super) templates: Templates,
    pods: Vec<Pod>,
    revisions: Vec<ControllerRevision>,
    runs: Vec<HookRun>,
}

impl Objects {
    /// The objects that `workload` controls.
    pub(super) fn of(&self, workload: &Workload) -> Owned<'_> {
        let owned = |meta: &ObjectMeta| {
            let mut owners = meta.owner_references.iter().flatten();
            owners.any(|owner| owner.controller == Some(true) && owner.uid == workload.uid)
        };
        Owned {
            pods: self.pods.iter().filter(|pod| owned(&pod.metadata)).collect(),
            revisions: self.revisions.iter().filter(|revision| owned(&revision.metadata)).collect(),
            runs: self.runs.iter().filter(|run| owned(&run.metadata)).collect(),
        }
    }
}

impl MigrationClient {
    pub(super) fn new(client: Client, namespace: Option<String>) -> Self {
        Self { client, namespace }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// The leader election records in the namespace of the operators. None if it does not exist.
    pub(super) async fn leaders(&self, namespace: &str) -> Result<Vec<Leader>, Failed> {
        let doing = format!("listing the endpoints of namespace {namespace}");
        let api: Api<Endpoints> = Api::namespaced(self.client.clone(), namespace);
        let found = listed(&doing, &api, ListParams::default()).await?;
        let leader = |lock: Endpoints| {
            let record = lock.metadata.annotations?.remove(LEADER)?;
            Leader::read(lock.metadata.name.as_deref().unwrap_or_default(), &record)
        };
        Ok(found.into_iter().filter_map(leader).collect())
    }

    /// All objects that takeovers concern.
    pub(super) async fn objects(&self) -> Result<Objects, Failed> {
        let mut workloads = Vec::new();
        for kind in [ApiResource::erase::<GameDeployment>(&()), ApiResource::erase::<GameStatefulSet>(&())] {
            let found = self.of_kind(&kind).await?;
            workloads.extend(found.into_iter().map(|object| workload(&kind.kind, object)));
        }
        let templates = self.of_kind(&ApiResource::erase::<HookTemplate>(&())).await?;
        let all = ListParams::default;
        Ok(Objects {
            workloads,
            templates: templates.into_iter().map(template).collect(),
            pods: listed("listing the pods", &self.api(), all()).await?,
            revisions: listed("listing the ControllerRevisions", &self.api(), all()).await?,
            runs: listed("listing the HookRuns", &self.api(), all()).await?,
        })
    }

    /// The objects of one kind; none if the API server does not have the kind.
    async fn of_kind(&self, kind: &ApiResource) -> Result<Vec<DynamicObject>, Failed> {
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, kind),
            None => Api::all_with(self.client.clone(), kind),
        };
        match listed(&format!("listing the {}", kind.plural), &api, ListParams::default()).await {
            Err(Failed::Cluster(error)) if error.class() == Class::Gone => Ok(Vec::new()),
            found => found,
        }
    }
}

fn template(object: DynamicObject) -> ((String, String), Option<HookTemplateSpec>) {
    let spec = object.data.get("spec").and_then(|spec| HookTemplateSpec::deserialize(spec).ok());
    let DynamicObject { metadata, .. } = object;
    ((metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default()), spec)
}

fn workload(kind: &str, object: DynamicObject) -> Workload {
    let (namespace, name) = (object.metadata.namespace.clone(), object.metadata.name.clone());
    let (uid, labels) = (object.metadata.uid.clone(), object.metadata.labels.clone().unwrap_or_default());
    let managed = object.metadata.managed_fields.clone().unwrap_or_default();
    let value = serde_json::to_value(object).unwrap_or_default();
    let raw = value.get("spec").cloned().unwrap_or(Value::Null);
    let read = if kind == "GameStatefulSet" {
        serde_json::from_value(value).map(|set| WorkloadSpec::of_stateful_set(&set))
    } else {
        serde_json::from_value(value).map(|deployment| WorkloadSpec::of_deployment(&deployment))
    };
    Workload {
        kind: kind.to_owned(),
        namespace: namespace.unwrap_or_default(),
        name: name.unwrap_or_default(),
        uid: uid.unwrap_or_default(),
        labels,
        // The error is dropped, because it contains values.
        spec: read.ok(),
        raw,
        managed,
    }
}
