//! Decides about standbys (`order: StartFirst`). A standby is a container beside the one that is replaced, under a name
//! that the pod's spec does not have: it proves that the new container can run in this pod, and serves while an engine
//! replaces the container. No engine needs it, and none is changed by it.
//!
//! ```text
//! fence ─▶ count listening sockets ─▶ standby runs, listens, stays up ─▶ (drain) engine ─▶ new instance listens ─▶ standby stops
//!                                       └ otherwise NotStartedBeside: nothing was touched
//! ```
//! A probe over the network cannot tell the new instance and the standby apart, because they share ports. The number of
//! listening sockets can: each process that shares a port has a socket of its own. The fence, whose process is in the
//! pod's network namespace, counts them.
//!
//! The engine stops the old instance before it starts the new one, also beside a standby. A new instance that starts beside
//! the old one gains nothing: a kubelet resets the probes when the instance changes, in both cases (prober/worker.go).
//!
//! Nothing here executes an effect.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::request::{ContainerRequest, Order, Request};
use crate::api::status::Step;
use crate::operation::decision::{Next, Waiting};
use crate::operation::effect::{Effect, Leftover, Verb, remove};
use crate::operation::end::CLEANING;
use crate::operation::next::leaves;
use crate::operation::note::Note;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::port::{Listeners, Port};
use crate::operation::snapshot::{Container, ExecProbe, Probed, Snapshot, State};
use crate::operation::state::{MIN_STOP_SECONDS, Operation, Target, has_lasted, is_over, later};
use sockets::{counted_again, deciding, has_run_for, listens_beside, settles};
pub use sockets::{counts_sockets, relevant};
pub(super) use sockets::{listens, needs_fence, note_count};

/// The minimum time that a standby is observed, even when `minReadySeconds` asks for less: a process that cannot share a
/// port or a lock usually ends within it.
const SETTLES: SignedDuration = SignedDuration::from_millis(1000);
/// How long the creation and the start of a standby may take until the runtime reports it as running.
const START: SignedDuration = SignedDuration::from_secs(3);
/// The least time that a container runs until a standby beside it is not needed.
const SERVES_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// The longest time that a container is given to load.
const LONGEST_LOAD: SignedDuration = SignedDuration::from_secs(600);
/// How long the listening sockets may be impossible to count.
const COUNTED_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// How many fences are created for the count. A fence ends when the pod has no memory left, or with a wrong image.
const FENCES: u32 = 5;
/// The interval between two observations. Each one runs a process in the pod.
const REQUEUE: SignedDuration = SignedDuration::from_millis(200);

/// The standby of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standby {
    /// The sockets that listened in an earlier observation. Two equal ones count.
    #[serde(default)]
    pub counted: Option<Listeners>,
    /// When they were counted.
    #[serde(default)]
    pub counted_at: Option<Timestamp>,
    /// How often the creation of the fence that counts was begun.
    #[serde(default)]
    pub fenced: u32,
    /// The sockets that listened before the standby was created.
    #[serde(default)]
    pub before: Option<Listeners>,
    /// The container beside which it is created.
    #[serde(default)]
    pub beside: String,
    /// When its creation was begun.
    #[serde(default)]
    pub begun_at: Option<Timestamp>,
    /// The sockets on shared ports that the standby added.
    #[serde(default)]
    pub added: Listeners,
    /// The last run of its readiness probe, if that is a command.
    #[serde(default)]
    pub probe: Option<Probe>,
    /// When it had proved that it can serve.
    #[serde(default)]
    pub proven_at: Option<Timestamp>,
    /// Since when the sockets cannot be counted, while the new instance is to listen.
    #[serde(default)]
    pub uncounted_since: Option<Timestamp>,
    /// When its stop was begun. Its preStop handler is never begun twice.
    #[serde(default)]
    pub stopped_at: Option<Timestamp>,
}

/// The last run of a readiness probe in a standby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// When it ended.
    pub at: Timestamp,
    /// How often in a row it has passed.
    pub passed: u32,
    /// Why it failed; empty if it passed.
    #[serde(default)]
    pub failure: String,
}

/// A change to the recorded state of a standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The sockets that listen at this time.
    Counted(Listeners, Timestamp),
    /// The sockets that listen before it is created, and the container beside which it is created.
    Before(Listeners, String),
    /// Its readiness probe was run.
    Probed(Probed),
    /// It can serve, and has added these sockets.
    Proven(Listeners, Timestamp),
    /// Since when the sockets cannot be counted; `None` when they can be.
    Uncounted(Option<Timestamp>),
}

/// How many seconds the readiness probes of the containers need at least before they have passed in the standbys.
pub(super) fn seconds_to_probe(request: &Request, snapshot: &Snapshot) -> u64 {
    let seconds = |target: &ContainerRequest| {
        let probe = snapshot.declared.as_ref()?.container(&target.name)?.readiness.as_ref()?;
        let repeats = probe.period.saturating_mul(probe.success_threshold.saturating_sub(1));
        Some(probe.initial_delay.saturating_add(repeats).as_secs())
    };
    request.containers.iter().filter_map(seconds).max().unwrap_or_default()
}

impl Standby {
    /// The state of a standby that is not begun; `None` if the request does not ask for one.
    pub(super) fn of(order: Order) -> Option<Self> {
        (order == Order::StartFirst).then(Self::default)
    }

    /// All times of this state, which are moved when the clock was set.
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let Self { counted_at, begun_at, probe, proven_at, uncounted_since, stopped_at, .. } = self;
        let times = [counted_at, begun_at, proven_at, uncounted_since, stopped_at].into_iter().flatten();
        times.chain(probe.iter_mut().map(|probe| &mut probe.at))
    }

    /// How long it needed from the begin of its creation until it had proved that it serves; 0 without that proof.
    fn took(&self) -> SignedDuration {
        let times = self.begun_at.zip(self.proven_at);
        times.map_or(SignedDuration::ZERO, |(begun, proven)| proven.duration_since(begun))
    }

    /// Records that `effect` begins. An orphan of an earlier operation has a grace period of its own.
    pub(super) fn begin(&mut self, effect: &Effect, now: Timestamp) {
        match effect {
            Effect::Fence { .. } => self.fenced = self.fenced.saturating_add(1),
            Effect::Standby { .. } => self.begun_at = Some(now),
            Effect::StopStandby { is_own: true, .. } => {
                self.stopped_at.get_or_insert(now);
            }
            _ => {}
        }
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Counted(listeners, at) => (self.counted, self.counted_at) = (Some(listeners), Some(at)),
            Change::Before(listeners, beside) => (self.before, self.beside) = (Some(listeners), beside),
            Change::Probed(Probed { at, result }) => {
                let before = self.probe.as_ref().map_or(0, |probe| probe.passed);
                let passed = if result.is_ok() { before.saturating_add(1) } else { 0 };
                self.probe = Some(Probe { at, passed, failure: result.err().unwrap_or_default() });
            }
            Change::Proven(added, at) => (self.added, self.proven_at) = (added, Some(at)),
            Change::Uncounted(since) => self.uncounted_since = since,
        }
    }
}

impl Operation {
    /// True when this run of a readiness probe is recorded, so that the next one is not due at once.
    pub fn has_recorded(&self, probed: &Probed) -> bool {
        let mut standbys = self.targets.iter().filter_map(|target| target.standby.as_ref());
        standbys.any(|standby| standby.probe.as_ref().is_some_and(|probe| probe.at == probed.at))
    }
}

/// The end of the operation when a container ended, or was restarted, beside its standby before anything was touched. The
/// standby may hold a port or a lock that the container needs, so that it must not stay.
pub(super) fn left_alone(operation: &Operation, snapshot: &Snapshot) -> Option<Next> {
    let is_alone = |target: &&Target| {
        let begun = target.standby.as_ref().filter(|standby| standby.before.is_some());
        let runs = |id: &str| snapshot.by_id(id).is_some_and(Container::may_run);
        begun.is_some_and(|standby| standby.beside != target.forward.replaces || !runs(&standby.beside))
    };
    let target = operation.targets.iter().find(is_alone)?;
    Some(fail(operation, target, "the running container ended meanwhile".to_owned()))
}

/// The next step until every container has a standby that can serve. Nothing is touched before.
pub(super) fn prove(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    operation.targets.iter().find_map(|target| {
        let standby = target.standby.as_ref()?;
        match proven(operation, target, standby, snapshot, now) {
            Ok(next) => next,
            Err(message) => Some(fail(operation, target, message)),
        }
    })
}

/// The next step for the standby of `target`, or why the container cannot be started beside the one that runs.
fn proven(
    operation: &Operation,
    target: &Target,
    standby: &Standby,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Result<Option<Next>, String> {
    let own = snapshot.standbys(&target.name).find(|container| operation.made(container));
    if standby.proven_at.is_some() {
        // The fence stays: its process counts sockets again later.
        return match own {
            Some(own) if own.may_run() => count(operation, target, snapshot, now),
            other => Err(other.map_or_else(gone, ended)),
        };
    }
    if operation.step != Step::Standby {
        return Ok(Some(Next::Note(Note::Step(Step::Standby))));
    }
    // A standby of an earlier operation, whose end was lost.
    let orphan = snapshot.standbys(&target.name).find(|container| !operation.made(container));
    if let Some(waiting) = orphan.and_then(|orphan| needed(target, orphan, snapshot, now)) {
        return Ok(Some(Next::Wait(waiting)));
    }
    if let Some(next) = orphan.and_then(|orphan| stop(operation, target, orphan, now)) {
        return Ok(Some(next));
    }
    if let Some(next) = count(operation, target, snapshot, now)? {
        return Ok(Some(next));
    }
    let since = snapshot.fences(&target.name).filter_map(|fence| fence.started_at).max();
    let Some(listeners) = &snapshot.listeners else {
        if since.is_some_and(|since| is_over(since, COUNTED_WITHIN, now)) && own.is_none() {
            return Err("the listening sockets of the pod cannot be counted".to_owned());
        }
        return Ok(Some(wait(target, now)));
    };
    let Some(before) = &standby.before else {
        // A container that loads does not listen yet on the ports that the standby has to share.
        if !is_ready(target, snapshot) {
            let on = format!("waiting for the running {} to be Ready", target.name);
            return Ok(Some(Next::Wait(Waiting { until: later(now, REQUEUE), on })));
        }
        let runs = snapshot.by_id(&target.forward.replaces);
        let declared = runs.map_or(&[][..], |container| container.ports.as_slice());
        let counted = deciding(listeners, declared, None);
        if let Some(next) = counted_again(target, standby, snapshot, counted, REQUEUE, now) {
            let until = since.map(|since| later(later(since, ready_timeout(operation)), REQUEUE));
            // Only a count that differs from an earlier one shows a change.
            let has_changed = matches!(next, Next::Note(_)) && standby.counted.is_some();
            let is_late = has_changed && until.is_some_and(|until| now >= until);
            return if is_late { Err(unsettled(operation)) } else { Ok(Some(next)) };
        }
        let before = Change::Before(listeners.clone(), target.forward.replaces.clone());
        return Ok(Some(change(target, before)));
    };
    let Some(own) = own else { return create(operation, target).map(Some) };
    match own.state {
        State::Running => {
            let is_new = |probed: &&Probed| standby.probe.as_ref().is_none_or(|last| last.at != probed.at);
            if let Some(probed) = snapshot.probed.as_ref().filter(is_new) {
                return Ok(Some(change(target, Change::Probed(probed.clone()))));
            }
            observe(operation, target, snapshot, (standby, own), (before, listeners), now)
        }
        State::Created
            if has_lasted(snapshot, own.created_at, START, now) && operation.can_remove(&own.id) =>
        {
            Ok(Some(Next::Do(remove(own, Leftover::Standby))))
        }
        // Its start was lost with the process that requested it, or with the runtime. One that was refused is removed at once.
        State::Exited if own.started_at.is_none() && operation.can_remove(&own.id) => {
            Ok(Some(Next::Do(remove(own, Leftover::Standby))))
        }
        State::Created | State::Unknown => Ok(Some(wait(target, now))),
        State::Exited => Err(ended(own) + &in_use(own, before)),
    }
}

/// How long a container runs until it is expected to serve, so that a standby which was created `ahead` of it is not needed:
/// a minute, in which one that fails has ended, or as long as the standby existed before it, at most ten minutes. That
/// contains the time in which the image loads, because a container is replaced only beside a standby that serves.
pub fn serves_after(ahead: SignedDuration) -> SignedDuration {
    SERVES_AFTER.max(ahead.min(LONGEST_LOAD))
}

/// The wait until the standby of an earlier operation is not needed any more. While the container loads, the standby may
/// answer its readiness probe.
fn needed(target: &Target, orphan: &Container, snapshot: &Snapshot, now: Timestamp) -> Option<Waiting> {
    let runs = snapshot.by_id(&target.forward.replaces).filter(|_| orphan.may_run())?;
    let serves_after = serves_after(runs.created_at.duration_since(orphan.created_at));
    if has_lasted(snapshot, runs.created_at, serves_after, now) {
        return None;
    }
    let on = format!("waiting for {} to serve without the standby of an earlier operation", target.name);
    Some(Waiting { until: later(now, REQUEUE), on })
}

/// The next step until the process that counts listening sockets runs: the fence of the next attempt but one.
fn count(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Result<Option<Next>, String> {
    let attempt = target.forward.attempt.saturating_add(1);
    let usable =
        |fence: &&Container| fence.attempt == attempt && fence.holder && fence.state == State::Running;
    if snapshot.fences(&target.name).any(|fence| usable(&fence)) {
        return Ok(None);
    }
    // A fence of another attempt would be in the way of the kubelet, which has restarted the container meanwhile.
    if let Some(fence) = snapshot.fences(&target.name).find(|fence| operation.can_remove(&fence.id)) {
        return Ok(Some(Next::Do(remove(fence, Leftover::Fence))));
    }
    if let Some(message) = operation.given_up(Verb::Fence, &target.name) {
        return Err(format!("the sockets in the pod cannot be counted: {message}"));
    }
    if snapshot.fences(&target.name).next().is_some() {
        return Ok(Some(wait(target, now)));
    }
    if target.standby.as_ref().is_some_and(|standby| standby.fenced >= FENCES) {
        return Err("the process that counts the listening sockets does not stay up".to_owned());
    }
    let (container, source) = (target.name.clone(), target.forward.replaces.clone());
    let fence =
        Effect::Fence { container, source, attempt, image: None, test_create: false, by_process: true };
    Ok(Some(Next::Do(fence)))
}

fn create(operation: &Operation, target: &Target) -> Result<Next, String> {
    if let Some(message) = operation.given_up(Verb::Standby, &target.name) {
        return Err(message.to_owned());
    }
    let (container, source) = (target.name.clone(), target.forward.replaces.clone());
    let (attempt, image) = (target.forward.attempt, target.pulled.clone());
    Ok(Next::Do(Effect::Standby { container, source, attempt, image }))
}

/// The next step while the standby runs and has not proved yet that it can serve.
fn observe(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    (standby, own): (&Standby, &Container),
    (before, listeners): (&Listeners, &Listeners),
    now: Timestamp,
) -> Result<Option<Next>, String> {
    let started_at = own.started_at.unwrap_or(own.created_at);
    let asked = SignedDuration::from_secs(i64::from(operation.request.min_ready_seconds));
    if !has_lasted(snapshot, started_at, SETTLES.max(asked), now) {
        return Ok(Some(wait(target, now)));
    }
    // As for the new instance, the time counts from when it has stayed up.
    let counts_from = later(started_at, SETTLES.max(asked));
    let longest = ready_timeout(operation);
    let counted = deciding(listeners, &own.ports, Some(before));
    let settles = settles(before, listeners, own, longest);
    if let Some(next) = counted_again(target, standby, snapshot, counted, settles, now) {
        let was_counted = standby.counted_at.is_some_and(|at| at >= started_at);
        let has_changed = matches!(next, Next::Note(_)) && was_counted;
        let is_late = has_changed && now >= later(later(counts_from, longest), settles);
        return if is_late { Err(unsettled(operation)) } else { Ok(Some(next)) };
    }
    let probe = readiness(target, snapshot);
    let seconds = operation.request.ready_timeout_seconds;
    let unmet = match listens_beside(operation, snapshot, (own, before), listeners, now) {
        Err(None) => return Ok(Some(wait(target, now))),
        Err(Some(port)) => format!(
            "it does not listen on port {port} beside the running container within {seconds} s; both have to share the port \
             (SO_REUSEPORT)"
        ),
        Ok(added) => match probe.filter(|probe| !has_passed(standby, probe)) {
            Some(_) => {
                let failure = standby.probe.as_ref().map_or("it was not run", |probe| probe.failure.as_str());
                format!("its readiness probe does not pass within {seconds} s: {failure}")
            }
            None => return Ok(Some(change(target, Change::Proven(added, now)))),
        },
    };
    if is_over(counts_from, longest, now) {
        return Err(unmet);
    }
    Ok(Some(wait(target, now)))
}

fn ready_timeout(operation: &Operation) -> SignedDuration {
    SignedDuration::from_secs(i64::from(operation.request.ready_timeout_seconds))
}

fn unsettled(operation: &Operation) -> String {
    let seconds = operation.request.ready_timeout_seconds;
    format!("the listening sockets of the pod do not stay the same within {seconds} s")
}

/// True when the kubelet reports the instance that is to be replaced as Ready.
fn is_ready(target: &Target, snapshot: &Snapshot) -> bool {
    let declared = snapshot.declared.as_ref().and_then(|declared| declared.container(&target.name));
    declared.is_some_and(|declared| {
        declared.ready && declared.container_id.as_ref() == Some(&target.forward.replaces)
    })
}

/// The readiness probe of the container, if it runs a command.
fn readiness<'a>(target: &Target, snapshot: &'a Snapshot) -> Option<&'a ExecProbe> {
    snapshot.declared.as_ref()?.container(&target.name)?.readiness.as_ref()
}

fn has_passed(standby: &Standby, probe: &ExecProbe) -> bool {
    standby.probe.as_ref().is_some_and(|last| last.passed >= probe.success_threshold)
}

/// The standby in which its readiness probe is due, and that probe. It is run only while the standby listens: before that,
/// a command that connects to a shared port reaches the container beside it. Its last run counts.
pub fn due_probe<'a>(
    operation: &Operation,
    snapshot: &'a Snapshot,
    now: Timestamp,
) -> Option<(&'a Container, &'a ExecProbe)> {
    if operation.touched() || operation.ending.is_some() || operation.withdrawn.is_some() {
        return None;
    }
    operation.targets.iter().find_map(|target| {
        let standby = target.standby.as_ref().filter(|standby| standby.proven_at.is_none())?;
        let probe = readiness(target, snapshot)?;
        let (before, listeners) = (standby.before.as_ref()?, snapshot.listeners.as_ref()?);
        let own = snapshot.standbys(&target.name).find(|container| operation.made(container))?;
        let signed = |time: Duration| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        let started_at = own.started_at.filter(|_| own.state == State::Running)?;
        listens_beside(operation, snapshot, (own, before), listeners, now).ok()?;
        let is_due = is_over(started_at, signed(probe.initial_delay).max(SETTLES), now)
            && standby.probe.as_ref().is_none_or(|last| is_over(last.at, signed(probe.period), now));
        is_due.then_some((own, probe))
    })
}

/// The next step until the standbys of `target` are gone. Where nothing else serves, they stay for as long as the cleanup
/// may take; after that, a sweep stops them once the container runs.
pub(super) fn leave(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    let is_needed = snapshot.standbys(&target.name).all(Container::may_run)
        && !is_replaced(operation, target, snapshot, now);
    let is_late = now >= later(operation.deadline_at, CLEANING);
    if is_needed && snapshot.standbys(&target.name).next().is_some() {
        return (!is_late).then(|| wait(target, now));
    }
    // A stop that was not begun yet is never too late: it runs the preStop handler, and a sweep may find the standby with
    // nothing else that serves.
    let is_begun = target.standby.as_ref().is_some_and(|standby| standby.stopped_at.is_some());
    stop_all(operation, target, snapshot, now).filter(|_| !is_late || !is_begun)
}

/// The next step until the standby of `target`, which runs the image that failed, no longer serves beside the instance
/// that is back and has run for as long as the standby needed. It takes its share of the connections, and with them of
/// the probes.
pub(super) fn make_way(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    let took = target.standby.as_ref()?.took();
    let reached = target.reached.as_ref()?;
    reached.counts_from?;
    if let Some(next) = note_count(operation, target, snapshot, now) {
        return Some(next);
    }
    let runs = snapshot.by_id(&reached.to.container_id)?.state == State::Running;
    let is_back = runs
        && has_run_for(operation, target, snapshot, took, now)
        && listens(operation, target, snapshot, now) == Some(true);
    if is_back { stop_all(operation, target, snapshot, now) } else { None }
}

/// True when an instance of `target` serves and stays, as far as this can be observed after the end of an operation, or
/// when the standby may be what keeps it from that. After a change of the pod's spec that failed, an instance from before
/// the operation may still be replaced by its kubelet. Any other one serves once it has run for as long as the standby
/// needed to prove that it serves.
fn is_replaced(operation: &Operation, target: &Target, snapshot: &Snapshot, now: Timestamp) -> bool {
    let is_proven = matches!(operation.ending, Some(Outcome::Succeeded | Outcome::RolledBack(_)));
    if leaves(operation, snapshot) || is_proven || !target.touched {
        return true;
    }
    let Some(standby) = &target.standby else { return true };
    let instances = snapshot.instances(&target.name);
    let by_kubelet = target.change.is_some();
    let since =
        |instance: &&Container| instance.started_at.filter(|at| !by_kubelet || *at >= operation.begun_at);
    let has_failed = |instance: &&Container| {
        instance.state == State::Exited && instance.started_at.is_some_and(|at| at >= operation.begun_at)
    };
    if standby.added.is_empty() && instances.iter().any(has_failed) {
        return true;
    }
    let running = instances.iter().filter(|instance| instance.state == State::Running);
    running.filter_map(since).any(|since| has_lasted(snapshot, since, standby.took(), now))
}

fn stop_all(operation: &Operation, target: &Target, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    snapshot.standbys(&target.name).find_map(|container| stop(operation, target, container, now))
}

/// Stops and removes a standby; `None` if that was given up. A standby serves, so it gets its preStop handler and its
/// whole grace period.
fn stop(operation: &Operation, target: &Target, container: &Container, now: Timestamp) -> Option<Next> {
    if !operation.can_remove(&container.id) {
        return None;
    }
    if !container.may_run() {
        return Some(Next::Do(remove(container, Leftover::Standby)));
    }
    let is_own = operation.made(container);
    let begun = target.standby.as_ref().and_then(|standby| standby.stopped_at).filter(|_| is_own);
    let spent = begun.map_or(0, |at| now.duration_since(at).as_secs().max(0).unsigned_abs());
    let grace_seconds = target.grace_seconds.saturating_sub(spent).max(MIN_STOP_SECONDS);
    // As a kubelet does: without a grace period the handler is not run.
    let pre_stop = container.has_pre_stop && begun.is_none() && target.grace_seconds > 0;
    let (container, id) = (target.name.clone(), container.id.clone());
    Some(Next::Do(Effect::StopStandby { container, id, grace_seconds, pre_stop, is_own }))
}

/// Effects that stop the standbys of a pod that its kubelet terminates, as far as their stop is not begun. The kubelet gives
/// them no grace period.
pub fn terminated(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Vec<Effect> {
    if !leaves(operation, snapshot) {
        return Vec::new();
    }
    let running = |target: &Target| match stop_all(operation, target, snapshot, now) {
        Some(Next::Do(effect @ Effect::StopStandby { .. })) => Some(effect),
        _ => None,
    };
    let is_begun =
        |target: &&Target| target.standby.as_ref().is_some_and(|standby| standby.stopped_at.is_some());
    operation.targets.iter().filter(|target| !is_begun(target)).filter_map(running).collect()
}

fn change(target: &Target, change: Change) -> Next {
    Next::Note(Note::Standby(target.name.clone(), change))
}

fn wait(target: &Target, now: Timestamp) -> Next {
    let on = format!("waiting for the standby of {} to serve", target.name);
    Next::Wait(Waiting { until: later(now, REQUEUE), on })
}

fn fail(operation: &Operation, target: &Target, message: String) -> Next {
    let failure = Failure::NotStartedBeside { container: target.name.clone(), message };
    Next::Note(Note::End(operation.failed(failure)))
}

fn gone() -> String {
    "it was removed by another client".to_owned()
}

fn ended(standby: &Container) -> String {
    let started_at = standby.started_at.unwrap_or(standby.created_at);
    let uptime = standby.finished_at.map_or(SignedDuration::ZERO, |end| end.duration_since(started_at));
    format!("it exited with code {} after {} ms", standby.exit_code, uptime.as_millis().max(0))
}

/// What a person checks first when a standby has exited: the ports that it declares and that were in use before it.
fn in_use(standby: &Container, before: &Listeners) -> String {
    let ports: Vec<_> =
        standby.ports.iter().filter(|port| before.contains_key(port)).map(Port::to_string).collect();
    let hint = "two of it must be able to run in one pod, without a lock that only one can hold";
    if ports.is_empty() {
        return format!(": {hint}");
    }
    format!(": port {} is in use and has to be shared (SO_REUSEPORT), and {hint}", ports.join(", "))
}

mod sockets;
#[cfg(test)]
mod tests;
