//! The report on a workload of either kind: counters, conditions, steps, hooks that wait. It is converted from and to
//! the status of the API; nothing is decided here.

use jiff::Timestamp;

use crate::api::game_deployment::GameDeploymentStatus;
use crate::api::game_stateful_set::GameStatefulSetStatus;
use crate::api::kstatus;
use crate::api::workload::{CanaryStatus, Condition, HookCondition, PauseCondition};
use crate::podtask::time::whole_seconds;
use crate::workload::health::Health;
use crate::workload::view::PodView;

/// The status of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The generation of the spec that this status observed.
    pub generation: i64,
    /// Numbers of pods.
    pub counts: Counts,
    /// The revision that a partition holds pods back at.
    pub current_revision: String,
    /// The revision of the template.
    pub update_revision: String,
    /// The last revision that all pods reached; empty: not known.
    pub stable_revision: String,
    /// The revision whose update is aborted; empty: none.
    pub aborted_revision: String,
    /// How often the name of a revision was taken.
    pub collisions: i32,
    /// The selector as text.
    pub selector: String,
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The state of the canary steps.
    pub steps: Steps,
    /// Pods whose pre-delete hook has not succeeded.
    pub pre_delete: Vec<HookCondition>,
    /// Pods whose pre-inplace hook has not succeeded.
    pub pre_inplace: Vec<HookCondition>,
    /// Pods whose post-inplace hook has not succeeded.
    pub post_inplace: Vec<HookCondition>,
}

/// Numbers of pods, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All pods that count.
    pub total: usize,
    /// Ready.
    pub ready: usize,
    /// Ready for `minReadySeconds`.
    pub available: usize,
    /// At the current revision.
    pub current: usize,
    /// At the newest revision.
    pub updated: usize,
    /// At the newest revision and Ready.
    pub updated_ready: usize,
}

/// The state of the canary steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The step, from 0.
    pub index: Option<usize>,
    /// Hash of steps and revision: it reveals a change of either.
    pub hash: String,
    /// The pauses that are in effect.
    pub pauses: Vec<PauseCondition>,
    /// The revision that was rolled out completely, and the `HookRun` of the step.
    pub canary: CanaryStatus,
}

impl Counts {
    /// Counts the pods.
    pub fn of(views: &[PodView<'_>], update: &str, current: &str) -> Self {
        let count = |is: &dyn Fn(&PodView<'_>) -> bool| views.iter().filter(|view| is(view)).count();
        Self {
            total: views.len(),
            ready: count(&|view| view.ready),
            available: count(&|view| view.available),
            current: count(&|view| view.is_at(current)),
            updated: count(&|view| view.is_at(update)),
            updated_ready: count(&|view| view.is_at(update) && view.ready),
        }
    }
}

impl Report {
    /// The last report on a `GameDeployment`.
    pub fn of_deployment(status: &GameDeploymentStatus) -> Self {
        Self {
            generation: status.observed_generation,
            counts: Counts::default(),
            current_revision: status.current_revision.clone(),
            update_revision: status.update_revision.clone(),
            stable_revision: status.stable_revision.clone(),
            aborted_revision: status.aborted_revision.clone(),
            collisions: status.collision_count.unwrap_or(0),
            selector: status.label_selector.clone(),
            conditions: status.conditions.clone(),
            steps: Steps {
                index: status.current_step_index.and_then(|index| usize::try_from(index).ok()),
                hash: status.current_step_hash.clone(),
                pauses: status.pause_conditions.clone(),
                canary: status.canary.clone(),
            },
            pre_delete: status.pre_delete_hook_condition.clone(),
            pre_inplace: status.pre_inplace_hook_condition.clone(),
            post_inplace: status.post_inplace_hook_condition.clone(),
        }
    }

    /// The last report on a `GameStatefulSet`.
    pub fn of_stateful_set(status: &GameStatefulSetStatus) -> Self {
        Self::of_deployment(&GameDeploymentStatus {
            observed_generation: status.observed_generation,
            current_revision: status.current_revision.clone(),
            update_revision: status.update_revision.clone(),
            stable_revision: status.stable_revision.clone(),
            aborted_revision: status.aborted_revision.clone(),
            collision_count: status.collision_count,
            label_selector: status.label_selector.clone(),
            conditions: status.conditions.clone(),
            pause_conditions: status.pause_conditions.clone(),
            current_step_index: status.current_step_index,
            current_step_hash: status.current_step_hash.clone(),
            canary: status.canary.clone(),
            pre_delete_hook_condition: status.pre_delete_hook_condition.clone(),
            pre_inplace_hook_condition: status.pre_inplace_hook_condition.clone(),
            post_inplace_hook_condition: status.post_inplace_hook_condition.clone(),
            ..GameDeploymentStatus::default()
        })
    }

    /// The status of a `GameDeployment`.
    pub fn deployment(&self) -> GameDeploymentStatus {
        let counts = &self.counts;
        GameDeploymentStatus {
            observed_generation: self.generation,
            replicas: number(counts.total),
            ready_replicas: number(counts.ready),
            available_replicas: number(counts.available),
            updated_replicas: number(counts.updated),
            updated_ready_replicas: number(counts.updated_ready),
            current_revision: self.current_revision.clone(),
            update_revision: self.update_revision.clone(),
            stable_revision: self.stable_revision.clone(),
            aborted_revision: self.aborted_revision.clone(),
            collision_count: Some(self.collisions),
            label_selector: self.selector.clone(),
            conditions: self.conditions.clone(),
            pause_conditions: self.steps.pauses.clone(),
            current_step_index: self.steps.index.map(number),
            current_step_hash: self.steps.hash.clone(),
            canary: self.steps.canary.clone(),
            pre_delete_hook_condition: self.pre_delete.clone(),
            pre_inplace_hook_condition: self.pre_inplace.clone(),
            post_inplace_hook_condition: self.post_inplace.clone(),
        }
    }

    /// The status of a `GameStatefulSet`.
    pub fn stateful_set(&self) -> GameStatefulSetStatus {
        let same = self.deployment();
        GameStatefulSetStatus {
            observed_generation: same.observed_generation,
            replicas: same.replicas,
            ready_replicas: same.ready_replicas,
            current_replicas: number(self.counts.current),
            updated_replicas: same.updated_replicas,
            updated_ready_replicas: same.updated_ready_replicas,
            current_revision: same.current_revision,
            update_revision: same.update_revision,
            stable_revision: same.stable_revision,
            aborted_revision: same.aborted_revision,
            collision_count: same.collision_count,
            label_selector: same.label_selector,
            conditions: same.conditions,
            pause_conditions: same.pause_conditions,
            current_step_index: same.current_step_index,
            current_step_hash: same.current_step_hash,
            canary: same.canary,
            pre_delete_hook_condition: same.pre_delete_hook_condition,
            pre_inplace_hook_condition: same.pre_inplace_hook_condition,
            post_inplace_hook_condition: same.post_inplace_hook_condition,
        }
    }

    /// Sets the condition `kind`; its transition time changes only when its status does.
    pub fn set_condition(
        &mut self,
        kind: &str,
        is: bool,
        reason: &str,
        message: impl Into<String>,
        now: Timestamp,
    ) {
        let status = if is { "True" } else { "False" };
        let (reason, message) = (reason.to_owned(), message.into());
        let fresh = || Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(whole_seconds(now)),
            last_update_time: None,
            reason: reason.clone(),
            message: message.clone(),
        };
        match self.conditions.iter_mut().find(|condition| condition.kind == kind) {
            None => self.conditions.push(fresh()),
            Some(existing) if existing.status != status => {
                *existing = Condition { last_update_time: existing.last_update_time, ..fresh() };
            }
            Some(existing) => (existing.reason, existing.message) = (reason, message),
        }
    }

    /// The condition `Progressing`.
    pub fn progressing(&self) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == PROGRESSING)
    }

    /// Sets when the update progressed last.
    pub fn set_last_progress(&mut self, at: Option<Timestamp>) {
        if let Some(condition) = self.conditions.iter_mut().find(|condition| condition.kind == PROGRESSING) {
            condition.last_update_time = at;
        }
    }

    /// Sets `Ready`, `Reconciling` and `Stalled`.
    pub fn set_health(&mut self, health: &Health, now: Timestamp) {
        for (kind, is) in health.state.conditions() {
            let message = if is || kind == kstatus::READY { health.message.as_str() } else { "" };
            self.set_condition(kind, is, health.reason, message, now);
        }
    }

    /// The report after a write failed with `error`. The time of the last progress is that of the report `before`, if given: a
    /// write that failed is no progress, and what did succeed shows in the pods.
    #[must_use]
    pub fn after_failure(
        mut self,
        before: Option<&Self>,
        scaling: bool,
        error: &str,
        now: Timestamp,
    ) -> Self {
        let reason = |report: &Self| report.progressing().map(|condition| condition.reason.clone());
        if let Some(before) = before
            && let Some(last) = before.progressing().and_then(|condition| condition.last_update_time)
            && reason(&self) == reason(before)
        {
            self.set_last_progress(Some(last));
        }
        let kind = if scaling { SCALE_FAILED } else { UPDATE_FAILED };
        self.set_condition(kind, true, "WriteFailed", error, now);
        self
    }
}

/// Condition: the update makes progress; otherwise the reason why it does not.
pub const PROGRESSING: &str = "Progressing";
/// Condition: at least as many pods are available as the budget requires.
pub const AVAILABLE: &str = "Available";
/// Condition: pods could not be updated.
pub const UPDATE_FAILED: &str = "UpdateFailed";
/// Condition: pods could not be created or deleted.
pub const SCALE_FAILED: &str = "ScaleFailed";

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut report = Report::default();
        report.set_condition(AVAILABLE, false, "MinimumPodsUnavailable", "1 of 3", at(1));
        report.set_condition(AVAILABLE, false, "MinimumPodsUnavailable", "2 of 3", at(2));
        assert_eq!(report.conditions.len(), 1);
        assert_eq!(report.conditions[0].last_transition_time, Some(at(1)));
        assert_eq!(report.conditions[0].message, "2 of 3");
        report.set_condition(AVAILABLE, true, "MinimumPodsAvailable", "", at(3));
        assert_eq!(report.conditions[0].last_transition_time, Some(at(3)));
    }

    #[test]
    fn a_write_that_failed_is_reported() {
        let reported = Report::default().after_failure(None, true, "quota", Timestamp::UNIX_EPOCH);
        assert_eq!(
            (reported.conditions[0].kind.as_str(), reported.conditions[0].status.as_str()),
            ("ScaleFailed", "True")
        );
    }

    #[test]
    fn what_was_reported_is_read_back() {
        let mut report = Report { collisions: 2, update_revision: "r".into(), ..Report::default() };
        report.steps.index = Some(3);
        report.set_condition(PROGRESSING, true, "Updating", "", Timestamp::UNIX_EPOCH);
        assert_eq!(Report::of_deployment(&report.deployment()), report);
        assert_eq!(Report::of_stateful_set(&report.stateful_set()), report);
    }
}
