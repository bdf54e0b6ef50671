//! Pods on which a rollout that is gone or has ended was working: what is not touched yet is taken back, the rest ends.

use jiff::Timestamp;

use crate::rollout::decide::{Write, end_of, recall_of};
use crate::rollout::mark::{Stage, Standing, standing};
use crate::rollout::pod::Pod;

/// What follows for `pod`, and when to look at it again.
pub fn stray(pod: &Pod, now: Timestamp) -> (Option<Write>, Option<Timestamp>) {
    let Some(mark) = pod.mark.as_ref().filter(|mark| mark.is_live()) else { return (None, None) };
    if !pod.base.is_active() {
        return (None, None);
    }
    let base = &pod.base;
    match standing(&mark.rollout, Some(mark), base.request.as_deref(), base.answer.as_ref(), now) {
        Standing::Ended(end) => (Some(end_of(pod, mark, &end)), None),
        Standing::Busy { touched: false } if mark.stage == Stage::Ordered => {
            (Some(recall_of(pod, mark)), None)
        }
        Standing::Busy { .. } => {
            (None, [mark.silent_at(), mark.lost_at()].into_iter().filter(|at| *at > now).min())
        }
        Standing::New | Standing::Over(_) => (None, None),
    }
}
