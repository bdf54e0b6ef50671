//! What was observed during a run: instances and sandboxes at the runtimes of both nodes, faults, operations. Records
//! only; [`super::checker`] decides what of it is a violation.

use std::collections::BTreeMap;

use inplace::api::status::Phase;

use super::plan::{Fault, Operation};

/// How long a container that the runtime no longer has is kept: longer than any operation looks back.
const KEPT: i64 = 600 * SECOND;
pub(super) const SECOND: i64 = 1_000_000_000;

/// A container. All times are nanoseconds since 1970, 0 for not yet; those of the runtime are its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts, each by itself")]
pub(super) struct Instance {
    pub(super) id: String,
    pub(super) node: usize,
    pub(super) sandbox: String,
    /// The pod's uid.
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) attempt: u32,
    /// A fence: its process is not the container's.
    pub(super) is_fence: bool,
    /// A standby, which has a name of its own.
    pub(super) is_standby: bool,
    pub(super) is_running: bool,
    /// Created, and never started.
    pub(super) is_created: bool,
    pub(super) started_at: i64,
    pub(super) finished_at: i64,
    /// The time of the last observation in which it ran.
    pub(super) seen_running: i64,
    /// The time of the first observation without it.
    pub(super) gone: Option<i64>,
}

impl Instance {
    /// The time in which it certainly ran; `None` if it never did.
    pub(super) fn ran(&self) -> Option<(i64, i64)> {
        let end = match (self.finished_at, self.gone) {
            (0, None) => i64::MAX,
            (0, Some(_)) => self.seen_running,
            (finished, _) => finished,
        };
        (self.started_at > 0).then_some((self.started_at, end))
    }
}

/// A sandbox of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) node: usize,
    pub(super) uid: String,
    pub(super) pod: String,
    pub(super) created_at: i64,
    pub(super) gone: Option<i64>,
}

/// Everything that the runtimes have shown.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) instances: BTreeMap<String, Instance>,
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    /// Observations per node.
    pub(super) observations: BTreeMap<usize, u64>,
}

impl History {
    /// Takes in one observation of a node: all of its containers and sandboxes.
    pub(super) fn fold(&mut self, node: usize, at: i64, instances: Vec<Instance>, sandboxes: Vec<Sandbox>) {
        *self.observations.entry(node).or_default() += 1;
        for gone in self.instances.values_mut().filter(|one| one.node == node && one.gone.is_none()) {
            gone.is_running = false;
            gone.gone = Some(at);
        }
        for gone in self.sandboxes.values_mut().filter(|one| one.node == node && one.gone.is_none()) {
            gone.gone = Some(at);
        }
        for mut instance in instances {
            let known = self.instances.get(&instance.id);
            instance.seen_running =
                if instance.is_running { at } else { known.map_or(0, |known| known.seen_running) };
            self.instances.insert(instance.id.clone(), instance);
        }
        self.sandboxes.extend(sandboxes.into_iter().map(|sandbox| (sandbox.id.clone(), sandbox)));
        let is_kept = |gone: Option<i64>| gone.is_none_or(|gone| at - gone < KEPT);
        self.instances.retain(|_, instance| is_kept(instance.gone));
        self.sandboxes.retain(|_, sandbox| is_kept(sandbox.gone));
    }

    /// The instances of a container of a pod that the runtime has now.
    pub(super) fn present<'a>(&'a self, uid: &'a str, name: &'a str) -> impl Iterator<Item = &'a Instance> {
        self.instances.values().filter(move |one| one.uid == uid && one.name == name && one.gone.is_none())
    }

    /// The instances of a container of a pod that started after that time.
    pub(super) fn started(&self, uid: &str, name: &str, since: i64) -> Vec<Instance> {
        let fits = |one: &&Instance| one.uid == uid && one.name == name && !one.is_fence;
        self.instances.values().filter(fits).filter(|one| one.started_at > since).cloned().collect()
    }
}

/// A fault that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FaultSpan {
    pub(super) fault: Fault,
    pub(super) node: usize,
    pub(super) began: i64,
    /// When everything ran again; `None` while it lasts.
    pub(super) ended: Option<i64>,
}

impl FaultSpan {
    /// True if a part of the time between the two was disturbed on that node.
    pub(super) fn disturbs(&self, node: usize, from: i64, to: i64) -> bool {
        (self.node == node || self.fault.is_everywhere()) && self.overlaps(from, to)
    }

    /// True if the fault lasted at any moment between the two.
    pub(super) fn overlaps(&self, from: i64, to: i64) -> bool {
        self.began <= to && self.ended.is_none_or(|ended| from <= ended)
    }
}

/// An operation that has ended, as the runtime and the API server showed it.
#[derive(Clone, Debug)]
#[expect(clippy::struct_field_names, reason = "the name is the right one")]
pub(super) struct Ended {
    pub(super) operation: Operation,
    pub(super) pod: String,
    pub(super) node: usize,
    pub(super) id: String,
    pub(super) phase: Phase,
    pub(super) reason: String,
    pub(super) message: String,
    /// The deadline of the request, in nanoseconds.
    pub(super) deadline: i64,
    /// When the request was written.
    pub(super) asked: i64,
    /// When the status was observed.
    pub(super) ended: i64,
    /// When the pod was Ready again, and nothing was in progress in it.
    pub(super) settled: i64,
    /// Instances of the container that started since the request, or since the one that it replaces.
    pub(super) started: usize,
    /// How the request that it replaces ended; `None` if there is none, or if its end was not seen.
    pub(super) first: Option<Phase>,
    /// The container's image in the spec before, as requested, and afterwards.
    pub(super) images: [String; 3],
}

/// A deletion under the delete guard that has succeeded.
#[derive(Clone, Debug)]
pub(super) struct GuardedDeletion {
    pub(super) pod: String,
    /// The calls, up to the first one after which the pod was deleted.
    pub(super) calls: Vec<DeleteCall>,
    /// The answers of the hook since the pod was guarded: time, and whether it approved.
    pub(super) answers: Vec<(i64, bool)>,
}

/// A call that deletes a pod, and the pod after it. One without an answer may have been carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeleteCall {
    /// When the pod was looked at after the call.
    pub(super) looked: i64,
    /// True if the call succeeded, or the pod was marked as deleted, or gone.
    pub(super) is_deleted: bool,
    /// The second in which the API server marked the pod; `None` if that is not known.
    pub(super) marked: Option<i64>,
}

impl DeleteCall {
    /// The latest time at which the pod can have been deleted; `None` if it was not.
    pub(super) fn deleted(&self) -> Option<i64> {
        let latest = self.marked.map_or(self.looked, |marked| self.looked.min(marked + SECOND));
        self.is_deleted.then_some(latest)
    }
}

/// A pod that was Ready, and in which nothing was in progress.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) uid: String,
    /// The runtime's ID of `app`.
    pub(super) id: String,
    /// The image of `app` in the spec.
    pub(super) image: String,
}

/// A pod after an operation.
#[derive(Clone, Debug)]
pub(super) struct Last {
    pub(super) settled: Settled,
    pub(super) phase: Phase,
    pub(super) at: i64,
}
