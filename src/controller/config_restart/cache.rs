//! Restart on change of configuration: the workloads that ask for it, the configuration that they name, and the
//! writes that follow from it.
//!
//! Of a `ConfigMap` or `Secret`, only a hash is held in memory. Must not decide: it reports the state and makes
//! each requested call once.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Pod, PodSpec, PodTemplateSpec, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::params::{GetParams, Patch, PatchParams};
use kube::core::{PartialObjectMeta, Request};
use kube::{Resource, ResourceExt as _};
use ring::digest;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api::annotation;
use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::in_place_rollout::InPlaceRollout;
use crate::api::selector;
use crate::cluster::error::{Class, Error};
use crate::cluster::server::{Age, MANAGER, Selection, Server};
use crate::cluster::store::{Cached, Store};
use crate::cluster::trim::{Trim, Trimmed, meta_of, readable};
use crate::config_restart::{Content, HandledHashes, MAX_TEXT, Source};
use crate::rollout::desired::Rollout;

/// The group of workloads that carry the annotation.
const ANNOTATED: &str = "annotated";

/// The annotations that are read.
const READ: [&str; 4] = [
    annotation::RESTART_ON_CHANGE,
    annotation::RESTART_ON_CHANGE_SEEN,
    annotation::RESTART_ON_CHANGE_MAX_UNAVAILABLE,
    annotation::RESTART_ON_CHANGE_ORDER,
];

/// A workload with the annotation.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The kind, for example `Deployment`.
    pub(crate) kind: &'static str,
    api_version: String,
    plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The value of the annotation: which objects restart which containers.
    pub(crate) text: String,
    /// The configuration that was handled last, from the workload's annotation. `None` if it is absent or
    /// unreadable.
    pub(crate) handled: Option<HandledHashes>,
    /// How many pods may be unavailable during a restart.
    pub(crate) max_unavailable: Option<String>,
    /// Whether the new containers are started before or after the old ones are stopped.
    pub(crate) order: Option<String>,
}

/// The cached part of a workload.
#[derive(Clone, Debug)]
struct AnnotatedWorkload<K> {
    annotations: BTreeMap<String, String>,
    kind: PhantomData<K>,
}

#[derive(Deserialize)]
struct Annotated {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl<K> Trim for AnnotatedWorkload<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    type Kind = K;
    type Source = Annotated;

    fn trim(source: Annotated) -> (ObjectMeta, Self) {
        let mut annotations = source.metadata.annotations.clone().unwrap_or_default();
        annotations.retain(|key, _| READ.contains(&key.as_str()));
        // What is longer is refused: only that is kept of it.
        for text in annotations.values_mut().filter(|text| text.len() > MAX_TEXT) {
            *text = text.chars().take(MAX_TEXT + 1).collect();
        }
        (source.metadata, Self { annotations, kind: PhantomData })
    }

    fn groups(&self, _meta: &ObjectMeta) -> Vec<String> {
        let is_annotated = self.annotations.contains_key(annotation::RESTART_ON_CHANGE);
        is_annotated.then(|| ANNOTATED.to_owned()).into_iter().collect()
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.annotations == before.annotations
    }
}

/// A rollout of anybody; `None` if it cannot be read.
#[derive(Clone, Debug)]
struct AnyRollout(Option<InPlaceRollout>);

impl Trim for AnyRollout {
    type Kind = InPlaceRollout;
    type Source = Value;

    fn trim(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
        let rollout = readable(&meta, source);
        (meta, Self(rollout))
    }

    fn groups(&self, _meta: &ObjectMeta) -> Vec<String> {
        Vec::new()
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.0 == before.0
    }
}

/// All workloads that carry the annotation.
#[derive(Debug)]
pub(crate) struct Subjects {
    deployments: Store<Trimmed<AnnotatedWorkload<Deployment>>>,
    stateful_sets: Store<Trimmed<AnnotatedWorkload<StatefulSet>>>,
    daemon_sets: Store<Trimmed<AnnotatedWorkload<DaemonSet>>>,
    game_deployments: Store<Trimmed<AnnotatedWorkload<GameDeployment>>>,
    game_stateful_sets: Store<Trimmed<AnnotatedWorkload<GameStatefulSet>>>,
}

impl Subjects {
    /// Watches all kinds until `stop`.
    pub(crate) fn watch(server: &Server, stop: &CancellationToken) -> Self {
        Self {
            deployments: store(server, "Deployments", stop),
            stateful_sets: store(server, "StatefulSets", stop),
            daemon_sets: store(server, "DaemonSets", stop),
            game_deployments: store(server, "GameDeployments", stop),
            game_stateful_sets: store(server, "GameStatefulSets", stop),
        }
    }

    /// The workloads of all kinds whose watch is current.
    pub(crate) fn list(&self) -> Vec<Subject> {
        let mut all = subjects("Deployment", &self.deployments);
        all.extend(subjects("StatefulSet", &self.stateful_sets));
        all.extend(subjects("DaemonSet", &self.daemon_sets));
        all.extend(subjects("GameDeployment", &self.game_deployments));
        all.extend(subjects("GameStatefulSet", &self.game_stateful_sets));
        all
    }
}

fn store<T: Cached>(server: &Server, kind: &str, stop: &CancellationToken) -> Store<T> {
    let selection =
        Selection { what: format!("{kind} that name their configuration"), ..Selection::default() };
    Store::watch(server.clone(), selection, stop.clone())
}

fn subjects<K>(kind: &'static str, store: &Store<Trimmed<AnnotatedWorkload<K>>>) -> Vec<Subject>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    if !store.is_current() {
        return Vec::new();
    }
    let all = store.group(ANNOTATED).into_iter();
    all.filter(|found| found.meta.deletion_timestamp.is_none()).map(|found| subject(kind, &found)).collect()
}

fn subject<K>(kind: &'static str, found: &Arc<Trimmed<AnnotatedWorkload<K>>>) -> Subject
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let annotation = |key: &str| found.value.annotations.get(key).cloned();
    Subject {
        kind,
        api_version: K::api_version(&()).into_owned(),
        plural: K::plural(&()).into_owned(),
        namespace: found.meta.namespace.clone().unwrap_or_default(),
        name: found.name_any(),
        uid: found.uid().unwrap_or_default(),
        text: annotation(annotation::RESTART_ON_CHANGE).unwrap_or_default(),
        handled: annotation(annotation::RESTART_ON_CHANGE_SEEN)
            .and_then(|text| serde_json::from_str(&text).ok()),
        max_unavailable: annotation(annotation::RESTART_ON_CHANGE_MAX_UNAVAILABLE),
        order: annotation(annotation::RESTART_ON_CHANGE_ORDER),
    }
}

/// One `ConfigMap` or `Secret`, watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    store: Configuration,
    _stop: DropGuard,
}

#[derive(Debug)]
enum Configuration {
    ConfigMap(Store<Hashed<ConfigMap>>),
    Secret(Store<Hashed<Secret>>),
}

impl Watched {
    /// Watches this one object only, so that the right to read it is enough.
    pub(crate) fn new(server: &Server, source: Source, namespace: &str, name: &str) -> Self {
        let stop = CancellationToken::new();
        let (server, selection, token) = (server.clone(), one(source, namespace, name), stop.clone());
        let store = match source {
            Source::ConfigMap => Configuration::ConfigMap(Store::watch(server, selection, token)),
            Source::Secret => Configuration::Secret(Store::watch(server, selection, token)),
        };
        Self { store, _stop: stop.drop_guard() }
    }

    /// The cached state of the object.
    pub(crate) fn content(&self) -> Content {
        match &self.store {
            Configuration::ConfigMap(store) => content(store),
            Configuration::Secret(store) => content(store),
        }
    }
}

fn one(source: Source, namespace: &str, name: &str) -> Selection {
    let kind = match source {
        Source::ConfigMap => "ConfigMap",
        Source::Secret => "Secret",
    };
    Selection {
        what: format!("{kind} {namespace}/{name}"),
        namespace: Some(namespace.to_owned()),
        fields: Some(format!("metadata.name={name}")),
        ..Selection::default()
    }
}

fn content<K>(store: &Store<Hashed<K>>) -> Content
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    if !store.has_synced() || !store.is_current() {
        return Content::Unknown;
    }
    store.list().first().map_or(Content::Absent, |found| found.value.content.clone())
}

/// An object of which only the hash is cached.
type Hashed<K> = Trimmed<Hash<K>>;

#[derive(Clone, Debug)]
struct Hash<K> {
    content: Content,
    kind: PhantomData<K>,
}

/// The content of an object, held only until it is hashed. Values are in the encoding of the API: those of a
/// `Secret` are base64.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configured {
    #[serde(default)]
    metadata: ObjectMeta,
    data: Option<BTreeMap<String, String>>,
    binary_data: Option<BTreeMap<String, String>>,
}

impl<K> Trim for Hash<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    type Kind = K;
    type Source = Configured;

    fn trim(source: Configured) -> (ObjectMeta, Self) {
        let Configured { metadata, data, binary_data } = source;
        let is_secret = K::kind(&()) == "Secret";
        // The salt prevents two Secrets with the same content from having the same hash.
        let salt = metadata.uid.as_deref().filter(|_| is_secret).unwrap_or_default();
        let hash = hash(salt, [data, binary_data]);
        let version = metadata.resource_version.clone().unwrap_or_default();
        (metadata, Self { content: Content::Present { hash, version }, kind: PhantomData })
    }

    fn groups(&self, _meta: &ObjectMeta) -> Vec<String> {
        Vec::new()
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.content == before.content
    }
}

fn hash(salt: &str, parts: [Option<BTreeMap<String, String>>; 2]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut add = |text: &str| {
        context.update(&(text.len() as u64).to_be_bytes());
        context.update(text.as_bytes());
    };
    add(salt);
    for (part, values) in ["data", "binaryData"].into_iter().zip(parts) {
        add(part);
        values.into_iter().flatten().for_each(|(key, value)| {
            add(&key);
            add(&value);
        });
    }
    // 64 bits are enough to distinguish two contents. A guess at a weak Secret can be tested against the hash;
    // docs/config-restart.md says so.
    let beginning =
        context.finish().as_ref().iter().take(8).fold(0, |all: u64, byte| all << 8 | u64::from(*byte));
    format!("{beginning:016x}")
}

/// The fields that all kinds of workloads have in common.
#[derive(Deserialize)]
struct Workload {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    selector: Option<LabelSelector>,
    template: Option<PodTemplateSpec>,
}

/// The parts of a workload that a restart needs.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadTemplate {
    /// The pod spec of the workload's pod template.
    pub(crate) pod: PodSpec,
    /// The label selector of the workload's pods; if empty, its pods cannot be found.
    pub(crate) labels: String,
}

fn merged() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn pods(namespace: &str) -> Request {
    Request::new(Pod::url_path(&(), Some(namespace)))
}

impl Subject {
    fn request(&self) -> Request {
        Request::new(format!("/apis/{}/namespaces/{}/{}", self.api_version, self.namespace, self.plural))
    }

    /// The API version (group and version) of the workload.
    pub(crate) fn api_version(&self) -> &str {
        &self.api_version
    }

    /// The reference to the workload in events.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.api_version.clone()),
            kind: Some(self.kind.to_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

impl Server {
    /// The error that prevents reading a referenced object; `None` if it can be read.
    pub(crate) async fn unreadable(&self, source: Source, namespace: &str, name: &str) -> Option<Error> {
        let selection = one(source, namespace, name);
        match source {
            Source::ConfigMap => self.list::<Hashed<ConfigMap>>(&selection).await.err(),
            Source::Secret => self.list::<Hashed<Secret>>(&selection).await.err(),
        }
    }

    /// Reads the pod template and the selector of a workload.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn workload_template(&self, subject: &Subject) -> Result<WorkloadTemplate, Error> {
        let doing = format!("reading {subject}");
        let found: Workload =
            self.ask(&doing, subject.request().get(&subject.name, &GetParams::default())).await?;
        let pod = found.spec.template.and_then(|template| template.spec).unwrap_or_default();
        let labels = found.spec.selector.as_ref().map(selector::text).unwrap_or_default();
        Ok(WorkloadTemplate { pod, labels })
    }

    /// The rollouts in progress that have the target of `rollout`, and are not `rollout` itself.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn others_in_progress(
        &self,
        rollout: &InPlaceRollout,
    ) -> Result<Vec<InPlaceRollout>, Error> {
        let own = Rollout::read(rollout.clone());
        let selection = Selection {
            what: format!("the InPlaceRollouts of namespace {}", own.namespace),
            namespace: Some(own.namespace.clone()),
            ..Selection::default()
        };
        let is_other = |other: &InPlaceRollout| {
            let other = Rollout::read(other.clone());
            other.name != own.name && other.is_active() && other.has_target_of(&own)
        };
        // All others, of which a namespace may have many, are dropped as they are read.
        let accepts = |any: &Trimmed<AnyRollout>| any.value.0.as_ref().is_some_and(is_other);
        let list = self.list_of_age(&selection, &Age::Newest, accepts).await?;
        Ok(list.items.into_iter().filter_map(|any| any.value.0).collect())
    }

    /// The names of the pods with these labels.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn pods_with(&self, namespace: &str, labels: &str) -> Result<Vec<String>, Error> {
        let selection = Selection {
            what: format!("the pods {labels} of namespace {namespace}"),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.to_owned()),
            ..Selection::default()
        };
        let mut names = Vec::new();
        // Only the name of each pod is held in memory.
        let take = |pod: &PartialObjectMeta<Pod>| {
            names.extend(pod.metadata.name.clone());
            false
        };
        self.list_of_age(&selection, &Age::Newest, take).await?;
        Ok(names)
    }

    /// Changes an annotation of a pod, so that its kubelet refreshes the pod's volumes. A pod that is gone is not
    /// an error.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn touch_pod(&self, namespace: &str, name: &str, change_id: &str) -> Result<(), Error> {
        let doing = format!("triggering the kubelet to refresh the volumes of pod {namespace}/{name}");
        let body = json!({ "metadata": { "annotations": { annotation::CONFIGURATION: change_id } } });
        match self
            .ask::<IgnoredAny>(&doing, pods(namespace).patch(name, &merged(), &Patch::Merge(&body)))
            .await
        {
            Err(error) if error.class() == Class::Gone => Ok(()),
            touched => touched.map(drop),
        }
    }

    /// Records in the workload's annotation which configuration was handled.
    ///
    /// # Errors
    /// As any call. `Refused` if another object has the name.
    pub(crate) async fn record_handled(
        &self,
        subject: &Subject,
        handled: &HandledHashes,
    ) -> Result<(), Error> {
        let doing = format!("recording on {subject} which configuration was handled");
        let text = json!(handled).to_string();
        let body = json!({ "metadata": { "uid": subject.uid,
            "annotations": { annotation::RESTART_ON_CHANGE_SEEN: text } } });
        let request = subject.request().patch(&subject.name, &merged(), &Patch::Merge(&body));
        self.ask::<IgnoredAny>(&doing, request).await.map(drop)
    }
}
