//! When the agent turns a readiness gate by itself: on a new pod, and where a drain was left behind.
//!
//! Pure. Operations see to their gates themselves; this is for what is owed when none is under way. A gate that somebody
//! else closed, or that a failure keeps closed on purpose, is left alone.

use crate::api::annotation;
use crate::operation::effect::GateAction;
use crate::operation::snapshot::Gate;

/// What is to be done to a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateRepair {
    /// Open it: the pod is new, nobody has set the condition.
    OpenNew,
    /// Open it: the operation that closed it is over or lost.
    OpenLeft,
    /// Leave it closed, and say that this is on purpose: the operation failed.
    KeepClosed,
}

impl GateRepair {
    /// Whether the pod may take traffic then, and reason and message of the condition.
    pub(super) fn condition(self) -> (bool, &'static str, &'static str) {
        match self {
            Self::OpenNew => (true, annotation::GATE_READY, "no operation is under way"),
            Self::OpenLeft => (true, annotation::GATE_READY, "the operation that drained the pod is over"),
            Self::KeepClosed => GateAction::Failed.condition(),
        }
    }
}

/// What is to be done to `gate`. `over`: the pod has finished or is being deleted. `busy`: an operation on it is under
/// way. `owed`: what the last one could not do to the gate.
pub(super) fn repair(gate: &Gate, over: bool, busy: bool, owed: Option<GateAction>) -> Option<GateRepair> {
    if over || busy {
        return None;
    }
    match gate {
        Gate::Unset => Some(GateRepair::OpenNew),
        Gate::Closed { reason } if reason == annotation::GATE_DRAIN => Some(match owed {
            Some(GateAction::Failed) => GateRepair::KeepClosed,
            Some(GateAction::Open | GateAction::Drain) | None => GateRepair::OpenLeft,
        }),
        // What one operation left closed was mended by another, which could not say so.
        _ if gate.left_closed() && owed == Some(GateAction::Open) => Some(GateRepair::OpenLeft),
        Gate::Absent | Gate::Open | Gate::Closed { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_turned_on_new_pods_and_after_lost_drains_only() {
        let closed = |reason: &str| Gate::Closed { reason: reason.to_owned() };
        let drained = || closed(annotation::GATE_DRAIN);
        for (gate, owed, idle) in [
            (Gate::Absent, None, None),
            (Gate::Unset, None, Some(GateRepair::OpenNew)),
            (Gate::Open, None, None),
            (Gate::Open, Some(GateAction::Failed), None),
            (drained(), None, Some(GateRepair::OpenLeft)),
            (drained(), Some(GateAction::Open), Some(GateRepair::OpenLeft)),
            (drained(), Some(GateAction::Failed), Some(GateRepair::KeepClosed)),
            (closed(annotation::GATE_FAILED), None, None),
            (closed(annotation::GATE_FAILED), Some(GateAction::Failed), None),
            (closed(annotation::GATE_FAILED), Some(GateAction::Open), Some(GateRepair::OpenLeft)),
            (closed("StartInPlaceUpdate"), Some(GateAction::Open), None),
            (closed(""), None, None),
        ] {
            for (over, busy) in [(false, false), (false, true), (true, false), (true, true)] {
                let expected = if over || busy { None } else { idle };
                assert_eq!(repair(&gate, over, busy, owed), expected, "{gate:?}, over: {over}, busy: {busy}");
            }
        }
    }
}
