//! The API calls of the commands for `InPlaceRollout`s and their workloads: calls with a timeout, and two
//! watches.
//! Decides nothing. If the cluster lacks the kind, the error says what to install.

use futures_util::Stream;
use futures_util::stream::{BoxStream, StreamExt, pending};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;

use crate::api::in_place_rollout::InPlaceRollout;
use crate::api::selector;
use crate::cli::cluster::{ClusterArgs, Failed, MANAGER, PAGE, bounded, listed};
use crate::cli::dry_run::DryRun;
use crate::cli::in_place_rollout::names::{RolloutName, WorkloadName, resource};
use crate::failure::Class;

/// Number of existing names that the error about a missing workload lists.
const MAX_NAMES: u32 = 20;

/// The API server and the selected namespace.
#[derive(Clone)]
pub(super) struct RolloutClient {
    client: Client,
    pub(super) namespace: String,
    /// The flags of [`ClusterArgs::repeated`].
    pub(super) flags: String,
}

impl RolloutClient {
    pub(super) async fn connect(args: &ClusterArgs) -> Result<Self, Failed> {
        let (client, namespace) = args.connect().await?;
        Ok(Self { client, namespace, flags: args.repeated() })
    }

    fn rollouts_api(&self) -> Api<InPlaceRollout> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn workloads(&self, name: &WorkloadName) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(name.kind))
    }

    /// Reads the workload. If it does not exist, the error lists the existing ones.
    pub(super) async fn workload(&self, name: &WorkloadName) -> Result<DynamicObject, Failed> {
        let doing = format!("reading {name} in namespace {}", self.namespace);
        let failed = match bounded(&doing, self.workloads(name).get(&name.name)).await {
            Err(Failed::Cluster(error)) if error.class() == Class::Gone => error,
            answer => return answer,
        };
        // If the user may not list workloads, the error is the plain "not found".
        let list = ListParams::default().limit(MAX_NAMES);
        let there = bounded(&doing, self.workloads(name).list(&list)).await.map(|list| list.items);
        let there: Vec<_> =
            there.unwrap_or_default().into_iter().filter_map(|found| found.metadata.name).collect();
        match there.as_slice() {
            [] => Err(failed.into()),
            there => Err(Failed::Refused(format!(
                "there is no {name} in namespace {}; there are {}",
                self.namespace,
                there.join(", ")
            ))),
        }
    }

    /// All rollouts of the namespace.
    pub(super) async fn rollouts(&self) -> Result<Vec<InPlaceRollout>, Failed> {
        let doing = format!("listing the InPlaceRollouts in namespace {}", self.namespace);
        match listed(&doing, &self.rollouts_api(), ListParams::default()).await {
            Err(Failed::Cluster(error)) if error.class() == Class::Gone => Err(Failed::Refused(
                "the definition of InPlaceRollouts (inplace.dev/v1alpha1) is not installed in this cluster: run \
                 `inplace crds | kubectl apply -f -` and install the controller (daemonset/README.md)"
                    .to_owned(),
            )),
            rollouts => rollouts,
        }
    }

    /// Creates the rollout. With `dry_run` the API server only validates it.
    pub(super) async fn create(
        &self,
        draft: &InPlaceRollout,
        dry_run: bool,
    ) -> Result<InPlaceRollout, Failed> {
        let doing = format!("creating an InPlaceRollout in namespace {}", self.namespace);
        let params = PostParams { dry_run, field_manager: Some(MANAGER.to_owned()) };
        let made = bounded(&doing, self.rollouts_api().create(&params, draft)).await;
        made.map_err(|failed| match failed {
            // An answer that is lost says nothing about the write.
            Failed::Cluster(error) if error.class() == Class::Unavailable && !dry_run => {
                let then = format!(
                    "the rollout may have been created all the same: look with `kubectl get inplacerollouts{}` \
                     before you repeat the command",
                    self.flags
                );
                Failed::Unknown { error: Box::new(error), then }
            }
            failed => failed,
        })
    }

    /// Reads the rollout.
    pub(super) async fn rollout(&self, name: &RolloutName) -> Result<InPlaceRollout, Failed> {
        let doing = format!("reading {name} in namespace {}", self.namespace);
        match bounded(&doing, self.rollouts_api().get(&name.0)).await {
            Err(Failed::Cluster(error)) if error.class() == Class::Gone => {
                self.rollouts().await?;
                Err(error.into())
            }
            answer => answer,
        }
    }

    /// Sets `spec.paused`.
    pub(super) async fn pause(
        &self,
        name: &RolloutName,
        paused: bool,
        dry_run: DryRun,
    ) -> Result<InPlaceRollout, Failed> {
        let doing = format!("changing {name} in namespace {}", self.namespace);
        let field_manager = Some(MANAGER.to_owned());
        let params = PatchParams { dry_run: dry_run.is_check(), field_manager, ..PatchParams::default() };
        let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
        bounded(&doing, self.rollouts_api().patch(&name.0, &params, &patch)).await
    }

    /// Deletes the rollout if it has this uid.
    pub(super) async fn delete(
        &self,
        name: &RolloutName,
        uid: Option<String>,
        dry_run: DryRun,
    ) -> Result<(), Failed> {
        let doing = format!("deleting {name} in namespace {}", self.namespace);
        let params = DeleteParams { dry_run: dry_run.is_check(), ..DeleteParams::default() };
        let params = params.preconditions(Preconditions { uid, resource_version: None });
        bounded(&doing, self.rollouts_api().delete(&name.0, &params)).await.map(|_| ())
    }

    /// Watches the rollout. The stream continues after errors, with a back-off.
    pub(super) fn watch(
        &self,
        name: &RolloutName,
    ) -> impl Stream<Item = watcher::Result<watcher::Event<InPlaceRollout>>> + Send + use<> {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", name.0));
        watcher(self.rollouts_api(), config).default_backoff()
    }

    /// The pods with these labels.
    pub(super) async fn pods(&self, labels: &str) -> Result<Vec<Pod>, Failed> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        listed("listing pods", &api, ListParams::default().labels(labels)).await
    }

    /// Watches the pods that `rollout` may select. For a workload these are the pods that match its selector; a
    /// deleted workload has none.
    ///
    /// # Errors
    /// When the workload cannot be read, so that its pods are not known.
    pub(super) async fn watch_pods(
        &self,
        rollout: &InPlaceRollout,
    ) -> Result<BoxStream<'static, watcher::Result<watcher::Event<Pod>>>, Failed> {
        let target = &rollout.spec.target;
        let found = match (&target.selector, target.workload_ref.as_ref().and_then(WorkloadName::of)) {
            (Some(selector), _) => Some(selector.clone()),
            (None, Some(name)) => match self.workload(&name).await {
                Ok(workload) => own_selector(&workload),
                Err(Failed::Cluster(error)) if error.class() != Class::Gone => return Err(error.into()),
                Err(_) => None,
            },
            (None, None) => None,
        };
        let labels = found.map(|found| selector::text(&found)).filter(|labels| !labels.is_empty());
        let Some(labels) = labels else { return Ok(pending().boxed()) };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = watcher::Config::default().labels(&labels).page_size(PAGE);
        Ok(watcher(api, config).default_backoff().boxed())
    }
}

fn own_selector(workload: &DynamicObject) -> Option<LabelSelector> {
    serde_json::from_value(workload.data.pointer("/spec/selector")?.clone()).ok()
}
