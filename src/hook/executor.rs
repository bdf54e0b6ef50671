//! Executes a run of a hook: takes the next metrics from the program, starts their measurements, records and reports the
//! results.
//!
//! Metrics that are due at the same time are measured concurrently, and a slow one delays no other. Must not
//! decide what a measurement means, and must not repeat a measurement that has ended.

use std::sync::Arc;

use futures_util::future::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;

use crate::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus};
use crate::hook::measured::Measured;
use crate::hook::place::Place;
use crate::hook::program::{Next, Program};
use crate::hook::provider;
use crate::hook::settings::Settings;
use crate::hook::value::{MAX_MESSAGE, cut};
use crate::process::clock;
use crate::process::permits::Permits;

/// Runs hooks. Clones share the permits.
#[derive(Clone)]
pub struct Executor {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    /// Each measurement that runs holds one.
    permits: Permits,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Executor {
    /// The value for a whole process: the limit of concurrent measurements is per process.
    pub fn new(settings: Settings) -> Self {
        let permits = Permits::new(settings.max_at_once);
        Self { shared: Arc::new(Shared { settings, permits }) }
    }

    /// Drives a run to its end, starting from `status`. `report` is called with each changed status; changes of
    /// one moment are combined. Dropping the future stops the run; a later call with the last reported status
    /// repeats no measurement that had ended. An invalid spec ends as `Error` with the reason.
    pub async fn run(
        &self,
        spec: &HookRunSpec,
        mut status: HookRunStatus,
        place: &Place,
        mut report: impl FnMut(&HookRunStatus),
    ) -> HookRunStatus {
        if status.phase.is_some_and(HookPhase::is_completed) {
            return status;
        }
        match Program::compile(spec) {
            Ok(program) => self.drive(&program, spec, &mut status, place, &mut report).await,
            Err(invalid) => fail(&mut status, &invalid.to_string()),
        }
        report(&status);
        status
    }

    async fn drive(
        &self,
        program: &Program,
        spec: &HookRunSpec,
        status: &mut HookRunStatus,
        place: &Place,
        report: &mut impl FnMut(&HookRunStatus),
    ) {
        program.resume(status);
        program.start(status, clock::now());
        if spec.terminate {
            program.terminate(status, clock::now());
        }
        let mut changed = true;
        // The indexes of the metrics that are being measured, and their futures.
        let (mut busy, mut measuring) = (Vec::new(), FuturesUnordered::new());
        loop {
            match program.next(status, &busy, clock::now()) {
                Next::Ended(_) => return,
                Next::Measure(metrics) => {
                    for metric in metrics {
                        program.begin(status, metric, clock::now());
                        busy.push(metric);
                        measuring.push(Box::pin(self.measure(spec, metric, place)));
                    }
                    changed = true;
                }
                Next::Wait(None) if measuring.is_empty() => {
                    return fail(status, "internal error: the hook has no next step; please report this");
                }
                Next::Wait(until) => {
                    if std::mem::take(&mut changed) {
                        report(status);
                    }
                    tokio::select! {
                        () = due(until) => {}
                        Some(first) = measuring.next() => {
                            let mut ended = Some(first);
                            while let Some((metric, measured)) = ended {
                                busy.retain(|other| *other != metric);
                                program.record(status, metric, &measured, clock::now());
                                ended = measuring.next().now_or_never().flatten();
                            }
                            changed = true;
                        }
                    }
                }
            }
        }
    }

    /// One measurement, once it has a permit.
    async fn measure(&self, spec: &HookRunSpec, metric: usize, place: &Place) -> (usize, Measured) {
        let Shared { settings, permits } = &*self.shared;
        let Some(asked) = spec.metrics.get(metric) else {
            return (metric, Measured::Error("there is no such metric".to_owned()));
        };
        // The queue is never closed, so a permit always comes.
        let _permit = permits.acquire(&place.namespace).await;
        (metric, provider::measure(asked, &spec.args, place, settings).await)
    }
}

/// Waits until `at`, or forever.
async fn due(at: Option<Timestamp>) {
    match at {
        Some(at) => tokio::time::sleep(clock::until(at)).await,
        None => std::future::pending().await,
    }
}

fn fail(status: &mut HookRunStatus, why: &str) {
    status.phase = Some(HookPhase::Error);
    status.message = cut(why, MAX_MESSAGE);
}
