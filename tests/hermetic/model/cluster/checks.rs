//! The rules that hold in every world: for each effect, for each outcome, and at the end.
//! Checks only; changes no world.

use inplace::api::status::{Action, Engine};
use inplace::operation::effect::{Effect, GateAction, Leftover, Verb};
use inplace::operation::outcome::Outcome;
use inplace::operation::snapshot::{Gate, RestartPolicy, State};
use inplace::operation::state::{Operation, Target};
use jiff::SignedDuration;

use super::names::{OLD, index_of, name_of};
use super::scenario::Image;
use super::world::{Instance, World};
use crate::model::{ID, epoch, ms};

/// True for an outcome that claims that no running container was affected.
fn is_untouched(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed { touched: false, .. } | Outcome::Cancelled(_) | Outcome::Refused(_))
}

impl World {
    /// Checks that every effect works only on what the journal holds.
    pub(super) fn check_effect(&mut self, operation: &Operation, effect: &Effect) {
        let feels =
            matches!(effect.verb(), Verb::PreStop | Verb::Stop | Verb::Start | Verb::Create | Verb::Respec);
        let right = match effect {
            Effect::Gate { gate: GateAction::Drain } => !operation.touched() && operation.ending.is_none(),
            Effect::Gate { .. } => operation.ending.is_some(),
            _ => {
                let target = operation.targets.iter().find(|target| target.name == effect.container());
                let target = target.unwrap().clone();
                (!feels || target.touched) && self.is_allowed(operation, &target, effect)
            }
        };
        if !right {
            self.violate(format!("{effect:?} is not what the journal allows: {operation:?}"));
        }
        let drained = SignedDuration::from_secs(i64::from(self.scenario.drain));
        if feels && !drained.is_zero() && self.gate_closed_at.is_none_or(|closed| self.now < closed + drained)
        {
            self.violate(format!("{effect:?} before the pod was drained"));
        }
    }

    fn is_allowed(&mut self, operation: &Operation, target: &Target, effect: &Effect) -> bool {
        let replacement = target.replacement();
        let respecs = target.engine == Engine::Respec;
        match effect {
            // Never while a container is down: every touched container runs again.
            Effect::Pull { .. } => {
                let mut touched = operation.targets.iter().filter(|target| target.touched);
                let runs = touched.all(|target| target.reached.is_some());
                !target.touched && operation.rollback_cause.is_none() && runs
            }
            // With a barrier, the name of the new container is reserved too until the barrier opens.
            Effect::Fence { attempt, .. } => {
                let waits = operation.group.as_ref().is_some_and(|group| group.task.barrier);
                *attempt == replacement.attempt + 1 || waits && *attempt == replacement.attempt
            }
            Effect::PreStop { id, .. } => {
                !respecs && *id == replacement.replaces && self.pre_stopped.insert(id.clone())
            }
            Effect::Stop { id, timeout_seconds, .. } => {
                !respecs && *id == replacement.replaces && *timeout_seconds >= 2
            }
            Effect::Create { attempt, .. } => {
                let old = self.instance(&replacement.replaces);
                let ahead = old.is_some_and(|instance| instance.state == State::Running);
                target.engine != Engine::Stop && *attempt == replacement.attempt && !ahead
            }
            Effect::Start { id, container } => {
                let alone = self.running(container).is_empty();
                let instance = self.instance(id);
                // What the kubelet has created is started only where a clone is possible.
                let clones = target.engine == Engine::Recreate
                    || target.change.as_ref().is_some_and(|change| change.cloneable);
                let right = |instance: &mut Instance| {
                    let is_of_kubelet = instance.operation.is_none();
                    !instance.fence
                        && (clones || !is_of_kubelet)
                        && (instance.attempt == replacement.attempt || is_of_kubelet)
                };
                alone && instance.is_none_or(right)
            }
            Effect::Standby { .. } => {
                !target.touched && operation.ending.is_none() && target.standby.is_some()
            }
            // A standby that serves is stopped when it is not needed any more, and only once with its handler.
            Effect::StopStandby { id, pre_stop, .. } => {
                let is_standby = self.instance(id).is_none_or(|instance| instance.standby);
                let is_back = operation.rollback_cause.is_some() && target.reached.is_some();
                is_standby
                    && (operation.ending.is_some() || is_back)
                    && (!pre_stop || self.pre_stopped.insert(id.clone()))
            }
            Effect::Respec { from, to, .. } => {
                let Some(change) = &target.change else { return false };
                match operation.rollback_cause {
                    None => *from == change.from && *to == change.to,
                    Some(_) => *from == change.to && *to == change.from,
                }
            }
            Effect::Gate { .. } => false,
            Effect::Remove { id, what, .. } => self.instance(id).is_none_or(|instance| match what {
                Leftover::Fence => instance.fence,
                Leftover::Standby => instance.standby && instance.state != State::Running,
                Leftover::NeverStarted => {
                    !instance.fence
                        && instance.operation.as_deref() == Some(ID)
                        && instance.started_at.is_none()
                }
                Leftover::Old => false,
            }),
        }
    }

    /// Checks that a container of each name listens, or its standby does, when nothing but the operation stops containers.
    /// In a rollback the standby, which runs the image that failed, makes way for the old image; and after a failure a
    /// change of the spec whose response was lost may still reach the kubelet.
    pub(super) fn check_serving(&mut self, operation: &Operation) {
        if operation.rollback_cause.is_some() || matches!(operation.ending, Some(Outcome::Failed { .. })) {
            return;
        }
        let scenario = &self.scenario;
        let calm = scenario.start_first
            && scenario.old_image == Image::Good
            && scenario.new_image == Image::Good
            && !scenario.down
            && scenario.dies_at.is_none()
            && scenario.deleted_at.is_none();
        let gap = (0..scenario.swaps.len()).map(name_of).find(|name| self.listening(name) == 0);
        if let Some(name) = gap.filter(|_| calm) {
            self.violate(format!("nothing of {name} serves"));
        }
    }

    /// Checks that the outcome is true at that moment, whatever the agent can observe.
    pub(super) fn check_claim(&mut self, operation: &Operation, outcome: &Outcome) {
        for target in &operation.targets {
            if let Err(why) = self.is_true(operation, target, outcome) {
                self.violate(format!("{outcome:?} is not true of {}: {why}", target.name));
            }
        }
    }

    fn is_true(&self, operation: &Operation, target: &Target, outcome: &Outcome) -> Result<(), String> {
        let check = |right: bool, why: &str| if right { Ok(()) } else { Err(why.to_owned()) };
        let spec = self.api.images[index_of(&target.name)].clone();
        let running = self.running(&target.name);
        match outcome {
            Outcome::Succeeded => {
                let image = if target.action == Action::Swap { "sha:new" } else { "sha:old" };
                let [instance] = running.as_slice() else { return Err(format!("{} run", running.len())) };
                check(instance.attempt > target.from.attempt, "it is not a new life")?;
                check(instance.image_id == image, "it has another image")?;
                check(self.is_ready(instance), "it is not ready")?;
                let requested = target.change.as_ref().map_or(OLD, |change| &change.to);
                check(spec == requested, "the spec says something else")?;
                check(instance.spec_hash == self.hash(&target.name, &spec), "its kubelet will not keep it")
            }
            Outcome::RolledBack(_) if target.touched => {
                let [instance] = running.as_slice() else { return Err(format!("{} run", running.len())) };
                check(instance.image_id == "sha:old", "it has another image")?;
                let change = target.change.as_ref();
                let may =
                    [Some(OLD), change.filter(|_| target.action == Action::Restart).map(|c| c.to.as_str())];
                check(may.contains(&Some(&spec)) || self.late_respec, "the spec was not put back")
            }
            Outcome::Failed { touched: true, .. } => check(operation.touched(), "nothing was touched"),
            _ if is_untouched(outcome) => check(!self.felt && spec == OLD, "it was felt"),
            _ => Ok(()),
        }
    }

    /// When nothing else is wrong, the back-off of a kubelet for an image does not delay the rollback.
    pub(super) fn check_speed(&mut self, target: &Target) {
        let scenario = &self.scenario;
        let calm = scenario.faults + scenario.api_faults + scenario.kills == 0
            && scenario.kubelet_lag < 30
            && scenario.pull.is_none()
            && scenario.api_away.is_none()
            && scenario.kubelet_away.is_none()
            && scenario.swaps.len() == 1
            && (!scenario.start_first || scenario.old_image == Image::Good)
            && target.back.is_some()
            && target.change.as_ref().is_some_and(|change| change.cloneable);
        let running = self.running(&target.name);
        let (true, [instance]) = (calm, running.as_slice()) else { return };
        // Includes slow calls. A kubelet's shortest back-off is ten seconds.
        // An image that crashes by itself is tried three times, the last time after two seconds.
        let crashes = matches!(scenario.old_image, Image::DiesAfter(_));
        let longest = SignedDuration::from_millis(if crashes { 6500 } else { 3500 });
        // A kubelet stops a container that runs first, within its grace period.
        let since = target.back.as_ref().and_then(|back| {
            let replaced = self.instances.iter().find(|instance| instance.id == back.replaces);
            let ended = replaced.and_then(|replaced| replaced.finished_at);
            Some(back.respec_at?).max(ended)
        });
        if let (Some(started), Some(since)) = (instance.started_at, since)
            && started > since + longest
        {
            let took = started.duration_since(since).as_millis();
            self.violate(format!("the way back of {} took {took} ms", target.name));
        }
    }

    /// The checks when the operation has ended.
    pub(super) fn check_end(&mut self, operation: &Operation, outcome: &Outcome) {
        let grace = i64::try_from(self.scenario.grace).unwrap() + 2;
        let latest = operation.deadline_at + SignedDuration::from_secs(grace + 30);
        if self.now > latest {
            self.violate(format!("{outcome:?} came at {}, after {latest}", self.now));
        }
        // Where nothing else serves, a standby stays; a sweep stops it later.
        let is_alone = |standby: &Instance| {
            let replaces = |instance: &&Instance| {
                let since = instance.started_at.filter(|at| *at >= standby.created_at);
                since.is_some_and(|since| self.now >= since + ms(5000))
            };
            standby.state == State::Running && !self.running(&standby.name).iter().any(replaces)
        };
        let left = |instance: &&Instance| {
            instance.standby && !is_alone(instance)
                || instance.operation.is_some() && instance.state == State::Created
        };
        let left = self.instances.iter().find(left).cloned();
        if let Some(instance) = left
            && operation.stuck.is_empty()
            && !self.late
        {
            self.violate(format!("{outcome:?} leaves {instance:?} behind"));
        }
        if is_untouched(outcome) && (self.felt || self.api.images.iter().any(|image| image != OLD)) {
            self.violate(format!("{outcome:?}, but it was felt"));
        }
        let closed = |reason: &str| Gate::Closed { reason: reason.into() };
        let requested = match outcome {
            Outcome::Failed { touched: true, .. } if self.scenario.drain > 0 => closed("InPlaceFailed"),
            _ => Gate::Open,
        };
        let owed = operation.owed_gate(None);
        // After this time the operation stops its cleanup and leaves the rest to the agent.
        let cleaned_until = operation.deadline_at + SignedDuration::from_secs(15);
        let excused = self.gate_failed || self.now < self.unsynced_until || self.now >= cleaned_until;
        if self.api.gate != requested && !(owed.is_some() && excused) && !self.api.deleting {
            self.violate(format!("{outcome:?} leaves the gate {:?}, owed {owed:?}", self.api.gate));
        }
    }

    /// The checks when every component has had the time to react.
    pub(super) fn check_aftermath(&mut self, operation: &Operation, outcome: &Outcome) {
        let scenario = self.scenario.clone();
        let disturbed = scenario.deleted_at.is_some() || self.late_respec;
        let interrupted = scenario.dies_at.is_some() || scenario.kubelet_away.is_some();
        let lasts = |image: Image| matches!(image, Image::Good | Image::NeverReady);
        if disturbed || !lasts(scenario.old_image) {
            return;
        }
        for target in &operation.targets {
            let swapped = target.action == Action::Swap;
            let ids: Vec<_> = self.running(&target.name).iter().map(|instance| instance.id.clone()).collect();
            let stays = target.reached.as_ref().map(|reached| reached.to.container_id.clone());
            let died = stays.as_deref() == Some("id-2") && self.scenario.dies_at.is_some();
            // A container may take longer to end than the operation observes it.
            let probed = stays.as_ref().is_some_and(|id| self.kubelet.ended_by_probe.contains(id));
            // A crash between the change of the spec and its receipt looks like a stop by the kubelet.
            let forward = &target.forward;
            let dies_at = scenario.dies_at.filter(|_| target.name == name_of(0));
            let crossed = dies_at.zip(forward.respec_sent_at).is_some_and(|(at, sent)| {
                let received_by = forward.respec_at.unwrap_or(sent) + ms(scenario.kubelet_lag);
                (sent..=received_by).contains(&(epoch() + ms(at)))
            });
            let claimed = match outcome {
                Outcome::Succeeded if crossed => false,
                Outcome::Succeeded => !swapped || lasts(self.scenario.new_image),
                Outcome::RolledBack(_) => stays.is_some() && !died,
                _ => false,
            };
            if claimed && !probed && ids.first() != stays.as_ref() {
                self.violate(format!("{outcome:?} did not last: {stays:?} became {ids:?}"));
            }
            let alone = operation.targets.iter().all(|target| target.action == Action::Restart);
            let respecced = alone && target.engine == Engine::Respec;
            if respecced && !interrupted && self.scenario.policy != RestartPolicy::Always && ids.len() != 1 {
                self.violate(format!("{outcome:?} lost {}", target.name));
            }
        }
    }
}
