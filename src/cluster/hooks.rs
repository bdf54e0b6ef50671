//! HookTemplates and HookRuns at the API server: the calls, and a cache of the runs.
//!
//! Every write is tied to the uid of the run, so that another run of the same name is never changed. Must not
//! decide anything about hooks.

mod run;

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, Patch, PostParams, Preconditions};
use kube::{Resource, ResourceExt as _};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::hook_run::{HookRun, HookRunStatus};
use crate::api::hook_template::HookTemplate;
use crate::cluster::error::Error;
use crate::cluster::event::{self, ObjectEvent};
use crate::cluster::patch::{self, ANNOTATIONS, UID, VERSION, as_us, json_patch};
use crate::cluster::server::{MANAGER, Selection, Server};
use crate::cluster::store::{Cached, Store};
use crate::failure::Class;

pub use run::{Run, Subject, Summary, Unreadable};

/// The path of the runner annotation.
const RUNNER: [&str; 3] = patch::annotation(annotation::RUNNER);

/// The page size for lists of runs: each run may be as large as the API server allows, before its large fields are
/// dropped.
const PAGE: u32 = 10;

/// A cache of the HookRuns of all namespaces, updated by one watch. Clones share it, but each clone tracks its own
/// [`Self::changed`]. If the API server does not have the kind, the cache is empty and the kind is looked for every
/// minute.
#[derive(Clone, Debug)]
pub struct HookRuns(Store<Summary>);

impl Cached for Summary {
    /// Namespace and name.
    fn key(&self) -> String {
        key(&self.namespace().unwrap_or_default(), &self.name_any())
    }
}

impl HookRuns {
    /// Watches the runs that the label selector `labels` selects, until `stop`. `what` names them in messages. The
    /// cache is empty when this returns; see [`Self::has_synced`].
    pub fn watch(server: Server, what: &str, labels: &str, stop: CancellationToken) -> Self {
        let labels = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
        let selection = Selection { what: what.to_owned(), labels, page: PAGE, ..Selection::default() };
        Self(Store::watch(server, selection, stop))
    }

    /// All cached runs.
    pub fn list(&self) -> Vec<Arc<Summary>> {
        self.0.list()
    }

    /// The cached run of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Summary>> {
        self.0.get(&key(namespace, name))
    }

    /// True while the watch is connected.
    pub fn is_current(&self) -> bool {
        self.0.is_current()
    }

    /// True once the runs have been listed: a run that is not in the cache did not exist then.
    pub fn has_synced(&self) -> bool {
        self.0.has_synced()
    }

    /// Returns when anything has changed since the last call on this clone. Several changes may be combined into
    /// one.
    pub async fn changed(&mut self) {
        self.0.changed().await;
    }

    /// Stores a run that a write returned, before the watch delivers it.
    pub fn upsert(&self, run: Summary) {
        self.0.upsert(run);
    }
}

impl Server {
    /// Reads the template of this name; `None` if there is none or the kind is not installed.
    pub async fn hook_template(&self, namespace: &str, name: &str) -> Result<Option<HookTemplate>, Error> {
        let doing = format!("reading HookTemplate {namespace}/{name}");
        self.found(&doing, namespace, name).await
    }

    /// Reads the run of this name; `None` if there is none or the kind is not installed.
    pub async fn hook_run(&self, namespace: &str, name: &str) -> Result<Option<HookRun>, Error> {
        let doing = format!("reading HookRun {namespace}/{name}");
        self.found(&doing, namespace, name).await
    }

    /// Creates a run and returns it as stored.
    ///
    /// # Errors
    /// `Refused` if a run of this name exists, `Gone` if the kind is not installed.
    pub async fn create_hook_run(&self, run: &HookRun) -> Result<HookRun, Error> {
        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
        let doing = format!("making HookRun {namespace}/{name}");
        let body = serde_json::to_vec(run)
            .map_err(|error| Error::own(&doing, Class::Final, format!("it has no JSON form: {error}")))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        self.ask(&doing, runs(&namespace).create(&params, body)).await
    }

    /// Labels a run, so that the controller requests the deletion again that the run was created for.
    pub async fn finish_hook_run(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let doing = format!("marking HookRun {namespace}/{name}");
        let body = json!({"metadata": {"labels": {annotation::DELETE_GUARD: annotation::FINISH}}});
        let request = runs(namespace).patch(name, &as_us(), &Patch::Merge(body));
        self.ask::<IgnoredAny>(&doing, request).await.map(drop)
    }

    /// Writes the status of a run.
    ///
    /// # Errors
    /// `Gone` if the run does not exist, `Refused` if another run has its name.
    pub async fn hook_run_status(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        status: &HookRunStatus,
    ) -> Result<(), Error> {
        let doing = format!("writing the status of HookRun {namespace}/{name}");
        let patch = json_patch(vec![patch::test(UID, uid), patch::add(["status"], json!(status))]);
        let request = runs(namespace).patch_subresource("status", name, &as_us(), &patch);
        self.ask::<IgnoredAny>(&doing, request).await.map(drop)
    }

    /// Writes the status of a run, provided that `runner` is still its runner; returns the updated run.
    ///
    /// # Errors
    /// `Gone` if the run does not exist, `Refused` if another run has its name or the run has another runner.
    pub async fn hook_run_progress(
        &self,
        run: &Summary,
        runner: &str,
        status: &HookRunStatus,
    ) -> Result<Run, Error> {
        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
        let doing = format!("writing the status of HookRun {namespace}/{name}");
        let patch = json_patch(vec![
            patch::test(UID, run.uid()),
            patch::test(RUNNER, runner),
            patch::add(["status"], json!(status)),
        ]);
        self.ask(&doing, runs(&namespace).patch_subresource("status", &name, &as_us(), &patch)).await
    }

    /// Compare-and-swaps the runner annotation of `run`; returns the updated HookRun. `runner` `None` removes the
    /// annotation.
    ///
    /// # Errors
    /// `Gone` if the run does not exist, `Refused` if it was modified concurrently.
    pub async fn set_hook_run_runner(&self, run: &Summary, runner: Option<&str>) -> Result<Run, Error> {
        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
        let doing = match runner {
            Some(to) => format!("setting the runner of HookRun {namespace}/{name} to {to}"),
            None => format!("removing the runner of HookRun {namespace}/{name}"),
        };
        let mut operations = vec![patch::test(UID, run.uid())];
        match (run.runner(), runner) {
            (Some(from), to) => {
                operations.push(patch::test(RUNNER, from));
                operations.push(match to {
                    Some(to) => patch::replace(RUNNER, to),
                    None => patch::remove(RUNNER),
                });
            }
            (None, Some(to)) => {
                // An absent annotation cannot be tested, so the write is tied to the version that was seen.
                operations.push(patch::test(VERSION, run.resource_version()));
                operations.push(if run.has_annotations() {
                    patch::add(RUNNER, to)
                } else {
                    patch::add(ANNOTATIONS, json!({ annotation::RUNNER: to }))
                });
            }
            (None, None) => {}
        }
        let patch = json_patch(operations);
        self.ask(&doing, runs(&namespace).patch(&name, &as_us(), &patch)).await
    }

    /// Reads the current state of a run, even if its spec is unreadable. `None` if it is gone or another run has
    /// its name.
    pub async fn read_hook_run(&self, run: &Summary) -> Result<Option<Run>, Error> {
        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
        let doing = format!("reading HookRun {namespace}/{name}");
        let seen: Option<Run> = self.found(&doing, &namespace, &name).await?;
        Ok(seen.filter(|seen| seen.uid() == run.uid()))
    }

    /// Deletes a run. It is not an error if it is gone or was replaced by another run of the same name.
    pub async fn delete_hook_run(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let doing = format!("deleting HookRun {namespace}/{name}");
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
        match self.ask::<IgnoredAny>(&doing, runs(namespace).delete(name, &params)).await {
            Err(error) if matches!(error.class(), Class::Gone | Class::Refused) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Writes an event about a run; `host` is the reporting instance. An event that exists already is not an error.
    pub async fn hook_run_event(
        &self,
        run: &Summary,
        host: &str,
        reported: &ObjectEvent,
    ) -> Result<(), Error> {
        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
        let doing = format!("writing the event {} of HookRun {namespace}/{name}", reported.reason);
        let about = ObjectReference {
            api_version: Some(HookRun::api_version(&()).into_owned()),
            kind: Some(HookRun::kind(&()).into_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name),
            uid: run.uid(),
            ..Default::default()
        };
        match self.report(&doing, &namespace, &event::event(about, host, reported)).await {
            Err(error) if error.class() == Class::Refused => Ok(()),
            reported => reported,
        }
    }

    async fn found<T: Resource<DynamicType = ()> + DeserializeOwned>(
        &self,
        doing: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, Error> {
        let request = Request::new(T::url_path(&(), Some(namespace))).get(name, &GetParams::default());
        match self.ask(doing, request).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.class() == Class::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The cache key of a run.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

fn runs(namespace: &str) -> Request {
    Request::new(HookRun::url_path(&(), Some(namespace)))
}
