//! The drain: takes the pod out of traffic before its containers are touched, and lets it back in afterwards.
//!
//! The grace period counts from the moment the pod's kubelet had applied the closed gate; before that, no component
//! can know of it. A confirmed drain counts from the moment no `EndpointSlice` sends the pod traffic any more, and
//! starts again if one does. If another client opens the gate before the first container is touched, it is closed again and
//! the drain starts again. The grace period is always waited out in full. A gate that was closed is opened at the
//! end, unless the operation failed after it touched a container. Then the gate stays closed, with a reason that says
//! so, until an operation succeeds, with or without a drain.
//!
//! This file decides only about the gate condition, never about the pod's own `Ready`.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::status::{Phase, Step};
use crate::api::{annotation, request};
use crate::operation::decision::{Next, Waiting};
use crate::operation::effect::{Effect, GateAction, Verb};
use crate::operation::note::Note;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::snapshot::{Declared, Gate, Snapshot};
use crate::operation::state::{Operation, later};

/// The maximum time that a running kubelet needs to apply a closed gate. A kubelet that
/// does not run cannot be waited for.
const NOTICE: SignedDuration = SignedDuration::from_secs(5);
/// The interval between two checks of the `EndpointSlice`s.
const LISTEN_AGAIN: SignedDuration = SignedDuration::from_millis(250);
/// The maximum number of `EndpointSlice`s that a message names.
const MAX_NAMED: usize = 5;
/// The interval between two observations.
const REQUEUE: SignedDuration = SignedDuration::from_millis(50);

/// The state of the gate during an operation that drains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// True once closing the gate was begun. The gate may be closed even if no response arrived.
    pub begun: bool,
    /// When the gate was closed.
    pub closed_at: Option<Timestamp>,
    /// When the pod was observed as no longer Ready. The grace period counts from here.
    #[serde(default)]
    pub left_at: Option<Timestamp>,
    /// When no `EndpointSlice` was observed to send the pod traffic any more. The grace period of a confirmed drain
    /// counts from here.
    #[serde(default)]
    pub confirmed_at: Option<Timestamp>,
    /// True once the gate was opened again, or was closed for good with the reason for a failure.
    pub settled: bool,
    /// True when an earlier, failed operation left the gate closed. A pod that is not repaired stays out of traffic.
    #[serde(default)]
    pub inherited: bool,
}

impl Drain {
    /// Records that the gate was set.
    pub(super) fn turned(&mut self, gate: GateAction, now: Timestamp) {
        match gate {
            GateAction::Drain => self.closed_at = Some(now),
            GateAction::Open | GateAction::Failed => self.settled = true,
        }
    }
}

/// The next step of the drain before the first container is touched; `None` when the drain is complete.
pub(super) fn close(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    let drain = operation.drain.as_ref().filter(|_| operation.request.drained_by().is_some())?;
    if drain.begun && drain.left_at.is_none() && operation.in_cluster && snapshot.declared.is_none() {
        let on = "waiting for the API server to report the pod".to_owned();
        return Some(Next::Wait(Waiting { until: later(now, REQUEUE), on }));
    }
    let Some(closed_at) = drain.closed_at.or_else(|| found_closed(operation, snapshot)) else {
        if operation.step != Step::Drain {
            return Some(Next::Note(Note::Step(Step::Drain)));
        }
        if let Some(message) = operation.given_up(Verb::Gate, "") {
            let failure = Failure::Gate { message: message.to_owned() };
            return Some(Next::Note(Note::End(operation.failed(failure))));
        }
        return Some(Next::Do(Effect::Gate { gate: GateAction::Drain }));
    };
    let Some(left_at) = drain.left_at else {
        let until = later(closed_at, NOTICE);
        let unready_since = snapshot.declared.as_ref().and_then(|declared| declared.unready_since);
        if let Some(since) = unready_since {
            // The kubelet reports whole seconds. This program may not have been running at that time.
            let left_at = later(since, SignedDuration::from_secs(1)).min(now).max(closed_at);
            return Some(Next::Note(Note::Drained(left_at)));
        }
        if now >= until {
            return Some(Next::Note(Note::Drained(until)));
        }
        let until = until.min(later(now, REQUEUE));
        let on = "waiting for the kubelet to take the pod out of traffic".to_owned();
        return Some(Next::Wait(Waiting { until, on }));
    };
    if is_reopened(snapshot) {
        return Some(Next::Note(Note::Reopened));
    }
    let mut since = left_at;
    if is_to_be_confirmed(operation) {
        since = match (drain.confirmed_at, snapshot.serving.as_deref()) {
            // An unknown state does not revoke an observed one.
            (Some(confirmed_at), None | Some([])) => confirmed_at,
            (Some(_), Some(_)) => return Some(Next::Note(Note::Confirmed(None))),
            (None, Some([])) => return Some(Next::Note(Note::Confirmed(Some(now)))),
            (None, serving) => {
                let (until, on) = (later(now, LISTEN_AGAIN), sends(serving));
                return Some(Next::Wait(Waiting { until, on }));
            }
        };
    }
    let grace = SignedDuration::from_secs(i64::from(operation.request.grace_period_seconds));
    let until = later(since, grace);
    let on = || "waiting for the grace period to end".to_owned();
    (now < until).then(|| Next::Wait(Waiting { until, on: on() }))
}

/// The failure when the time is up before the drain is confirmed: names what keeps sending traffic to the pod.
pub(super) fn unconfirmed(operation: &Operation, snapshot: &Snapshot) -> Option<Failure> {
    let drain = operation.drain.as_ref().filter(|_| is_to_be_confirmed(operation))?;
    let waits = drain.left_at.is_some() && drain.confirmed_at.is_none();
    waits.then(|| Failure::NotDrained { message: sends(snapshot.serving.as_deref()) })
}

/// True when another client has opened the gate that was closed: the pod may get traffic again. This is looked at until the
/// first container is touched. A state that may be out of date says nothing.
fn is_reopened(snapshot: &Snapshot) -> bool {
    snapshot.declared.as_ref().is_some_and(|declared| declared.current && declared.gate == Gate::Open)
}

fn is_to_be_confirmed(operation: &Operation) -> bool {
    operation.request.drain == request::Drain::Confirmed
}

/// A message that names what sends the pod traffic.
fn sends(serving: Option<&[String]>) -> String {
    let Some(serving) = serving.filter(|serving| !serving.is_empty()) else {
        return "its EndpointSlices cannot be read: the API server is unreachable, or the agent has no permission \
                to list and watch endpointslices"
            .to_owned();
    };
    let more = if serving.len() > MAX_NAMED { " and more" } else { "" };
    let names = serving[..serving.len().min(MAX_NAMED)].join(", ");
    format!(
        "EndpointSlice {names}{more} still sends it traffic (a Service with publishNotReadyAddresses always \
         does; a slice that another client manages does until that client changes it)"
    )
}

/// The earliest time at which the gate was closed, when the response was lost but its effect is observed.
fn found_closed(operation: &Operation, snapshot: &Snapshot) -> Option<Timestamp> {
    let declared = snapshot.declared.as_ref()?;
    let by_drain = matches!(&declared.gate, Gate::Closed { reason } if reason == annotation::GATE_DRAIN);
    let begun = operation.drain.as_ref().is_some_and(|drain| drain.begun);
    (begun && by_drain && declared.unready_since.is_some()).then_some(operation.begun_at)
}

/// The last change of the gate, when everything else has ended; `None` when there is none.
pub(super) fn settle(operation: &Operation, outcome: &Outcome, snapshot: &Snapshot) -> Option<Next> {
    let gate = last_gate_action(operation.drain.as_ref()?, outcome)?;
    // A pod that is being terminated must not receive traffic again.
    let leaves = snapshot.declared.as_ref().is_none_or(Declared::leaves);
    if leaves || operation.given_up(Verb::Gate, "").is_some() {
        return None;
    }
    Some(Next::Do(Effect::Gate { gate }))
}

/// The same before a standby stops, which may take its whole grace period, if the gate is to be opened. A change that has
/// failed is tried again after the stop, and after one that fails as well.
pub(super) fn reopen(operation: &Operation, outcome: &Outcome, snapshot: &Snapshot) -> Option<Next> {
    let last = operation.last_failure.as_ref().map(|last| last.verb);
    let has_failed = matches!(last, Some(Verb::Gate | Verb::StopStandby));
    let opens = |next: &Next| matches!(next, Next::Do(Effect::Gate { gate: GateAction::Open }));
    settle(operation, outcome, snapshot).filter(|next| !has_failed && opens(next))
}

/// The state that the gate must still be set to when `outcome` is the end.
fn last_gate_action(drain: &Drain, outcome: &Outcome) -> Option<GateAction> {
    if drain.settled {
        return None;
    }
    match outcome {
        Outcome::Succeeded | Outcome::RolledBack(_) if drain.begun || drain.inherited => {
            Some(GateAction::Open)
        }
        _ if !drain.begun => None,
        Outcome::Failed { touched: true, .. } if drain.closed_at.or(drain.left_at).is_some() => {
            Some(GateAction::Failed)
        }
        _ if drain.inherited => Some(GateAction::Failed),
        _ => Some(GateAction::Open),
    }
}

impl Operation {
    /// The minimum time in seconds that the drain still needs; 0 once its grace period counts.
    pub(super) fn seconds_to_drain(&self) -> u64 {
        let counts = |drain: &&Drain| match self.request.drain {
            request::Drain::Fixed => drain.left_at.is_some(),
            request::Drain::Confirmed => drain.confirmed_at.is_some(),
        };
        let undrained = self.drain.as_ref().filter(|drain| !counts(drain));
        undrained.map_or(0, |_| u64::from(self.request.grace_period_seconds))
    }

    /// True while decisions depend on the pod's `EndpointSlice`s.
    pub fn awaits_slices(&self) -> bool {
        let open = !self.touched() && self.ending.is_none() && self.outcome.is_none();
        open && is_to_be_confirmed(self) && self.drain.as_ref().is_some_and(|drain| drain.begun)
    }

    /// As [`Self::owed_gate`], for an operation that has ended in this phase, and whose end is not in the journal.
    pub fn owed_gate_after(&self, phase: Phase, before: Option<GateAction>) -> Option<GateAction> {
        let is_drained = |drain: &Drain| drain.begun && !drain.settled;
        let fails = phase == Phase::Failed && self.touched() && self.drain.as_ref().is_some_and(is_drained);
        if fails { Some(GateAction::Failed) } else { self.owed_gate(before) }
    }

    /// The state that the gate must still be set to although the operation has ended, because the API server was away.
    /// `before`: what an earlier operation left to be done, which stays to be done if this one has not changed the gate.
    pub fn owed_gate(&self, before: Option<GateAction>) -> Option<GateAction> {
        let drain = self.drain.as_ref();
        let own =
            drain.zip(self.outcome.as_ref()).and_then(|(drain, outcome)| last_gate_action(drain, outcome));
        own.or(before.filter(|_| drain.is_none_or(|drain| !drain.begun && !drain.settled)))
    }
}

#[cfg(test)]
mod tests;
