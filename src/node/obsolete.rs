//! Decides whether an effect is still to be carried out, when time has passed since it was decided. Must not carry it out.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::failure::Class;
use crate::node::Node;
use crate::node::drive::{ControlHandle, observe};
use crate::operation::effect::{Effect, EffectError, Verb};
use crate::operation::state::Operation;
use crate::process::clock;

/// Maximum age of the snapshot on which a container start is decided; an older one is observed again before the
/// start.
const OUTDATED: Duration = Duration::from_secs(1);

/// True when the first touch of a container is not to be made any more: the journal was written slowly, and meanwhile the
/// request was withdrawn, the pod was deleted, or the time to begin has passed. The next decision takes that into account.
pub(super) fn is_obsolete(
    node: &Node,
    operation: &Operation,
    effect: &Effect,
    decided_at: Timestamp,
    control: &ControlHandle,
) -> bool {
    let until = operation.touch_until();
    let leaves = || {
        let declared = node.cluster.as_ref().and_then(|pods| pods.declared(&operation.pod));
        declared.is_some_and(|declared| declared.leaves())
    };
    matches!(effect.verb(), Verb::PreStop | Verb::Stop | Verb::Respec)
        && (control.withdrawal.has_changed().unwrap_or(false)
            || decided_at < until && until <= clock::now()
            || leaves())
}

/// Observes again before a start if time has passed since the decision, as after the process was suspended: the
/// fence may be gone, and another container instance may run.
pub(super) async fn outdated(
    node: &Node,
    operation: &Operation,
    effect: &Effect,
    observed_at: Instant,
) -> Option<EffectError> {
    if effect.verb() != Verb::Start || observed_at.elapsed() < OUTDATED {
        return None;
    }
    let snapshot = observe(node, operation).await.ok()?;
    let running = snapshot.running(effect.container()).first()?.attempt;
    let message = format!("another client started attempt {running} in the meantime");
    Some(EffectError { class: Class::Unavailable, message })
}
