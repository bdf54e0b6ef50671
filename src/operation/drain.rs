//! Taking the pod out of traffic before its containers are touched, and letting it back in.
//!
//! The grace period counts from the moment the pod's kubelet had taken the closed gate in: before that nobody can know of it.
//! A drain that is to be confirmed counts from when no `EndpointSlice` sends the pod traffic any more; one that does so again
//! has it count anew. The grace period is waited out in full. What
//! was closed is opened again at the end, unless the operation failed in the middle: then it stays closed, marked so, until
//! an operation succeeds, one that drains or not.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::status::Step;
use crate::api::{annotation, request};
use crate::operation::answer::{Next, Waiting};
use crate::operation::effect::{Effect, GateAction, Verb};
use crate::operation::note::Note;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::snapshot::{Declared, Gate, Snapshot};
use crate::operation::state::{Operation, later};

/// How long a kubelet that runs takes at most to take in a closed gate. One that does not run cannot be waited for.
const NOTICE: SignedDuration = SignedDuration::from_secs(5);
/// How soon to look again at what the `EndpointSlice`s say.
const LISTEN_AGAIN: SignedDuration = SignedDuration::from_millis(250);
/// How many `EndpointSlice`s are named.
const NAMED: usize = 5;
/// How soon to look again.
const REQUEUE: SignedDuration = SignedDuration::from_millis(50);

/// The gate in the course of an operation that drains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// True once closing it was begun: it may be closed even if no answer came.
    pub begun: bool,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
    /// When the pod was seen not to be Ready any more; the grace period counts from then.
    #[serde(default)]
    pub left_at: Option<Timestamp>,
    /// When no `EndpointSlice` was seen to send it traffic any more; the grace period of a drain that is to be confirmed
    /// counts from then.
    #[serde(default)]
    pub confirmed_at: Option<Timestamp>,
    /// True once it was opened again, or marked as left closed.
    pub settled: bool,
    /// True when an operation that failed had left it closed: what is not mended stays out of traffic.
    #[serde(default)]
    pub inherited: bool,
}

impl Drain {
    /// Takes in that the gate was turned.
    pub(super) fn turned(&mut self, gate: GateAction, now: Timestamp) {
        match gate {
            GateAction::Drain => self.closed_at = Some(now),
            GateAction::Open | GateAction::Failed => self.settled = true,
        }
    }
}

/// What is to be done before the first container is touched.
pub(super) fn close(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    let drain = operation.drain.as_ref().filter(|_| operation.request.drained_by().is_some())?;
    if drain.begun && drain.left_at.is_none() && operation.in_cluster && snapshot.declared.is_none() {
        let on = "the API server to show the pod".to_owned();
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
            // Told in whole seconds. Nobody may have been here to see it.
            let left_at = later(since, SignedDuration::from_secs(1)).min(now).max(closed_at);
            return Some(Next::Note(Note::Drained(left_at)));
        }
        if now >= until {
            return Some(Next::Note(Note::Drained(until)));
        }
        let until = until.min(later(now, REQUEUE));
        let on = "the kubelet to take the pod out of traffic".to_owned();
        return Some(Next::Wait(Waiting { until, on }));
    };
    let mut since = left_at;
    if is_to_be_confirmed(operation) {
        since = match (drain.confirmed_at, snapshot.serving.as_deref()) {
            // What is not known does not take back what was seen.
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
    let on = || "connections to end elsewhere".to_owned();
    (now < until).then(|| Next::Wait(Waiting { until, on: on() }))
}

/// Why it has not come further when there is no time left: what keeps sending traffic to the pod.
pub(super) fn unconfirmed(operation: &Operation, snapshot: &Snapshot) -> Option<Failure> {
    let drain = operation.drain.as_ref().filter(|_| is_to_be_confirmed(operation))?;
    let waits = drain.left_at.is_some() && drain.confirmed_at.is_none();
    waits.then(|| Failure::NotDrained { message: sends(snapshot.serving.as_deref()) })
}

fn is_to_be_confirmed(operation: &Operation) -> bool {
    operation.request.drain == request::Drain::Confirmed
}

/// What sends the pod traffic, for people.
fn sends(serving: Option<&[String]>) -> String {
    let Some(serving) = serving.filter(|serving| !serving.is_empty()) else {
        return "what its EndpointSlices say is not known: the API server is away, or does not let the agent list and watch \
                endpointslices"
            .to_owned();
    };
    let more = if serving.len() > NAMED { " and more" } else { "" };
    let names = serving[..serving.len().min(NAMED)].join(", ");
    format!(
        "EndpointSlice {names}{more} still sends it traffic (a Service with publishNotReadyAddresses always does, and a \
         slice that somebody else writes until they change it)"
    )
}

/// When the gate was closed at the earliest, where the answer to that was lost but its effect is seen.
fn found_closed(operation: &Operation, snapshot: &Snapshot) -> Option<Timestamp> {
    let declared = snapshot.declared.as_ref()?;
    let by_drain = matches!(&declared.gate, Gate::Closed { reason } if reason == annotation::GATE_DRAIN);
    let begun = operation.drain.as_ref().is_some_and(|drain| drain.begun);
    (begun && by_drain && declared.unready_since.is_some()).then_some(operation.begun_at)
}

/// What is to be done about the gate when everything else is over.
pub(super) fn settle(operation: &Operation, outcome: &Outcome, snapshot: &Snapshot) -> Option<Next> {
    let gate = last_gate_action(operation.drain.as_ref()?, outcome)?;
    // A pod on its way out gets no traffic again.
    let leaves = snapshot.declared.as_ref().is_none_or(Declared::leaves);
    if leaves || operation.given_up(Verb::Gate, "").is_some() {
        return None;
    }
    Some(Next::Do(Effect::Gate { gate }))
}

/// What the gate is still to be turned to when `outcome` is the end.
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
    /// How long the drain will still take at least before it begins to count, in seconds.
    pub(super) fn seconds_to_drain(&self) -> u64 {
        let counts = |drain: &&Drain| match self.request.drain {
            request::Drain::Fixed => drain.left_at.is_some(),
            request::Drain::Confirmed => drain.confirmed_at.is_some(),
        };
        let undrained = self.drain.as_ref().filter(|drain| !counts(drain));
        undrained.map_or(0, |_| u64::from(self.request.grace_period_seconds))
    }

    /// True while it matters what the `EndpointSlice`s say of the pod.
    pub fn awaits_slices(&self) -> bool {
        let open = !self.touched() && self.ending.is_none() && self.outcome.is_none();
        open && is_to_be_confirmed(self) && self.drain.as_ref().is_some_and(|drain| drain.begun)
    }

    /// What the gate still has to be turned to although the operation is over: the API server was away.
    pub fn owed_gate(&self) -> Option<GateAction> {
        last_gate_action(self.drain.as_ref()?, self.outcome.as_ref()?)
    }
}

#[cfg(test)]
mod tests;
