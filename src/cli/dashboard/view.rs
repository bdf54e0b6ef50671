//! What each page of the dashboard shows, derived from the cached objects. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::api::group::Strategy;
use crate::api::in_place_rollout::{Downtime, PodFailure, RolloutPhase};
use crate::api::selector::{self, Matcher};
use crate::cli::dashboard::cells::{CachedPod, Cell, Nodes, ZoneCells, grouped};
use crate::cli::dashboard::kinds::{EventFacts, Game, RevisionFacts, Rollout};
use crate::cli::dashboard::seen::Seen;
use crate::cli::dashboard::timeline::Operation;
use crate::cli::workload_rollout::verdict::State;
use crate::cluster::trim::{self, Trimmed};

/// All cached objects at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    /// The namespace; `None`: all.
    pub(super) namespace: Option<String>,
    pub(super) pods: Vec<CachedPod>,
    pub(super) nodes: Nodes,
    /// By namespace, name and uid.
    pub(super) rollouts: Vec<(Id, Rollout)>,
    /// By namespace, `KIND/NAME` and uid.
    pub(super) games: Vec<(Id, Game)>,
    pub(super) revisions: Vec<Arc<Trimmed<RevisionFacts>>>,
    pub(super) events: Vec<Arc<Trimmed<EventFacts>>>,
    pub(super) seen: Arc<Seen>,
    /// What cannot be shown, and why.
    pub(super) problems: Vec<String>,
    /// True if the watches of the API server are connected.
    pub(super) current: bool,
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Id {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// Which page is shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Query {
    Overview,
    Rollout { namespace: String, name: String },
    Workload { namespace: String, kind: String, name: String },
    Pod { namespace: String, name: String },
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    namespace: Option<String>,
    current: bool,
    problems: Vec<String>,
    /// `None`: there is no such object.
    view: Option<View>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
enum View {
    Overview(Overview),
    Rollout(RolloutView),
    Workload(WorkloadView),
    Pod(Box<PodView>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Overview {
    rollouts: Vec<RolloutRow>,
    workloads: Vec<WorkloadRow>,
}

/// A rollout in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct RolloutRow {
    namespace: String,
    name: String,
    /// `Deployment/web`, or labels.
    target: String,
    /// `KIND/NAME` of the workload, if the target is one.
    workload: Option<String>,
    /// `restart app`, `app=repo/app:v2`.
    change: String,
    phase: RolloutPhase,
    message: String,
    together: bool,
    pods: i32,
    wanted: i32,
    done: i32,
    busy: i32,
    failed: i32,
    downtime: Option<Downtime>,
    created_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

/// A workload in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadRow {
    namespace: String,
    /// `deployment/web`.
    name: String,
    pods: usize,
    ready: usize,
    /// Pods whose last operation is in progress.
    running: usize,
    /// Pods whose last operation failed, was rolled back or refused.
    failed: usize,
    /// The longest downtime of a container in the last operation of a pod.
    longest_downtime_ms: Option<i64>,
    /// Only of a `GameDeployment` or `GameStatefulSet`.
    update: Option<Update>,
}

/// The update of a `GameDeployment` or `GameStatefulSet`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Update {
    desired: usize,
    updated: i32,
    images: String,
    state: State,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct RolloutView {
    row: RolloutRow,
    reason: String,
    zones: Vec<ZoneCells>,
    failures: Vec<PodFailure>,
    events: Vec<EventRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadView {
    row: WorkloadRow,
    zones: Vec<ZoneCells>,
    rollouts: Vec<RolloutRow>,
    revisions: Vec<RevisionRow>,
    events: Vec<EventRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct RevisionRow {
    number: i64,
    name: String,
    images: String,
    cause: Option<String>,
    created_at: Option<Timestamp>,
    /// True for the revision of the present template.
    current: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodView {
    namespace: String,
    name: String,
    workload: String,
    node: Option<String>,
    zone: Option<String>,
    phase: String,
    ready: bool,
    deleting: bool,
    restarts: i32,
    revision: String,
    created_at: Timestamp,
    /// Name and image.
    containers: Vec<(String, String)>,
    /// The id of a request that has no status yet.
    unanswered: Option<String>,
    /// The newest first.
    operations: Vec<Operation>,
    events: Vec<EventRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventRow {
    at: Option<Timestamp>,
    warning: bool,
    about: String,
    reason: String,
    message: String,
}

impl Page {
    /// Answers `query`.
    pub(super) fn of(objects: &Objects, query: &Query) -> Self {
        let view = match query {
            Query::Overview => Some(View::Overview(overview(objects))),
            Query::Rollout { namespace, name } => rollout(objects, namespace, name).map(View::Rollout),
            Query::Workload { namespace, kind, name } => {
                workload(objects, namespace, &format!("{kind}/{name}")).map(View::Workload)
            }
            Query::Pod { namespace, name } => {
                pod(objects, namespace, name).map(|view| View::Pod(Box::new(view)))
            }
        };
        Self {
            namespace: objects.namespace.clone(),
            current: objects.current,
            problems: objects.problems.clone(),
            view,
        }
    }

    /// True if there is no such object.
    pub(super) fn is_missing(&self) -> bool {
        self.view.is_none()
    }
}

fn overview(objects: &Objects) -> Overview {
    let mut groups: BTreeMap<(&str, &str), Vec<&CachedPod>> = BTreeMap::new();
    for pod in &objects.pods {
        groups.entry((trim::namespace(&pod.meta), &pod.value.workload)).or_default().push(pod);
    }
    let rows = rollouts(objects, |_, _| true);
    let named = |namespace: &str, name: &str| {
        let is_target =
            |row: &RolloutRow| row.namespace == namespace && row.workload.as_deref() == Some(name);
        rows.iter().any(is_target)
    };
    // Workloads that have nothing to do with this project are left out.
    groups.retain(|(namespace, name), pods| {
        let has_operation =
            |pod: &&CachedPod| pod.value.pod.answer.is_some() || pod.value.unanswered.is_some();
        pods.iter().any(has_operation) || named(namespace, name)
    });
    for (id, _) in &objects.games {
        groups.entry((&id.namespace, &id.name)).or_insert_with(|| pods_of(objects, &id.namespace, &id.name));
    }
    let row = |((namespace, name), pods): (&(&str, &str), &Vec<&CachedPod>)| {
        workload_row(objects, namespace, name, pods)
    };
    let mut workloads: Vec<_> = groups.iter().map(row).collect();
    workloads.sort_by_key(|row| Reverse((row.failed > 0, row.running > 0)));
    Overview { rollouts: rows, workloads }
}

fn pods_of<'a>(objects: &'a Objects, namespace: &str, name: &str) -> Vec<&'a CachedPod> {
    let is_of = |pod: &&CachedPod| trim::namespace(&pod.meta) == namespace && belongs(pod, name);
    objects.pods.iter().filter(is_of).collect()
}

/// True if the pod belongs to the workload `KIND/NAME`, directly or, for a `Deployment`, through its `ReplicaSet`.
fn belongs(pod: &CachedPod, name: &str) -> bool {
    pod.value.workload == name || pod.value.owner.as_deref() == Some(name)
}

fn game<'a>(objects: &'a Objects, namespace: &str, name: &str) -> Option<&'a (Id, Game)> {
    objects.games.iter().find(|(id, _)| id.namespace == namespace && id.name == name)
}

fn workload_row(objects: &Objects, namespace: &str, name: &str, pods: &[&CachedPod]) -> WorkloadRow {
    let statuses = || pods.iter().filter_map(|pod| pod.value.pod.answer.as_ref());
    let has_failed = |state: &Cell| state.has_failed();
    let update = game(objects, namespace, name).map(|(_, game)| Update {
        desired: game.desired,
        updated: game.updated,
        images: game.images.clone(),
        state: game.state,
        message: game.message.clone(),
    });
    WorkloadRow {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        pods: pods.len(),
        ready: pods.iter().filter(|pod| pod.value.pod.is_ready()).count(),
        running: statuses().filter(|status| !status.phase.is_terminal()).count(),
        failed: pods.iter().map(|pod| Cell::of(pod, None)).filter(has_failed).count(),
        longest_downtime_ms: statuses()
            .flat_map(|status| status.containers.iter().filter_map(|report| report.downtime_ms))
            .max(),
        update,
    }
}

/// The rollouts that `is_wanted` accepts, those in progress first and then the newest.
fn rollouts(objects: &Objects, is_wanted: impl Fn(&Id, &Rollout) -> bool) -> Vec<RolloutRow> {
    let wanted = objects.rollouts.iter().filter(|(id, rollout)| is_wanted(id, rollout));
    let mut rows: Vec<_> = wanted.map(|(id, rollout)| rollout_row(id, rollout)).collect();
    rows.sort_by_key(|row| (row.phase.is_terminal(), Reverse(row.created_at)));
    rows
}

fn rollout_row(id: &Id, rollout: &Rollout) -> RolloutRow {
    let Rollout { spec, status, .. } = rollout;
    let reference = spec.target.workload_ref.as_ref();
    let labels = spec.target.selector.as_ref().map(selector::text).unwrap_or_default();
    let change = spec.containers.iter().map(|container| match &container.image {
        Some(image) => format!("{}={image}", container.name),
        None => format!("restart {}", container.name),
    });
    RolloutRow {
        namespace: id.namespace.clone(),
        name: id.name.clone(),
        target: reference.map_or(labels, |target| format!("{}/{}", target.kind, target.name)),
        workload: reference.map(|target| format!("{}/{}", target.kind.to_ascii_lowercase(), target.name)),
        change: change.collect::<Vec<_>>().join(", "),
        phase: status.phase,
        message: rollout.message.clone(),
        together: spec.strategy == Strategy::Together,
        pods: status.pods,
        wanted: status.wanted,
        done: status.done,
        busy: status.busy,
        failed: status.failed,
        downtime: (status.downtime_ms.most > 0).then_some(status.downtime_ms),
        created_at: rollout.created,
        finished_at: status.finished_at,
    }
}

fn rollout(objects: &Objects, namespace: &str, name: &str) -> Option<RolloutView> {
    let (id, rollout) =
        objects.rollouts.iter().find(|(id, _)| id.namespace == namespace && id.name == name)?;
    let row = rollout_row(id, rollout);
    let matcher = rollout.spec.target.selector.as_ref().and_then(Matcher::of);
    let is_target = |pod: &CachedPod| match (&row.workload, &matcher) {
        (Some(workload), _) => belongs(pod, workload),
        (None, Some(matcher)) => matcher.matches(&pod.value.pod.labels),
        (None, None) => false,
    };
    let pods = objects.pods.iter().filter(|pod| trim::namespace(&pod.meta) == namespace && is_target(pod));
    let pods: Vec<_> = pods.cloned().collect();
    let cell = |pod: &CachedPod| Cell::of_rollout(pod, &id.uid, rollout, &objects.seen);
    Some(RolloutView {
        zones: grouped(&pods, &objects.nodes, cell),
        reason: rollout.status.reason.clone(),
        failures: rollout.status.failures.clone(),
        events: events(objects, namespace, |event| event.uid == id.uid),
        row,
    })
}

fn workload(objects: &Objects, namespace: &str, name: &str) -> Option<WorkloadView> {
    let pods = pods_of(objects, namespace, name);
    let is_its = |id: &Id, rollout: &Rollout| {
        id.namespace == namespace && rollout_row(id, rollout).workload.as_deref() == Some(name)
    };
    let rollouts = rollouts(objects, is_its);
    let game = game(objects, namespace, name);
    if pods.is_empty() && rollouts.is_empty() && game.is_none() {
        return None;
    }
    let row = workload_row(objects, namespace, name, &pods);
    let pods: Vec<_> = pods.into_iter().cloned().collect();
    let newest = game.map(|(_, game)| game.update_revision.as_str());
    Some(WorkloadView {
        zones: grouped(&pods, &objects.nodes, |pod| Cell::of(pod, newest)),
        rollouts,
        revisions: game.map(|(id, game)| revisions(objects, id, game)).unwrap_or_default(),
        events: game
            .map(|(id, _)| events(objects, namespace, |event| event.uid == id.uid))
            .unwrap_or_default(),
        row,
    })
}

/// The revisions of a workload, the newest first.
fn revisions(objects: &Objects, workload: &Id, game: &Game) -> Vec<RevisionRow> {
    let is_its = |meta| trim::controller(meta).is_some_and(|owner| owner.uid == workload.uid);
    let its = objects.revisions.iter().filter(|revision| is_its(&revision.meta));
    let row = |found: &Arc<Trimmed<RevisionFacts>>| {
        let revision = found.value.0.as_ref()?;
        Some(RevisionRow {
            number: revision.number,
            current: found.name_any() == game.update_revision,
            name: found.name_any(),
            images: revision.images.clone(),
            cause: revision.cause.clone(),
            created_at: revision.created,
        })
    };
    let mut rows: Vec<_> = its.filter_map(row).collect();
    rows.sort_by_key(|row| Reverse(row.number));
    rows
}

fn pod(objects: &Objects, namespace: &str, name: &str) -> Option<PodView> {
    let is_it = |pod: &&CachedPod| trim::namespace(&pod.meta) == namespace && pod.name_any() == name;
    let found = objects.pods.iter().find(is_it)?;
    let (facts, pod) = (&found.value, &found.value.pod);
    let about = |event: &EventFacts| {
        event.kind == "Pod" && event.name == name && facts.uid_in_events.as_ref() == Some(&event.uid)
    };
    Some(PodView {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        workload: facts.workload.clone(),
        node: pod.node.clone(),
        zone: pod.node.as_ref().and_then(|node| objects.nodes.get(node)?.zone.clone()),
        phase: format!("{:?}", pod.phase),
        ready: pod.is_ready(),
        deleting: pod.is_deleting(),
        restarts: pod.restarts,
        revision: pod.label.clone(),
        created_at: pod.created,
        containers: pod.images.clone(),
        unanswered: facts.unanswered.clone(),
        operations: objects.seen.of(&pod.uid).iter().rev().map(Operation::of).collect(),
        events: events(objects, namespace, about),
    })
}

/// The events that `is_wanted` accepts, the newest first.
fn events(objects: &Objects, namespace: &str, is_wanted: impl Fn(&EventFacts) -> bool) -> Vec<EventRow> {
    let wanted = objects
        .events
        .iter()
        .filter(|event| trim::namespace(&event.meta) == namespace && is_wanted(&event.value));
    let mut rows: Vec<_> = wanted
        .map(|event| EventRow {
            at: event.value.at,
            warning: event.value.warning,
            about: format!("{}/{}", event.value.kind, event.value.name),
            reason: event.value.reason.clone(),
            message: event.value.message.clone(),
        })
        .collect();
    rows.sort_by_key(|row| Reverse(row.at));
    rows
}
