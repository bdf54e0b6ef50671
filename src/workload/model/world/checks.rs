//! The invariants of the model tests. Checks only: it changes no object.

use crate::api::annotation;
use crate::api::game_deployment::UpdateType;
use crate::api::request::{Order, Request};
use crate::api::workload::{Condition, PauseCondition, PauseReason};
use crate::api::workload_key;
use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::resources::Resize;
use crate::podtask::state::Stage;
use crate::podtask::task::{PodTask, Purpose};
use crate::workload::action::{Action, BudgetClaims, Why};
use crate::workload::canary;
use crate::workload::decide::Decision;
use crate::workload::fixtures::resources_of;
use crate::workload::hooks::{self, Run};
use crate::workload::report::UPDATE_FAILED;
use crate::workload::spec::WorkloadSpec;
use crate::workload::stateful::is_replica_of;
use crate::workload::status::TOO_MANY;
use std::collections::BTreeSet;

use super::nodes::{is_closed, is_on};
use super::{World, ZONE};

impl World {
    /// A step that pauses without an end is passed only when a user resumes this very step.
    pub(super) fn check_steps(&self, decision: &Decision) {
        let (Some(after), before) = (&decision.report, &self.report.steps) else { return };
        let pauses = |pause: &PauseCondition| pause.reason == PauseReason::PausedByCanaryPauseStep;
        let passed = after.steps.hash == before.hash && after.steps.index > before.index;
        if let Some(index) = before.index.filter(|_| passed && before.pauses.iter().any(pauses)) {
            let spec = self.spec();
            let update = &spec.update;
            let approved = update.resume_step == Some(canary::approval(&after.update_revision, index));
            let unpaused = !update.paused && before.pauses.iter().any(|pause| pause.user_paused);
            assert!(approved || unpaused, "step {index} was passed: {decision:#?}");
        }
    }

    /// The invariants of every decision.
    pub(super) fn check(&self, decision: &Decision) {
        self.check_abort(decision);
        let spec = self.spec();
        let bounds = spec.bounds();
        let active: Vec<_> = self.pods.iter().filter(|pod| pod.is_active()).collect();
        let available = |pod: &Pod| {
            pod.phase == PodPhase::Running
                && pod.ready_since.is_some_and(|since| since + spec.min_ready <= self.now)
                && self.started.get(&pod.uid).is_none_or(|since| *since + spec.min_ready <= self.now)
        };
        let mut after: BTreeSet<&str> = active
            .iter()
            .filter(|pod| available(pod) && !self.is_busy(pod))
            .map(|pod| pod.name.as_str())
            .collect();
        let mut tasks: BTreeSet<&str> =
            active.iter().filter(|pod| self.is_updating(pod)).map(|pod| pod.name.as_str()).collect();
        let before = after.len();
        let tasks_before = tasks.len();
        let (mut taken, mut scaled) = (0, 0);
        for action in &decision.actions {
            match action {
                Action::DeletePod { pod, why: Why::LostNode } => {
                    let lost = self.pods.iter().any(|one| one.uid == pod.uid && is_on(one, &self.lost));
                    assert!(lost, "{} is deleted by force on a node that reports", pod.name);
                }
                Action::DeletePod { pod, why: Why::Recreate } => {
                    taken += usize::from(after.remove(pod.name.as_str()));
                    self.check_gate(&spec, &pod.name);
                }
                Action::DeletePod { pod, why: Why::ScaleIn } => {
                    self.check_gate(&spec, &pod.name);
                    scaled += 1;
                    // It is removed, and not updated any more.
                    if self.pods.iter().any(|one| one.uid == pod.uid && !self.is_busy(one)) {
                        tasks.remove(pod.name.as_str());
                    }
                    let too_many = active.len() >= spec.replicas + scaled;
                    let condemned = spec.stateful().is_some();
                    assert!(too_many || condemned, "{} is deleted without need", pod.name);
                }
                Action::PatchPod { pod, patch, why, .. } => {
                    if *why == Why::Resize {
                        taken += usize::from(after.remove(pod.name.as_str()));
                        // A pod that is updated at once has no hook.
                        if spec.update.way != UpdateType::HotPatchUpdate {
                            self.check_gate(&spec, &pod.name);
                        }
                        tasks.insert(&pod.name);
                    }
                    if matches!(why, Why::InPlace | Why::HotPatch) {
                        taken += usize::from(after.remove(pod.name.as_str()));
                        let request = patch.annotations[annotation::REQUEST].as_deref();
                        let request = Request::parse(request).unwrap().unwrap();
                        assert_eq!(i64::from(request.min_ready_seconds), spec.min_ready.as_secs());
                        self.check_order(&spec, &pod.name, &request);
                        if *why == Why::InPlace {
                            self.check_gate(&spec, &pod.name);
                        }
                        tasks.insert(&pod.name);
                    }
                    if let Some(Some(task)) = patch.annotations.get(workload_key::TASK) {
                        let task: PodTask = serde_json::from_str(task).unwrap();
                        let live = task.stage == Stage::Chosen || task.stage.is_live();
                        if live && task.purpose != Purpose::ScaleIn {
                            tasks.insert(&pod.name);
                        } else {
                            tasks.remove(pod.name.as_str());
                        }
                    }
                }
                _ => {}
            }
        }
        let floor = spec.replicas.saturating_sub(bounds.unavailable);
        let leaving = decision.deleted().len();
        assert!(
            taken == 0 || after.len() + leaving >= floor.min(before),
            "{} of {before} serve, {floor} must: {:#?}",
            after.len(),
            decision.actions
        );
        // An ordered set changes one pod at a time, also while pods leave.
        let ordered = spec.stateful().is_some_and(|set| set.ordered);
        let more = if ordered { 0 } else { active.len().saturating_sub(spec.replicas) };
        let limit = (bounds.unavailable + more).max(1);
        assert!(
            tasks.len() <= limit.max(tasks_before),
            "{} tasks, {limit} are allowed: {:#?}",
            tasks.len(),
            decision.actions
        );
        let names = decision.created();
        assert!(
            names.iter().all(|name| self.pods.iter().all(|pod| pod.name != **name)),
            "a name twice: {names:?}"
        );
        let most = spec.replicas + bounds.surge;
        // In a set, a pod is created although another one still has to leave.
        assert!(
            spec.stateful().is_some() || names.is_empty() || active.len() + names.len() <= most,
            "more than {most}: {names:?}"
        );
    }

    /// Each Ready pod that an update in place touches has a claim, and there are no more claims than disruptions
    /// allowed.
    pub(super) fn check_claims(&self, decision: &Decision) {
        let Some(least) = self.least else { return };
        let mut claimed = 0;
        for action in &decision.actions {
            let Action::PatchPod { pod, why: Why::Resize | Why::InPlace | Why::HotPatch, claims, .. } =
                action
            else {
                continue;
            };
            let one = self.pods.iter().find(|one| one.uid == pod.uid).unwrap();
            let is_claimed = |task: &PodTask| task.stage == Stage::Resizing && !task.claims.is_empty();
            let is_claimed = one.task.as_ref().is_some_and(is_claimed);
            let has = matches!(claims, BudgetClaims::Claim(_));
            assert!(has || is_claimed || !one.is_ready(), "{} is touched without a claim", pod.name);
            assert!(!(has && is_claimed), "{} is claimed twice", pod.name);
            claimed += usize::from(has);
        }
        let allowed = self.disruptions_allowed(least);
        assert!(claimed <= allowed, "{claimed} claims, {allowed} allowed: {:#?}", decision.actions);
    }

    /// No more pods are being replaced than the limits allow: pods that are missing or created now, new ones that are not
    /// available yet, and old ones that are deleted now. One pod may be deleted if the missing ones wait for it.
    pub(super) fn check_replaced(&self, decision: &Decision) {
        let spec = self.spec();
        let report = decision.report.as_ref().unwrap();
        let aborts = !report.aborted_revision.is_empty();
        let update = if aborts { &report.stable_revision } else { &report.update_revision };
        let chosen: BTreeSet<&str> = decision.actions.iter().filter_map(leaving).collect();
        let is_replica = is_replica_of(&spec);
        let comes = |pod: &&Pod| {
            let is_new = pod.label == *update && pod.task.is_none() && pod.foreign.is_none();
            let stays = is_replica(pod) && !chosen.contains(pod.name.as_str());
            pod.is_active() && is_new && stays && !pod.is_available(spec.min_ready, self.now)
        };
        let coming = self.pods.iter().filter(comes).count();
        let there = self.pods.iter().filter(|pod| pod.is_active()).count();
        let created = decision.created().len();
        let ordered = spec.stateful().is_some_and(|set| set.ordered);
        let more = if ordered { 0 } else { (there + created).saturating_sub(spec.replicas) };
        let limit = (spec.bounds().unavailable + more).max(1);
        let replaced = spec.replicas.saturating_sub(there).max(created) + coming;
        // Pods without ordinals are created whatever is being deleted.
        let is_going =
            spec.stateful().is_some() && self.pods.iter().any(|pod| pod.is_deleting() && is_replica(pod));
        let stuck = created + coming == 0 && !is_going;
        let pending = self.pods.iter().filter(|pod| pod.phase == PodPhase::Pending);
        let pending: BTreeSet<&str> = pending.map(|pod| pod.uid.as_str()).collect();
        let deleted = decision.actions.iter().filter(|action| match action {
            Action::DeletePod { pod, why: Why::Recreate } => !stuck || !pending.contains(pod.uid.as_str()),
            _ => false,
        });
        let (deleted, allowed) = (deleted.count(), limit.saturating_sub(replaced).max(stuck.into()));
        assert!(
            deleted <= allowed,
            "{deleted} pods are deleted, {replaced} of {limit} are being replaced: {:#?}\n{:#?}",
            decision.actions,
            self.pods
        );
    }

    /// While failures stop an update, no pod is created from its revision.
    pub(super) fn check_stopped(decision: &Decision) {
        let report = decision.report.as_ref().unwrap();
        let stops = |condition: &Condition| condition.kind == UPDATE_FAILED && condition.reason == TOO_MANY;
        if report.current_revision == report.update_revision || !report.conditions.iter().any(stops) {
            return;
        }
        for action in &decision.actions {
            if let Action::CreatePod { body, .. } = action {
                let label = &body["metadata"]["labels"][workload_key::REVISION];
                assert_ne!(label, report.update_revision.as_str(), "a pod is created from it");
            }
        }
    }

    /// While an update is aborted, no pod is updated to its revision or created from it, and the abort is recorded
    /// before a pod is touched.
    pub(super) fn check_abort(&self, decision: &Decision) {
        let before = &self.report.aborted_revision;
        let after = &decision.report.as_ref().unwrap().aborted_revision;
        if after.is_empty() {
            return;
        }
        let events = decision.actions.iter().all(|action| matches!(action, Action::Report(_)));
        assert!(before == after || events, "the abort is not recorded first: {:#?}", decision.actions);
        for action in &decision.actions {
            match action {
                Action::CreatePod { body, .. } => {
                    let label = &body["metadata"]["labels"][workload_key::REVISION];
                    assert_ne!(label, after.as_str(), "a pod is created from an aborted revision");
                }
                Action::PatchPod { patch, why: Why::InPlace | Why::HotPatch | Why::Chosen, .. } => {
                    let task = patch.annotations[workload_key::TASK].as_ref().unwrap();
                    let task: PodTask = serde_json::from_str(task).unwrap();
                    assert_ne!(&task.target, after, "a pod is updated to an aborted revision");
                }
                _ => {}
            }
        }
    }

    /// With `StartFirst`, only a container that is Ready starts first, and one that runs is replaced without a standby only
    /// in a pod that is not Ready because of a failed task or an aborted update.
    fn check_order(&self, spec: &WorkloadSpec, name: &str, request: &Request) {
        let pod = self.pods.iter().find(|pod| pod.name == name).unwrap();
        if spec.update.order == Order::StopFirst || request.order == Order::StartFirst {
            assert!(request.order == Order::StopFirst || pod.unready.is_empty(), "{name} is not Ready");
            return;
        }
        let own = self.revisions.iter().find(|revision| revision.name == pod.label);
        let is_torn = is_closed(pod) || own.is_some_and(|own| own.template.image("app") != pod.image("app"));
        let repairs = !pod.is_ready() && (is_torn || self.is_aborted());
        let waits = !pod.unready.is_empty() && pod.unready.iter().all(|(_, waits)| *waits);
        assert!(repairs || waits, "{name} is replaced without a standby: {pod:#?}");
    }

    /// A running pod is touched only after its own hook has passed.
    pub(super) fn check_gate(&self, spec: &WorkloadSpec, name: &str) {
        let pod = self.pods.iter().find(|pod| pod.name == name).unwrap();
        if spec.hooks.pre_delete.is_none() || pod.phase != PodPhase::Running {
            return;
        }
        let key = pod.task.as_ref().map(PodTask::key).unwrap_or_default();
        let kind = pod.task.as_ref().and_then(|task| hooks::of(spec, task.purpose)).map(|(kind, _)| kind);
        let own = |run: &&Run| run.pod_uid == pod.uid && run.key == key && Some(run.kind) == kind;
        let passed = self.runs.iter().filter(own).any(Run::has_passed);
        assert!(passed, "{name} is touched without its hook");
    }

    pub(in crate::workload::model) fn replicas(&self) -> usize {
        self.spec().replicas
    }

    /// True while surge pods exist.
    pub(in crate::workload::model) fn is_surging(&self) -> bool {
        self.pods.iter().any(|pod| pod.is_active() && pod.surge)
    }

    /// At least this many of the originals were not deleted.
    pub(in crate::workload::model) fn check_originals(&self, originals: &BTreeSet<String>, least: usize) {
        let there = self.uids();
        let gone: Vec<_> = originals.iter().filter(|uid| !there.contains(*uid)).collect();
        assert!(
            originals.len() - gone.len() >= least,
            "original pods were deleted, {least} must stay: {gone:?}\n{:#?}\n{:#?}",
            self.draft.spec,
            self.pods
        );
    }

    /// The workload is as its spec says.
    pub(in crate::workload::model) fn check_rest(&self) {
        let spec = self.spec();
        let report = &self.report;
        let what = || format!("{:#?}\n{:#?}\n{:#?}", self.draft.spec, self.pods, report.conditions);
        assert_eq!(report.counts.total, spec.replicas, "{}", what());
        assert_eq!(report.counts.available, spec.replicas, "{}", what());
        let held = spec.update.partition.held_back(spec.replicas);
        let at_least = spec.replicas.saturating_sub(held);
        assert!(report.counts.updated >= at_least, "{} of {at_least}: {}", report.counts.updated, what());
        let image = spec.template.image("app").unwrap();
        let right = self.pods.iter().filter(|pod| pod.label == report.update_revision);
        assert!(right.clone().all(|pod| pod.image("app") == Some(image)), "a label that lies: {}", what());
        let old = self.pods.iter().filter(|pod| pod.label != report.update_revision);
        for pod in old {
            let own = self.revisions.iter().find(|revision| revision.name == pod.label).unwrap();
            assert_eq!(pod.image("app"), own.template.image("app"), "{}", what());
        }
        for pod in &self.pods {
            let own = self.revisions.iter().find(|revision| revision.name == pod.label).unwrap();
            assert_eq!(pod.resources, resources_of(&own.template), "{}", what());
            assert_eq!(pod.resize, Resize::Taken, "{}", what());
        }
        for pod in self.pods.iter().filter(|_| spec.update.order == Order::StopFirst) {
            let own = self.revisions.iter().find(|revision| revision.name == pod.label).unwrap();
            let (runs_with, zone) = (&self.environments[&pod.uid], own.template.labels().remove(ZONE));
            assert_eq!(
                (runs_with.as_ref(), pod.labels.get(ZONE)),
                (zone.as_ref(), zone.as_ref()),
                "{}",
                what()
            );
        }
        assert!(self.runs.is_empty(), "hooks are left: {:#?} {}", self.runs, what());
        let decision = self.decision();
        let quiet = decision.actions.iter().all(|action| matches!(action, Action::ClearRetry));
        assert!(quiet, "not at rest: {:#?}", decision.actions);
        assert!(self.pods.iter().all(|pod| !pod.leaving), "{}", what());
        assert!(self.pods.iter().all(|pod| pod.prefetch.is_none()), "{}", what());
    }
}

/// The name of the pod that this action removes, or chooses to be removed.
fn leaving(action: &Action) -> Option<&str> {
    match action {
        Action::DeletePod { pod, why: Why::ScaleIn } => Some(pod.name.as_str()),
        Action::PatchPod { pod, patch, .. } => {
            let task = patch.annotations.get(workload_key::TASK)?.as_ref()?;
            let task: PodTask = serde_json::from_str(task).unwrap();
            (task.purpose == Purpose::ScaleIn).then_some(pod.name.as_str())
        }
        _ => None,
    }
}
