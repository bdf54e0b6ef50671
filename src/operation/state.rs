//! The operation: the state of one request on one pod that the journal stores.
//!
//! It holds only what the next snapshot cannot show: the deadlines set, the effects begun, and the results received.
//! It must not store anything that can be observed again. Five methods change it: [`Operation::begin`] before an
//! effect, [`Operation::record`] after it, [`Operation::note`] for decisions without an effect,
//! [`Operation::measured`] for hook results, and [`Operation::withdraw`] for a cancellation.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::pod_ref::PodRef;
use crate::api::request::Request;
use crate::api::status::{Action, ContainerInstance, Engine, Step};
use crate::failure::Class;
use crate::operation::drain::Drain;
use crate::operation::effect::{Effect, EffectError, EffectOutput, ImageChoice, Leftover, Verb};
use crate::operation::engine::{Choice, SpecChange};
use crate::operation::group::GroupMembership;
use crate::operation::hook::Hook;
use crate::operation::last_failure::LastFailure;
use crate::operation::outcome::{Failure, Outcome, Withdrawal};
use crate::operation::replacement::Replacement;
use crate::operation::snapshot::{Container, Snapshot, UserSource};
use crate::operation::standby::Standby;
use crate::operation::startup::Startup;
use crate::operation::unclear::Unclear;

/// The maximum number of remarks stored for the report.
const MAX_REMARKS: usize = 8;
/// The minimum time that an interrupted operation gets after it is resumed, in addition to
/// the containers' grace periods.
const RESUME_SPARE: SignedDuration = SignedDuration::from_secs(60);
/// The part of the grace period that the kubelet reserves for the stop, however long preStop took.
pub(super) const MIN_STOP_SECONDS: u64 = 2;
/// The time that a rollback needs in addition to stopping: test creation, creation, start, observation.
pub(super) const BACK_SPARE_SECONDS: u64 = 10;

/// One request that is being executed on one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The request as it was accepted.
    pub request: Request,
    /// The pod that the request is for.
    pub pod: PodRef,
    /// The ID of the sandbox in which the operation works. If the snapshot shows another ID, the kubelet has created a
    /// new sandbox for the pod.
    pub sandbox_id: String,
    /// True when no other program creates, starts or removes containers of this pod. Then this program removes old
    /// containers, and creates replacements ahead while the old container still runs. Beside a kubelet that is
    /// unsafe: it would take such a replacement for the newest instance, see that it does not run, and act on that.
    pub unsupervised: bool,
    /// True when an API server had the pod when the operation began. If the pod is missing from the cache now, for
    /// example after a restart of this program, the API server will report it later.
    #[serde(default)]
    pub in_cluster: bool,
    /// When the operation began.
    pub begun_at: Timestamp,
    /// When the operation must have ended.
    pub deadline_at: Timestamp,
    /// The current stage.
    pub step: Step,
    /// The containers, in the order of the request.
    pub targets: Vec<Target>,
    /// The state of the drain through the readiness gate, when the request asks for one.
    #[serde(default)]
    pub drain: Option<Drain>,
    /// The hook that must pass before anything is touched.
    #[serde(default)]
    pub pre_hook: Option<Hook>,
    /// The hook that must pass before the pod receives traffic again.
    #[serde(default)]
    pub post_hook: Option<Hook>,
    /// The group restart that the operation is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupMembership>,
    /// Set when the operation was asked to end before it touches anything.
    pub withdrawn: Option<Withdrawal>,
    /// Set when the operation rolls back; holds the failure that caused it.
    #[serde(rename = "turned_back")]
    pub rollback_cause: Option<Failure>,
    /// Set when only the cleanup is left before this outcome is reported.
    pub ending: Option<Outcome>,
    /// Set when the operation has ended.
    pub outcome: Option<Outcome>,
    /// When the operation ended.
    pub finished_at: Option<Timestamp>,
    /// When a container that never started was last removed. A kubelet that observed it may act on it for a moment.
    #[serde(default)]
    pub removed_at: Option<Timestamp>,
    /// The last failure, while its effect is being retried.
    #[serde(rename = "setback")]
    pub last_failure: Option<LastFailure>,
    /// Failures that did not end the operation, for the report.
    pub remarks: Vec<String>,
    /// IDs of containers whose removal was given up. Stored so that giving up on one does
    /// not restart attempts on another.
    #[serde(default)]
    pub stuck: Vec<String>,
}

/// One container of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The container's name in the pod spec.
    pub name: String,
    /// Restart or swap.
    pub action: Action,
    /// The engine that replaces it.
    pub engine: Engine,
    /// The container instance that is to be replaced.
    pub from: ContainerInstance,
    /// The kubelet's hash of the spec that this instance was created from.
    #[serde(default)]
    pub from_hash: String,
    /// For [`Engine::Respec`]: the change to the pod spec.
    #[serde(default)]
    pub change: Option<SpecChange>,
    /// The kubelet's hash of the changed spec. Set once an instance with that hash was observed, whatever became of it.
    #[serde(default)]
    pub made_hash: String,
    /// For a swap: the image reference from the request.
    pub image: Option<String>,
    /// For a swap: that image, once it is on the node.
    pub pulled: Option<ImageChoice>,
    /// When the image was last observed on the node. The kubelet may collect images that no container uses.
    #[serde(default)]
    pub pulled_at: Option<Timestamp>,
    /// The container's grace period for a stop, in seconds.
    pub grace_seconds: u64,
    /// True when a preStop handler must run before the stop.
    pub has_pre_stop: bool,
    /// Where its kubelet takes its user from: a clone from another image needs the user of that image.
    #[serde(default)]
    pub user: UserSource,
    /// True from the moment an effect begins that may affect the running container.
    pub touched: bool,
    /// When the replaced instance ended. Stored because the kubelet may remove that container. Downtime is counted
    /// from here, also in a rollback.
    #[serde(default)]
    pub stopped_at: Option<Timestamp>,
    /// How often the kubelet restarted the container before it was touched.
    #[serde(default, rename = "rebases")]
    pub restarts_before_touch: u32,
    /// The state of the standby, when the request asks to start first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<Standby>,
    /// The instance whose state the runtime cannot report, in a pod without a kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unclear: Option<Unclear>,
    /// The replacement that the request asks for.
    pub forward: Replacement,
    /// The rollback, once it is needed.
    pub back: Option<Replacement>,
    /// The new instance, once it was observed running.
    pub reached: Option<Reached>,
}

/// A new container instance that was observed running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The new instance.
    pub to: ContainerInstance,
    /// When the previous instance ended.
    pub stopped_at: Option<Timestamp>,
    /// When the new instance started.
    pub started_at: Option<Timestamp>,
    /// When the instance counts as running by this program's clock: its start time, or the time of its first
    /// observation if the start time lies in the future (after a clock was set back).
    #[serde(default)]
    pub counts_from: Option<Timestamp>,
    /// When the instance had stayed up for the required time.
    pub ready_at: Option<Timestamp>,
    /// What its kubelet has reported about its startup probe.
    pub startup: Option<Startup>,
}

impl Target {
    /// A container that is about to be replaced. `next_attempt` is above every attempt number used for its name.
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
            restarts_before_touch: 0,
            grace_seconds: container.grace.as_secs(),
            has_pre_stop: container.has_pre_stop,
            user: UserSource::Spec,
            touched: false,
            stopped_at: None,
            standby: None,
            unclear: None,
            forward: Replacement::of(container.id.clone(), next_attempt),
            back: None,
            reached: None,
            from,
            from_hash: container.spec_hash,
            made_hash: String::new(),
            name: container.name,
        }
    }

    /// When the replaced instance ended, if the snapshot shows it.
    pub(super) fn ended(&self, snapshot: &Snapshot) -> Option<Timestamp> {
        snapshot.by_id(&self.from.container_id).and_then(|old| old.finished_at)
    }

    pub(super) fn under_way(&mut self) -> &mut Replacement {
        self.back.as_mut().unwrap_or(&mut self.forward)
    }

    /// Records a definite refusal of the spec change. The container then counts as untouched, unless an earlier
    /// change got no response.
    fn not_respecced(&mut self) {
        let replacement = self.under_way();
        replacement.unanswered = replacement.unanswered.saturating_sub(1);
        if replacement.unanswered == 0 {
            replacement.respec_sent_at = None;
            if self.back.is_none() {
                self.touched = false;
            }
        }
    }

    /// The current replacement: the rollback if there is one, else the forward one.
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
        let mut targets = targets;
        for target in &mut targets {
            target.standby = Standby::of(request.order);
        }
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
            group: None,
            withdrawn: None,
            rollback_cause: None,
            ending: None,
            outcome: None,
            finished_at: None,
            removed_at: None,
            last_failure: None,
            remarks: Vec::new(),
            stuck: Vec::new(),
        }
    }

    /// True once a running container may have been affected.
    pub fn touched(&self) -> bool {
        self.targets.iter().any(|target| target.touched)
    }

    /// True when a fence may be running although nothing was touched yet.
    pub fn is_fenced_ahead(&self) -> bool {
        self.targets.iter().any(|target| target.replacement().fence_tried)
    }

    /// True while a touched container's replacement was not observed running, in a pod
    /// where no other program starts one.
    pub(super) fn must_bring_up(&self) -> bool {
        self.unsupervised && self.targets.iter().any(|target| target.touched && target.reached.is_none())
    }

    /// Adds `lost` to the deadline: the time in which this program could not act, because the runtime was away or
    /// this process did not run. Applies only when a container was touched and no other program would start it.
    pub fn regain(&mut self, lost: SignedDuration) {
        // Nothing was observed meanwhile.
        for target in &mut self.targets {
            target.unclear = None;
            target.standby.iter_mut().for_each(|standby| standby.uncounted_since = None);
        }
        if self.unsupervised && self.touched() {
            self.deadline_at = later(self.deadline_at, lost);
        }
    }

    /// Brings the deadline forward by the time that the request waited before it began.
    pub fn spend(&mut self, waited: Duration) {
        let waited = SignedDuration::try_from(waited).unwrap_or(SignedDuration::MAX);
        self.deadline_at = later(self.deadline_at, -waited).max(self.begun_at);
    }

    /// True for a container that this operation created.
    pub(super) fn made(&self, instance: &Container) -> bool {
        instance.operation.as_deref() == Some(self.request.id.as_str())
    }

    /// The images in the pod's spec before and after a swap that changes the spec.
    pub fn new_image(&self, container: &str) -> Option<(&str, &str)> {
        let target = self.targets.iter().find(|target| target.name == container)?;
        let change = target.change.as_ref().filter(|_| target.action == Action::Swap)?;
        Some((&change.from, &change.to))
    }

    /// The moment after which the operation rolls back or ends instead of going forward. It is earlier than the
    /// deadline when a rollback may be needed.
    pub fn forward_until(&self) -> Timestamp {
        if !self.targets.iter().any(|target| target.action == Action::Swap) {
            return self.deadline_at;
        }
        let whole = self.deadline_at.duration_since(self.begun_at);
        later(self.deadline_at, -self.way_back().min(whole.max(SignedDuration::ZERO) / 3))
    }

    /// The last moment to start touching containers. An operation that starts later cannot end in time.
    pub fn touch_until(&self) -> Timestamp {
        let waits = self.seconds_to_drain() + self.request.seconds_to_prove();
        later(self.forward_until(), -seconds(self.stopping_seconds().saturating_add(waits)))
    }

    /// The time that a rollback may take.
    pub(super) fn way_back(&self) -> SignedDuration {
        seconds(self.stopping_seconds().saturating_add(BACK_SPARE_SECONDS))
    }

    fn stopping_seconds(&self) -> u64 {
        // A standby has the grace period of its container.
        let graces = |target: &Target| {
            [Some(target.grace_seconds), target.standby.as_ref().map(|_| target.grace_seconds)]
        };
        stopping_seconds(self.targets.iter().flat_map(graces).flatten())
    }

    /// Records that `effect` begins. The caller must call this, and write the journal, before it executes the effect.
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
            // Creating a replacement ahead does not affect the running container.
            Effect::Create { .. } if self.unsupervised => {}
            Effect::Respec { .. } => {
                target.touched = true;
                let replacement = target.under_way();
                replacement.unanswered += 1;
                replacement.respec_sent_at.get_or_insert(now);
            }
            Effect::Stop { .. } | Effect::Create { .. } | Effect::Start { .. } => target.touched = true,
            Effect::Standby { .. } | Effect::StopStandby { .. } => {
                target.standby.iter_mut().for_each(|standby| standby.begin(effect, now));
            }
            Effect::Fence { by_process: true, .. } => {
                target.under_way().fence_tried = true;
                target.standby.iter_mut().for_each(|standby| standby.begin(effect, now));
            }
            Effect::Pull { .. } | Effect::Fence { .. } | Effect::Remove { .. } | Effect::Gate { .. } => {}
        }
        if self.touched()
            && let Some(group) = &mut self.group
        {
            group.touched_at.get_or_insert(now);
        }
    }

    /// Records the result of `effect`.
    pub fn record(&mut self, effect: &Effect, result: Result<EffectOutput, EffectError>, now: Timestamp) {
        if matches!(effect, Effect::Remove { what: Leftover::NeverStarted, .. }) {
            self.removed_at = Some(now);
        }
        match result {
            Ok(output) => {
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
                match output {
                    EffectOutput::Nothing => {}
                    EffectOutput::Image(choice) => {
                        if let Some(target) = self.targets.iter_mut().find(|t| t.name == effect.container()) {
                            target.pulled = Some(choice);
                            target.pulled_at = Some(now);
                        }
                    }
                    EffectOutput::Remark(remark) => self.remark(remark),
                }
            }
            // A preStop handler is begun once. Its failure is only reported, as the kubelet does.
            Err(effect_error) if effect.verb() == Verb::PreStop => {
                self.remark(format!("preStop of {}: {}", effect.container(), effect_error.message));
            }
            Err(effect_error) => {
                // An API server that has just started can deny what it allows a moment later. So the first denial
                // starts a new count, however often the effect failed before.
                let again = |last_failure: &&LastFailure| {
                    last_failure.verb == effect.verb()
                        && last_failure.container == effect.container()
                        && (effect_error.class != Class::Denied
                            || last_failure.effect_error.class == Class::Denied)
                };
                let count =
                    self.last_failure.as_ref().filter(again).map_or(0, |last_failure| last_failure.count) + 1;
                let container = effect.container().to_owned();
                if effect_error.class != Class::Unavailable
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

    /// The outcome of an operation that `failure` ends.
    pub(super) fn failed(&self, failure: Failure) -> Outcome {
        match &self.rollback_cause {
            Some(first) => Outcome::Failed { failure: first.clone(), then: Some(failure), touched: true },
            None => Outcome::Failed { failure, then: None, touched: self.touched() },
        }
    }

    /// The failure for a deadline that passed during `what`, with the last failure if there is one.
    pub(super) fn late(&self, what: &str) -> Failure {
        let lately = |last_failure: &LastFailure| {
            let LastFailure { verb, container, effect_error, .. } = last_failure;
            let of = if container.is_empty() { String::new() } else { format!(" of {container}") };
            format!("{what}; last failure: {verb:?}{of}: {}", effect_error.message)
        };
        Failure::Deadline { during: self.last_failure.as_ref().map_or_else(|| what.to_owned(), lately) }
    }

    /// The outcome when the pod's sandbox is `what`.
    pub(super) fn lost(&self, what: &str) -> Outcome {
        self.ending.clone().unwrap_or_else(|| self.failed(Failure::Sandbox { what: what.to_owned() }))
    }

    /// The kubelet's spec hashes that this operation observed: container, image in the spec, hash.
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

    /// Asks the operation to end. It does so only if nothing was touched yet.
    pub fn withdraw(&mut self, withdrawal: Withdrawal) {
        self.withdrawn.get_or_insert(withdrawal);
    }

    /// Ends the operation with this outcome.
    pub fn finish(&mut self, outcome: Outcome, now: Timestamp) {
        self.outcome = Some(outcome);
        self.finished_at = Some(now);
    }

    /// Resumes the operation after the process that executed it has died. If the pod was touched, the time without a
    /// process does not count against the deadline. It never counts against the grace period of a container whose
    /// preStop handler was begun.
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
        for standby in self.targets.iter_mut().filter_map(|target| target.standby.as_mut()) {
            standby.stopped_at = standby.stopped_at.map(|_| now);
            standby.uncounted_since = None;
            (standby.counted, standby.counted_at) = (None, None);
        }
    }

    /// Moves all timestamps of this operation by `by`, after the clock was set by that amount.
    pub fn shift(&mut self, by: SignedDuration) {
        let moved = |at: &mut Timestamp| *at = later(*at, by);
        moved(&mut self.begun_at);
        moved(&mut self.deadline_at);
        self.removed_at.iter_mut().for_each(moved);
        if let Some(drain) = &mut self.drain {
            let times = [&mut drain.closed_at, &mut drain.left_at, &mut drain.confirmed_at];
            times.into_iter().flatten().for_each(moved);
        }
        self.group.iter_mut().for_each(|group| group.shift(by));
        self.last_failure.iter_mut().for_each(|last_failure| moved(&mut last_failure.at));
        for target in &mut self.targets {
            [&mut target.pulled_at, &mut target.stopped_at].into_iter().flatten().for_each(moved);
            target.standby.iter_mut().flat_map(Standby::times).for_each(moved);
            target.unclear.iter_mut().for_each(|unclear| moved(&mut unclear.since));
            for replacement in [Some(&mut target.forward), target.back.as_mut()].into_iter().flatten() {
                let Replacement { pre_stop_at, respec_sent_at, respec_at, .. } = replacement;
                let times = [pre_stop_at, respec_sent_at, respec_at];
                times.into_iter().flatten().for_each(moved);
            }
            if let Some(reached) = &mut target.reached {
                let Reached { stopped_at, started_at, counts_from, ready_at, startup, .. } = reached;
                [stopped_at, started_at, counts_from, ready_at].into_iter().flatten().for_each(moved);
                startup.iter_mut().filter_map(Startup::claimed_at).for_each(moved);
            }
        }
    }

    pub(super) fn remark(&mut self, remark: String) {
        if self.remarks.len() < MAX_REMARKS {
            self.remarks.push(remark);
        }
    }
}

/// The maximum time in seconds to stop containers with these grace periods one after the other.
pub(super) fn stopping_seconds(graces: impl Iterator<Item = u64>) -> u64 {
    graces.fold(0, |sum: u64, grace| sum.saturating_add(grace.saturating_add(MIN_STOP_SECONDS)))
}

pub(super) fn seconds(seconds: u64) -> SignedDuration {
    SignedDuration::try_from(Duration::from_secs(seconds)).unwrap_or(SignedDuration::MAX)
}

/// True when `by` has passed since `at`, a timestamp from the runtime. Also true when `at` lies further in the future
/// than `by`: then it was taken before the clock was set back, and waiting for it is pointless.
pub(super) fn is_over(at: Timestamp, by: SignedDuration, now: Timestamp) -> bool {
    now >= later(at, by) || at > later(now, by)
}

/// The same for something that `snapshot` shows: true when it had lasted for `by` when it was observed.
pub(super) fn has_lasted(snapshot: &Snapshot, at: Timestamp, by: SignedDuration, now: Timestamp) -> bool {
    at > later(now, by) || snapshot.known_until(now) >= later(at, by)
}

/// Returns `at` moved by `by`. Saturates instead of failing.
pub(super) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(at)
}

#[cfg(test)]
mod tests;
