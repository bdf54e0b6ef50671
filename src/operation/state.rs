//! The operation itself: what the journal keeps of one request on one pod.
//!
//! Holds only what cannot be seen in the next snapshot: what was promised, what was begun, what was learned. It is
//! changed in five ways: [`Operation::begin`] before an effect, [`Operation::record`] after it, [`Operation::note`]
//! for decisions without an effect, [`Operation::measured`] by its hooks, and [`Operation::withdraw`] from outside.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::request::Request;
use crate::api::status::{Action, Engine, Incarnation, Step};
use crate::operation::drain::Drain;
use crate::operation::effect::{Class, Effect, EffectError, ImageChoice, Learned, Leftover, Verb};
use crate::operation::engine::{Choice, SpecChange};
use crate::operation::hook::Hook;
use crate::operation::last_failure::LastFailure;
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
    /// True when an API server showed the pod when it was taken up. One that is not heard of now, as after a start of
    /// this program, will tell later.
    #[serde(default)]
    pub in_cluster: bool,
    /// When it was taken up.
    pub begun_at: Timestamp,
    /// When it must have ended.
    pub deadline_at: Timestamp,
    /// The stage it is in.
    pub step: Step,
    /// The containers, in the order of the request.
    pub targets: Vec<Target>,
    /// The pod's readiness gate, when the request asks for a drain.
    #[serde(default)]
    pub drain: Option<Drain>,
    /// What has to be passed before anything is touched.
    #[serde(default)]
    pub pre_hook: Option<Hook>,
    /// What has to be passed before the pod takes traffic again.
    #[serde(default)]
    pub post_hook: Option<Hook>,
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
    #[serde(rename = "setback")]
    pub last_failure: Option<LastFailure>,
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
    /// Its kubelet's hash of the spec it was made from.
    #[serde(default)]
    pub from_hash: String,
    /// For [`Engine::Respec`]: what becomes of the spec.
    #[serde(default)]
    pub change: Option<SpecChange>,
    /// The hash that its kubelet gave to what it made of the changed spec, once that was seen, however it ended.
    #[serde(default)]
    pub made_hash: String,
    /// For a swap: the reference asked for.
    pub image: Option<String>,
    /// For a swap: that image once it is on the node.
    pub pulled: Option<ImageChoice>,
    /// When it was last seen on the node: its kubelet may collect what no container uses.
    #[serde(default)]
    pub pulled_at: Option<Timestamp>,
    /// Seconds the container gets to stop.
    pub grace_seconds: u64,
    /// Whether a preStop handler has to be run before the stop.
    pub has_pre_stop: bool,
    /// True from the moment something was begun that the running container may feel.
    pub touched: bool,
    /// When the life from before had ended, remembered because its kubelet may remove it. Downtime counts from here, also
    /// on the way back.
    #[serde(default)]
    pub stopped_at: Option<Timestamp>,
    /// How often its kubelet started it again before it was touched.
    #[serde(default)]
    pub rebases: u32,
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
    /// True once a fence was asked for before the pod's spec is changed. That is done once: the change can do without.
    #[serde(default)]
    pub fence_tried: bool,
    /// When the pod's spec was changed for it.
    #[serde(default)]
    pub respec_at: Option<Timestamp>,
    /// How many lives that were created for it were ended by a kubelet that had not read the change yet.
    #[serde(default)]
    pub cut_shorts: u32,
    /// How often that was asked for without an answer so far: each may have happened, or may still happen.
    #[serde(default)]
    pub unanswered: u32,
}

impl Replacement {
    /// One that has not begun.
    pub(super) fn of(replaces: String, attempt: u32) -> Self {
        Self {
            replaces,
            attempt,
            pre_stop_at: None,
            refused_starts: 0,
            fence_tried: false,
            respec_at: None,
            unanswered: 0,
            cut_shorts: 0,
        }
    }
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
    /// Since when it counts as running by this program's clock: its start, or when it was first seen where that seems to lie
    /// in the future, as after a clock was set back.
    #[serde(default)]
    pub counts_from: Option<Timestamp>,
    /// When it had stayed up long enough.
    pub ready_at: Option<Timestamp>,
}

impl Target {
    /// A container about to be replaced. `next_attempt` is above every attempt that its name has seen.
    pub(super) fn new(
        container: Container,
        image: Option<String>,
        action: Action,
        choice: Choice,
        next_attempt: u32,
    ) -> Self {
        let from = choice.before(&container);
        Self {
            action,
            engine: choice.engine,
            change: choice.change,
            image,
            pulled: None,
            pulled_at: None,
            rebases: 0,
            grace_seconds: container.grace.as_secs(),
            has_pre_stop: container.has_pre_stop,
            touched: false,
            stopped_at: None,
            forward: Replacement::of(container.id.clone(), next_attempt),
            back: None,
            reached: None,
            from,
            from_hash: container.spec_hash,
            made_hash: String::new(),
            name: container.name,
        }
    }

    /// When the life from before had ended, as far as it can be seen.
    pub(super) fn ended(&self, snapshot: &Snapshot) -> Option<Timestamp> {
        snapshot.by_id(&self.from.container_id).and_then(|old| old.finished_at)
    }

    pub(super) fn under_way(&mut self) -> &mut Replacement {
        self.back.as_mut().unwrap_or(&mut self.forward)
    }

    /// Takes in a clear no to changing the spec. The container was not touched then, unless an answer was lost before.
    fn not_respecced(&mut self) {
        let replacement = self.under_way();
        replacement.unanswered = replacement.unanswered.saturating_sub(1);
        if replacement.unanswered == 0 && self.back.is_none() {
            self.touched = false;
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
        let drain = request.drained_by().map(|_| Drain::default());
        let step = match (targets.iter().any(|t| t.action == Action::Swap), &drain) {
            (true, _) => Step::Pull,
            (false, Some(_)) => Step::Drain,
            (false, None) => Step::Swap,
        };
        Self {
            request,
            pod,
            sandbox_id,
            unsupervised,
            in_cluster: false,
            begun_at: now,
            deadline_at,
            step,
            targets,
            drain,
            pre_hook: None,
            post_hook: None,
            withdrawn: None,
            turned_back: None,
            ending: None,
            outcome: None,
            finished_at: None,
            removed_at: None,
            last_failure: None,
            remarks: Vec::new(),
            stuck: Vec::new(),
        }
    }

    /// True once a running container may have felt something.
    pub fn touched(&self) -> bool {
        self.targets.iter().any(|target| target.touched)
    }

    /// True when a fence may run although nothing was touched yet.
    pub fn is_fenced_ahead(&self) -> bool {
        self.targets.iter().any(|target| target.replacement().fence_tried)
    }

    /// True while a container was touched whose replacement was not seen running, in a pod where nobody else starts one.
    pub(super) fn must_bring_up(&self) -> bool {
        self.unsupervised && self.targets.iter().any(|target| target.touched && target.reached.is_none())
    }

    /// Takes in that for so long nobody could act: the runtime was away, or this process did not run. That does not count
    /// against a container that was touched where nobody else would start it.
    pub fn regain(&mut self, lost: SignedDuration) {
        if self.unsupervised && self.touched() {
            self.deadline_at = later(self.deadline_at, lost);
        }
    }

    /// The request has waited for so long before it could begin: its deadline is as much nearer.
    pub fn spend(&mut self, waited: Duration) {
        let waited = SignedDuration::try_from(waited).unwrap_or(SignedDuration::MAX);
        self.deadline_at = later(self.deadline_at, -waited).max(self.begun_at);
    }

    /// True for a container that this operation created.
    pub(super) fn made(&self, instance: &Container) -> bool {
        instance.operation.as_deref() == Some(self.request.id.as_str())
    }

    /// The moment after which it goes back, or ends, instead of going on. Earlier than the deadline where there may
    /// be a way back to go.
    pub fn forward_until(&self) -> Timestamp {
        if !self.targets.iter().any(|target| target.action == Action::Swap) {
            return self.deadline_at;
        }
        let whole = self.deadline_at.duration_since(self.begun_at);
        later(self.deadline_at, -self.way_back().min(whole.max(SignedDuration::ZERO) / 3))
    }

    /// The last moment to begin touching containers. Whoever begins later could not end in time.
    pub(super) fn touch_until(&self) -> Timestamp {
        let waits = self.seconds_to_drain() + self.request.seconds_to_prove();
        later(self.forward_until(), -seconds(self.stopping_seconds().saturating_add(waits)))
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
        self.drain.iter_mut().filter(|_| effect.verb() == Verb::Gate).for_each(|drain| drain.begun = true);
        let Some(target) = self.targets.iter_mut().find(|target| target.name == effect.container()) else {
            return;
        };
        match effect {
            Effect::PreStop { .. } => {
                target.touched = true;
                target.under_way().pre_stop_at = Some(now);
            }
            // One that is created ahead is felt by nobody.
            Effect::Create { .. } if self.unsupervised => {}
            Effect::Respec { .. } => {
                target.touched = true;
                target.under_way().unanswered += 1;
            }
            Effect::Stop { .. } | Effect::Create { .. } | Effect::Start { .. } => target.touched = true,
            Effect::Fence { by_process: true, .. } => target.under_way().fence_tried = true,
            Effect::Pull { .. } | Effect::Fence { .. } | Effect::Remove { .. } | Effect::Gate { .. } => {}
        }
    }

    /// What came of `effect`.
    pub fn record(&mut self, effect: &Effect, result: Result<Learned, EffectError>, now: Timestamp) {
        if matches!(effect, Effect::Remove { what: Leftover::NeverStarted, .. }) {
            self.removed_at = Some(now);
        }
        match result {
            Ok(learned) => {
                self.last_failure = None;
                match effect {
                    Effect::Gate { gate } => self.drain.iter_mut().for_each(|drain| drain.turned(*gate, now)),
                    Effect::Respec { .. } => {
                        if let Some(target) = self.targets.iter_mut().find(|t| t.name == effect.container()) {
                            target.under_way().respec_at = Some(now);
                        }
                    }
                    _ => {}
                }
                match learned {
                    Learned::Nothing => {}
                    Learned::Image(choice) => {
                        if let Some(target) = self.targets.iter_mut().find(|t| t.name == effect.container()) {
                            target.pulled = Some(choice);
                            target.pulled_at = Some(now);
                        }
                    }
                    Learned::Remark(remark) => self.remark(remark),
                }
            }
            // A handler is begun once; what it did is for the report, as with the kubelet.
            Err(effect_error) if effect.verb() == Verb::PreStop => {
                self.remark(format!("preStop of {}: {}", effect.container(), effect_error.message));
            }
            Err(effect_error) => {
                // A server that has just begun denies what it allows a moment later, however long it was tried before.
                let again = |last_failure: &&LastFailure| {
                    last_failure.verb == effect.verb()
                        && last_failure.container == effect.container()
                        && (effect_error.class != Class::Denied
                            || last_failure.effect_error.class == Class::Denied)
                };
                let count =
                    self.last_failure.as_ref().filter(again).map_or(0, |last_failure| last_failure.count) + 1;
                let container = effect.container().to_owned();
                if effect_error.class != Class::Away
                    && let Some(target) = self.targets.iter_mut().find(|target| target.name == container)
                {
                    match effect.verb() {
                        Verb::Start => target.under_way().refused_starts += 1,
                        Verb::Respec => target.not_respecced(),
                        _ => {}
                    }
                }
                self.last_failure =
                    Some(LastFailure { verb: effect.verb(), container, count, at: now, effect_error });
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
        let lately = |last_failure: &LastFailure| {
            let LastFailure { verb, container, effect_error, .. } = last_failure;
            let of = if container.is_empty() { String::new() } else { format!(" of {container}") };
            format!("{what} ({verb:?}{of} had failed: {})", effect_error.message)
        };
        Failure::Deadline { during: self.last_failure.as_ref().map_or_else(|| what.to_owned(), lately) }
    }

    /// The outcome when the pod's sandbox is `what`.
    pub(super) fn lost(&self, what: &str) -> Outcome {
        self.ending.clone().unwrap_or_else(|| self.failed(Failure::Sandbox { what: what.to_owned() }))
    }

    /// The kubelet's hashes that this operation has seen: container, the image that the spec said, hash.
    pub fn hashes(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.targets.iter().filter_map(|target| Some((target, target.change.as_ref()?))).flat_map(
            |(target, change)| {
                let before = (target.name.as_str(), change.from.as_str(), target.from_hash.as_str());
                let before = Some(before).filter(|_| change.settled);
                let after = (target.name.as_str(), change.to.as_str(), target.made_hash.as_str());
                before.into_iter().chain([after]).filter(|(.., hash)| !hash.is_empty())
            },
        )
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
        self.last_failure = None;
        self.stuck.clear();
        if now < self.begun_at {
            self.shift(now.duration_since(self.begun_at));
        }
        if self.touched() {
            let stopping = seconds(self.stopping_seconds());
            self.deadline_at = self.deadline_at.max(later(later(now, stopping), RESUME_SPARE));
        }
        for target in self.targets.iter_mut().filter(|target| target.reached.is_none()) {
            let replacement = target.under_way();
            replacement.pre_stop_at = replacement.pre_stop_at.map(|_| now);
        }
    }

    /// Takes in that the clock was set by `by` meanwhile: what is measured from a moment of this operation is measured on.
    pub fn shift(&mut self, by: SignedDuration) {
        let moved = |at: &mut Timestamp| *at = later(*at, by);
        moved(&mut self.begun_at);
        moved(&mut self.deadline_at);
        self.removed_at.iter_mut().for_each(moved);
        if let Some(drain) = &mut self.drain {
            let times = [&mut drain.closed_at, &mut drain.left_at, &mut drain.confirmed_at];
            times.into_iter().flatten().for_each(moved);
        }
        self.last_failure.iter_mut().for_each(|last_failure| moved(&mut last_failure.at));
        for target in &mut self.targets {
            target.pulled_at.iter_mut().for_each(moved);
            target.stopped_at.iter_mut().for_each(moved);
            for replacement in [Some(&mut target.forward), target.back.as_mut()].into_iter().flatten() {
                let times = [&mut replacement.pre_stop_at, &mut replacement.respec_at];
                times.into_iter().flatten().for_each(moved);
            }
            if let Some(reached) = &mut target.reached {
                let Reached { stopped_at, started_at, counts_from, ready_at, .. } = reached;
                [stopped_at, started_at, counts_from, ready_at].into_iter().flatten().for_each(moved);
            }
        }
    }

    pub(super) fn remark(&mut self, remark: String) {
        if self.remarks.len() < MAX_REMARKS {
            self.remarks.push(remark);
        }
    }
}

/// How long it may take to stop containers that have these graces, one after the other.
pub(super) fn stopping_seconds(graces: impl Iterator<Item = u64>) -> u64 {
    graces.fold(0, |sum: u64, grace| sum.saturating_add(grace.saturating_add(LEAST_STOP_SECONDS)))
}

pub(super) fn seconds(seconds: u64) -> SignedDuration {
    SignedDuration::try_from(Duration::from_secs(seconds)).unwrap_or(SignedDuration::MAX)
}

/// Whether `by` is over since `at`, which the runtime has noted. What lies further in the future than that was noted before
/// the clock was set back: nothing waits for it.
pub(super) fn is_over(at: Timestamp, by: SignedDuration, now: Timestamp) -> bool {
    now >= later(at, by) || at > later(now, by)
}

/// `at` moved by `by`, held at the ends of time instead of failing.
pub(super) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(at)
}

#[cfg(test)]
mod tests;
