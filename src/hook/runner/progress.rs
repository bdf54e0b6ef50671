//! Tracks the part of a HookRun's status that is not written yet. Must not write it.
//!
//! Only measurements that have ended count: the start of a measurement is written together with the next result,
//! so that a measurement costs one write.

use tokio::sync::watch;

use crate::api::hook_run::HookRunStatus;

/// The reported status, and the written one.
pub(super) struct Progress {
    reported: watch::Receiver<HookRunStatus>,
    written: Option<HookRunStatus>,
}

impl Progress {
    /// `written`: the status that the API server has.
    pub(super) fn new(reported: watch::Receiver<HookRunStatus>, written: Option<HookRunStatus>) -> Self {
        Self { reported, written: written.map(ended) }
    }

    /// The newest status, if it contains more than the written one.
    pub(super) fn updates(&mut self) -> Option<HookRunStatus> {
        let status = self.reported.borrow_and_update().clone();
        self.is_change(&status).then_some(status)
    }

    pub(super) fn is_change(&self, status: &HookRunStatus) -> bool {
        self.written.as_ref() != Some(&ended(status.clone()))
    }

    /// Returns when a status was reported since the last call of [`Self::updates`].
    pub(super) async fn changed(&mut self) {
        if self.reported.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The status that was written last.
    pub(super) fn into_written(self) -> Option<HookRunStatus> {
        self.written
    }

    pub(super) fn written(&mut self, status: HookRunStatus) {
        self.written = Some(ended(status));
    }
}

/// Returns when no measurement is running.
pub(super) async fn measurements_finished(mut reported: watch::Receiver<HookRunStatus>) {
    let is_quiet = |status: &HookRunStatus| {
        let mut measurements = status.metric_results.iter().flat_map(|result| &result.measurements);
        measurements.all(|measurement| measurement.finished_at.is_some())
    };
    // The channel is closed when the run is over.
    let _ = reported.wait_for(is_quiet).await;
}

/// The status without the measurements that are running.
fn ended(mut status: HookRunStatus) -> HookRunStatus {
    for result in &mut status.metric_results {
        result.measurements.retain(|measurement| measurement.finished_at.is_some());
    }
    status.metric_results.retain(|result| !result.measurements.is_empty() || result.phase.is_completed());
    status
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use jiff::Timestamp;

    use super::*;
    use crate::api::hook_run::{HookPhase, Measurement, MetricResult};

    fn status(finished: &[bool]) -> HookRunStatus {
        let measurement = |finished: &bool| Measurement {
            phase: if *finished { HookPhase::Successful } else { HookPhase::Running },
            message: String::new(),
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: finished.then_some(Timestamp::UNIX_EPOCH),
            value: String::new(),
        };
        let result = MetricResult {
            name: "m".into(),
            phase: HookPhase::Running,
            message: String::new(),
            count: 0,
            successful: 0,
            failed: 0,
            inconclusive: 0,
            error: 0,
            consecutive_error: 0,
            consecutive_successful: 0,
            measurements: finished.iter().map(measurement).collect(),
        };
        HookRunStatus {
            phase: Some(HookPhase::Running),
            metric_results: vec![result],
            ..HookRunStatus::default()
        }
    }

    #[tokio::test]
    async fn running_measurements_are_awaited() {
        let (reported, receiver) = watch::channel(status(&[true, false]));
        let mut waiting = Box::pin(measurements_finished(receiver));
        assert!(waiting.as_mut().now_or_never().is_none());
        reported.send_replace(status(&[true, true]));
        assert_eq!(waiting.as_mut().now_or_never(), Some(()));
    }

    #[test]
    fn a_beginning_is_written_along_with_the_next_end() {
        let (reported, receiver) = watch::channel(HookRunStatus::default());
        let mut progress = Progress::new(receiver, Some(HookRunStatus::default()));
        assert_eq!(progress.updates(), None);
        // The phase `Running` is a change, once.
        reported.send_replace(status(&[false]));
        let first = progress.updates().unwrap();
        progress.written(first);
        assert_eq!(progress.updates(), None);
        reported.send_replace(status(&[true]));
        let second = progress.updates().unwrap();
        assert_eq!(second, status(&[true]));
        progress.written(second);
        reported.send_replace(status(&[true, false]));
        assert_eq!(progress.updates(), None);
    }
}
