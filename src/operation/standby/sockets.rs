//! The listening sockets in the pod of an operation: whether a standby listens beside the container, and whether the new
//! instance listens beside the standby. Says which fence counts them, and which ports count.
//!
//! Nothing here executes an effect.

use jiff::{SignedDuration, Timestamp};

use crate::api::request::SILENT_STANDBY;
use crate::operation::decision::Next;
use crate::operation::port::{Listeners, Port};
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::standby::{COUNTED_WITHIN, Change, REQUEUE, Standby, change, wait};
use crate::operation::state::{Operation, Target, has_lasted, is_over};

/// How long a standby, a new instance, or one that is back, may have fewer listening sockets than expected: the number of
/// processes that share a port can change.
const FEWER: SignedDuration = SignedDuration::from_secs(10);

/// The counted sockets that decide something: all TCP sockets, and those on the UDP ports that a container declares. A
/// client has a UDP socket on any port for each query that it sends.
pub fn relevant(counted: Listeners, snapshot: &Snapshot) -> Listeners {
    let is_declared =
        |port: &Port| snapshot.containers.iter().any(|container| container.ports.contains(port));
    counted.into_iter().filter(|(port, _)| matches!(port, Port::Tcp(_)) || is_declared(port)).collect()
}

/// The sockets that the standby has added, once it listens where that is expected. Otherwise the port on which it does
/// not; `None` if it has added no socket at all and is still observed.
pub(super) fn listens_beside(
    operation: &Operation,
    snapshot: &Snapshot,
    (own, before): (&Container, &Listeners),
    listeners: &Listeners,
    now: Timestamp,
) -> Result<Listeners, Option<Port>> {
    let started_at = own.started_at.unwrap_or(own.created_at);
    let asked = SignedDuration::from_secs(i64::from(operation.request.min_ready_seconds));
    let added = added(before, listeners, &own.ports);
    let expects_some = !before.is_empty() || !own.ports.is_empty();
    if added.is_empty() && expects_some && !has_lasted(snapshot, started_at, SILENT_STANDBY.max(asked), now) {
        return Err(None);
    }
    // Without declared ports, all sockets of a pod with a single container are its own.
    let is_alone =
        own.ports.is_empty() && !snapshot.containers.iter().any(|one| one.name != own.name && one.may_run());
    let undeclared = before.keys().find(|_| is_alone && added.is_empty());
    // A port that the container declares and does not use is not waited for.
    let declared = own.ports.iter().find(|port| before.contains_key(port) && !added.contains_key(port));
    match declared.or(undeclared) {
        Some(port) => Err(Some(*port)),
        None => Ok(added),
    }
}

/// The next step until the same sockets were counted twice, `settles` apart: a process opens and closes its sockets one
/// after the other.
pub(super) fn counted_again(
    target: &Target,
    standby: &Standby,
    snapshot: &Snapshot,
    counted: Listeners,
    settles: SignedDuration,
    now: Timestamp,
) -> Option<Next> {
    if standby.counted.as_ref() != Some(&counted) {
        return Some(change(target, Change::Counted(counted, now)));
    }
    let is_settled = standby.counted_at.is_some_and(|at| has_lasted(snapshot, at, settles, now));
    (!is_settled).then(|| wait(target, now))
}

/// The counted sockets that decide about a container with these `declared` ports. If it declares none, they are those on the
/// ports that were in use before its standby, as far as these are known.
pub(super) fn deciding(listeners: &Listeners, declared: &[Port], before: Option<&Listeners>) -> Listeners {
    let decides = |port: &Port| match declared {
        [] => before.is_none_or(|before| before.contains_key(port)),
        declared => declared.contains(port),
    };
    listeners.iter().filter(|(port, _)| decides(port)).map(|(port, count)| (*port, *count)).collect()
}

/// How long the sockets beside a standby have to stay the same, where it has at most `longest`. One with fewer sockets than
/// the container may still open some: the processes of a server load one after the other.
pub(super) fn settles(
    before: &Listeners,
    listeners: &Listeners,
    own: &Container,
    longest: SignedDuration,
) -> SignedDuration {
    let added = added(before, listeners, &own.ports);
    let has_fewer = added.iter().any(|(port, count)| before.get(port).is_some_and(|all| count < all));
    if has_fewer { FEWER.min(longest / 2).max(REQUEUE) } else { REQUEUE }
}

/// The sockets that were added on ports that were in use before, which are the shared ones. If the container declares
/// ports, only those count: another container of the pod may change its own.
pub(super) fn added(before: &Listeners, now: &Listeners, declared: &[Port]) -> Listeners {
    let is_own = |port: &Port| declared.is_empty() || declared.contains(port);
    let more = |(port, count): (&Port, &u32)| {
        let now = now.get(port).copied().unwrap_or_default();
        (now > *count).then(|| (*port, now - count))
    };
    before.iter().filter(|(port, _)| is_own(port)).filter_map(more).collect()
}

/// The fence whose process counts the listening sockets, while they decide something.
pub fn counts_sockets<'a>(operation: &Operation, snapshot: &'a Snapshot) -> Option<&'a Container> {
    let awaits = |target: &&Target| {
        let Some(standby) = &target.standby else { return false };
        let of_standby = standby.proven_at.is_none() && !operation.touched();
        of_standby || must_listen(operation, target)
    };
    let mut awaiting = operation.targets.iter().filter(awaits);
    awaiting.find_map(|target| {
        snapshot.fences(&target.name).find(|fence| fence.holder && fence.state == State::Running)
    })
}

/// True while the fence of `target` stays because its process counts, or will count, the sockets of the new instance.
pub(in crate::operation) fn needs_fence(operation: &Operation, target: &Target) -> bool {
    let shares = target.standby.as_ref().is_some_and(|standby| !standby.added.is_empty());
    let proven = target.reached.as_ref().is_some_and(|reached| reached.ready_at.is_some());
    shares && !proven && operation.ending.is_none()
}

/// True while the new instance of `target` runs and is to listen before the standby stops.
fn must_listen(operation: &Operation, target: &Target) -> bool {
    target.reached.is_some() && needs_fence(operation, target)
}

/// Notes since when the sockets cannot be counted although the new instance of `target` is to listen, or that they can be
/// counted again.
pub(in crate::operation) fn note_count(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    let standby = target.standby.as_ref().filter(|_| must_listen(operation, target))?;
    let is_counted = snapshot.listeners.is_some();
    let since = (!is_counted).then_some(now);
    (is_counted == standby.uncounted_since.is_some()).then(|| change(target, Change::Uncounted(since)))
}

/// Whether the new instance listens on every port that the standby shares. It has as many sockets as the standby, which
/// runs the same image; in a rollback it has as many as the old instance had. After [`FEWER`] one is enough. `None` while a
/// count is missing: one that fails says nothing. Once all have failed for [`COUNTED_WITHIN`], the new instance listens if it
/// has run for as long as the standby needed.
pub(in crate::operation) fn listens(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<bool> {
    let Some(standby) = target.standby.as_ref().filter(|_| must_listen(operation, target)) else {
        return Some(true);
    };
    let is_past = |time| has_run_for(operation, target, snapshot, time, now);
    let Some(listeners) = &snapshot.listeners else {
        let runs_since = target.reached.as_ref().and_then(|reached| reached.counts_from);
        let since = standby.uncounted_since?.max(runs_since.unwrap_or(Timestamp::MIN));
        return is_over(since, COUNTED_WITHIN, now).then(|| is_past(standby.took()));
    };
    let may_be_fewer = is_past(standby.took().max(FEWER));
    let serves = snapshot.standbys(&target.name).any(|container| container.state == State::Running);
    let is_complete = standby.added.iter().all(|(port, own)| {
        let returned = standby.before.as_ref().and_then(|before| before.get(port).copied()).unwrap_or(*own);
        let instance = match operation.rollback_cause {
            _ if may_be_fewer => 1,
            Some(_) => returned,
            None => *own,
        };
        let beside = if serves { *own } else { 0 };
        listeners.get(port).copied().unwrap_or_default() >= instance.saturating_add(beside)
    });
    Some(is_complete)
}

/// True once the new instance of `target` has run for `time`, but at most for the time in which it has to become Ready.
pub(super) fn has_run_for(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    time: SignedDuration,
    now: Timestamp,
) -> bool {
    let since = target.reached.as_ref().and_then(|reached| reached.counts_from);
    let longest = SignedDuration::from_secs(i64::from(operation.request.ready_timeout_seconds));
    since.is_none_or(|since| has_lasted(snapshot, since, time.min(longest), now))
}
