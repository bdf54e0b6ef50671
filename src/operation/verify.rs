//! Decides whether a new instance counts as running: it stays up for the required time, it is the only one, and its
//! kubelet reports it as Ready. It must not trust the success of a call.

use jiff::{SignedDuration, Timestamp};

use crate::api::request::READY_TIMEOUT_SECONDS;
use crate::api::status::Action;
use crate::operation::decision::{Next, Waiting};
use crate::operation::fence::unfence;
use crate::operation::note::Note;
use crate::operation::outcome::Failure;
use crate::operation::probe;
use crate::operation::replace::{clear_up, ended};
use crate::operation::snapshot::{DeclaredContainer, Snapshot, State};
use crate::operation::standby;
use crate::operation::startup;
use crate::operation::state::{Operation, Target, later};

/// The minimum time that a swapped container is observed, even when `minReadySeconds` asks for less: an image that
/// exits at once must not count as a success.
pub(super) const SWAP_SETTLES: SignedDuration = SignedDuration::from_millis(1000);
/// The same for a restart, whose image has run before.
const RESTART_SETTLES: SignedDuration = SignedDuration::from_millis(250);
/// The interval between two observations of a container that must stay up.
pub(super) const WATCH: SignedDuration = SignedDuration::from_millis(50);
/// The same beside a standby after [`probe::PROBED_SETTLES`]: each observation runs a process in the pod.
const WATCH_BESIDE: SignedDuration = SignedDuration::from_millis(500);
/// The interval between two observations while a kubelet's report is awaited. A report ends the wait.
const WATCH_READY: SignedDuration = SignedDuration::from_millis(250);
/// The same while the new instance does not listen: no report shows when it does.
const WATCH_LISTENERS: SignedDuration = SignedDuration::from_millis(100);

/// Whether the new instances have met the requirements.
pub(super) enum Verdict {
    /// There is something to note or to wait for.
    Next(Next),
    /// One of them has failed.
    Failed(Failure),
    /// All of them have met the requirements.
    Proven,
}

pub(super) fn verify<'a>(
    operation: &Operation,
    targets: impl Iterator<Item = &'a Target>,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Verdict {
    let mut wait: Option<Waiting> = None;
    for target in targets {
        let Some(reached) = &target.reached else { continue };
        let running = snapshot.running(&target.name);
        if running.len() > 1 {
            return Verdict::Failed(Failure::Duplicate {
                container: target.name.clone(),
                count: running.len(),
            });
        }
        if let Some(next @ Next::Do(_)) = unfence(operation, target, snapshot, now) {
            return Verdict::Next(next);
        }
        let instance = snapshot.by_id(&reached.to.container_id);
        match instance {
            Some(instance) if instance.state == State::Running => {
                let least = if target.action == Action::Swap { SWAP_SETTLES } else { RESTART_SETTLES };
                // `minReadySeconds` does not apply in a rollback: the previous image has run before.
                let asked =
                    if operation.rollback_cause.is_some() { 0 } else { operation.request.min_ready_seconds };
                let has_standby = snapshot.standbys(&target.name).next().is_some();
                let least = if target.replacement().reported_unstarted {
                    least.max(probe::settles(target, has_standby))
                } else {
                    least
                };
                let settles = least.max(SignedDuration::from_secs(i64::from(asked)));
                let started_at = instance.started_at.unwrap_or(instance.created_at);
                let since = reached.counts_from.unwrap_or(started_at);
                let proven_at = later(since, settles);
                if reached.ready_at.is_some() {
                    continue;
                }
                if let Some(next) = standby::note_count(operation, target, snapshot, now) {
                    return Verdict::Next(next);
                }
                if let Some(note) = startup::reported(target, snapshot, now) {
                    return Verdict::Next(Next::Note(note));
                }
                if snapshot.known_until(now) < proven_at {
                    let is_rare = has_standby && now >= later(since, probe::PROBED_SETTLES);
                    let watch = if is_rare { WATCH_BESIDE } else { WATCH };
                    let until = proven_at.clamp(now, later(now, watch));
                    wait.get_or_insert(Waiting {
                        until,
                        on: format!("waiting for {} to stay up", target.name),
                    });
                    continue;
                }
                match readiness(operation, target, snapshot, proven_at, now) {
                    Readiness::Ready => {
                        return Verdict::Next(Next::Note(Note::Proven(target.name.clone(), now)));
                    }
                    Readiness::Late(failure) => return Verdict::Failed(failure),
                    Readiness::Awaited(waiting) => {
                        wait.get_or_insert(waiting);
                    }
                }
            }
            Some(instance) if instance.state == State::Unknown => {
                match clear_up(operation, target, instance, now) {
                    Next::Wait(waiting) => {
                        wait.get_or_insert(waiting);
                    }
                    // It is removed as one that was never observed running, and created again.
                    _ => return Verdict::Next(Next::Note(Note::NotRunning(target.name.clone()))),
                }
            }
            Some(instance) => return Verdict::Failed(ended(operation, target, instance)),
            None => {
                let what = "the new container was removed".to_owned();
                return Verdict::Failed(Failure::Changed { container: target.name.clone(), what });
            }
        }
    }
    wait.map_or(Verdict::Proven, |waiting| Verdict::Next(Next::Wait(waiting)))
}

/// What the kubelet reports about an instance that stayed up.
enum Readiness {
    Ready,
    Awaited(Waiting),
    Late(Failure),
}

/// Whether the kubelet reports the new instance of `target` as Ready. Without an API server, running is sufficient.
fn readiness(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    since: Timestamp,
    now: Timestamp,
) -> Readiness {
    let (Some(reached), true) = (&target.reached, operation.in_cluster) else { return Readiness::Ready };
    let id = Some(reached.to.container_id.as_str());
    let declared = snapshot.declared.as_ref();
    let reported = declared.and_then(|declared| declared.container(&target.name));
    let listens = standby::listens(operation, target, snapshot, now);
    let seconds = operation.request.ready_timeout_seconds;
    // The time for a new image may be short. The image of a rollback has run before, and nothing is left to be tried.
    let seconds =
        if operation.rollback_cause.is_some() { seconds.max(READY_TIMEOUT_SECONDS) } else { seconds };
    let until = later(since, SignedDuration::from_secs(i64::from(seconds)));
    let is_ready = |reported: &&DeclaredContainer| {
        let is_about = reported.container_id.as_deref() == id;
        is_about && reported.ready && startup::has_started(reported) && listens == Some(true)
    };
    if let Some(reported) = reported.filter(is_ready) {
        let claimed = startup::claimed_until(target, reported)
            .map(|claimed| claimed.min(until).min(operation.forward_until()));
        let Some(claimed) = claimed.filter(|claimed| now < *claimed) else { return Readiness::Ready };
        let on = format!("waiting for the startup probe of {}", target.name);
        return Readiness::Awaited(Waiting { until: claimed.min(later(now, WATCH_READY)), on });
    }
    // A container without a probe is Ready as soon as it runs, whether or not a kubelet can report it now.
    if listens == Some(true)
        && declared.is_some_and(|declared| !declared.current)
        && reported.is_some_and(|reported| !reported.is_probed)
    {
        return Readiness::Ready;
    }
    // While the kubelet's reports or the counts of the sockets are missing, the timeout does not count against the container.
    if now >= until && listens.is_some() && declared.is_some_and(|declared| declared.current) {
        return Readiness::Late(Failure::NotReady { container: target.name.clone(), seconds });
    }
    let requeue_at = later(now, if listens == Some(true) { WATCH_READY } else { WATCH_LISTENERS });
    let until = if now < until { until.min(requeue_at) } else { requeue_at };
    Readiness::Awaited(Waiting { until, on: format!("waiting for {} to become Ready", target.name) })
}

#[cfg(test)]
mod tests;
