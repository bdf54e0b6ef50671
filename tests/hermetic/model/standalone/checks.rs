//! The rules: what an effect may do, what an outcome must say, and what may be left behind. Changes nothing.

use inplace::api::status::Action;
use inplace::operation::effect::{Effect, Leftover, Verb};
use inplace::operation::hook::Moment;
use inplace::operation::outcome::Outcome;
use inplace::operation::snapshot::{Container, State};
use inplace::operation::state::Operation;
use jiff::SignedDuration;

use super::world::{Event, Instance, World};
use crate::model::ID;

impl World {
    /// Checks that every effect works only on what the journal holds.
    pub(super) fn check_effect(&mut self, operation: &Operation, effect: &Effect) {
        let target =
            operation.targets.iter().find(|target| target.name == effect.container()).unwrap().clone();
        let replacement = target.replacement().clone();
        let right = match effect {
            // Never while a container is down: every touched container runs again.
            Effect::Pull { .. } => {
                let mut touched = operation.targets.iter().filter(|target| target.touched);
                let runs = touched.all(|target| target.reached.is_some());
                !target.touched && operation.rollback_cause.is_none() && runs
            }
            Effect::Fence { attempt, .. } => *attempt == replacement.attempt + 1,
            Effect::PreStop { id, .. } => *id == replacement.replaces && self.pre_stopped.insert(id.clone()),
            Effect::Stop { id, timeout_seconds, .. } => *id == replacement.replaces && *timeout_seconds >= 2,
            // Ahead of the stop only where no kubelet can take it for the newest instance.
            Effect::Create { attempt, .. } => {
                let old = self.instance(&replacement.replaces);
                let ahead = old.is_some_and(|instance| instance.seen.state == State::Running);
                *attempt == replacement.attempt && (operation.unsupervised || !ahead)
            }
            Effect::Start { id, container } => {
                let alone = self.running(container) == 0;
                alone
                    && self.instance(id).is_none_or(|instance| {
                        instance.seen.attempt == replacement.attempt && !instance.seen.fence
                    })
            }
            Effect::Remove { id, what, .. } => {
                let has_been_unclear = self.has_been_unclear();
                self.instance(id).is_none_or(|Instance { seen, .. }| match what {
                    Leftover::Fence => seen.fence,
                    Leftover::Standby => false,
                    Leftover::NeverStarted => {
                        let is_due = seen.started_at.is_none() || has_been_unclear;
                        !seen.fence && seen.operation.as_deref() == Some(ID) && is_due
                    }
                    Leftover::Old => {
                        let exited = seen.state == State::Exited && seen.attempt < target.from.attempt;
                        exited && operation.unsupervised
                    }
                })
            }
            // Only with an API server, which these worlds do not have.
            Effect::Respec { .. }
            | Effect::Gate { .. }
            | Effect::Standby { .. }
            | Effect::StopStandby { .. } => false,
        };
        let feels = match effect.verb() {
            Verb::PreStop | Verb::Stop | Verb::Start => true,
            Verb::Create => !operation.unsupervised,
            Verb::Pull
            | Verb::Fence
            | Verb::Remove
            | Verb::Respec
            | Verb::Gate
            | Verb::Standby
            | Verb::StopStandby => false,
        };
        let held_back = !matches!(effect.verb(), Verb::Pull | Verb::Remove);
        if held_back && !self.hooks.passed(Moment::Before) {
            self.violate(format!("{effect:?} before the hook has passed"));
        }
        if !right || (feels && !target.touched) {
            self.violate(format!("{effect:?} is not what the journal allows: {target:?}"));
        }
    }
}

/// Checks that the reported outcome matches the snapshot at that moment.
pub(super) fn check_claim(world: &mut World, operation: &Operation, outcome: &Outcome) {
    world.scenario.fog = None;
    let snapshot = world.snapshot();
    for target in &operation.targets {
        let running = snapshot.running(&target.name);
        let right = match outcome {
            Outcome::Succeeded if !world.hooks.passed(Moment::After) => false,
            Outcome::Succeeded => {
                let image = if target.action == Action::Swap { "sha:new" } else { "sha:old" };
                let up = |instance: &&Container| {
                    instance.attempt > target.from.attempt && instance.image_id == image
                };
                running.len() == 1 && running.iter().all(up)
            }
            Outcome::RolledBack(_) => {
                running.len() == 1 && running[0].image_id == "sha:old" || !target.touched
            }
            Outcome::Failed { touched: false, .. } | Outcome::Cancelled(_) | Outcome::Refused(_) => {
                !world.felt
            }
            Outcome::Failed { .. } => operation.touched(),
        };
        if !right {
            world.violate(format!("{outcome:?} is not true of {target:?}: {snapshot:?}"));
        }
    }
}

pub(super) fn check_end(world: &mut World, operation: &Operation, outcome: &Outcome) {
    let grace = i64::try_from(world.scenario.grace).unwrap() + 2;
    let latest = operation.deadline_at + SignedDuration::from_secs(grace + 30);
    if world.now > latest {
        world.violate(format!("{outcome:?} came at {}, after {latest}", world.now));
    }
    let late = world.events.iter().any(|(_, event)| matches!(event, Event::Late(_)));
    let left =
        |instance: &&Instance| instance.seen.operation.is_some() && instance.seen.state == State::Created;
    if let Some(instance) = world.instances.iter().find(left)
        && operation.stuck.is_empty()
        && !late
        && !world.away()
    {
        world.violate(format!("{outcome:?} leaves {:?} behind", instance.seen));
    }
    if matches!(outcome, Outcome::Cancelled(_) | Outcome::Failed { touched: false, .. }) {
        let killed = world.instances.iter().any(|instance| instance.stopped_by_us);
        if killed || world.felt {
            world.violate(format!("{outcome:?}, but it was felt"));
        }
    }
    if *outcome == Outcome::Succeeded {
        for target in &operation.targets {
            let started = world.started.get(&target.name).copied().unwrap_or(0);
            // What stays unclear is created again.
            if started > 1 && !world.stays_unclear || (started == 0 && !world.scenario.kubelet) {
                world.violate(format!("{} was started {started} times", target.name));
            }
        }
    }
}
