//! The execution of the agent's effects: each happens or not, and is answered or not. Decides nothing for the agent.

use inplace::failure::Class;
use inplace::operation::effect::{Effect, EffectError, EffectOutput, GateAction, ImageChoice, Verb};
use inplace::operation::snapshot::{Container, Gate, State};
use inplace::operation::state::Operation;

use super::names::{OLD, image_id, index_of};
use super::scenario::Image;
use super::world::{Event, Instance, Kind, World};
use crate::model::{ID, ms};

impl World {
    /// Executes `effect` or not, and responds or not.
    pub(super) fn call(
        &mut self,
        operation: &Operation,
        effect: &Effect,
    ) -> Result<EffectOutput, EffectError> {
        self.check_effect(operation, effect);
        let to_api = matches!(effect.verb(), Verb::Respec | Verb::Gate);
        let takes = match effect.verb() {
            Verb::Stop | Verb::PreStop | Verb::StopStandby => {
                self.dice.ms(1, 1000 * i64::try_from(self.scenario.grace).unwrap() + 5)
            }
            _ if self.dice.roll(20) == 0 => self.dice.ms(200, 1500),
            _ => self.dice.ms(1, 40),
        };
        let faults = if to_api { self.scenario.api_faults } else { self.scenario.faults };
        let fault = if self.dice.roll(100) < faults { self.dice.roll(4) } else { 9 };
        self.felt |= effect.verb() == Verb::PreStop;
        let away = to_api && self.api_away();
        // A change of the gate that arrives after every timeout is for the agent to correct, not for an operation.
        let late = fault == 2 && effect.verb() != Verb::Gate && !away;
        if late {
            // Slower than the agent's timeout: the effect happens after the agent has stopped waiting.
            let delay = takes + self.dice.ms(1, 1500);
            self.at(delay, Event::Late(effect.clone()));
            self.late = true;
        }
        self.advance(self.now + ms(takes));
        let result = match fault {
            _ if away => refused(Class::Unavailable),
            0 => refused(Class::Refused),
            1 | 2 => refused(Class::Unavailable),
            3 => {
                let _ = self.apply(effect);
                refused(Class::Unavailable)
            }
            _ => self.apply(effect),
        };
        if effect.verb() == Verb::Gate {
            self.gate_failed = result.is_err();
        }
        self.say(|| format!("{effect:?}: {result:?}"));
        result
    }

    fn respec(&mut self, container: &str, from: &str, to: &str) -> Result<EffectOutput, EffectError> {
        let index = index_of(container);
        if self.sabotage.spec_is_not_put_back && to == OLD {
            return Ok(EffectOutput::Nothing);
        }
        if self.api.images[index] == from {
            self.felt = true;
            self.change(|api| to.clone_into(&mut api.images[index]));
        }
        if self.api.images[index] == to { Ok(EffectOutput::Nothing) } else { refused(Class::Refused) }
    }

    fn start_standby(
        &mut self,
        container: &str,
        source: &str,
        attempt: u32,
        image: Option<&ImageChoice>,
    ) -> Result<EffectOutput, EffectError> {
        let Some(source) = self.instance(source).cloned() else { return refused(Class::Gone) };
        if self.instances.iter().any(|other| other.standby && other.name == container) {
            return refused(Class::NameTaken);
        }
        let (reference, id) =
            image.map_or((&source.image, &source.image_id), |image| (&image.reference, &image.id));
        let ready = self.sandbox.as_ref().is_some_and(|sandbox| sandbox.ready);
        if !ready || self.image(id) == Image::CannotBeCreated {
            return refused(Class::Refused);
        }
        let id = self.create(container, attempt, reference, id, &source.spec_hash, Some(ID), Kind::Standby);
        if self.start(&id) {
            return Ok(EffectOutput::Nothing);
        }
        self.instances.retain(|instance| instance.id != id);
        refused(Class::Refused)
    }

    pub(super) fn apply(&mut self, effect: &Effect) -> Result<EffectOutput, EffectError> {
        match effect {
            Effect::Pull { .. } if self.scenario.new_image == Image::CannotBePulled => refused(Class::Final),
            Effect::Pull { image, .. } => Ok(EffectOutput::Image(ImageChoice {
                reference: image.clone(),
                id: image_id(image).into(),
                spec_hash: None,
            })),
            Effect::PreStop { .. } => Ok(EffectOutput::Nothing),
            Effect::Respec { .. } | Effect::Gate { .. } if self.sandbox.is_none() => refused(Class::Gone),
            Effect::Respec { container, from, to } => self.respec(container, from, to),
            Effect::Gate { gate } => {
                self.cycle(*gate);
                Ok(EffectOutput::Nothing)
            }
            Effect::Fence { by_process: true, .. } if self.sabotage.fences_do_not_run => {
                refused(Class::Final)
            }
            Effect::Fence { container, source, attempt, image, .. }
            | Effect::Create { container, source, attempt, image, .. } => {
                let fence = effect.verb() == Verb::Fence;
                let by_process = matches!(effect, Effect::Fence { by_process: true, .. });
                let Some(source) = self.instance(source).cloned() else { return refused(Class::Gone) };
                let (reference, id) = image
                    .as_ref()
                    .map_or((&source.image, &source.image_id), |image| (&image.reference, &image.id));
                let hash = image.as_ref().and_then(|image| image.spec_hash.as_ref());
                let taken = |instance: &Instance| {
                    instance.name == *container && instance.attempt == *attempt && !instance.standby
                };
                if self.instances.iter().any(taken) && (fence || self.reserved(container, *attempt)) {
                    return refused(Class::NameTaken);
                }
                if self.sandbox.as_ref().is_none_or(|sandbox| !sandbox.ready)
                    || (self.image(id) == Image::CannotBeCreated && !by_process)
                {
                    return refused(Class::Refused);
                }
                self.felt |= !fence;
                self.helped |= !fence && image.as_ref().is_some_and(|image| image.spec_hash.is_some());
                let hash = hash.unwrap_or(&source.spec_hash);
                let id = self.create(
                    container,
                    *attempt,
                    reference,
                    id,
                    hash,
                    Some(ID),
                    if fence { Kind::Fence } else { Kind::Instance },
                );
                if fence && !self.sabotage.fences_do_not_run {
                    self.hold(&id);
                }
                Ok(EffectOutput::Nothing)
            }
            Effect::Standby { container, source, attempt, image } => {
                self.start_standby(container, source, *attempt, image.as_ref())
            }
            Effect::StopStandby { id, .. } => {
                if self.instance(id).is_none() {
                    return refused(Class::Gone);
                }
                self.exit(id, 143);
                Ok(EffectOutput::Nothing)
            }
            Effect::Stop { id, .. } => {
                if self.instance(id).is_none() {
                    return refused(Class::Gone);
                }
                self.felt = true;
                self.exit(id, 143);
                Ok(EffectOutput::Nothing)
            }
            Effect::Start { id, .. } => match self.instance(id).map(|instance| instance.state) {
                None => refused(Class::Gone),
                Some(State::Created) => {
                    self.felt = true;
                    if self.start(id) { Ok(EffectOutput::Nothing) } else { refused(Class::Refused) }
                }
                Some(_) => refused(Class::Refused),
            },
            Effect::Remove { id, .. } => {
                let foreign =
                    |instance: &Container| instance.operation.is_none() && instance.state == State::Running;
                if self.instance(id).is_some_and(|instance| foreign(instance)) {
                    self.violate(format!("{id} was removed while it ran"));
                }
                self.instances.retain(|instance| instance.id != *id);
                Ok(EffectOutput::Nothing)
            }
        }
    }

    fn cycle(&mut self, gate: GateAction) {
        let closed = |reason: &str| Gate::Closed { reason: reason.into() };
        let gate = match gate {
            GateAction::Open if self.sabotage.gate_is_not_opened => return,
            GateAction::Open => Gate::Open,
            GateAction::Drain => closed("InPlaceDrain"),
            GateAction::Failed => closed("InPlaceFailed"),
        };
        if gate == Gate::Open {
            self.gate_closed_at = None;
        } else {
            self.gate_closed_at.get_or_insert(self.now);
        }
        self.change(|api| api.gate = gate);
    }
}

fn refused<T>(class: Class) -> Result<T, EffectError> {
    Err(EffectError { class, message: format!("{class:?}") })
}
