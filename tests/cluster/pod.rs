//! A pod on a cluster: created from YAML, watched from its creation, and deleted when dropped.

use std::{
    fmt, iter,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod as Object};
use kube::{
    Api, Error,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        wait::await_condition,
        watcher::{self, watcher},
    },
};
use serde_json::{Value, json};
use tokio::{
    sync::watch::{self, Receiver, Sender},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_stream::StreamExt;

use crate::{
    cluster::{Cluster, Node, block_on, runtime},
    support::{
        facts::{Facts, observe},
        wait::WAIT_LIMIT,
    },
};

/// How long a pod may take to be removed when nothing runs in it any more. Kubelets before 1.22 drop its
/// containers when the last one exits, or, if they miss that moment, when they collect once a minute; the
/// volumes and the status follow.
pub(crate) const GOING: Duration = Duration::from_secs(180);

/// Two containers, `app` and `side`, that stop immediately on SIGTERM.
pub(crate) const PAIR: &str = "
terminationGracePeriodSeconds: 2
containers:
- {name: app, image: lab/app:v1}
- {name: side, image: lab/app:v1}
";

/// A pod, deleted when dropped.
pub(crate) struct Pod<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) api: Api<Object>,
    seen: Receiver<Seen>,
    watching: JoinHandle<()>,
}

/// What the API server reported about a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Shared, because every wait copies the observations.
    versions: Vec<Arc<Object>>,
    /// The pod no longer exists.
    pub(crate) gone: bool,
}

impl Seen {
    /// Every version from the watch, oldest first. After an outage of the API server some may be missing.
    pub(crate) fn versions(&self) -> impl DoubleEndedIterator<Item = &Object> + ExactSizeIterator {
        self.versions.iter().map(Arc::as_ref)
    }

    /// The latest version.
    pub(crate) fn last(&self) -> Option<&Object> {
        self.versions.last().map(Arc::as_ref)
    }
}

impl<'a> Pod<'a> {
    /// Runs a pod whose `spec` is the given YAML, and waits until it is Ready. `lab/app:v1` is an image of the
    /// cluster's registry. The name gets a number, so that tests do not collide.
    pub(crate) fn run(cluster: &'a Cluster, name: &str, spec: &str) -> Self {
        let pod = Self::create(cluster, name, spec);
        pod.wait("it is Ready", is_ready);
        pod
    }

    /// The same without waiting.
    pub(crate) fn create(cluster: &'a Cluster, name: &str, spec: &str) -> Self {
        let spec: Value = serde_saphyr::from_str(&cluster.named(spec)).unwrap();
        Self::make(cluster, name, json!({"spec": spec}))
    }

    /// Creates a pod that has more than a spec, for example `metadata` with labels and annotations.
    pub(crate) fn make(cluster: &'a Cluster, name: &str, mut manifest: Value) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        manifest["metadata"]["name"] = name.as_str().into();
        let object: Object = serde_json::from_value(manifest).unwrap();
        let api: Api<Object> = Api::namespaced(cluster.client.clone(), "default");
        let object = block_on(api.create(&PostParams::default(), &object)).unwrap();
        Self::over(cluster, &object)
    }

    fn over(cluster: &'a Cluster, object: &Object) -> Self {
        let namespace = object.metadata.namespace.clone().unwrap();
        let api: Api<Object> = Api::namespaced(cluster.client.clone(), &namespace);
        let name = object.metadata.name.clone().unwrap();
        let (sender, seen) = watch::channel(Seen::default());
        let uid = object.metadata.uid.clone().unwrap();
        let watching = runtime().spawn(follow(api.clone(), name.clone(), uid.clone(), sender));
        Self { cluster, namespace, name, uid, api, seen, watching }
    }

    /// A pod that exists or will be created by others: a static pod's, a Deployment's.
    pub(crate) fn existing(cluster: &'a Cluster, namespace: &str, name: &str) -> Self {
        let api: Api<Object> = Api::namespaced(cluster.client.clone(), namespace);
        let object = block_on(async {
            let there = await_condition(api, name, |object: Option<&Object>| object.is_some());
            timeout(WAIT_LIMIT, there).await
        });
        let object = object.unwrap_or_else(|_| panic!("there is no pod {name}")).unwrap().unwrap();
        Self::over(cluster, &object)
    }

    /// Waits until the latest version fulfils a condition, and returns it.
    pub(crate) fn wait(&self, what: &str, wanted: impl Fn(&Object) -> bool) -> Object {
        self.wait_for(WAIT_LIMIT, what, wanted)
    }

    /// The same with another time limit.
    pub(crate) fn wait_for(&self, limit: Duration, what: &str, wanted: impl Fn(&Object) -> bool) -> Object {
        let seen = self.until(limit, what, |seen| !seen.gone && seen.last().is_some_and(&wanted));
        seen.last().unwrap().clone()
    }

    /// Waits until the observations fulfil a condition.
    pub(crate) fn until(&self, limit: Duration, what: &str, mut wanted: impl FnMut(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.clone();
        let found = block_on(async {
            timeout(limit, seen.wait_for(|seen| wanted(seen))).await.map(|found| found.unwrap().clone())
        });
        found.unwrap_or_else(|_| panic!("{self:?} waits in vain until {what}; last seen: {:#?}", self.last()))
    }

    /// Waits until the pod is removed.
    pub(crate) fn await_gone(&self) {
        self.until(GOING, "it is gone", |seen| seen.gone);
    }

    /// All observations so far.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    fn last(&self) -> Option<Object> {
        self.seen.borrow().last().cloned()
    }

    /// Reads the pod from the API server.
    pub(crate) fn get(&self) -> Object {
        block_on(self.api.get(&self.name)).unwrap()
    }

    /// Sets an annotation, or removes it.
    pub(crate) fn annotate(&self, key: &str, value: Option<&str>) -> Object {
        self.merge(&json!({"metadata": {"annotations": {key: value}}}))
    }

    /// Applies a merge patch.
    pub(crate) fn merge(&self, patch: &Value) -> Object {
        let (how, patch) = (PatchParams::default(), Patch::Merge(patch));
        block_on(self.api.patch(&self.name, &how, &patch)).unwrap()
    }

    /// The events about the pod, oldest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        let api: Api<Event> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let list = ListParams::default().fields(&format!("involvedObject.uid={}", self.uid));
        let mut events = block_on(api.list(&list)).unwrap().items;
        events.sort_by(|a, b| a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp));
        events
    }

    /// What the runtime and the kernel of the first node report about the pod.
    pub(crate) fn facts(&self) -> Facts {
        self.facts_on(&self.cluster.node())
    }

    /// The same for a pod on another node.
    pub(crate) fn facts_on(&self, node: &Node) -> Facts {
        // A static pod's copy at the API server has another uid.
        let object = self.last().unwrap_or_else(|| self.get());
        let uid = annotation(&object, "kubernetes.io/config.mirror").unwrap_or(&self.uid);
        block_on(observe(&node.endpoint, uid))
    }

    /// Deletes the pod with its own grace period, and waits until it is removed.
    pub(crate) fn delete(&self) {
        self.remove(&DeleteParams::default());
        self.await_gone();
    }

    fn remove(&self, how: &DeleteParams) {
        match block_on(self.api.delete(&self.name, how)) {
            Ok(_) => {}
            Err(Error::Api(status)) if status.is_not_found() => {}
            Err(error) => panic!("{self:?}: {error}"),
        }
    }
}

impl fmt::Debug for Pod<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "pod {} ({})", self.name, self.uid)
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // A pod whose test failed is removed with its cluster.
        if !thread::panicking() {
            self.remove(&DeleteParams::default().grace_period(1));
            self.cluster.assert_unharmed();
        }
        self.watching.abort();
    }
}

/// Records the watch's events until the pod is removed. An outage of the API server is waited out.
async fn follow(api: Api<Object>, name: String, uid: String, sender: Sender<Seen>) {
    let events = watcher(api, watcher::Config::default().fields(&format!("metadata.name={name}")));
    tokio::pin!(events);
    let mut listed = false;
    while let Some(event) = events.next().await {
        let is_it = |pod: &Object| pod.metadata.uid.as_ref() == Some(&uid);
        let gone = match event {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) if is_it(&pod) => {
                listed = true;
                sender.send_modify(|seen| {
                    let last = seen.last().and_then(|last| last.metadata.resource_version.as_ref());
                    if last != pod.metadata.resource_version.as_ref() {
                        seen.versions.push(Arc::new(pod));
                    }
                });
                false
            }
            Ok(watcher::Event::Init) => {
                listed = false;
                false
            }
            Ok(watcher::Event::InitDone) => !listed,
            Ok(watcher::Event::Delete(pod)) => is_it(&pod),
            Ok(_) => false,
            Err(_) => {
                sleep(Duration::from_millis(50)).await;
                false
            }
        };
        if gone {
            sender.send_modify(|seen| seen.gone = true);
            return;
        }
    }
}

/// True when the condition of that type is True.
pub(crate) fn is(pod: &Object, condition: &str) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|held| held.type_ == condition && held.status == "True")
}

/// True when the condition `Ready` is True.
pub(crate) fn is_ready(pod: &Object) -> bool {
    is(pod, "Ready")
}

/// The value of an annotation.
pub(crate) fn annotation<'a>(pod: &'a Object, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The status of a container or init container.
pub(crate) fn container<'a>(pod: &'a Object, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = iter::once(&status.container_statuses).chain(iter::once(&status.init_container_statuses));
    lists.flatten().flatten().find(|container| container.name == name)
}
