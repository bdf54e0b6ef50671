//! Decides about the fence of a replacement: when it is created again, when it is removed, and when it comes too late.
//! The first fence is created by `replace` and `respec`. Nothing here executes an effect.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::Action;
use crate::operation::decision::{Next, Waiting};
use crate::operation::effect::{Effect, Leftover, Verb, remove};
use crate::operation::snapshot::{Container, Declared, Snapshot, State};
use crate::operation::standby;
use crate::operation::state::{Operation, Target, later};
use crate::operation::verify::WATCH;

/// How long the fence stays after the start. A kubelet that observed the new instance before it ran requests the
/// reserved name a moment later, because it checks the image in between.
pub(super) const STAYS_AFTER_START: SignedDuration = SignedDuration::from_millis(250);
/// The maximum time that the fence stays after the start when an API server reports whether the kubelet has observed
/// the new instance running. A kubelet that queries a registry before each start (imagePullPolicy Always) requests
/// the reserved name only after the registry has responded.
const MAX_STAY: SignedDuration = SignedDuration::from_secs(30);
/// The interval between two observations while the kubelet is expected to report the new instance. A report ends the wait.
const REPORTED: SignedDuration = SignedDuration::from_millis(500);
/// The interval between two observations while another program is expected to act.
pub(super) const REQUEUE: SignedDuration = SignedDuration::from_millis(20);

/// The effect that creates the fence again, when it is gone before the new instance runs. A kubelet collects
/// containers that do not run once a minute and keeps the newest of a name. In the moment before its start that is
/// the new instance, so a fence that does not run is removed.
pub(super) fn fence_again(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    new: &Container,
) -> Option<Effect> {
    let attempt = new.attempt.saturating_add(1);
    let guarded = snapshot.fences(&target.name).any(|fence| fence.attempt == attempt);
    // Without a fence, starting the container is still better than not starting it.
    if guarded || operation.unsupervised || operation.given_up(Verb::Fence, &target.name).is_some() {
        return None;
    }
    let (container, source) = (target.name.clone(), new.id.clone());
    Some(Effect::Fence { container, source, attempt, image: None, test_create: false, by_process: false })
}

/// The same while the start of the container `id` takes long, as on a busy node.
pub fn while_it_starts(
    operation: &Operation,
    snapshot: &Snapshot,
    container: &str,
    id: &str,
) -> Option<Effect> {
    if snapshot.declared.as_ref().is_some_and(Declared::leaves) {
        return None;
    }
    let target = operation.targets.iter().find(|target| target.name == container)?;
    let new =
        snapshot.by_id(id).filter(|instance| instance.state == State::Created && operation.made(instance))?;
    fence_again(operation, target, snapshot, new)
}

/// True when a kubelet has created the replacement, and not started it yet, while the fence of `attempt`,
/// which does not run yet, was created from `source`. The kubelet's collection keeps the newest of the
/// containers that do not run. It would mark its replacement for removal, because that is older than the
/// fence, and remove it even if it runs by then.
pub fn is_overtaken(snapshot: &Snapshot, container: &str, attempt: u32, source: &str) -> bool {
    snapshot.instances(container).into_iter().any(|instance| {
        instance.state == State::Created
            && instance.attempt.saturating_add(1) == attempt
            && instance.id != source
    })
}

/// Removes the fences, but not immediately after a start, or after the removal of a container that never started.
pub(super) fn unfence(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    // Its process counts the sockets of the new instance.
    if standby::needs_fence(operation, target) {
        return None;
    }
    let fence = snapshot.fences(&target.name).find(|fence| operation.can_remove(&fence.id))?;
    let held = held(operation, target, snapshot, now).map(Next::Wait);
    Some(held.unwrap_or_else(|| Next::Do(remove(fence, Leftover::Fence))))
}

/// The wait while a kubelet may still act on what it observed before a start or a removal.
fn held(operation: &Operation, target: &Target, snapshot: &Snapshot, now: Timestamp) -> Option<Waiting> {
    let shortly = held_shortly(operation, target, snapshot, now);
    if shortly.is_some() || !operation.in_cluster {
        return shortly;
    }
    let running = snapshot.running(&target.name);
    let unseen =
        running.iter().find(|instance| operation.made(instance) && !is_reported(snapshot, instance))?;
    let since = unseen.started_at.filter(|since| *since <= now)?;
    let on = format!("waiting for the kubelet to observe {}", target.name);
    (now < later(since, MAX_STAY)).then(|| Waiting { until: later(now, REPORTED), on })
}

/// The same for a kubelet that acts immediately.
pub(super) fn held_shortly(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Waiting> {
    let running = snapshot.running(&target.name);
    let started = running.iter().filter_map(|instance| instance.started_at).max();
    let until = later(started.max(operation.removed_at)?, STAYS_AFTER_START);
    // Ignored when the clock was set back.
    let soon = now < until && until < later(now, STAYS_AFTER_START * 2);
    // A new image that fails is taken back at once.
    let may_fail = target.action == Action::Swap && operation.rollback_cause.is_none() && started.is_some();
    let until = if may_fail { until.min(later(now, WATCH)) } else { until };
    soon.then(|| Waiting { until, on: format!("waiting for other clients to observe {}", target.name) })
}

/// True when the kubelet has reported `instance` as running. It reports when it begins to act on what it observed,
/// and it acts on one observation at a time.
fn is_reported(snapshot: &Snapshot, instance: &Container) -> bool {
    let reported = snapshot.declared.as_ref().and_then(|declared| declared.container(&instance.name));
    reported
        .is_some_and(|reported| reported.running && reported.container_id.as_deref() == Some(&instance.id))
}
