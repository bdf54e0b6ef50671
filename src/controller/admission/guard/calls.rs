//! The API calls of the delete guard. Everything is read fresh; nothing is cached. Must not decide whether a
//! deletion is allowed.

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::core::Request;
use kube::core::params::{GetParams, Patch, PatchParams};
use kube::{Resource, ResourceExt as _};
use serde::de::IgnoredAny;
use serde_json::json;

use crate::api::annotation;
use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::hook_run::{HookRun, HookRunStatus};
use crate::api::pod_ref::PodRef;
use crate::api::workload::WorkloadHook;
use crate::cluster::error::{Class, Error};
use crate::cluster::event::{self, ObjectEvent};
use crate::cluster::hooks::Run;
use crate::cluster::server::{MANAGER, Selection, Server};
use crate::controller::admission::guard::fields::{AttemptRun, GuardedPod, Leaving};
use crate::guard::{self, Attempt, Namespace};

/// The page size for lists of HookRuns: each may be as large as the API server allows.
const PAGE: u32 = 10;

impl Server {
    /// Reads the fields of a pod that decide about its deletion; `None` if it does not exist.
    pub(crate) async fn guarded_pod(&self, namespace: &str, name: &str) -> Result<Option<core::Pod>, Error> {
        let request = Request::new(core::Pod::url_path(&(), Some(namespace)));
        let request = request.get(name, &GetParams::default());
        let found: Option<GuardedPod> =
            present(self.ask(&format!("reading pod {namespace}/{name}"), request).await)?;
        Ok(found.map(core::Pod::from))
    }

    /// Reads the fields of a namespace that the guard needs.
    pub(crate) async fn guarded_namespace(&self, name: &str) -> Result<Namespace, Error> {
        let request = Request::new(core::Namespace::url_path(&(), None)).get(name, &GetParams::default());
        let found: core::Namespace = self.ask(&format!("reading namespace {name}"), request).await?;
        let overridden = found.annotations().get(annotation::DELETE_GUARD_OVERRIDE);
        let overridden = overridden.map(|reason| reason.trim().to_owned());
        Ok(Namespace {
            overridden: overridden.filter(|reason| !reason.is_empty()),
            labelled: found.labels().get(annotation::DELETE_GUARD).is_some_and(|value| value == "true"),
            terminating: found.metadata.deletion_timestamp.map(|time| time.0),
        })
    }

    /// The current taints of a node; empty if the node does not exist.
    pub(crate) async fn taints(&self, node: &str) -> Result<Vec<core::Taint>, Error> {
        let selection = Selection {
            what: format!("node {node}"),
            fields: Some(format!("metadata.name={node}")),
            ..Selection::default()
        };
        let found = self.list::<core::Node>(&selection).await?.items;
        Ok(found.into_iter().filter_map(|node| node.spec?.taints).flatten().collect())
    }

    /// The pre-delete HookRuns in a namespace for pods with this instance label.
    pub(crate) async fn attempts(&self, namespace: &str, instance: &str) -> Result<Vec<Attempt>, Error> {
        let (of_type, of_instance) = (annotation::HOOK_TYPE, crate::api::workload_key::HOOK_INSTANCE);
        let selection = Selection {
            what: format!("the HookRuns before deletions in {namespace}"),
            namespace: Some(namespace.to_owned()),
            labels: Some(format!("{of_type}={},{of_instance}={instance}", annotation::PRE_DELETE)),
            page: PAGE,
            ..Selection::default()
        };
        Ok(self
            .list::<AttemptRun>(&selection)
            .await?
            .items
            .into_iter()
            .filter_map(|run| run.attempt)
            .collect())
    }

    /// Whether the guard created the HookRun of this name for `pod`; `None` if there is no such HookRun.
    pub(crate) async fn is_guards_run(&self, pod: &core::Pod, name: &str) -> Result<Option<bool>, Error> {
        let namespace = pod.namespace().unwrap_or_default();
        let request = Request::new(HookRun::url_path(&(), Some(&namespace)));
        let request = request.get(name, &GetParams::default());
        let found: Option<Run> =
            present(self.ask(&format!("reading HookRun {namespace}/{name}"), request).await)?;
        let unread = HookRunStatus::default();
        let made = |run: &Run| guard::attempt(pod, run.meta(), run.status().unwrap_or(&unread)).is_some();
        Ok(found.as_ref().map(made))
    }

    /// Records in the status of `pod` that its deletion is refused since `since`. Another pod of the same name is
    /// not touched.
    pub(crate) async fn hold_pod(&self, pod: &core::Pod, since: Timestamp) -> Result<(), Error> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let condition = json!({"type": annotation::DELETE_GUARD_HELD, "status": "True", "reason": "DeletionRefused",
            "message": "--guard-longest-hold counts from lastTransitionTime",
            "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
        let body = json!({"metadata": {"uid": pod.uid()}, "status": {"conditions": [condition]}});
        let request = Request::new(core::Pod::url_path(&(), Some(&namespace)));
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let request = request.patch_subresource("status", &name, &params, &Patch::Strategic(body));
        let doing = format!("writing since when pod {namespace}/{name} is held");
        self.ask::<IgnoredAny>(&doing, request).await.map(drop)
    }

    /// The pre-delete hook of a `GameDeployment` or `GameStatefulSet`; `None` if it has none or does not exist.
    pub(crate) async fn pre_delete_hook(
        &self,
        namespace: &str,
        (kind, name): (&str, &str),
    ) -> Result<Option<WorkloadHook>, Error> {
        let path = match kind {
            "GameStatefulSet" => GameStatefulSet::url_path(&(), Some(namespace)),
            _ => GameDeployment::url_path(&(), Some(namespace)),
        };
        let doing = format!("reading {kind} {namespace}/{name}");
        let request = Request::new(path).get(name, &GetParams::default());
        let found: Option<Leaving> = present(self.ask(&doing, request).await)?;
        Ok(found.and_then(Leaving::hook))
    }

    /// Writes an event about a pod; `host` is the reporting instance. An event that exists already is not an error.
    pub(crate) async fn pod_event(
        &self,
        pod: &core::Pod,
        host: &str,
        reported: &ObjectEvent,
    ) -> Result<(), Error> {
        let pod = PodRef {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
        };
        let doing = format!("writing the event {} of pod {pod}", reported.reason);
        match self.report(&doing, &pod.namespace, &event::event(event::pod(&pod), host, reported)).await {
            Err(error) if error.class() == Class::Refused => Ok(()),
            reported => reported,
        }
    }
}

fn present<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.class() == Class::Gone => Ok(None),
        Err(error) => Err(error),
    }
}
