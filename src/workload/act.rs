//! Turns the task that each pod should have into the writes that follow now.
//!
//! A task is written on the pod before anything follows from it, and in the same write where no hook has to pass
//! first. Which pods get a task is decided before, in `update` and `scale`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::api::request::ContainerRequest;
use crate::api::workload::HookCondition;
use crate::api::workload_key;
use crate::podtask::budget::Budget;
use crate::podtask::disruption::{ASK_AGAIN, DisruptionAllowance};
use crate::podtask::foreign::ForeignUpdate;
use crate::podtask::node_load::NodeLoad;
use crate::podtask::state::{End, Stage, TaskState};
use crate::podtask::task::{Labelled, PodTask, Purpose, RETRY_AFTER};
use crate::podtask::time::later;
use crate::podtask::time::whole_seconds;
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::workload::action::{Action, BudgetClaims, Why};
use crate::workload::diff::Change;
use crate::workload::environment;
use crate::workload::failed_hook::FailedHook;
use crate::workload::hooks::{self, Gate, HookType};
use crate::workload::input::ReconcileInput;
use crate::workload::new_pod;
use crate::workload::request;
use crate::workload::scale::{Clear, Scaling};
use crate::workload::survey::is_early;
use crate::workload::update::{BROKEN_AFTER, Picks, Wanted, spare};
use crate::workload::view::{PodView, left_environments, was_touched};

mod claims;
mod gate;
mod resize;
mod runs;

use gate::has_closed_gate;

/// How long before a request a kubelet gets the labels and annotations that its containers take into their environment.
/// Kubelets get each change through a watch, within milliseconds where nothing is overloaded.
const LABELS_SEEN: SignedDuration = SignedDuration::from_secs(2);
/// Pods that one reconciliation creates at most, or creates the claims of. Each has its whole object in memory until it is created: 10 000 at once are
/// some 60 MiB.
pub(super) const MOST_CREATED: usize = 500;

/// What follows for all pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Acts {
    /// The writes, in order.
    pub actions: Vec<Action>,
    /// Pods that wait for their pre-delete hook.
    pub pre_delete: Vec<HookCondition>,
    /// Pods that wait for their pre-inplace hook.
    pub pre_inplace: Vec<HookCondition>,
    /// Names of the `PodDisruptionBudget`s that pods wait for.
    pub budgets: BTreeSet<String>,
    /// When the next entry at a `PodDisruptionBudget` is to be renewed, or a budget is to be read again.
    pub requeue_at: Option<Timestamp>,
    /// Why a hook cannot be run or a pod cannot get its claim, if so, and for which purpose.
    pub problem: Option<(Purpose, String)>,
    /// The hooks that did not succeed and that pods wait for.
    pub failed_hooks: Vec<FailedHook>,
    /// Why a claim does not grow as its template, if so.
    pub claim_problem: Option<String>,
}

/// Goes through all pods.
pub fn act<'a>(input: &ReconcileInput<'a>, scaling: &Scaling<'a>, picks: &Picks<'a>) -> Acts {
    let pool: Vec<_> = input.views.iter().filter(|view| !scaling.goes(&view.pod.name)).collect();
    let mut planner = Planner {
        input,
        spare: spare(input, &pool),
        waits: &picks.waits,
        disruptions: input.disruptions(),
        load: input.node_load(),
        keys: BTreeMap::new(),
        owned: BTreeSet::new(),
        acts: Acts { budgets: picks.budgets.clone(), ..Acts::default() },
    };
    planner.renew_claims();
    planner.clear(scaling);
    for view in &input.views {
        let name = view.pod.name.as_str();
        let leaves = scaling.leave.contains(name).then(Wanted::leave);
        let before = planner.acts.actions.len();
        let picked = picks.tasks.get(name).or_else(|| picks.resizing.get(name)).copied();
        planner.pod(view, leaves.or(picked), picks.relabel.contains(name));
        // At most one write per pod and reconcile: each is conditional on the resource version that was read.
        if scaling.promoted.contains(name) && planner.acts.actions.len() == before {
            planner.promote(view);
        }
        if leaves.is_none() && planner.acts.actions.len() == before {
            planner.open_foreign_gate(view);
        }
    }
    planner.own_claims(scaling);
    planner.ensure_claims(scaling);
    planner.create_pods(scaling);
    planner.delete_runs();
    if !planner.acts.budgets.is_empty() {
        planner.at(later(input.now, ASK_AGAIN));
    }
    planner.acts
}

struct Planner<'s, 'a> {
    input: &'s ReconcileInput<'a>,
    /// How many available pods may still become unavailable.
    spare: Budget,
    /// Names of pods that are not deleted for an update yet.
    waits: &'s BTreeSet<&'a str>,
    /// What the `PodDisruptionBudget`s allow.
    disruptions: DisruptionAllowance,
    /// The requests in progress by node.
    load: NodeLoad<'a>,
    /// Pod uid and key of the open tasks, and the kind of the hook of each: their `HookRun`s are kept.
    keys: BTreeMap<(String, String), Option<HookType>>,
    /// Names of pods whose claims have the owners for a scale-in, or get them now.
    owned: BTreeSet<String>,
    acts: Acts,
}

impl<'a> Planner<'_, 'a> {
    fn pod(&mut self, view: &PodView<'a>, wanted: Option<Wanted<'_>>, relabel: bool) {
        let task = view.pod.task.as_ref();
        match (&view.task_state, task, wanted) {
            (TaskState::Waiting, Some(task), Some(wanted)) if wanted.is(task) => {
                self.proceed(view, &task.clone(), false);
            }
            // The end of a task is recorded before anything else.
            (TaskState::Ended(end), Some(task), _) => self.end(view, task, end),
            (_, Some(task), wanted) if task.stage == Stage::Resizing => self.resize(view, task, wanted),
            (TaskState::Busy { touched }, Some(task), wanted) => {
                self.keep_run(view.pod, task);
                let right = task.target == self.input.update_name() || task.target == view.pod.label;
                let still_wanted = right && wanted.is_none_or(|wanted| wanted.purpose != Purpose::ScaleIn);
                if !touched && task.stage == Stage::Ordered && !still_wanted {
                    let recalled = task.at_stage(Stage::Recalled, "the pod does not need this task any more");
                    self.patch(view, &recalled, PodPatch::default(), Why::Recalled);
                }
            }
            // The pod has the labels of the target, and gets its own again first.
            (TaskState::Waiting, Some(task), Some(_)) if task.labelled.is_some() => {
                self.give_up(view, task);
            }
            (_, _, Some(wanted)) => self.give(view, wanted),
            (TaskState::Waiting, Some(task), None) => self.give_up(view, task),
            (_, task, None) if relabel => self.relabel(view, task),
            (_, Some(task), None) if self.may_retry(view) => {
                let again = task.at_stage(Stage::Again, "");
                self.patch(view, &again, PodPatch::default(), Why::Dropped);
            }
            _ => {}
        }
    }

    /// The pod has the images of the template: its labels and annotations follow.
    fn relabel(&mut self, view: &PodView<'_>, task: Option<&PodTask>) {
        if has_closed_gate(view, task) {
            return self.open_own_gate(view);
        }
        let change = self.change(view, self.input.update_name());
        match task {
            Some(task) => self.patch(view, &task.at_stage(Stage::Done, ""), change, Why::Metadata),
            None => self.write(view, change, Why::Metadata),
        }
    }

    fn give_up(&mut self, view: &PodView<'_>, task: &PodTask) {
        let dropped = task.at_stage(Stage::Dropped, "the pod does not need this task any more");
        let patch = self.own_environment(view, task);
        self.patch(view, &with_environment(view, dropped), patch, Why::Dropped);
    }

    /// True when this failed task may be repeated: the user asked for a retry, or has gone back to the pod's own template,
    /// and applies the other one anew afterwards.
    fn may_retry(&self, view: &PodView<'_>) -> bool {
        let asked = self.input.spec.retries_update();
        let is_undone = view.is_at(self.input.update_name()) && !self.input.aborts;
        let may = |task: &PodTask| {
            let has_failed = matches!(task.stage, Stage::Failed | Stage::Unanswered);
            has_failed && (asked || is_undone && task.target != self.input.update_name())
        };
        view.task_state == TaskState::Over && view.pod.task.as_ref().is_some_and(may)
    }

    /// Gives the pod a new task.
    fn give(&mut self, view: &PodView<'a>, wanted: Wanted<'_>) {
        let task = PodTask {
            purpose: wanted.purpose,
            target: wanted.target.to_owned(),
            number: view.pod.next_task_number(wanted.target, self.input.now),
            at: whole_seconds(self.input.now),
            stage: Stage::Chosen,
            seconds: 0,
            labelled: None,
            environments: self.environments(view),
            gate_closed: gate::may_be_left_closed(view)
                && view.pod.task.as_ref().is_some_and(|last| last.gate_closed),
            claims: Vec::new(),
            note: String::new(),
        };
        self.proceed(view, &task, true);
    }

    /// The revisions whose labels and annotations containers of the pod may have, because its last tasks failed.
    fn environments(&self, view: &PodView<'_>) -> Vec<String> {
        let known = |name: &&String| self.input.template(name).is_some();
        let unfinished = view.pod.task.iter().filter(|last| last.stage != Stage::Done);
        unfinished.flat_map(|last| last.environments.iter().filter(known).cloned()).collect()
    }

    /// Advances a task as far as its gate and the budget allow.
    fn proceed(&mut self, view: &PodView<'a>, task: &PodTask, fresh: bool) {
        let input = self.input;
        self.keep_run(view.pod, task);
        let hook = hooks::of(input.spec, task.purpose);
        let gate = hooks::gate(view.pod, task, hook, input.runs_of(view.pod));
        let run = (gate == Gate::Ask).then(|| self.run_to_create(view, task)).flatten();
        let problem = if gate == Gate::Wait { None } else { self.hook_problem(view, task, run.as_ref()) };
        let node_has_capacity = task.deletes() || input.node_has_capacity(&self.load, view);
        let is_early = input.template(&task.target).is_some_and(|target| is_early(input, view, target));
        // A request of another client, or a group restart, is not replaced by one of the controller.
        let is_taken = !task.deletes() && view.is_taken();
        // A pod that leaves is no part of what an update may spend.
        let leaves = task.purpose == Purpose::ScaleIn;
        let waits = self.waits.contains(view.pod.name.as_str()) || is_early || is_taken;
        let allowed = leaves || node_has_capacity && !waits && self.spare.allows(view.available);
        if gate == Gate::Open
            && problem.is_none()
            && allowed
            && let Some(claimed) = self.claimed(view, task)
        {
            if !leaves {
                self.spare.spend(view.available);
            }
            self.load.add(view.pod.node.as_deref().filter(|_| !task.deletes()));
            return self.execute(view, &claimed);
        }
        if task.labelled.is_some() {
            // It waits again, with its own labels: services, policies and budgets select pods by labels.
            let patch = self.own_environment(view, task);
            let waits = PodTask { labelled: None, ..with_environment(view, task.clone()) };
            return self.patch(view, &waits, patch, Why::Chosen);
        }
        if fresh {
            let mut patch = PodPatch::default();
            if hook.is_some() {
                patch.annotations.insert(workload_key::LEAVING.to_owned(), Some("true".to_owned()));
            }
            self.patch(view, task, patch, Why::Chosen);
        }
        match (run, problem) {
            (_, Some(problem)) => self.acts.problem = Some((task.purpose, problem)),
            (Some(run), None) => self.create_run(view, run),
            (None, None) => self.report_waiting(view, task),
        }
    }

    /// The task with the `PodDisruptionBudget`s to claim at before it touches the pod; `None` if one does not allow it now. A
    /// pod that is not Ready is exempt.
    fn claimed(&mut self, view: &PodView<'_>, task: &PodTask) -> Option<PodTask> {
        let exempt = task.deletes() || !view.ready;
        match if exempt { Ok(Vec::new()) } else { self.disruptions.claim(view.pod, true) } {
            Ok(claims) => Some(PodTask { claims, ..task.clone() }),
            Err(budget) => {
                self.acts.budgets.insert(budget);
                None
            }
        }
    }

    /// Entries lapse after two minutes, and an update may take longer.
    fn renew_claims(&mut self) {
        let input = self.input;
        for view in input.views.iter().filter(|view| matches!(view.task_state, TaskState::Busy { .. })) {
            let Some(task) = view.pod.task.as_ref().filter(|task| task.stage.is_live()) else { continue };
            let (due, next) = self.disruptions.due(view.pod, &task.claims, input.now);
            for budget in due {
                self.acts.actions.push(Action::RenewClaim { budget, pod: view.pod.name.clone() });
            }
            if let Some(next) = next {
                self.at(next);
            }
        }
    }

    fn at(&mut self, time: Timestamp) {
        let again = &mut self.acts.requeue_at;
        *again = Some(again.map_or(time, |earlier| earlier.min(time)));
    }

    /// Carries out the purpose of a task whose gate is open.
    fn execute(&mut self, view: &PodView<'_>, task: &PodTask) {
        let why = match task.purpose {
            Purpose::ScaleIn => Why::ScaleIn,
            Purpose::Recreate => Why::Recreate,
            Purpose::InPlace => Why::InPlace,
            Purpose::HotPatch => Why::HotPatch,
        };
        if task.deletes() {
            let takes_claims = task.purpose == Purpose::ScaleIn && self.has_saved(view.pod);
            if !self.may_lose_claims(view.pod, takes_claims) {
                return;
            }
            return self.acts.actions.push(Action::DeletePod { pod: VersionedRef::of(view.pod), why });
        }
        let input = self.input;
        let targets = self.targets(view, task);
        if targets.is_empty() {
            if has_closed_gate(view, Some(task)) {
                self.open_own_gate(view);
            } else if !self.begins_resize(view, task) {
                // No container differs any more: only resources did, or another client has made the change in the meantime.
                self.end(view, task, &End::done());
            }
            return;
        }
        if view.pod.foreign.as_ref().is_some_and(|update| update.gate_closed) {
            if !task.gate_closed {
                // Recorded first: a controller that knows that it closed the gate can open it, whatever follows.
                let chosen =
                    PodTask { gate_closed: true, claims: Vec::new(), ..task.at_stage(Stage::Chosen, "") };
                return self.patch(view, &chosen, PodPatch::default(), Why::Chosen);
            }
            // The agent opens only a gate that is closed as this project closes it. The request follows.
            return self.set_gate(view, false);
        }
        let Some(order) = request::order(input, view, &targets) else { return };
        // A resize may have to wait for its node; the pod keeps its own labels until then.
        if self.begins_resize(view, task) || !self.is_labelled(view, task) {
            return;
        }
        let request = request::build(input.spec, view.pod, task, targets, order);
        let mut patch = PodPatch::default();
        if let Some(update) = &view.pod.foreign {
            patch = self.rest_of_foreign(task, update);
        }
        patch.send(&request);
        let (at, seconds) = (whole_seconds(input.now), request.deadline_seconds);
        let gate_closed = task.gate_closed && gate::may_be_left_closed(view);
        let ordered = PodTask { at, seconds, gate_closed, ..task.at_stage(Stage::Ordered, "") };
        self.patch(view, &ordered, patch, why);
    }

    /// True when the pod has had the labels and annotations that the containers take into their environment for long enough
    /// that the kubelet has them too. Otherwise they are written, and the request waits.
    fn is_labelled(&mut self, view: &PodView<'_>, task: &PodTask) -> bool {
        let own = self.input.template(view.revision);
        let Some((own, target)) = own.zip(self.input.template(&task.target)) else { return true };
        let mut from = left_environments(view.pod, &self.input.revisions).chain([own]);
        if from.all(|from| environment::restarted(from, target).is_empty()) {
            return true;
        }
        let Some(labelled) = &task.labelled else {
            let labelled = Some(Labelled { at: self.input.now, restarts: view.pod.restarts });
            let task = match task.stage {
                Stage::Resizing => PodTask { labelled, ..task.clone() },
                _ => PodTask { labelled, claims: Vec::new(), ..task.at_stage(Stage::Chosen, "") },
            };
            self.patch(view, &task, environment::patch(own, target), Why::Chosen);
            self.at(later(self.input.now, LABELS_SEEN));
            return false;
        };
        let seen_at = later(labelled.at, LABELS_SEEN);
        if seen_at > self.input.now {
            self.at(seen_at);
        }
        seen_at <= self.input.now
    }

    /// The labels and annotations of the pod's own revision, for a pod that got those of a task that does not complete.
    fn own_environment(&self, view: &PodView<'_>, task: &PodTask) -> PodPatch {
        let (own, target) = (self.input.template(&view.pod.label), self.input.template(&task.target));
        let labelled = own.zip(target).filter(|_| task.labelled.is_some());
        labelled.map(|(own, target)| environment::patch(target, own)).unwrap_or_default()
    }

    fn targets(&self, view: &PodView<'_>, task: &PodTask) -> Vec<ContainerRequest> {
        let template = self.input.template(&task.target);
        template.map(|template| request::targets(view, template, &self.input.revisions)).unwrap_or_default()
    }

    fn end(&mut self, view: &PodView<'_>, task: &PodTask, end: &End) {
        let mut ended = with_environment(view, task.at_stage(end.stage, end.line()));
        // From now on the gate is closed because of a failure.
        ended.gate_closed &= !(end.stage == Stage::Failed && was_touched(view, task));
        let (patch, why) = match end.stage {
            Stage::Done => (self.change(view, &task.target), Why::Updated),
            Stage::Dropped => (self.own_environment(view, task), Why::Dropped),
            _ => (self.own_environment(view, task), Why::NotUpdated),
        };
        self.patch(view, &ended, patch, why);
    }

    /// Labels and annotations of a pod that is at `target` from now on.
    fn change(&self, view: &PodView<'_>, target: &str) -> PodPatch {
        let (from, to) = (self.input.template(&view.pod.label), self.input.template(target));
        let change =
            from.zip(to).map(|(from, to)| Change::between(from, to, self.input.resizes)).unwrap_or_default();
        let mut patch = PodPatch { labels: change.labels, annotations: change.annotations };
        patch.labels.insert(workload_key::REVISION.to_owned(), Some(target.to_owned()));
        if let Some(update) = view.pod.foreign.as_ref().filter(|update| !update.unwritten.is_empty()) {
            // No image is left to write, because the pod has those of `target`. Nobody waits for the others any more.
            patch.annotations.insert(workload_key::UPDATE_GRACE.to_owned(), None);
            if update.restarting.is_empty() {
                // It names containers that will never run another image: the gate could not be opened.
                patch.annotations.insert(workload_key::UPDATE_STATE.to_owned(), None);
            }
        }
        patch
    }

    /// Writes `task` on the pod, with the annotations that belong to its stage.
    fn patch(&mut self, view: &PodView<'_>, task: &PodTask, mut patch: PodPatch, why: Why) {
        let mut task = task.clone();
        task.gate_closed &= task.stage != Stage::Done || gate::is_in_use(view);
        // Claims that were made with the resize.
        let is_claimed = |last: &PodTask| last.stage == Stage::Resizing && last.claims == task.claims;
        let is_claimed = view.pod.task.as_ref().is_some_and(is_claimed);
        let claims = match task.stage {
            _ if task.claims.is_empty() => BudgetClaims::None,
            Stage::Resizing | Stage::Ordered if is_claimed => BudgetClaims::None,
            Stage::Resizing | Stage::Ordered => BudgetClaims::Claim(task.claims.clone()),
            Stage::Chosen | Stage::Recalled => BudgetClaims::None,
            _ => BudgetClaims::Release(std::mem::take(&mut task.claims)),
        };
        let text = serde_json::to_string(&task).unwrap_or_default();
        let annotations = workload_key::task_annotations(&text);
        patch.annotations.extend(annotations.map(|(key, value)| (key, Some(value))));
        let over = task.stage != Stage::Chosen && !task.stage.is_live();
        if over && view.pod.leaving {
            patch.annotations.insert(workload_key::LEAVING.to_owned(), None);
        }
        if let Some(last) = view.pod.task.as_ref().filter(|last| !last.deletes()).map(PodTask::id) {
            let answer = view.pod.answer.as_ref().filter(|answer| answer.id == last);
            if task.stage.withdraws(answer.is_some_and(|answer| answer.phase.is_terminal())) {
                patch.withdraw(view.pod, &last);
            }
        }
        let pod = VersionedRef::of(view.pod);
        self.acts.actions.push(Action::PatchPod { pod, patch, why, claims });
    }

    fn write(&mut self, view: &PodView<'_>, patch: PodPatch, why: Why) {
        let pod = VersionedRef::of(view.pod);
        self.acts.actions.push(Action::PatchPod { pod, patch, why, claims: BudgetClaims::None });
    }

    /// What a bk-bcs operator would have written with the images: the labels and annotations of the template, and
    /// that nothing is left to write.
    fn rest_of_foreign(&self, task: &PodTask, update: &ForeignUpdate) -> PodPatch {
        let set = |all: BTreeMap<String, String>| all.into_iter().map(|(key, value)| (key, Some(value)));
        let mut patch = PodPatch::default();
        if let Some(template) = self.input.template(&task.target) {
            patch.labels.extend(set(template.labels()));
            patch.annotations.extend(set(template.annotations()));
        }
        patch.annotations.insert(workload_key::UPDATE_GRACE.to_owned(), None);
        if update.restarting.is_empty() {
            // From now on the agent says which images run. If it refuses them, the containers keep those of before.
            patch.annotations.insert(workload_key::UPDATE_STATE.to_owned(), None);
        }
        patch
    }

    /// Makes a surge pod a regular pod.
    fn promote(&mut self, view: &PodView<'_>) {
        let labels = BTreeMap::from([(workload_key::SURGE.to_owned(), None)]);
        self.write(view, PodPatch { labels, ..PodPatch::default() }, Why::SurgePromoted);
    }

    /// Deletes pods that need no gate.
    fn clear(&mut self, scaling: &Scaling<'_>) {
        for (name, clear) in &scaling.clear {
            let why = match clear {
                Clear::Ended => Why::EndedPod,
                Clear::LostNode => Why::LostNode,
            };
            if let Some(pod) = self.input.by_name.get(name).copied() {
                if !self.may_lose_claims(pod, self.takes_claims(pod, scaling)) {
                    // The run of its hook is kept: it decides about the claims again.
                    if let Some(task) = &pod.task {
                        self.keep_run(pod, task);
                    }
                    continue;
                }
                self.acts.actions.push(Action::DeletePod { pod: VersionedRef::of(pod), why });
            }
        }
    }

    fn create_pods(&mut self, scaling: &Scaling<'_>) {
        let spec = self.input.spec;
        let mut created = 0;
        for new_pod in &scaling.create_pods {
            if created == MOST_CREATED {
                self.at(self.input.now);
                return;
            }
            let Some(template) = self.input.template(new_pod.revision) else { continue };
            let before = self.acts.actions.len();
            if !self.has_claims(&new_pod.name, &new_pod.instance) {
                created += usize::from(self.acts.actions.len() > before);
                continue;
            }
            let body = new_pod::pod(spec, new_pod, template);
            created += 1;
            self.acts.actions.push(Action::CreatePod { name: new_pod.name.clone(), body });
        }
    }
}

/// When to reconcile although no pod changes.
pub fn requeue_at(input: &ReconcileInput<'_>) -> Option<Timestamp> {
    let later_than_now = |time: Timestamp| (time > input.now).then_some(time);
    let times = input.views.iter().flat_map(|view| {
        let available = view.pod.available_at(input.spec.min_ready);
        let task = view.pod.task.as_ref();
        let silent = task.filter(|task| task.stage == Stage::Ordered);
        let silent = silent.map(|task| task.silent_at(view.pod.answer.as_ref()));
        let lost = task.filter(|_| matches!(view.task_state, TaskState::Busy { .. })).map(PodTask::lost_at);
        let again =
            task.filter(|task| task.stage == Stage::Unanswered).map(|task| later(task.at, RETRY_AFTER));
        let stuck = view.pod.foreign.as_ref().and_then(ForeignUpdate::stuck_at);
        let broken = view.pod.unready_since.map(|since| later(since, BROKEN_AFTER));
        [available, silent, lost, again, stuck, broken]
    });
    times.flatten().filter_map(later_than_now).min()
}

/// `task`, which does not complete, with its target among the revisions whose labels and annotations containers may have: the
/// agent touched the pod, or a container was restarted while the pod had them.
fn with_environment(view: &PodView<'_>, mut task: PodTask) -> PodTask {
    let may_have = |labelled: &Labelled| was_touched(view, &task) || view.pod.restarts != labelled.restarts;
    let is_left = task.stage != Stage::Done
        && task.target != view.pod.label
        && task.labelled.as_ref().is_some_and(may_have);
    if is_left && !task.environments.contains(&task.target) {
        task.environments.push(task.target.clone());
    }
    task
}
