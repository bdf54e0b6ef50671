//! The API calls of the workload commands: calls with a timeout, and one watch. Decides nothing.

use futures_util::Stream;
use json_patch::PatchOperation;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{ListParams, PatchParams};
use kube::core::DynamicObject;
use kube::runtime::watcher::watch_object;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

use crate::cli::cluster::{ClusterArgs, Failed, MANAGER, bounded, listed};
use crate::cli::dry_run::DryRun;
use crate::cli::workload_rollout::workload::{Name, Workload};
use crate::cluster::patch::json_patch;
use crate::failure::Class;

/// The API server and the selected namespace.
pub(super) struct WorkloadClient {
    client: Client,
    pub(super) namespace: String,
    /// The flags of [`ClusterArgs::repeated`].
    pub(super) flags: String,
}

impl WorkloadClient {
    pub(super) async fn connect(args: &ClusterArgs) -> Result<Self, Failed> {
        let (client, namespace) = args.connect().await?;
        Ok(Self { client, namespace, flags: args.repeated() })
    }

    fn api(&self, name: &Name) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &name.kind.resource())
    }

    /// Reads the workload.
    pub(super) async fn workload(&self, name: &Name) -> Result<Workload, Failed> {
        let doing = format!("reading {name} in namespace {}", self.namespace);
        Workload::of(name, bounded(&doing, self.api(name).get(&name.name)).await?)
    }

    /// Applies a JSON patch. `None`: one of its tests failed, and nothing was changed.
    pub(super) async fn patch(
        &self,
        name: &Name,
        operations: Vec<PatchOperation>,
        dry_run: DryRun,
    ) -> Result<Option<Workload>, Failed> {
        let field_manager = Some(MANAGER.to_owned());
        let params = PatchParams { dry_run: dry_run.is_check(), field_manager, ..PatchParams::default() };
        let patch = json_patch(operations);
        let doing = format!("changing {name} in namespace {}", self.namespace);
        match bounded(&doing, self.api(name).patch(&name.name, &params, &patch)).await {
            Ok(object) => Workload::of(name, object).map(Some),
            Err(Failed::Cluster(error)) if error.class() == Class::Refused => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// All revisions of the namespace; the owner references say which workload each belongs to.
    pub(super) async fn revisions(&self) -> Result<Vec<ControllerRevision>, Failed> {
        let doing = format!("listing the revisions in namespace {}", self.namespace);
        let api: Api<ControllerRevision> = Api::namespaced(self.client.clone(), &self.namespace);
        listed(&doing, &api, ListParams::default()).await
    }

    /// Watches the workload; `None` if it does not exist. The stream continues after errors, with a back-off.
    pub(super) fn watch(
        &self,
        name: &Name,
    ) -> impl Stream<Item = watcher::Result<Option<DynamicObject>>> + Send + use<> {
        watch_object(self.api(name), &name.name).default_backoff()
    }
}
