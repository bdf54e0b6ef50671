//! The pods of a view as cells: what each one shows, grouped by zone and node. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use serde::Serialize;

use crate::api::in_place_rollout::{is_request_of, request_id};
use crate::api::status::{Phase, Status, Step};
use crate::cli::dashboard::kinds::{NodeFacts, PodFacts, Rollout};
use crate::cli::dashboard::seen::Seen;
use crate::cluster::trim::{self, Trimmed};

/// A cached pod.
pub(super) type CachedPod = Arc<Trimmed<PodFacts>>;
/// The nodes by name.
pub(super) type Nodes = BTreeMap<String, NodeFacts>;

/// The message of a pod whose agent is to answer.
const UNANSWERED: &str = "the agent has not answered the request yet";

/// What a cell says about its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum CellState {
    Failed,
    RolledBack,
    Refused,
    Running,
    /// The request is written, and waits for its agent or for a permit.
    Pending,
    /// The rollout has not come to the pod.
    Waiting,
    Cancelled,
    Succeeded,
    /// No operation.
    Idle,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cell {
    namespace: String,
    name: String,
    state: CellState,
    step: Option<Step>,
    /// The longest downtime of a container.
    downtime_ms: Option<i64>,
    message: String,
    ready: bool,
    deleting: bool,
    /// True if the pod has another revision than the newest one of its workload.
    outdated: bool,
}

/// The pods of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeCells {
    /// Absent for pods that are not scheduled.
    name: Option<String>,
    /// Absent if the node cannot be read.
    ready: Option<bool>,
    pub(super) cells: Vec<Cell>,
}

/// The nodes of a zone.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ZoneCells {
    /// Absent for nodes without a zone.
    name: Option<String>,
    pub(super) nodes: Vec<NodeCells>,
}

impl From<Phase> for CellState {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Pending => Self::Pending,
            Phase::Running => Self::Running,
            Phase::Succeeded => Self::Succeeded,
            Phase::Failed => Self::Failed,
            Phase::RolledBack => Self::RolledBack,
            Phase::Refused => Self::Refused,
            Phase::Cancelled => Self::Cancelled,
        }
    }
}

impl Cell {
    /// A pod with its last operation, whatever it belongs to. `revision` is the newest one of its workload.
    pub(super) fn of(pod: &CachedPod, revision: Option<&str>) -> Self {
        let facts = &pod.value;
        let outdated = revision.is_some_and(|revision| !revision.is_empty() && facts.pod.label != revision);
        let cell = match (&facts.pod.answer, &facts.unanswered) {
            (status, Some(_)) if status.as_ref().is_none_or(|status| status.phase.is_terminal()) => {
                Self::blank(pod, CellState::Pending, UNANSWERED)
            }
            (Some(status), _) => Self::answered(pod, status),
            (None, _) => Self::blank(pod, CellState::Idle, ""),
        };
        Self { outdated, ..cell }
    }

    /// A pod of an `InPlaceRollout`. Its operation may be an earlier one of the pod, if this process saw it.
    pub(super) fn of_rollout(pod: &CachedPod, uid: &str, rollout: &Rollout, seen: &Seen) -> Self {
        let facts = &pod.value;
        let record = facts.record.as_ref().filter(|record| record.rollout == uid);
        let is_its = |status: &&Status| match record {
            Some(record) => status.id == request_id(uid, record.back),
            None => is_request_of(uid, &status.id),
        };
        let before = seen.of(&facts.pod.uid).iter().rev().map(|operation| &operation.status);
        if let Some(status) = facts.pod.answer.as_ref().into_iter().chain(before).find(is_its) {
            return Self::answered(pod, status);
        }
        match record {
            Some(record) if !record.reason.is_empty() => Self::blank(pod, CellState::Failed, &record.note),
            Some(_) => Self::blank(pod, CellState::Pending, UNANSWERED),
            None if rollout.status.phase.is_terminal() => Self::blank(pod, CellState::Idle, ""),
            None if rollout.status.started_at.is_some_and(|started| started < facts.pod.created) => {
                Self::blank(pod, CellState::Idle, "created after the rollout started")
            }
            None => Self::blank(pod, CellState::Waiting, ""),
        }
    }

    /// True if the last operation did not succeed.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.state, CellState::Failed | CellState::RolledBack | CellState::Refused)
    }

    fn answered(pod: &CachedPod, status: &Status) -> Self {
        Self {
            step: status.step.filter(|_| !status.phase.is_terminal()),
            downtime_ms: status.containers.iter().filter_map(|report| report.downtime_ms).max(),
            ..Self::blank(pod, status.phase.into(), &status.message)
        }
    }

    fn blank(pod: &CachedPod, state: CellState, message: &str) -> Self {
        let facts = &pod.value.pod;
        Self {
            namespace: trim::namespace(&pod.meta).to_owned(),
            name: pod.name_any(),
            state,
            step: None,
            downtime_ms: None,
            message: message.to_owned(),
            ready: facts.is_ready(),
            deleting: facts.is_deleting(),
            outdated: false,
        }
    }
}

/// The cells by zone and node, in the order of their names; numbers in names are compared as numbers.
pub(super) fn grouped(
    pods: &[CachedPod],
    nodes: &Nodes,
    mut cell: impl FnMut(&CachedPod) -> Cell,
) -> Vec<ZoneCells> {
    let mut zones: BTreeMap<_, BTreeMap<_, Vec<Cell>>> = BTreeMap::new();
    for pod in pods {
        let node = pod.value.pod.node.clone();
        let zone = node.as_ref().and_then(|name| nodes.get(name)?.zone.clone());
        // Names come before the absence of one.
        let zone = zones.entry((zone.is_none(), zone)).or_default();
        zone.entry((node.is_none(), node.as_deref().map(natural), node)).or_default().push(cell(pod));
    }
    let of_node = |((_, _, name), mut cells): ((bool, _, Option<String>), Vec<Cell>)| {
        cells.sort_by_cached_key(|cell| natural(&cell.name));
        NodeCells { ready: name.as_ref().and_then(|name| Some(nodes.get(name)?.ready)), name, cells }
    };
    let of_zone = |((_, name), nodes): ((bool, Option<String>), BTreeMap<_, _>)| ZoneCells {
        name,
        nodes: nodes.into_iter().map(of_node).collect(),
    };
    zones.into_iter().map(of_zone).collect()
}

/// The name without its number at the end, and the number: `web-2` comes before `web-10`.
fn natural(name: &str) -> (String, u64, String) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.to_owned(), name[stem.len()..].parse().unwrap_or(0), name.to_owned())
}
