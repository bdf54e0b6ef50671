//! Decides when the agent changes a readiness gate outside of an operation: on a new pod, and after a drain that
//! was not undone.
//!
//! Pure. Operations set their gates themselves; this module only handles a gate while no operation runs. It leaves
//! alone a gate that another writer closed, or that a failed operation keeps closed on purpose.

use crate::api::annotation;
use crate::operation::effect::GateAction;
use crate::operation::snapshot::Gate;

/// The change to make to a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateRepair {
    /// Open it: the pod is new and the condition is not set yet.
    OpenNew,
    /// Open it: the operation that closed it has ended or is lost.
    OpenLeft,
    /// Leave it closed, and write a condition that gives the reason: the operation failed.
    KeepClosed,
}

impl GateRepair {
    /// Whether the condition is True (the pod may take traffic), and the reason and message of the condition.
    pub(super) fn condition(self) -> (bool, &'static str, &'static str) {
        match self {
            Self::OpenNew => (true, annotation::GATE_READY, "no operation is in progress"),
            Self::OpenLeft => (true, annotation::GATE_READY, "the operation that drained the pod has ended"),
            Self::KeepClosed => GateAction::Failed.condition(),
        }
    }
}

/// Decides what to do with `gate`. `over`: the pod has finished or is being deleted. `busy`: an operation on the
/// pod is in progress. `owed`: the gate change that the last operation could not write.
pub(super) fn repair(gate: &Gate, over: bool, busy: bool, owed: Option<GateAction>) -> Option<GateRepair> {
    if over || busy {
        return None;
    }
    match gate {
        Gate::Unset => Some(GateRepair::OpenNew),
        _ if gate.is_drained() => Some(match owed {
            Some(GateAction::Failed) => GateRepair::KeepClosed,
            Some(GateAction::Open | GateAction::Drain) | None => GateRepair::OpenLeft,
        }),
        // A failed operation left the gate closed. A later operation repaired the pod, but could not open the gate.
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
