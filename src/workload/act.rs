//! From turns to writes: what happens to each pod now, given which turn it shall have.
//!
//! A turn is written on the pod before anything follows from it, and in the same write where nothing has to be asked first.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::api::request::Target;
use crate::api::workload::HookCondition;
use crate::api::{annotation, workload_key};
use crate::workload::action::{Action, PodPatch, PodRef, Why};
use crate::workload::birth;
use crate::workload::diff::Change;
use crate::workload::hooks::{self, Gate, HookType};
use crate::workload::pods::View;
use crate::workload::report::whole_seconds;
use crate::workload::request;
use crate::workload::scale::{Clear, Scaling};
use crate::workload::scene::{ClaimState, Scene};
use crate::workload::turn::{AGAIN, Purpose, SILENCE, Stage, Standing, Turn, later};
use crate::workload::update::{Picks, Spare, Wanted};

/// What follows for all pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Acts {
    /// What is to be written, in this order.
    pub actions: Vec<Action>,
    /// Pods that wait for their pre-delete hook.
    pub pre_delete: Vec<HookCondition>,
    /// Pods that wait for their pre-inplace hook.
    pub pre_inplace: Vec<HookCondition>,
    /// Why a gate cannot be asked, if one cannot, and what for.
    pub problem: Option<(Purpose, String)>,
}

/// Goes through all pods.
pub fn act<'a>(scene: &Scene<'a>, scaling: &Scaling<'a>, picks: &Picks<'a>) -> Acts {
    let pool: Vec<_> =
        scene.views.iter().filter(|view| !scaling.leave.contains(view.pod.name.as_str())).collect();
    let mut hand =
        Hand { scene, spare: Spare::of(scene, &pool), keys: BTreeSet::new(), acts: Acts::default() };
    hand.clear(scaling);
    for view in &scene.views {
        let name = view.pod.name.as_str();
        let leaves = scaling.leave.contains(name).then(Wanted::leave);
        let before = hand.acts.actions.len();
        hand.pod(view, leaves.or_else(|| picks.turns.get(name).copied()), picks.relabel.contains(name));
        // One write on a pod: each holds for the version that was seen.
        if scaling.kept.contains(name) && hand.acts.actions.len() == before {
            hand.keep(view);
        }
    }
    hand.ensure_claims(scaling);
    hand.births(scaling);
    hand.forget_runs();
    hand.acts
}

struct Hand<'s, 'a> {
    scene: &'s Scene<'a>,
    spare: Spare,
    /// Turns that hooks may still be about.
    keys: BTreeSet<(String, String)>,
    acts: Acts,
}

impl Hand<'_, '_> {
    fn pod(&mut self, view: &View<'_>, wanted: Option<Wanted<'_>>, relabel: bool) {
        let turn = view.pod.turn.as_ref();
        match (&view.standing, turn, wanted) {
            (Standing::Asking, Some(turn), Some(wanted)) if wanted.is(turn) => {
                self.proceed(view, &turn.clone(), false);
            }
            // How it ended is written down before anything else.
            (Standing::Ended(stage, note), Some(turn), _) => self.end(view, turn, *stage, note),
            (Standing::Busy { touched }, Some(turn), wanted) => {
                self.keys.insert((view.pod.uid.clone(), turn.key()));
                let right = turn.target == self.scene.update_name() || turn.target == view.pod.label;
                let still_wanted = right && wanted.is_none_or(|wanted| wanted.purpose != Purpose::ScaleIn);
                if !touched && turn.stage == Stage::Ordered && !still_wanted {
                    let recalled = turn.at_stage(Stage::Recalled, "not wanted any more");
                    self.patch(view, &recalled, PodPatch::default(), Why::Recalled);
                }
            }
            (_, _, Some(wanted)) => self.give(view, wanted),
            (Standing::Asking, Some(turn), None) => {
                let dropped = turn.at_stage(Stage::Dropped, "not wanted any more");
                self.patch(view, &dropped, PodPatch::default(), Why::Dropped);
            }
            (_, turn, None) if relabel => {
                let change = self.change(view, self.scene.update_name());
                match turn {
                    Some(turn) => self.patch(view, &turn.at_stage(Stage::Done, ""), change, Why::Metadata),
                    None => self.write(view, change, Why::Metadata),
                }
            }
            (_, Some(turn), None) if self.forgives(view) => {
                let again = turn.at_stage(Stage::Again, "");
                self.patch(view, &again, PodPatch::default(), Why::Dropped);
            }
            _ => {}
        }
    }

    /// True when the user wants it to be tried again.
    fn forgives(&self, view: &View<'_>) -> bool {
        let (hooks, update) = (&self.scene.wish.hooks, &self.scene.wish.update);
        let asked = hooks.retry_pre_inplace || hooks.retry_post_inplace || update.retry;
        let setback = |turn: &Turn| matches!(turn.stage, Stage::Failed | Stage::Unanswered);
        asked && view.standing == Standing::Over && view.pod.turn.as_ref().is_some_and(setback)
    }

    /// A new turn.
    fn give(&mut self, view: &View<'_>, wanted: Wanted<'_>) {
        let turn = Turn {
            purpose: wanted.purpose,
            target: wanted.target.to_owned(),
            number: view.pod.turn.as_ref().map_or(1, |last| last.number.saturating_add(1)),
            at: whole_seconds(self.scene.now),
            stage: Stage::Chosen,
            seconds: 0,
            note: String::new(),
        };
        self.proceed(view, &turn, true);
    }

    /// As far as its gate and the budget let it.
    fn proceed(&mut self, view: &View<'_>, turn: &Turn, fresh: bool) {
        let scene = self.scene;
        self.keys.insert((view.pod.uid.clone(), turn.key()));
        let hook = hooks::of(scene.wish, turn.purpose);
        let gate = hooks::gate(view.pod, turn, hook, scene.runs_of(view.pod), scene.templates);
        let allowed = turn.purpose == Purpose::ScaleIn || self.spare.allows(view);
        if gate == Gate::Open && allowed {
            self.spare.commit(view);
            return self.execute(view, turn);
        }
        if fresh {
            let mut mark = PodPatch::default();
            if hook.is_some() {
                mark.annotations.insert(workload_key::LEAVING.to_owned(), Some("true".to_owned()));
            }
            self.patch(view, turn, mark, Why::Chosen);
        }
        match gate {
            Gate::Open | Gate::Wait => self.tell_waiting(view, turn),
            Gate::Refused(problem) => self.acts.problem = Some((turn.purpose, problem)),
            Gate::Ask => {
                let modified: Vec<_> =
                    self.targets(view, turn).into_iter().map(|target| target.name).collect();
                if let Some(run) = hooks::run(scene.wish, view.pod, turn, &modified) {
                    let begun = Some(whole_seconds(scene.now));
                    let phase = "Pending".to_owned();
                    let told = HookCondition { pod_name: view.pod.name.clone(), start_time: begun, phase };
                    self.tell(run.kind, told);
                    self.acts.actions.push(Action::CreateRun(run));
                }
            }
        }
    }

    fn tell_waiting(&mut self, view: &View<'_>, turn: &Turn) {
        let key = turn.key();
        let run = self.scene.runs_of(view.pod).iter().find(|run| run.key == key);
        if let Some((run, told)) = run.and_then(|run| Some((run, hooks::condition(view.pod, run)?))) {
            self.tell(run.kind, told);
        }
    }

    fn tell(&mut self, kind: HookType, told: HookCondition) {
        match kind {
            HookType::PreDelete => self.acts.pre_delete.push(told),
            HookType::PreInplace => self.acts.pre_inplace.push(told),
            HookType::Canary => {}
        }
    }

    /// Does what the turn is for.
    fn execute(&mut self, view: &View<'_>, turn: &Turn) {
        let why = match turn.purpose {
            Purpose::ScaleIn => Why::ScaleIn,
            Purpose::Recreate => Why::Recreate,
            Purpose::InPlace => Why::InPlace,
            Purpose::HotPatch => Why::HotPatch,
        };
        if turn.deletes() {
            return self.acts.actions.push(Action::DeletePod { pod: PodRef::of(view.pod), why });
        }
        let scene = self.scene;
        let targets = self.targets(view, turn);
        if targets.is_empty() {
            // What was to be done was done by somebody else meanwhile.
            return self.end(view, turn, Stage::Done, "");
        }
        let request = request::build(scene.wish, view.pod, turn, targets);
        let text = serde_json::to_string(&request).unwrap_or_default();
        let patch = PodPatch {
            annotations: BTreeMap::from([(annotation::REQUEST.to_owned(), Some(text))]),
            ..PodPatch::default()
        };
        let (at, seconds) = (whole_seconds(scene.now), request.deadline_seconds);
        let ordered = Turn { at, seconds, ..turn.at_stage(Stage::Ordered, "") };
        self.patch(view, &ordered, patch, why);
    }

    fn targets(&self, view: &View<'_>, turn: &Turn) -> Vec<Target> {
        let template = self.scene.template(&turn.target);
        template.map(|template| request::targets(view, template, &self.scene.revisions)).unwrap_or_default()
    }

    /// Writes down how a turn ended.
    fn end(&mut self, view: &View<'_>, turn: &Turn, stage: Stage, note: &str) {
        let ended = turn.at_stage(stage, note);
        let (patch, why) = match stage {
            Stage::Done => (self.change(view, &turn.target), Why::Updated),
            Stage::Dropped => (PodPatch::default(), Why::Dropped),
            _ => (PodPatch::default(), Why::NotUpdated),
        };
        self.patch(view, &ended, patch, why);
    }

    /// Labels and annotations of a pod that is at `target` from now on.
    fn change(&self, view: &View<'_>, target: &str) -> PodPatch {
        let (from, to) = (self.scene.template(&view.pod.label), self.scene.template(target));
        let change = from.zip(to).map(|(from, to)| Change::between(from, to)).unwrap_or_default();
        let mut patch = PodPatch { labels: change.labels, annotations: change.annotations };
        patch.labels.insert(workload_key::REVISION.to_owned(), Some(target.to_owned()));
        patch
    }

    /// Writes `turn` on the pod, and beside it what belongs to its stage.
    fn patch(&mut self, view: &View<'_>, turn: &Turn, mut patch: PodPatch, why: Why) {
        let text = serde_json::to_string(turn).unwrap_or_default();
        patch.annotations.insert(workload_key::TURN.to_owned(), Some(text));
        let over = !matches!(turn.stage, Stage::Chosen | Stage::Ordered | Stage::Recalled);
        if over && view.pod.leaving {
            patch.annotations.insert(workload_key::LEAVING.to_owned(), None);
        }
        // What the last turn asked of the agent is not wanted any more, unless this is its end or it is still wanted.
        let last = view.pod.turn.as_ref().filter(|last| !last.deletes()).map(Turn::id);
        let ours = last.is_some() && view.pod.request == last;
        let taken_back = !matches!(turn.stage, Stage::Done | Stage::Failed | Stage::Ordered);
        if ours && taken_back {
            patch.annotations.insert(annotation::REQUEST.to_owned(), None);
        }
        self.write(view, patch, why);
    }

    fn write(&mut self, view: &View<'_>, patch: PodPatch, why: Why) {
        self.acts.actions.push(Action::PatchPod { pod: PodRef::of(view.pod), patch, why });
    }

    /// A pod that stood in and is one of the pods from now on.
    fn keep(&mut self, view: &View<'_>) {
        let labels = BTreeMap::from([(workload_key::SURGE.to_owned(), None)]);
        self.write(view, PodPatch { labels, ..PodPatch::default() }, Why::Kept);
    }

    /// Pods that are deleted without being asked.
    fn clear(&mut self, scaling: &Scaling<'_>) {
        for (name, clear) in &scaling.clear {
            let why = match clear {
                Clear::Ended => Why::EndedPod,
                Clear::LostNode => Why::LostNode,
            };
            if let Some(pod) = self.scene.by_name.get(name) {
                self.acts.actions.push(Action::DeletePod { pod: PodRef::of(pod), why });
            }
        }
    }

    fn births(&mut self, scaling: &Scaling<'_>) {
        let wish = self.scene.wish;
        for newborn in &scaling.births {
            let Some(template) = self.scene.template(newborn.revision) else { continue };
            if !self.has_claims(&newborn.name, &newborn.instance) {
                continue;
            }
            let body = birth::pod(wish, newborn, template);
            self.acts.actions.push(Action::CreatePod { name: newborn.name.clone(), body });
        }
    }

    /// Pods that are there get the claims that are gone: one that is Pending goes on then.
    fn ensure_claims(&mut self, scaling: &Scaling<'_>) {
        for view in &self.scene.views {
            let name = view.pod.name.as_str();
            let ordinal = view.pod.ordinal(&self.scene.wish.name).filter(|_| !scaling.leave.contains(name));
            if let Some(ordinal) = ordinal {
                self.has_claims(name, &ordinal.to_string());
            }
        }
    }

    /// True when all claims of the pod `name` are there and stay. Those that are missing are made; the pod has to wait until
    /// they are seen, because one without its claims is Pending for ever.
    fn has_claims(&mut self, name: &str, ordinal: &str) -> bool {
        let scene = self.scene;
        let Some(set) = scene.wish.stateful() else { return true };
        let mut there = true;
        for (claim, body) in birth::claims(scene.wish, set, ordinal) {
            match scene.claims.get(&claim) {
                Some(ClaimState::Bindable) => continue,
                Some(ClaimState::Terminating) => {
                    let problem = format!(
                        "pod {name} waits for its claim {claim}, which is being deleted: a new one is made once it is gone"
                    );
                    self.acts.problem.get_or_insert((Purpose::ScaleIn, problem));
                }
                None => self.acts.actions.push(Action::CreateClaim { name: claim, body }),
            }
            there = false;
        }
        there
    }

    /// Hooks whose turn is over go; those that failed are asked again where the user wants it.
    fn forget_runs(&mut self) {
        let hooks = &self.scene.wish.hooks;
        for run in self.scene.runs.values().flatten().filter(|run| !run.deleting) {
            let again = match run.kind {
                HookType::PreDelete => hooks.retry_pre_delete,
                HookType::PreInplace => hooks.retry_pre_inplace,
                HookType::Canary => continue,
            };
            let over = !self.keys.contains(&(run.pod_uid.clone(), run.key.clone()));
            if over || (again && run.has_failed()) {
                self.acts.actions.push(Action::DeleteRun(run.name.clone()));
            }
        }
    }
}

/// When one of the pods is to be looked at again although nothing happens to it.
pub fn look_again(scene: &Scene<'_>) -> Option<Timestamp> {
    let later_than_now = |time: Timestamp| (time > scene.now).then_some(time);
    let times = scene.views.iter().flat_map(|view| {
        let available =
            view.pod.ready_since.filter(|_| view.ready).map(|since| later(since, scene.wish.min_ready));
        let turn = view.pod.turn.as_ref();
        let silent = turn.filter(|turn| turn.stage == Stage::Ordered).map(|turn| later(turn.at, SILENCE));
        let lost = turn.filter(|_| matches!(view.standing, Standing::Busy { .. })).map(Turn::lost_at);
        let again = turn.filter(|turn| turn.stage == Stage::Unanswered).map(|turn| later(turn.at, AGAIN));
        [available, silent, lost, again]
    });
    times.flatten().filter_map(later_than_now).min()
}
