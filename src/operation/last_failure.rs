//! The last failure of an effect: after how many attempts the effect is given up.
//!
//! The pause before the next attempt is decided by `delay_retry` in `next.rs`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::request::OnFailure;
use crate::api::status::Action;
use crate::failure::Class;
use crate::operation::effect::{Effect, EffectError, Verb};
use crate::operation::outcome::Withdrawal;
use crate::operation::state::Operation;

/// A failed effect that is being retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// The kind of the failed effect.
    pub verb: Verb,
    /// The container that the effect was for.
    pub container: String,
    /// The number of failures in a row.
    pub count: u32,
    /// When it failed last.
    pub at: Timestamp,
    /// How it failed last.
    #[serde(rename = "trouble")]
    pub effect_error: EffectError,
}

impl Operation {
    /// The message of the last failure of `verb` for `container`, once retrying it is pointless; `None` before.
    pub(super) fn given_up(&self, verb: Verb, container: &str) -> Option<&str> {
        let last_failure = self.last_failure.as_ref()?;
        if last_failure.verb != verb || last_failure.container != container {
            return None;
        }
        let tries = match (last_failure.effect_error.class, verb) {
            (Class::Final | Class::Credentials, _)
            | (Class::Gone, Verb::Respec | Verb::Gate)
            | (Class::Refused | Class::Gone, Verb::Standby) => 1,
            (Class::Unavailable | Class::NotSent, Verb::Remove) => 10,
            // Unavailable: the effect may have happened, so observe until the deadline. A taken name on create is handled
            // the same way: another program is creating the container.
            (Class::Unavailable | Class::NotSent, _) | (Class::NameTaken, Verb::Create) => return None,
            (Class::Denied, Verb::Respec) if self.is_denied_as_replaced() => 5,
            // A fence whose response was lost may still be in creation: its name is taken before a snapshot shows it.
            // And an API server that has just started gets some seconds to load its authorization rules.
            (Class::NameTaken, Verb::Fence | Verb::Standby) | (Class::Denied, _) => 8,
            (
                Class::Refused | Class::Gone | Class::NameTaken,
                Verb::Pull | Verb::Fence | Verb::Start | Verb::Respec | Verb::Gate,
            ) => 3,
            // A swap can roll back, which is better than a retry. A restart and a rollback cannot.
            (Class::Refused | Class::Gone, Verb::Create) if self.can_roll_back() && self.swaps(container) => {
                1
            }
            (
                Class::Refused | Class::Gone | Class::NameTaken,
                Verb::Create | Verb::Stop | Verb::Remove | Verb::PreStop | Verb::StopStandby,
            ) => 5,
        };
        (last_failure.count >= tries).then_some(last_failure.effect_error.message.as_str())
    }

    /// True when the way forward is denied after another request has replaced this one: the admission policy lets the
    /// agent write only images that the current request names, and those of a rollback.
    pub(super) fn is_denied_as_replaced(&self) -> bool {
        let class = self.last_failure.as_ref().map(|last_failure| last_failure.effect_error.class);
        self.rollback_cause.is_none()
            && self.withdrawn == Some(Withdrawal::Replaced)
            && class == Some(Class::Denied)
    }

    /// True while a failure leads to a rollback to the old image.
    pub(super) fn can_roll_back(&self) -> bool {
        self.rollback_cause.is_none()
            && self.request.on_failure == OnFailure::Rollback
            && self.targets.iter().any(|target| target.touched && target.action == Action::Swap)
    }

    fn swaps(&self, container: &str) -> bool {
        self.targets.iter().any(|target| target.name == container && target.action == Action::Swap)
    }

    /// True while removing container `id` is still worth an attempt.
    pub(super) fn can_remove(&self, id: &str) -> bool {
        !self.stuck.iter().any(|stuck| stuck == id)
    }

    pub(super) fn give_up_removing(&mut self, effect: &Effect) {
        let (container, id, what) = match effect {
            Effect::Remove { container, id, what } => {
                (container, id, format!("{what} of {container} could not be removed"))
            }
            Effect::StopStandby { container, id, .. } => (
                container,
                id,
                format!("the standby of {container} could not be stopped, and is stopped later"),
            ),
            _ => return,
        };
        if let Some(message) = self.given_up(effect.verb(), container) {
            let remark = format!("{what}: {message}");
            self.last_failure = None;
            self.stuck.push(id.clone());
            self.remark(remark);
        }
    }
}
