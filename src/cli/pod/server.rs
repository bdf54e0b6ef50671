//! The API calls of the pod commands: calls with a timeout, and one watch.
//! Decides nothing; errors name the object.

use futures_util::Stream;
use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, PatchParams};
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::runtime::watcher::watch_object;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

use crate::api::hook_template::HookTemplate;
use crate::cli::cluster::{MANAGER, bounded, listed};
use crate::cli::dry_run::DryRun;
use crate::cli::pod::names::PodName;
use crate::cli::pod::{ClusterArgs, Failed};
use crate::cluster;
use crate::cluster::error::Error;
use crate::cluster::patch::json_patch;
use crate::failure::Class;

/// A pod without spec and status.
type Meta = PartialObjectMeta<Pod>;

/// The API server and the selected namespace.
#[derive(Clone)]
pub(super) struct PodClient {
    client: Client,
    /// From `-n`, or else from the kubeconfig's context.
    pub(super) namespace: String,
    /// The flags of [`ClusterArgs::repeated`].
    pub(super) flags: String,
}

/// The pods to list or watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// In every namespace.
    pub(super) all_namespaces: bool,
    /// Only pods with these labels.
    pub(super) selector: Option<String>,
    /// Only the pod with this name.
    pub(super) name: Option<String>,
    /// Only pods with these fields.
    pub(super) fields: Option<String>,
}

impl Scope {
    fn field_selector(&self) -> Option<String> {
        let name = self.name.as_ref().map(|name| format!("metadata.name={name}"));
        let terms: Vec<_> = name.into_iter().chain(self.fields.clone()).collect();
        (!terms.is_empty()).then(|| terms.join(","))
    }

    fn params(&self) -> ListParams {
        ListParams {
            label_selector: self.selector.clone(),
            field_selector: self.field_selector(),
            ..ListParams::default()
        }
    }
}

impl PodClient {
    /// Connects as kubectl does.
    pub(super) async fn connect(args: &ClusterArgs) -> Result<Self, Failed> {
        let (client, namespace) = args.connect().await?;
        Ok(Self { client, namespace, flags: args.repeated() })
    }

    /// An API for the pods' metadata; the server omits spec and status.
    fn metas(&self) -> Api<Meta> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Reads the whole pod.
    pub(super) async fn pod(&self, name: &PodName) -> Result<Pod, Failed> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        bounded(&self.doing("reading", name), pods.get(&name.0)).await
    }

    /// Reads the node; `None` if the user may not read nodes or the node does not exist.
    pub(super) async fn node(&self, name: &str) -> Option<Node> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        bounded("reading the node", nodes.get(name)).await.ok()
    }

    /// Reads a HookTemplate; `None` if it does not exist.
    pub(super) async fn hook_template(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<HookTemplate>, Error> {
        cluster::server::Server::new(self.client.clone()).hook_template(namespace, name).await
    }

    /// Reads the metadata of the pod.
    pub(super) async fn meta(&self, name: &PodName) -> Result<ObjectMeta, Failed> {
        Ok(bounded(&self.doing("reading", name), self.metas().get(&name.0)).await?.metadata)
    }

    /// Applies a JSON patch to the pod. `Ok(false)`: one of its tests failed, and nothing was changed. The API server
    /// stores nothing if `dry_run` says so.
    pub(super) async fn patch(
        &self,
        name: &PodName,
        operations: Vec<PatchOperation>,
        dry_run: DryRun,
    ) -> Result<bool, Failed> {
        let field_manager = Some(MANAGER.to_owned());
        let params = PatchParams { dry_run: dry_run.is_check(), field_manager, ..PatchParams::default() };
        let patch = json_patch(operations);
        let pods = self.metas();
        match bounded(&self.doing("annotating", name), pods.patch(&name.0, &params, &patch)).await {
            Ok(_) => Ok(true),
            Err(Failed::Cluster(error)) if error.class() == Class::Refused => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    /// Lists the metadata of all pods in `scope`.
    pub(super) async fn list(&self, scope: &Scope) -> Result<Vec<ObjectMeta>, Failed> {
        let found = listed("listing pods", &self.scoped(scope), scope.params()).await?;
        Ok(found.into_iter().map(|pod| pod.metadata).collect())
    }

    /// Checks the permission and the selectors of `scope`, which a watch would try again and again.
    pub(super) async fn check(&self, scope: &Scope) -> Result<(), Failed> {
        bounded("listing pods", self.scoped(scope).list(&scope.params().limit(1))).await.map(drop)
    }

    /// Lists the pods in `scope`, which are those of the namespace.
    pub(super) async fn pods(&self, scope: &Scope) -> Result<Vec<Pod>, Failed> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        listed("listing pods", &pods, scope.params()).await
    }

    /// Watches the metadata of the pod; `None` if it does not exist. The stream continues after errors, with a
    /// back-off.
    pub(super) fn watch_pod(
        &self,
        name: &PodName,
    ) -> impl Stream<Item = watcher::Result<Option<Meta>>> + Send + use<> {
        watch_object(self.metas(), &name.0).default_backoff()
    }

    /// Watches the metadata of the pods in `scope`. The stream continues after errors, with a back-off.
    pub(super) fn watch(
        &self,
        scope: &Scope,
    ) -> impl Stream<Item = watcher::Result<watcher::Event<Meta>>> + Send + use<> {
        let config = watcher::Config {
            label_selector: scope.selector.clone(),
            field_selector: scope.field_selector(),
            ..watcher::Config::default()
        };
        watcher(self.scoped(scope), config).default_backoff()
    }

    fn scoped(&self, scope: &Scope) -> Api<Meta> {
        if scope.all_namespaces { Api::all(self.client.clone()) } else { self.metas() }
    }

    /// The events about pods of this name.
    pub(super) async fn events(&self, name: &PodName) -> Result<Vec<Event>, Failed> {
        let selector = format!("involvedObject.kind=Pod,involvedObject.name={}", name.0);
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let doing = self.doing("reading the events of", name);
        listed(&doing, &api, ListParams::default().fields(&selector)).await
    }

    /// `reading pod demo/web`.
    fn doing(&self, what: &str, name: &PodName) -> String {
        format!("{what} pod {}/{}", self.namespace, name.0)
    }
}
