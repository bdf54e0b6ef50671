//! Decides how many pods an update may delete so that others are created in their place, and in an ordered set which one.
//!
//! As in a Deployment, pods that are missing, and pods at the newest revision that are not available, count against
//! `maxUnavailable`, whether the deleted pods were available or not. A new pod that never becomes available keeps its
//! place until the template changes.
//!
//! While no pod can be created, because the index range is invalid, none is deleted: it would not be replaced.
//!
//! An ordered set creates no pod above one that is not available. So an update deletes no pod there: it would not come
//! back. It begins with the lowest pod that is not available.

use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::state::TaskState;
use crate::podtask::time::later;
use crate::workload::input::ReconcileInput;
use crate::workload::scale::Scaling;
use crate::workload::stateful;
use crate::workload::update::BROKEN_AFTER;
use crate::workload::view::PodView;

/// What is left of the pods that may be replaced at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// How many more pods may be deleted.
    left: usize,
    /// True when pods are missing and none is on its way: their creation waits for others.
    stuck: bool,
    /// True when pods are missing because their index range is too small.
    out_of_numbers: bool,
    /// The lowest ordinal of an ordered set without an available pod.
    lowest: Option<u32>,
}

impl Replacement {
    /// Counts the pods that are being replaced. `pool`: the pods that stay.
    pub fn of(input: &ReconcileInput<'_>, pool: &[&PodView<'_>], scaling: &Scaling<'_>) -> Self {
        let (replicas, there, created) = (input.spec.replicas, pool.len(), scaling.create_pods.len());
        let is_busy = |view: &PodView<'_>| matches!(view.task_state, TaskState::Busy { .. });
        let busy = input.views.iter().filter(|view| is_busy(view)).count();
        let update = input.update_name();
        let comes = |view: &PodView<'_>| view.is_at(update) && !view.available && !is_busy(view);
        let coming = pool.iter().filter(|view| comes(view)).count();
        // Surge pods that are created now count on both sides.
        let more = (there + created).saturating_sub(replicas);
        let limit = (input.spec.bounds().unavailable + more).max(1);
        let missing = replicas.saturating_sub(there);
        let goes = |pod: &Pod| pod.is_deleting() && !scaling.condemned.contains(pod.name.as_str());
        let out_of_numbers = scaling.problem.is_some();
        // All other pods are created whatever is being deleted.
        let waits_for_gone = input.spec.stateful().is_some() || out_of_numbers;
        let is_gone_soon =
            waits_for_gone && (!scaling.clear.is_empty() || input.pods.iter().any(|pod| goes(pod)));
        let left = limit.saturating_sub(missing.max(created) + coming + busy);
        let is_numbered = input.spec.deployment().is_none_or(|own| own.indices.is_ok());
        Self {
            left: if is_numbered { left } else { 0 },
            stuck: is_numbered && missing > 0 && created + coming == 0 && !is_gone_soon,
            out_of_numbers,
            lowest: stateful::lowest_unavailable(input),
        }
    }

    /// True when `view` may be deleted now.
    pub fn allows(&self, input: &ReconcileInput<'_>, view: &PodView<'_>) -> bool {
        if self.lowest.is_some_and(|lowest| view.pod.ordinal(&input.spec.name) > Some(lowest)) {
            return false;
        }
        self.left > 0 || self.stuck && self.is_waited_for(input, view)
    }

    /// Counts a pod that is deleted.
    pub fn spend(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.out_of_numbers = false;
    }

    /// True when missing pods are not created before this one has started (`createBatch`), is available (in an ordered set)
    /// or gives its number back. The latter two count if it hardly becomes available by itself: it is not Ready for long, or
    /// nobody says since when.
    fn is_waited_for(&self, input: &ReconcileInput<'_>, view: &PodView<'_>) -> bool {
        let lasts = || view.pod.unready_since.is_none_or(|since| later(since, BROKEN_AFTER) <= input.now);
        let is_needed = self.lowest.is_some() || self.out_of_numbers;
        view.pod.phase == PodPhase::Pending || is_needed && !view.ready && lasts()
    }
}
