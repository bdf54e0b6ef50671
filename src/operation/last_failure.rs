//! What did not work: whether it is tried again, and when that has lost its sense.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::request::OnFailure;
use crate::api::status::Action;
use crate::operation::effect::{Class, Effect, EffectError, Verb};
use crate::operation::state::Operation;

/// Something that did not work and is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// What.
    pub verb: Verb,
    /// For which container.
    pub container: String,
    /// How often in a row.
    pub count: u32,
    /// When it failed last.
    pub at: Timestamp,
    /// How it failed last.
    #[serde(rename = "trouble")]
    pub effect_error: EffectError,
}

impl Operation {
    /// The message of the setback in `verb` for `container`, once repeating it has lost its sense.
    pub(super) fn given_up(&self, verb: Verb, container: &str) -> Option<&str> {
        let last_failure = self.last_failure.as_ref()?;
        if last_failure.verb != verb || last_failure.container != container {
            return None;
        }
        let tries = match (last_failure.effect_error.class, verb) {
            (Class::Final | Class::Credentials, _) | (Class::Gone, Verb::Respec | Verb::Gate) => 1,
            (Class::Away | Class::Unreached, Verb::Remove) => 10,
            // Away: it may have happened, so look again until the deadline; the same where somebody else is creating.
            (Class::Away | Class::Unreached, _) | (Class::NameTaken, Verb::Create) => return None,
            // A fence whose reply was lost may still be in the making: its name is taken before it is seen. And a server that
            // has just begun gets some seconds to learn what is allowed.
            (Class::NameTaken, Verb::Fence) | (Class::Denied, _) => 8,
            (
                Class::Refused | Class::Gone | Class::NameTaken,
                Verb::Pull | Verb::Fence | Verb::Start | Verb::Respec | Verb::Gate,
            ) => 3,
            // A swap has a better way out than trying again; a restart and a way back have none.
            (Class::Refused | Class::Gone, Verb::Create) if self.can_roll_back() && self.swaps(container) => {
                1
            }
            (
                Class::Refused | Class::Gone | Class::NameTaken,
                Verb::Create | Verb::Stop | Verb::Remove | Verb::PreStop,
            ) => 5,
        };
        (last_failure.count >= tries).then_some(last_failure.effect_error.message.as_str())
    }

    /// True while a failure would lead back to the old image.
    pub(super) fn can_roll_back(&self) -> bool {
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

    pub(super) fn give_up_removing(&mut self, effect: &Effect) {
        let Effect::Remove { container, id, what } = effect else { return };
        if let Some(message) = self.given_up(Verb::Remove, container) {
            let remark = format!("{what} of {container} could not be removed: {message}");
            self.last_failure = None;
            self.stuck.push(id.clone());
            self.remark(remark);
        }
    }
}
