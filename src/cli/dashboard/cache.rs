//! The caches of the dashboard: one watch for each kind, whatever the number of browsers. Reads only. A kind that the user
//! may not list is left out and reported.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::api::ListParams;
use kube::core::{ObjectMeta, Request};
use kube::{Client, Resource as _, ResourceExt as _};
use serde::de::IgnoredAny;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cli::cluster::{Failed, bounded};
use crate::cli::dashboard::kinds::{
    DeploymentFacts, EventFacts, NodeFacts, PodFacts, RevisionFacts, RolloutFacts, StatefulSetFacts,
};
use crate::cli::dashboard::seen::Seen;
use crate::cli::dashboard::view::{Id, Objects};
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::{Cached, Store};
use crate::cluster::trim::{self, Trim, Trimmed};
use crate::failure::Class;
use crate::process::clock;

/// Selects the events of this project: the component that its events name.
const OUR_EVENTS: &str = "source=inplace";

/// The cached objects.
pub(super) struct Cache {
    namespace: Option<String>,
    pods: Store<Trimmed<PodFacts>>,
    nodes: Option<Store<Trimmed<NodeFacts>>>,
    rollouts: Option<Store<Trimmed<RolloutFacts>>>,
    deployments: Option<Store<Trimmed<DeploymentFacts>>>,
    stateful_sets: Option<Store<Trimmed<StatefulSetFacts>>>,
    revisions: Option<Store<Trimmed<RevisionFacts>>>,
    events: Option<Store<Trimmed<EventFacts>>>,
    problems: Vec<String>,
    seen: Arc<Mutex<Arc<Seen>>>,
    /// Changes when an object has changed.
    changes: watch::Sender<()>,
}

/// Opens the caches, one after the other.
struct Opening<'a> {
    client: &'a Client,
    namespace: Option<&'a str>,
    stop: &'a CancellationToken,
    problems: Vec<String>,
}

impl Cache {
    /// Watches the objects of `namespace`, or of all namespaces, until `stop`. Fails if the pods cannot be listed.
    pub(super) async fn open(
        client: &Client,
        namespace: Option<String>,
        stop: &CancellationToken,
    ) -> Result<Arc<Self>, Failed> {
        let mut opening = Opening { client, namespace: namespace.as_deref(), stop, problems: Vec::new() };
        opening.list_one::<PodFacts>("pods").await?;
        let pods = opening.watch("pods", None);
        let rollouts = opening.open("InPlaceRollouts", "rollouts are not shown", None).await?;
        let deployments = opening.open("GameDeployments", "their updates are not shown", None).await?;
        let stateful_sets = opening.open("GameStatefulSets", "their updates are not shown", None).await?;
        let revisions = opening.open("ControllerRevisions", "revisions are not shown", None).await?;
        let events = opening.open("events", "events are not shown", Some(OUR_EVENTS)).await?;
        let nodes = opening.open("nodes", "pods are grouped by node, without zones", None).await?;
        let problems = opening.problems;
        let (seen, changes) = (Arc::default(), watch::Sender::new(()));
        let cache = Self {
            namespace,
            pods,
            nodes,
            rollouts,
            deployments,
            stateful_sets,
            revisions,
            events,
            problems,
            seen,
            changes,
        };
        cache.follow();
        Ok(Arc::new(cache))
    }

    /// Reports the changes of every cache in `changes`. Statuses of pods are recorded as they arrive.
    fn follow(&self) {
        let (pods, seen) = (self.pods.clone(), Arc::clone(&self.seen));
        let observe = move || {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::make_mut(&mut seen).observe(&pods.list(), clock::now());
        };
        forward(Some(&self.pods), &self.changes, observe);
        forward(self.nodes.as_ref(), &self.changes, || {});
        forward(self.rollouts.as_ref(), &self.changes, || {});
        forward(self.deployments.as_ref(), &self.changes, || {});
        forward(self.stateful_sets.as_ref(), &self.changes, || {});
        forward(self.revisions.as_ref(), &self.changes, || {});
        forward(self.events.as_ref(), &self.changes, || {});
    }

    /// Reports each change from now on; several changes may be one.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns when every kind has been listed.
    pub(super) async fn synced(&self) {
        let mut changes = self.changes();
        while !self.has_synced() {
            // The sender is part of this value, so that this never fails.
            let _ = changes.changed().await;
        }
    }

    fn has_synced(&self) -> bool {
        self.pods.has_synced()
            && has_synced(self.nodes.as_ref())
            && has_synced(self.rollouts.as_ref())
            && has_synced(self.deployments.as_ref())
            && has_synced(self.stateful_sets.as_ref())
            && has_synced(self.revisions.as_ref())
            && has_synced(self.events.as_ref())
    }

    /// All objects as they are cached now.
    pub(super) fn objects(&self) -> Objects {
        let games = list(self.deployments.as_ref()).into_iter().map(|found| {
            let id = id(&found.meta, "gamedeployment/");
            Some((id, found.value.0.clone()?))
        });
        let sets = list(self.stateful_sets.as_ref()).into_iter().map(|found| {
            let id = id(&found.meta, "gamestatefulset/");
            Some((id, found.value.0.clone()?))
        });
        let rollouts = list(self.rollouts.as_ref()).into_iter();
        let nodes = list(self.nodes.as_ref()).into_iter();
        Objects {
            namespace: self.namespace.clone(),
            pods: self.pods.list(),
            nodes: nodes.map(|node| (node.name_any(), node.value.clone())).collect::<BTreeMap<_, _>>(),
            rollouts: rollouts
                .filter_map(|found| Some((id(&found.meta, ""), found.value.0.clone()?)))
                .collect(),
            games: games.chain(sets).flatten().collect(),
            revisions: list(self.revisions.as_ref()),
            events: list(self.events.as_ref()),
            seen: Arc::clone(&self.seen.lock().unwrap_or_else(PoisonError::into_inner)),
            problems: self.problems.clone(),
            current: self.pods.is_current(),
        }
    }
}

impl Opening<'_> {
    /// Lists one object, to find out whether the user may.
    async fn list_one<T: Trim>(&self, what: &str) -> Result<(), Failed> {
        let path = T::Kind::url_path(&(), self.namespace.filter(|_| !is_of_cluster::<T>()));
        let request = Request::new(path).list(&ListParams::default().limit(1));
        let request = request.map_err(|error| Failed::Other(error.to_string()))?;
        let call = self.client.request::<IgnoredAny>(request);
        bounded(&format!("listing {what}"), call).await.map(drop)
    }

    /// Watches a kind. `None` if the user may not list it; `without` says what is missing then.
    async fn open<T: Trim>(
        &mut self,
        what: &str,
        without: &str,
        fields: Option<&str>,
    ) -> Result<Option<Store<Trimmed<T>>>, Failed> {
        match self.list_one::<T>(what).await {
            Ok(()) => {}
            Err(Failed::Cluster(error)) if error.class() == Class::Denied => {
                self.problems.push(format!("you may not list {what}: {without}"));
                return Ok(None);
            }
            // The definition of the kind may be installed later.
            Err(Failed::Cluster(error)) if error.class() == Class::Gone => {
                self.problems.push(format!("the cluster had no {what} when this dashboard started"));
            }
            Err(failed) => return Err(failed),
        }
        Ok(Some(self.watch(what, fields)))
    }

    fn watch<T: Trim>(&self, what: &str, fields: Option<&str>) -> Store<Trimmed<T>> {
        let selection = Selection {
            what: what.to_owned(),
            namespace: self.namespace.filter(|_| !is_of_cluster::<T>()).map(str::to_owned),
            fields: fields.map(str::to_owned),
            ..Selection::default()
        };
        Store::watch(Server::new(self.client.clone()), selection, self.stop.clone())
    }
}

/// True for a kind without namespaces: nodes.
fn is_of_cluster<T: Trim>() -> bool {
    T::Kind::kind(&()) == "Node"
}

fn id(meta: &ObjectMeta, kind: &str) -> Id {
    Id {
        namespace: trim::namespace(meta).to_owned(),
        name: format!("{kind}{}", meta.name.as_deref().unwrap_or_default()),
        uid: meta.uid.clone().unwrap_or_default(),
    }
}

fn list<T: Cached>(store: Option<&Store<T>>) -> Vec<Arc<T>> {
    store.map(Store::list).unwrap_or_default()
}

fn has_synced<T: Cached>(store: Option<&Store<T>>) -> bool {
    store.is_none_or(Store::has_synced)
}

/// Runs `then` after each change of `store`, and reports the change.
fn forward<T: Cached>(
    store: Option<&Store<T>>,
    changes: &watch::Sender<()>,
    then: impl Fn() + Send + 'static,
) {
    let Some(mut store) = store.cloned() else { return };
    let changes = changes.clone();
    tokio::spawn(async move {
        loop {
            then();
            changes.send_replace(());
            store.changed().await;
        }
    });
}
