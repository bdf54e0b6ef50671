//! The operation itself: what the journal keeps of one request on one pod.
//!
//! Holds only what cannot be seen in the next snapshot: what was promised, what was begun, what was learned. It is
//! changed in four ways: [`Operation::begin`] before an effect, [`Operation::record`] after it, [`Operation::note`]
//! for decisions without an effect, and [`Operation::withdraw`] from outside.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::request::{OnFailure, Request};
use crate::api::status::{Action, Engine, Incarnation, Step};
use crate::operation::effect::{Class, Effect, ImageChoice, Learned, Leftover, Trouble, Verb};
use crate::operation::outcome::{Failure, Outcome, Withdrawal};
use crate::operation::snapshot::{Container, PodRef, Snapshot};

/// Remarks kept for the report.
const MAX_REMARKS: usize = 8;
/// What an interrupted operation gets on top of the containers' grace when it is taken up again.
const RESUME_SPARE: SignedDuration = SignedDuration::from_secs(60);
/// What the kubelet leaves of the grace period for the stop, however long preStop took.
pub(super) const LEAST_STOP_SECONDS: u64 = 2;
/// What the way back needs beside stopping: rehearse, create, start, watch.
pub(super) const BACK_SPARE_SECONDS: u64 = 10;

/// One request being carried out on one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The request.
    pub request: Request,
    /// The pod.
    pub pod: PodRef,
    /// Its sandbox; another one means another pod.
    pub sandbox_id: String,
    /// True when nobody else creates, starts or removes containers of this pod: old ones are removed, and replacements
    /// are created ahead, while the old one still runs. A kubelet would take such a one for the newest life that does not
    /// run, and act on it.
    pub unsupervised: bool,
    /// When it was taken up.
    pub begun_at: Timestamp,
    /// When it must have ended.
    pub deadline_at: Timestamp,
    /// The stage it is in.
    pub step: Step,
    /// The containers, in the order of the request.
    pub targets: Vec<Target>,
    /// Set when it is to end before it touches anything.
    pub withdrawn: Option<Withdrawal>,
    /// Set when it is on its way back, with the reason.
    pub turned_back: Option<Failure>,
    /// Set when only cleaning up is left before this is reported.
    pub ending: Option<Outcome>,
    /// Set when it is over.
    pub outcome: Option<Outcome>,
    /// When it was over.
    pub finished_at: Option<Timestamp>,
    /// When one that never started was removed last: a kubelet that saw it may act on that for a moment.
    #[serde(default)]
    pub removed_at: Option<Timestamp>,
    /// The last thing that did not work, while it is being tried again.
    pub setback: Option<Setback>,
    /// Things that did not work and did not matter enough to end it.
    pub remarks: Vec<String>,
    /// Containers whose removal was given up. Remembered, so that giving up on one does not revive another.
    #[serde(default)]
    pub stuck: Vec<String>,
}

/// One container of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Name in the pod spec.
    pub name: String,
    /// Restart or swap.
    pub action: Action,
    /// The way it is done.
    pub engine: Engine,
    /// The life that runs before.
    pub from: Incarnation,
    /// For a swap: the reference asked for.
    pub image: Option<String>,
    /// For a swap: that image once it is on the node.
    pub pulled: Option<ImageChoice>,
    /// Seconds the container gets to stop.
    pub grace_seconds: u64,
    /// Whether a preStop handler has to be run before the stop.
    pub has_pre_stop: bool,
    /// True from the moment something was begun that the running container may feel.
    pub touched: bool,
    /// The replacement asked for.
    pub forward: Replacement,
    /// The way back, once it is needed.
    pub back: Option<Replacement>,
    /// The life that runs now, once it was seen.
    pub reached: Option<Reached>,
}

/// Putting one life of a container in the place of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The life to end.
    pub replaces: String,
    /// The attempt of the new one.
    pub attempt: u32,
    /// When the preStop handler was begun. It is never begun twice.
    pub pre_stop_at: Option<Timestamp>,
    /// How often the runtime refused to start it.
    #[serde(default)]
    pub refused_starts: u32,
}

/// A new life that was seen running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Which.
    pub to: Incarnation,
    /// When the one before had finished.
    pub stopped_at: Option<Timestamp>,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it had stayed up long enough.
    pub ready_at: Option<Timestamp>,
}

/// Something that did not work and is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setback {
    /// What.
    pub verb: Verb,
    /// For which container.
    pub container: String,
    /// How often in a row.
    pub count: u32,
    /// When it failed last.
    pub at: Timestamp,
    /// How it failed last.
    pub trouble: Trouble,
}

/// A decision that changes only the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Another stage begins.
    Step(Step),
    /// The new life of a container runs.
    Reached(String, Reached),
    /// It has stayed up long enough.
    Proven(String, Timestamp),
    /// From here on back to what ran before.
    TurnBack(Failure),
    /// The way back of one container.
    Back(String, Replacement),
    /// Nothing is left but to clean up.
    End(Outcome),
}

impl Note {
    /// That `life`, seen running in `snapshot`, is what `target` was to come to.
    pub(super) fn reached(target: &Target, life: &Container, snapshot: &Snapshot) -> Self {
        // Downtime counts from the end of the life that was asked to be replaced, also on the way back.
        let stopped_at = snapshot.by_id(&target.from.container_id).and_then(|old| old.finished_at);
        let reached =
            Reached { to: life.incarnation(), stopped_at, started_at: life.started_at, ready_at: None };
        Note::Reached(target.name.clone(), reached)
    }
}

impl Target {
    /// A container about to be replaced. `next_attempt` is above every attempt that its name has seen.
    pub fn new(
        container: Container,
        image: Option<String>,
        action: Action,
        engine: Engine,
        next_attempt: u32,
    ) -> Self {
        Self {
            action,
            engine,
            image,
            pulled: None,
            grace_seconds: container.grace.as_secs(),
            has_pre_stop: container.has_pre_stop,
            touched: false,
            forward: Replacement {
                replaces: container.id.clone(),
                attempt: next_attempt,
                pre_stop_at: None,
                refused_starts: 0,
            },
            back: None,
            reached: None,
            from: container.incarnation(),
            name: container.name,
        }
    }

    /// The replacement that is under way.
    pub fn replacement(&self) -> &Replacement {
        self.back.as_ref().unwrap_or(&self.forward)
    }
}

impl Operation {
    /// An operation that has done nothing yet.
    pub fn new(
        request: Request,
        pod: PodRef,
        sandbox_id: String,
        unsupervised: bool,
        targets: Vec<Target>,
        now: Timestamp,
    ) -> Self {
        let deadline_at = later(now, SignedDuration::from_secs(i64::from(request.deadline_seconds)));
        let step = if targets.iter().any(|t| t.action == Action::Swap) { Step::Pull } else { Step::Swap };
        Self {
            request,
            pod,
            sandbox_id,
            unsupervised,
            begun_at: now,
            deadline_at,
            step,
            targets,
            withdrawn: None,
            turned_back: None,
            ending: None,
            outcome: None,
            finished_at: None,
            removed_at: None,
            setback: None,
            remarks: Vec::new(),
            stuck: Vec::new(),
        }
    }

    /// True once a running container may have felt something.
    pub fn touched(&self) -> bool {
        self.targets.iter().any(|target| target.touched)
    }

    /// True for a container that this operation created.
    pub(super) fn made(&self, life: &Container) -> bool {
        life.operation.as_deref() == Some(self.request.id.as_str())
    }

    /// The moment after which it goes back, or ends, instead of going on. Earlier than the deadline where there may
    /// be a way back to go.
    pub fn forward_until(&self) -> Timestamp {
        if !self.targets.iter().any(|target| target.action == Action::Swap) {
            return self.deadline_at;
        }
        let whole = self.deadline_at.duration_since(self.begun_at);
        later(self.deadline_at, -self.way_back().min(whole / 3))
    }

    /// The last moment to begin touching containers. Whoever begins later could not end in time.
    pub(super) fn touch_until(&self) -> Timestamp {
        let watched = u64::from(self.request.min_ready_seconds);
        later(self.forward_until(), -seconds(self.stopping_seconds().saturating_add(watched)))
    }

    /// What the way back may take.
    pub(super) fn way_back(&self) -> SignedDuration {
        seconds(self.stopping_seconds().saturating_add(BACK_SPARE_SECONDS))
    }

    fn stopping_seconds(&self) -> u64 {
        stopping_seconds(self.targets.iter().map(|target| target.grace_seconds))
    }

    /// To be called, and journalled, before `effect` is carried out.
    pub fn begin(&mut self, effect: &Effect, now: Timestamp) {
        let Some(target) = self.targets.iter_mut().find(|target| target.name == effect.container()) else {
            return;
        };
        match effect {
            Effect::PreStop { .. } => {
                target.touched = true;
                target.back.as_mut().unwrap_or(&mut target.forward).pre_stop_at = Some(now);
            }
            // One that is created ahead is felt by nobody.
            Effect::Create { .. } if self.unsupervised => {}
            Effect::Stop { .. } | Effect::Create { .. } | Effect::Start { .. } => target.touched = true,
            Effect::Pull { .. } | Effect::Fence { .. } | Effect::Remove { .. } => {}
        }
    }

    /// What came of `effect`.
    pub fn record(&mut self, effect: &Effect, result: Result<Learned, Trouble>, now: Timestamp) {
        if matches!(effect, Effect::Remove { what: Leftover::NeverStarted, .. }) {
            self.removed_at = Some(now);
        }
        match result {
            Ok(learned) => {
                self.setback = None;
                match learned {
                    Learned::Nothing => {}
                    Learned::Image(choice) => {
                        if let Some(target) = self.targets.iter_mut().find(|t| t.name == effect.container()) {
                            target.pulled = Some(choice);
                        }
                    }
                    Learned::Remark(remark) => self.remark(remark),
                }
            }
            // A handler is begun once; what it did is for the report, as with the kubelet.
            Err(trouble) if effect.verb() == Verb::PreStop => {
                self.remark(format!("preStop of {}: {}", effect.container(), trouble.message));
            }
            Err(trouble) => {
                let again = |setback: &&Setback| {
                    setback.verb == effect.verb() && setback.container == effect.container()
                };
                let count = self.setback.as_ref().filter(again).map_or(0, |setback| setback.count) + 1;
                let container = effect.container().to_owned();
                if effect.verb() == Verb::Start
                    && trouble.class != Class::Away
                    && let Some(target) = self.targets.iter_mut().find(|target| target.name == container)
                {
                    target.back.as_mut().unwrap_or(&mut target.forward).refused_starts += 1;
                }
                self.setback = Some(Setback { verb: effect.verb(), container, count, at: now, trouble });
                self.give_up_removing(effect);
            }
        }
    }

    /// The outcome when `failure` is what ends it.
    pub(super) fn failed(&self, failure: Failure) -> Outcome {
        match &self.turned_back {
            Some(first) => Outcome::Failed { failure: first.clone(), then: Some(failure), touched: true },
            None => Outcome::Failed { failure, then: None, touched: self.touched() },
        }
    }

    /// The failure when the time is up during `what`, with what had gone wrong lately.
    pub(super) fn late(&self, what: &str) -> Failure {
        let lately = |setback: &Setback| {
            let Setback { verb, container, trouble, .. } = setback;
            format!("{what} ({verb:?} of {container} had failed: {})", trouble.message)
        };
        Failure::Deadline { during: self.setback.as_ref().map_or_else(|| what.to_owned(), lately) }
    }

    /// The outcome when the pod's sandbox is `what`.
    pub(super) fn lost(&self, what: &str) -> Outcome {
        self.ending.clone().unwrap_or_else(|| self.failed(Failure::Sandbox { what: what.to_owned() }))
    }

    /// Takes a decision in.
    pub fn note(&mut self, note: Note) {
        let target = |targets: &mut Vec<Target>, name: &str| targets.iter().position(|t| t.name == name);
        match note {
            Note::Step(step) => self.step = step,
            Note::Reached(name, reached) => {
                if let Some(index) = target(&mut self.targets, &name) {
                    self.targets[index].reached = Some(reached);
                }
            }
            Note::Proven(name, at) => {
                if let Some(index) = target(&mut self.targets, &name)
                    && let Some(reached) = &mut self.targets[index].reached
                {
                    reached.ready_at = Some(at);
                }
            }
            Note::TurnBack(failure) => {
                self.step = Step::Rollback;
                self.setback = None;
                self.turned_back = Some(failure);
            }
            Note::Back(name, replacement) => {
                if let Some(index) = target(&mut self.targets, &name) {
                    self.targets[index].back = Some(replacement);
                    self.targets[index].reached = None;
                }
            }
            Note::End(outcome) => {
                self.setback = None;
                self.ending = Some(outcome);
            }
        }
    }

    /// Asks it to end, which it does if nothing was touched yet.
    pub fn withdraw(&mut self, withdrawal: Withdrawal) {
        self.withdrawn.get_or_insert(withdrawal);
    }

    /// Ends it.
    pub fn finish(&mut self, outcome: Outcome, now: Timestamp) {
        self.outcome = Some(outcome);
        self.finished_at = Some(now);
    }

    /// Takes it up again after the process that carried it out has died. The time nobody was there does not count
    /// against a pod that was touched, nor against the grace of a container whose preStop handler was begun.
    pub fn resume(&mut self, now: Timestamp) {
        self.setback = None;
        self.stuck.clear();
        if self.touched() {
            let stopping = seconds(self.stopping_seconds());
            self.deadline_at = self.deadline_at.max(later(later(now, stopping), RESUME_SPARE));
        }
        for target in self.targets.iter_mut().filter(|target| target.reached.is_none()) {
            let replacement = target.back.as_mut().unwrap_or(&mut target.forward);
            replacement.pre_stop_at = replacement.pre_stop_at.map(|_| now);
        }
    }

    /// The message of the setback in `verb` for `container`, once repeating it has lost its sense.
    pub(super) fn given_up(&self, verb: Verb, container: &str) -> Option<&str> {
        let setback = self.setback.as_ref()?;
        if setback.verb != verb || setback.container != container {
            return None;
        }
        let tries = match (setback.trouble.class, verb) {
            (Class::Final, _) => 1,
            (Class::Away, Verb::Remove) => 10,
            // Away: it may have happened, so look again until the deadline; the same where somebody else is creating.
            (Class::Away, _) | (Class::NameTaken, Verb::Create) => return None,
            // A fence whose reply was lost may still be in the making: its name is taken before it is seen.
            (Class::NameTaken, Verb::Fence) => 8,
            (Class::Refused | Class::Gone | Class::NameTaken, Verb::Pull | Verb::Fence | Verb::Start) => 3,
            // A swap has a better way out than trying again; a restart and a way back have none.
            (Class::Refused | Class::Gone, Verb::Create) if self.can_turn_back() && self.swaps(container) => {
                1
            }
            (
                Class::Refused | Class::Gone | Class::NameTaken,
                Verb::Create | Verb::Stop | Verb::Remove | Verb::PreStop,
            ) => 5,
        };
        (setback.count >= tries).then_some(setback.trouble.message.as_str())
    }

    /// True while a failure would lead back to the old image.
    pub(super) fn can_turn_back(&self) -> bool {
        self.turned_back.is_none()
            && self.request.on_failure == OnFailure::Rollback
            && self.targets.iter().any(|target| target.touched && target.action == Action::Swap)
    }

    fn swaps(&self, container: &str) -> bool {
        self.targets.iter().any(|target| target.name == container && target.action == Action::Swap)
    }

    /// Whether trying to remove container `id` still makes sense.
    pub(super) fn can_remove(&self, id: &str) -> bool {
        !self.stuck.iter().any(|stuck| stuck == id)
    }

    fn give_up_removing(&mut self, effect: &Effect) {
        let Effect::Remove { container, id, what } = effect else { return };
        if let Some(message) = self.given_up(Verb::Remove, container) {
            let remark = format!("{what} of {container} could not be removed: {message}");
            self.setback = None;
            self.stuck.push(id.clone());
            self.remark(remark);
        }
    }

    fn remark(&mut self, remark: String) {
        if self.remarks.len() < MAX_REMARKS {
            self.remarks.push(remark);
        }
    }
}

/// How long it may take to stop containers that have these graces, one after the other.
pub(super) fn stopping_seconds(graces: impl Iterator<Item = u64>) -> u64 {
    graces.fold(0, |sum: u64, grace| sum.saturating_add(grace.saturating_add(LEAST_STOP_SECONDS)))
}

fn seconds(seconds: u64) -> SignedDuration {
    SignedDuration::try_from(Duration::from_secs(seconds)).unwrap_or(SignedDuration::MAX)
}

/// `at` moved by `by`, held at the ends of time instead of failing.
pub(super) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(at)
}

#[cfg(test)]
mod tests;
