//! The runtime of a world: executes the effects of the agent, or refuses them, loses the answer or is late.

use inplace::failure::Class;
use inplace::operation::effect::{Effect, EffectError, EffectOutput, ImageChoice, Verb};
use inplace::operation::snapshot::{Container, State};
use inplace::operation::state::Operation;

use super::scenario::Image;
use super::world::{Event, World};
use crate::model::{ID, ms};

impl World {
    /// Executes `effect` or not, and responds or not.
    pub(super) fn call(
        &mut self,
        operation: &Operation,
        effect: &Effect,
    ) -> Result<EffectOutput, EffectError> {
        self.check_effect(operation, effect);
        let effect_error = |class| Err(EffectError { class, message: format!("{class:?}") });
        let takes = match effect.verb() {
            Verb::Stop | Verb::PreStop => {
                self.roll_ms(1, 1000 * i64::try_from(self.scenario.grace).unwrap() + 5)
            }
            _ if self.roll(20) == 0 => self.roll_ms(200, 1500),
            _ => self.roll_ms(1, 40),
        };
        let fault = if self.roll(100) < self.scenario.faults { self.roll(4) } else { 9 };
        if effect.verb() == Verb::PreStop {
            self.felt = true;
        }
        match fault {
            _ if self.away() => {
                self.advance(self.now + ms(takes));
                effect_error(Class::Unavailable)
            }
            0 => {
                self.advance(self.now + ms(takes));
                effect_error(Class::Refused)
            }
            1 => {
                self.advance(self.now + ms(takes));
                effect_error(Class::Unavailable)
            }
            2 => {
                // The runtime is slower than the agent's timeout: the effect happens after
                // the agent has stopped waiting.
                let late = self.roll_ms(1, 1500);
                self.at(takes + late, Event::Late(effect.clone()));
                self.advance(self.now + ms(takes));
                effect_error(Class::Unavailable)
            }
            _ => {
                self.advance(self.now + ms(takes));
                let result = self.apply(effect);
                if fault == 3 { effect_error(Class::Unavailable) } else { result }
            }
        }
    }

    pub(super) fn apply(&mut self, effect: &Effect) -> Result<EffectOutput, EffectError> {
        let effect_error = |class| Err(EffectError { class, message: format!("{class:?}") });
        match effect {
            Effect::Pull { image, .. } if self.scenario.new_image == Image::CannotBePulled => {
                Err(EffectError { class: Class::Final, message: format!("no {image}") })
            }
            Effect::Pull { image, .. } => Ok(EffectOutput::Image(ImageChoice {
                reference: image.clone(),
                id: "sha:new".into(),
                spec_hash: None,
            })),
            Effect::PreStop { .. } => Ok(EffectOutput::Nothing),
            Effect::Respec { .. }
            | Effect::Gate { .. }
            | Effect::Standby { .. }
            | Effect::StopStandby { .. } => effect_error(Class::Final),
            Effect::Fence { container, source, attempt, image, .. }
            | Effect::Create { container, source, attempt, image, .. } => {
                let fence = effect.verb() == Verb::Fence;
                let Some(source) = self.instance(source).map(|instance| instance.seen.image_id.clone())
                else {
                    return effect_error(Class::Gone);
                };
                let image = image.as_ref().map_or(source, |image| image.id.clone());
                let taken =
                    self.instances.iter().any(|l| l.seen.name == *container && l.seen.attempt == *attempt);
                if taken && (fence || self.reserved(container, *attempt)) {
                    return effect_error(Class::NameTaken);
                }
                if self.sandbox.as_ref().is_none_or(|sandbox| !sandbox.ready) {
                    return effect_error(Class::Refused);
                }
                if self.image(&image) == Image::CannotBeCreated && (fence || self.roll(2) == 0) {
                    return effect_error(Class::Refused);
                }
                // Without a kubelet, a container that is created and removed again affects no running container.
                self.felt |= !fence && !self.scenario.cleans_up;
                self.create(container, *attempt, &image, fence, Some(ID));
                Ok(EffectOutput::Nothing)
            }
            Effect::Stop { id, .. } => {
                if self.instance(id).is_none() {
                    return effect_error(Class::Gone);
                }
                self.felt = true;
                self.exit(id, true);
                Ok(EffectOutput::Nothing)
            }
            Effect::Start { container, id } => match self.instance(id).map(|instance| instance.seen.state) {
                None => effect_error(Class::Gone),
                Some(State::Created) => {
                    self.felt = true;
                    if !self.start(id) {
                        return effect_error(Class::Refused);
                    }
                    *self.started.entry(container.clone()).or_default() += 1;
                    Ok(EffectOutput::Nothing)
                }
                Some(_) => effect_error(Class::Refused),
            },
            Effect::Remove { .. } if self.scenario.stubborn => effect_error(Class::Refused),
            Effect::Remove { id, .. } => {
                // A container of the agent that a late Start did run after all may be removed: it had been given up.
                let foreign = |seen: &Container| seen.operation.is_none() && seen.state == State::Running;
                if self.instance(id).is_some_and(|instance| foreign(&instance.seen)) {
                    self.violate(format!("{id} was removed while it ran"));
                }
                self.instances.retain(|instance| instance.seen.id != *id);
                Ok(EffectOutput::Nothing)
            }
        }
    }
}
