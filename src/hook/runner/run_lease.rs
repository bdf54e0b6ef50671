//! The lease of one HookRun, from the takeover to the verdict. Must not decide which HookRuns are ours
//! ([`RunSelection`](super::RunSelection) does).
//!
//! Exactly one runner runs a HookRun, without comparing clocks. Only the runner that is named on it measures and
//! writes. A runner that has not received a confirmation from the API server for a while
//! ([`Terms::lapse`](super::Terms)) that it is still named stops measuring. After a takeover from a runner that
//! has not released the HookRun, the new runner waits longer than that: by then the old one has observed the
//! takeover or has stopped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus};
use crate::cluster::error::{Class, Error};
use crate::cluster::event::ObjectEvent;
use crate::cluster::hooks::{Run, Summary, Unreadable};
use crate::hook::place::Place;
use crate::hook::program::Program;
use crate::hook::runner::RunnerContext;
use crate::hook::runner::progress::{self, Progress};
use crate::hook::value::{MAX_MESSAGE, cut};
use crate::process::backoff::Backoff;
use crate::process::clock;
use crate::process::log::chain;

/// The pauses between attempts to write or read.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// Time limit of running measurements, and of each remaining write, when the process shuts down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);
/// Attempts to write an event.
const MAX_EVENT_TRIES: u32 = 5;

/// One HookRun and its lease.
pub(super) struct HookRunLease {
    context: Arc<RunnerContext>,
    /// Notified when the HookRun has changed; false if it belongs to another runner now.
    sight: watch::Receiver<bool>,
    /// The newest version that was observed.
    run: Summary,
    /// The pod and namespace of its measurements, or why it must not be measured.
    place: Result<Place, String>,
    /// The start of the last call that confirmed that the HookRun is ours.
    confirmed_at: Instant,
}

/// The spec and status of a HookRun: read when it is taken, not before.
type Content = Result<(HookRunSpec, HookRunStatus), Unreadable>;

/// Why measuring stops.
#[derive(Debug)]
enum Stop {
    /// The HookRun is gone, or another runner's.
    Lost,
    /// The HookRun must be released.
    Release,
    /// The API server has not answered for too long.
    Lapse,
    /// The process shuts down.
    Shutdown,
    /// The status is larger than the API server stores.
    TooLarge,
    /// A user has approved or terminated it.
    Order(Order),
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Approve,
    Terminate,
}

impl HookRunLease {
    pub(super) fn new(
        context: Arc<RunnerContext>,
        sight: watch::Receiver<bool>,
        run: Summary,
        place: Result<Place, String>,
    ) -> Self {
        Self { context, sight, run, place, confirmed_at: Instant::now() }
    }

    /// Takes the HookRun, drives it to its end and reports that; or releases it.
    pub(super) async fn run(mut self) {
        let name = format!("{}/{}", self.run.namespace().unwrap_or_default(), self.run.name_any());
        let is_ours = *self.sight.borrow();
        let taken = if is_ours { self.take().await } else { Err(Stop::Release) };
        let stopped = match taken {
            Ok(content) => self.drive(&name, content).await,
            Err(stopped) => Err(stopped),
        };
        match stopped {
            Ok(()) | Err(Stop::Shutdown) => {}
            Err(Stop::Release) => self.release(&name).await,
            Err(why) => tracing::debug!(hook_run = name, ?why, "the HookRun is no longer run here"),
        }
    }

    // ---- takeover and release ----

    /// Writes this runner's name on the HookRun. From then on no other runner changes its status.
    async fn take(&mut self) -> Result<Content, Stop> {
        let me = self.context.identity.runner.clone();
        let found = Instant::now();
        let mut backoff = BACKOFF;
        // A takeover whose answer is lost is one all the same.
        let mut was_foreign = false;
        loop {
            let began = Instant::now();
            let named = self.run.runner();
            let release_by = found + self.context.identity.release_timeout;
            let is_foreign = named.is_some_and(|named| named != me);
            was_foreign = is_foreign || was_foreign && named.is_some();
            if is_foreign && began < release_by {
                self.wait(release_by).await?;
                continue;
            }
            let taken = if named == Some(me.as_str()) {
                self.context.server.read_hook_run(&self.run).await
            } else {
                self.context.server.set_hook_run_runner(&self.run, Some(&me)).await.map(Some)
            };
            match taken {
                Ok(Some(run)) => {
                    self.upsert(&run);
                    if self.is_named() {
                        self.confirmed_at = began;
                        let run = if was_foreign { self.fence().await? } else { run };
                        return Ok(content(&run));
                    }
                }
                Ok(None) => return Err(Stop::Lost),
                Err(error) if error.class() == Class::Gone => return Err(Stop::Lost),
                // Conflict: the object was modified concurrently. Read which runner is named now.
                Err(error) if error.class() == Class::Refused => {
                    if let Ok(seen) = self.context.server.read_hook_run(&self.run).await {
                        self.run = seen.ok_or(Stop::Lost)?.summary();
                    }
                }
                Err(error) => self.report("the HookRun cannot be acquired: retrying", &error, &backoff),
            }
            self.wait(Instant::now() + backoff.pause()).await?;
        }
    }

    /// Waits until the previous runner has observed the takeover, or has stopped for lack of a confirmation.
    /// Returns the HookRun as it is then.
    async fn fence(&mut self) -> Result<Run, Stop> {
        let until = Instant::now() + self.context.terms.fence;
        while Instant::now() < until {
            self.wait(until).await?;
            if !self.is_named() {
                return Err(Stop::Lost);
            }
        }
        let began = Instant::now();
        match self.context.server.read_hook_run(&self.run).await {
            Ok(Some(run)) => {
                self.upsert(&run);
                self.confirmed_at = began;
                Ok(run)
            }
            Ok(None) => Err(Stop::Lost),
            Err(_) => Err(Stop::Lapse),
        }
    }

    /// Waits until `until`, or until the HookRun has changed.
    async fn wait(&mut self, until: Instant) -> Result<(), Stop> {
        tokio::select! {
            () = self.context.stop.cancelled() => return Err(Stop::Shutdown),
            changed = self.sight.changed() => {
                if changed.is_err() {
                    return Err(Stop::Lost);
                }
            }
            () = sleep_until(until) => {}
        }
        self.adopt_cached();
        if *self.sight.borrow() { Ok(()) } else { Err(Stop::Release) }
    }

    /// Removes the runner's name from the HookRun, so that it can be taken at once.
    async fn release(&mut self, name: &str) {
        let mut backoff = BACKOFF;
        while self.is_named() && !self.context.stop.is_cancelled() {
            match self.context.server.set_hook_run_runner(&self.run, None).await {
                Ok(run) => {
                    self.upsert(&run);
                    tracing::info!(hook_run = name, "HookRun released: another runner may run it");
                }
                Err(error) if error.class() == Class::Gone => return,
                // Conflict: the cache may lag behind.
                Err(error) if error.class() == Class::Refused => {
                    let Ok(Some(run)) = self.context.server.read_hook_run(&self.run).await else { return };
                    self.upsert(&run);
                    sleep(backoff.pause()).await;
                }
                Err(error) => {
                    self.report("the HookRun cannot be released: retrying", &error, &backoff);
                    sleep(backoff.pause()).await;
                }
            }
        }
    }

    // ---- running ----

    /// Drives the HookRun to its end.
    async fn drive(&mut self, name: &str, content: Content) -> Result<(), Stop> {
        if self.run.is_completed() {
            return Ok(());
        }
        let readable = content.map_err(|why| (HookRunStatus::default(), why.to_string()));
        let ready = readable.and_then(|(spec, status)| match self.place.clone() {
            Ok(place) => Ok((spec, status, place)),
            Err(why) => Err((status, why)),
        });
        let (mut spec, status, place) = match ready {
            Ok(ready) => ready,
            Err((status, message)) => {
                let message = cut(&message, MAX_MESSAGE);
                return self
                    .end(name, HookRunStatus { phase: Some(HookPhase::Error), message, ..status })
                    .await;
            }
        };
        tracing::info!(hook_run = name, "HookRun acquired");
        let mut written = Some(status.clone());
        let (reported, _) = watch::channel(status);
        loop {
            let mut progress = Progress::new(reported.subscribe(), written);
            let executor = self.context.executor.clone();
            let metrics = self.context.metrics.clone();
            let last = reported.borrow().clone();
            let stop = {
                let mut running = pin!(executor.run(&spec, last, &place, |status| {
                    metrics.measured(&reported.borrow(), status);
                    reported.send_replace(status.clone());
                }));
                let stop = tokio::select! {
                    ended = &mut running => return self.end(name, ended).await,
                    stop = self.wait_for_change(&mut progress) => stop,
                };
                if matches!(stop, Stop::Release | Stop::Shutdown) {
                    // The next runner measures at once: so wait for the measurements that are running.
                    tokio::select! {
                        ended = running => return self.end(name, ended).await,
                        _ = timeout(SHUTDOWN_LIMIT, progress::measurements_finished(reported.subscribe())) => {}
                    }
                }
                stop
            };
            match stop {
                Stop::Order(Order::Terminate) => spec.terminate = true,
                Stop::Order(Order::Approve) => {
                    let approved = approved(&spec, reported.borrow().clone());
                    return self.end(name, approved).await;
                }
                Stop::TooLarge => {
                    let started_at = reported.borrow().started_at;
                    return self.end(name, too_large(started_at)).await;
                }
                Stop::Lapse => {
                    tracing::warn!(
                        hook_run = name,
                        "the API server does not answer: measurements wait for it"
                    );
                    self.await_confirmation().await?;
                }
                Stop::Release | Stop::Shutdown => {
                    let last = reported.borrow().clone();
                    if progress.is_change(&last) {
                        // Without this write the next runner would repeat the measurements.
                        let _ = timeout(SHUTDOWN_LIMIT, self.write(&last)).await;
                    }
                    return Err(stop);
                }
                Stop::Lost => return Err(stop),
            }
            written = progress.into_written();
        }
    }

    /// Writes new results and observes changes, until there is a reason to stop measuring.
    async fn wait_for_change(&mut self, progress: &mut Progress) -> Stop {
        let mut again = Instant::now();
        let mut backoff = BACKOFF;
        loop {
            if let Some(stop) = self.reason_to_stop() {
                return stop;
            }
            let updates = progress.updates();
            let ask = if updates.is_some() {
                again
            } else {
                again.max(self.confirmed_at + self.context.terms.confirm)
            };
            tokio::select! {
                () = self.context.stop.cancelled() => return Stop::Shutdown,
                changed = self.sight.changed() => {
                    if changed.is_err() {
                        return Stop::Lost;
                    }
                    self.adopt_cached();
                }
                () = progress.changed(), if updates.is_none() => {}
                () = sleep_until(self.confirmed_at + self.context.terms.lapse) => return Stop::Lapse,
                () = sleep_until(ask) => {
                    let limit = self.confirmed_at + self.context.terms.lapse;
                    let asked = match &updates {
                        Some(status) => timeout_at(limit, self.write(status)).await,
                        None => timeout_at(limit, self.confirm()).await,
                    };
                    match asked {
                        Err(_) => return Stop::Lapse,
                        Ok(Ok(())) => {
                            backoff.reset();
                            if let Some(status) = updates {
                                progress.written(status);
                            }
                        }
                        Ok(Err(Failure::Stop(stop))) => return stop,
                        Ok(Err(Failure::Call(error))) if error.is_too_large() => return Stop::TooLarge,
                        Ok(Err(Failure::Call(error))) => {
                            self.report("the status of the HookRun cannot be written: retrying", &error, &backoff);
                            again = Instant::now() + backoff.pause();
                        }
                    }
                }
            }
        }
    }

    /// Waits until the API server confirms again that the HookRun is ours.
    async fn await_confirmation(&mut self) -> Result<(), Stop> {
        let mut backoff = BACKOFF;
        loop {
            match self.confirm().await {
                Ok(()) => return Ok(()),
                Err(Failure::Stop(stop)) => return Err(stop),
                Err(Failure::Call(_)) => self.wait(Instant::now() + backoff.pause()).await?,
            }
        }
    }

    /// Writes the verdict, and reports it.
    async fn end(&mut self, name: &str, mut status: HookRunStatus) -> Result<(), Stop> {
        let mut backoff = BACKOFF;
        loop {
            match self.write(&status).await {
                Ok(()) => break,
                Err(Failure::Stop(stop)) => return Err(stop),
                Err(Failure::Call(error)) if error.is_too_large() && !status.metric_results.is_empty() => {
                    status = too_large(status.started_at);
                }
                Err(Failure::Call(error)) => {
                    self.report("the status of the HookRun cannot be written: retrying", &error, &backoff);
                    tokio::select! {
                        () = sleep(backoff.pause()) => {}
                        () = self.context.stop.cancelled() => {
                            let _ = timeout(SHUTDOWN_LIMIT, self.write(&status)).await;
                            return Err(Stop::Shutdown);
                        }
                    }
                }
            }
        }
        let phase = status.phase.unwrap_or(HookPhase::Error);
        self.context.metrics.ended(&status, clock::now());
        tracing::info!(hook_run = name, ?phase, "ended");
        self.announce(phase, &status.message).await;
        Ok(())
    }

    async fn announce(&self, phase: HookPhase, message: &str) {
        let failed = matches!(phase, HookPhase::Failed | HookPhase::Error);
        let reported = ObjectEvent {
            reason: if failed { "Failed" } else { "Complete" }.to_owned(),
            warning: phase != HookPhase::Successful,
            note: if message.is_empty() { format!("{phase:?}") } else { format!("{phase:?}: {message}") },
            at: clock::now(),
        };
        let mut backoff = BACKOFF;
        for _ in 0..MAX_EVENT_TRIES {
            match self.context.server.hook_run_event(&self.run, &self.context.identity.host, &reported).await
            {
                Err(error) if error.class().is_unavailable() && !self.context.stop.is_cancelled() => {
                    sleep(backoff.pause()).await;
                }
                Err(error) => {
                    return self.report("an event of the HookRun cannot be written", &error, &BACKOFF);
                }
                Ok(()) => return,
            }
        }
    }

    // ---- the observed HookRun ----

    /// The reason to stop measuring, if the observed HookRun has one.
    fn reason_to_stop(&self) -> Option<Stop> {
        if !self.is_named() || self.run.is_deleting() {
            return Some(Stop::Lost);
        }
        if !*self.sight.borrow() {
            return Some(Stop::Release);
        }
        if self.run.is_approved() {
            return Some(Stop::Order(Order::Approve));
        }
        self.run.is_terminated().then_some(Stop::Order(Order::Terminate))
    }

    fn is_named(&self) -> bool {
        self.run.runner() == Some(self.context.identity.runner.as_str())
    }

    /// Takes over the version from the watch, unless it is older.
    fn adopt_cached(&mut self) {
        let (namespace, name) = (self.run.namespace().unwrap_or_default(), self.run.name_any());
        if let Some(seen) = self.context.runs.get(&namespace, &name)
            && seen.uid() == self.run.uid()
            && seen.is_not_older_than(&self.run)
        {
            self.run = seen.as_ref().clone();
        }
    }

    fn upsert(&mut self, run: &Run) {
        self.run = run.summary();
        self.context.runs.upsert(self.run.clone());
    }

    /// Reads the HookRun and checks that it is still ours.
    async fn confirm(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let seen = self.context.server.read_hook_run(&self.run).await.map_err(Failure::Call)?;
        self.run = seen.ok_or(Failure::Stop(Stop::Lost))?.summary();
        if !self.is_named() {
            return Err(Failure::Stop(Stop::Lost));
        }
        self.confirmed_at = began;
        Ok(())
    }

    async fn write(&mut self, status: &HookRunStatus) -> Result<(), Failure> {
        let began = Instant::now();
        let me = &self.context.identity.runner;
        match self.context.server.hook_run_progress(&self.run, me, status).await {
            Ok(run) => {
                self.upsert(&run);
                self.confirmed_at = began;
                Ok(())
            }
            Err(error) if error.class() == Class::Gone => Err(Failure::Stop(Stop::Lost)),
            // Conflict: it is written again if it is still ours.
            Err(error) if error.class() == Class::Refused => {
                self.confirm().await?;
                Err(Failure::Call(error))
            }
            Err(error) => Err(Failure::Call(error)),
        }
    }

    /// Logs a failure. If the API server is away, its watches report that; other failures are logged once per
    /// series of attempts.
    fn report(&self, what: &str, error: &Error, backoff: &Backoff) {
        if !error.class().is_unavailable() && backoff.is_first() {
            let name = format!("{}/{}", self.run.namespace().unwrap_or_default(), self.run.name_any());
            tracing::error!(hook_run = name, error = chain(error), "{what}");
        }
    }
}

enum Failure {
    Stop(Stop),
    Call(Error),
}

fn content(run: &Run) -> Content {
    let spec = run.spec().map_err(Clone::clone)?.clone();
    Ok((spec, run.status().map_err(Clone::clone)?.clone()))
}

/// The status after an approval by hand.
fn approved(spec: &HookRunSpec, mut status: HookRunStatus) -> HookRunStatus {
    match Program::compile(spec) {
        Ok(program) => program.approve(&mut status, clock::now()),
        Err(invalid) => {
            status.phase = Some(HookPhase::Error);
            status.message = cut(&invalid.to_string(), MAX_MESSAGE);
        }
    }
    status
}

/// The end of a run whose status the API server refuses because of its size.
fn too_large(started_at: Option<Timestamp>) -> HookRunStatus {
    HookRunStatus {
        phase: Some(HookPhase::Error),
        message: "the API server refuses the status with its measurements as too large".to_owned(),
        started_at,
        metric_results: Vec::new(),
    }
}
