//! The replacement of one container instance by another, as the journal stores it: what was begun, and what a kubelet did
//! meanwhile. `replace` and `respec` decide the next step.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The replacement of one container instance by another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The ID of the instance to stop.
    pub replaces: String,
    /// The attempt number of the new instance.
    pub attempt: u32,
    /// When the preStop handler was begun. It is never begun twice.
    pub pre_stop_at: Option<Timestamp>,
    /// How often the runtime refused to start the new instance.
    #[serde(default)]
    pub refused_starts: u32,
    /// True once a fence was requested before the change of the pod's spec. This is tried once, because the change
    /// also works without a fence.
    #[serde(default)]
    pub fence_tried: bool,
    /// True once no fence could be created after the stop: the container is created without one. It is a state of its own,
    /// because the last failure is that of another effect later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfenced: bool,
    /// When the change of the pod's spec was sent first, apart from changes that were refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub respec_sent_at: Option<Timestamp>,
    /// When the pod's spec was changed for this replacement: when the response arrived.
    #[serde(default)]
    pub respec_at: Option<Timestamp>,
    /// How many instances created for this replacement were stopped by a kubelet that had not read the spec change yet.
    #[serde(default)]
    pub cut_shorts: u32,
    /// True once the kubelet has reported the new instance as created and not started.
    #[serde(default)]
    pub reported_unstarted: bool,
    /// How many instances created for this replacement were stopped by a kubelet because a probe was due before their start.
    #[serde(default)]
    pub ended_by_probe: u32,
    /// How many spec changes were sent and got no response so far. Each may have been applied, or may still be.
    #[serde(default)]
    pub unanswered: u32,
}

impl Replacement {
    /// A replacement that has not begun.
    pub(super) fn of(replaces: String, attempt: u32) -> Self {
        Self {
            replaces,
            attempt,
            pre_stop_at: None,
            refused_starts: 0,
            fence_tried: false,
            unfenced: false,
            respec_sent_at: None,
            respec_at: None,
            unanswered: 0,
            cut_shorts: 0,
            reported_unstarted: false,
            ended_by_probe: 0,
        }
    }
}
