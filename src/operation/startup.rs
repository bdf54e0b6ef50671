//! Decides whether a report that a container is Ready counts for the new instance although the container has a startup
//! probe. It must not judge the instance: it only says how long the report may still be about the instance before it.
//!
//! Kubelets since 1.35 take over from the previous instance that its startup probe has passed, unless they observed that
//! nothing ran in between. They notice when the probe is due next, and report the new instance as not started until its
//! own probe has passed (`isContainerStarted` and `doProbe` in pkg/kubelet/prober; `SetContainerStartup` in
//! pkg/kubelet/status). An instance that was created over the
//! runtime's socket starts so soon after the end of the previous one that a kubelet rarely observes the time between.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::operation::note::Note;
use crate::operation::snapshot::{DeclaredContainer, Snapshot};
use crate::operation::state::{Target, later};

/// How long a kubelet may take, after the period of the probe, until its report has arrived.
const REPORTED_WITHIN: SignedDuration = SignedDuration::from_secs(2);

/// What its kubelet has reported about the startup probe of a new instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Startup {
    /// That it had not passed. Later reports are about this instance.
    Awaited,
    /// That it had passed, first observed at this time, which may be about the previous instance.
    Claimed(Timestamp),
}

impl Startup {
    /// When the claim was first observed.
    pub(super) fn claimed_at(&mut self) -> Option<&mut Timestamp> {
        match self {
            Self::Awaited => None,
            Self::Claimed(at) => Some(at),
        }
    }
}

/// Notes what the kubelet reports about the startup probe of the new instance of `target`. `None` without such a probe, and
/// if nothing new is reported.
pub(super) fn reported(target: &Target, snapshot: &Snapshot, now: Timestamp) -> Option<Note> {
    let reached = target.reached.as_ref()?;
    let declared = snapshot.declared.as_ref()?.container(&target.name)?;
    let is_about = declared.container_id.as_deref() == Some(reached.to.container_id.as_str());
    if declared.startup_period.is_none() || !is_about {
        return None;
    }
    let startup = match (reached.startup, declared.started) {
        (Some(Startup::Awaited), _) | (Some(Startup::Claimed(_)), true) => return None,
        (_, false) => Startup::Awaited,
        (None, true) => Startup::Claimed(now),
    };
    Some(Note::Startup(target.name.clone(), startup))
}

/// False while the kubelet reports that the startup probe has not passed. It can report the instance as Ready until it has
/// synchronised the pod, because it notes the two at different times.
pub(super) fn has_started(declared: &DeclaredContainer) -> bool {
    declared.started || declared.startup_period.is_none()
}

/// Until when the report that `target` is Ready may be about the previous instance; `None` if it is about the new one.
pub(super) fn claimed_until(target: &Target, declared: &DeclaredContainer) -> Option<Timestamp> {
    let period = SignedDuration::try_from(declared.startup_period?).unwrap_or(SignedDuration::MAX);
    match target.reached.as_ref()?.startup? {
        Startup::Awaited => None,
        Startup::Claimed(at) => Some(later(later(at, period), REPORTED_WITHIN)),
    }
}

#[cfg(test)]
mod tests;
