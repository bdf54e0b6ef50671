//! Orphans: pods with the record of a rollout that is gone or has ended. A request that has touched nothing is
//! withdrawn, any other is recorded at its end.

use jiff::Timestamp;

use crate::podtask::state::{Stage, TaskState};
use crate::rollout::decide::{Write, end_of, recall_of};
use crate::rollout::pod::Pod;

/// The write for `pod`, and when to reconcile it again.
pub fn orphan(pod: &Pod, now: Timestamp) -> (Option<Write>, Option<Timestamp>) {
    let Some(record) = pod.record.as_ref().filter(|record| record.stage.is_live()) else {
        return (None, None);
    };
    if !pod.base.is_active() {
        return (None, None);
    }
    let base = &pod.base;
    match record.state(base.request.as_deref(), base.answer.as_ref(), now) {
        TaskState::Ended(end) => (Some(end_of(pod, record, &end)), None),
        TaskState::Busy { touched: false } if record.stage == Stage::Ordered => {
            (Some(recall_of(pod, record)), None)
        }
        TaskState::Busy { .. } => {
            let times = [record.silent_at(base.answer.as_ref()), record.lost_at()];
            (None, times.into_iter().filter(|at| *at > now).min())
        }
        TaskState::Over | TaskState::Waiting => (None, None),
    }
}
