//! The loop that carries out one operation: observe, decide, journal, act, repeat.
//!
//! Decides nothing itself: `operation::next` chooses every action. This module adds waiting, the order of journal
//! writes, and the handling of a process shutdown in the middle of an operation.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::status::Status;
use crate::cluster::slices::PodSlices;
use crate::failure::Class;
use crate::node::Node;
use crate::node::changes::Changes;
use crate::node::concurrency;
use crate::node::execute::EffectExecutor;
use crate::node::fences::{self, StandbyJournal};
use crate::node::hook::HookSession;
use crate::node::journal::{Entry, JournalError};
use crate::node::journal_writer::JournalWriter;
use crate::node::lost_time::LostTime;
use crate::node::obsolete::{is_obsolete, outdated};
use crate::node::reread::Reread;
use crate::node::standby;
use crate::node::time_limits::{self, JOURNAL_LIMIT};
use crate::operation::effect::{Effect, Verb};
use crate::operation::end::undecided;
use crate::operation::next::{Next, Waiting, next, unseen};
use crate::operation::note::Note;
use crate::operation::outcome::{Failure, Outcome, Withdrawal};
use crate::operation::report;
use crate::operation::snapshot::{GroupSignal, Snapshot};
use crate::operation::state::{Operation, Target};
use crate::process::backoff::Backoff;
use crate::process::{clock, fault};

/// The pauses while the runtime cannot be reached.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), MAX_PAUSE);
/// The longest pause before the next observation.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// The maximum number of notes that follow from one observation: a few for each of at most 64 containers.
const MAX_NOTES: u32 = 1000;
/// The pause after more notes than that.
const NO_DECISION_PAUSE: SignedDuration = SignedDuration::from_secs(1);

/// What happens while an operation is carried out, for displays, logs and metrics.
#[derive(Debug)]
pub enum OperationEvent<'a> {
    /// The status has changed.
    Status(&'a Status),
    /// An effect has been carried out.
    Effect {
        /// The kind of effect.
        verb: Verb,
        /// The container that the effect concerns.
        container: &'a str,
        /// How long the effect took.
        took: Duration,
        /// The class of the failure, if the effect failed.
        effect_error: Option<Class>,
    },
    /// The operation is waiting or an effect takes long; the text says why.
    Progress(&'a str),
}

/// Callback that receives every [`OperationEvent`] of an operation.
pub type Observer = Arc<dyn Fn(OperationEvent<'_>) + Send + Sync>;

/// Signals from outside that a running operation obeys.
#[derive(Clone, Debug)]
pub struct ControlHandle {
    /// Set to end the operation while no container is touched.
    pub withdrawal: watch::Receiver<Option<Withdrawal>>,
    /// Cancelled when the process shuts down: the operation pauses at a point where no container is down because of
    /// it.
    pub shutdown: CancellationToken,
}

/// Carries out the open operation of `entry` to its end. Returns `None` when the process shuts down; the journal
/// then holds what remains to be done.
pub(super) async fn drive(
    node: &Node,
    mut entry: Entry,
    control: ControlHandle,
    observer: &Observer,
) -> Option<Status> {
    let mut operation = entry.open.clone()?;
    let mut executor = EffectExecutor::new(node, &operation);
    let mut hooks = HookSession::new(node, &operation);
    let mut journal = JournalWriter::new(node.journal.clone());
    let (mut control, mut slices, mut reread) = (control, None, Reread::default());
    let mut changes = Changes::of(node, &operation);
    let mut is_granted = false;
    let mut backoff = BACKOFF;
    let mut watch = clock::Watch::begin();
    let mut lost = operation.unsupervised.then(LostTime::begin);
    observer(OperationEvent::Status(&report::status(&operation)));
    let outcome = loop {
        if let Some(withdrawal) = *control.withdrawal.borrow_and_update() {
            operation.withdraw(withdrawal);
        }
        take_in_measurements(&mut journal, &mut entry, &mut operation, &mut hooks, observer).await;
        let asked = Instant::now();
        let seen = observe_timed(node, &mut operation, &mut lost).await;
        shift_times(&mut watch, &mut operation);
        let mut snapshot = match seen {
            Ok(snapshot) => {
                let proof = Box::pin(prove(node, &operation, snapshot, &mut control));
                let Some(snapshot) = proof.await else { continue };
                let group = signal(node, &operation);
                Snapshot { serving: listen(node, &operation, &mut slices), group, ..snapshot }
            }
            Err(why) => {
                if let Some(outcome) = unseen(&operation, clock::now(), &why) {
                    break outcome;
                }
                observer(OperationEvent::Progress(&why));
                // Without a runtime no container can be started, so the process may end.
                if control.shutdown.is_cancelled() {
                    return None;
                }
                concurrency::while_waiting(node, &operation);
                rest(&mut control, &mut hooks, &mut journal, pending(), backoff.pause()).await;
                continue;
            }
        };
        backoff.reset();
        // The proof may have taken long, and what is decided now is decided by the present clock.
        shift_times(&mut watch, &mut operation);
        let mut settled = settle(&mut operation, &snapshot, observer, false);
        let probed = snapshot.probed.take();
        if settled.is_some() && probed.is_some_and(|probed| operation.has_recorded(&probed)) {
            // The probe may have taken seconds: what follows is decided from a new observation.
            continue;
        }
        if settled.is_none() {
            snapshot = reread.confirm(node, &operation.pod, snapshot).await;
            shift_times(&mut watch, &mut operation);
            settled = settle(&mut operation, &snapshot, observer, true);
        }
        let Some(next) = settled else { continue };
        hooks.measure_awaited(&operation);
        if !executor.is_for(&operation) {
            executor = EffectExecutor::new(node, &operation);
        }
        record_waits(&mut journal, &mut entry, &operation, observer).await;
        if control.shutdown.is_cancelled() && may_pause(&operation, &snapshot, &next) {
            return None;
        }
        match next {
            Next::Do(effect) if !concurrency::has_permit(node, &operation, &effect) => {
                observer(OperationEvent::Progress("waiting for another operation on this node to end"));
                wait_for_permit(node, &operation, &mut control).await;
            }
            Next::Do(effect) if !is_granted && !concurrency::has_slot(node, &operation, &effect) => {
                observer(OperationEvent::Progress("waiting for another operation on this node"));
                let is_ending = control.shutdown.is_cancelled();
                tokio::select! {
                    // The next effect needs no other slot, however long the observation before it takes.
                    () = node.slot.acquire(concurrency::urgency(&operation)) => is_granted = true,
                    () = reported(&mut control), if !is_ending => {}
                    () = sleep(MAX_PAUSE) => {}
                }
            }
            Next::Do(effect) => {
                is_granted = false;
                let context =
                    EffectContext { node, journal: &mut journal, executor: &mut executor, watch: &mut watch };
                act(context, &mut entry, &mut operation, (&effect, asked), &mut control, observer).await;
            }
            Next::Wait(waiting) => {
                if operation.last_failure.is_some() {
                    observer(OperationEvent::Progress(&waiting.on));
                }
                concurrency::while_waiting(node, &operation);
                let pause = clock::until(waiting.until).min(MAX_PAUSE);
                let change = changes.next(snapshot.declared.as_ref());
                rest(&mut control, &mut hooks, &mut journal, change, pause).await;
            }
            Next::Done(outcome) => break outcome,
            Next::Note(_) => {}
        }
    };
    executor.link_others(&operation).await;
    hooks.close(&operation, &outcome);
    operation.finish(outcome, clock::now());
    Some(conclude(node, entry, &operation, &mut journal, &control.shutdown, observer).await)
}

/// Writes to the journal when the grace period began and how far the pod is in a group restart, if that has changed: the
/// node does not show it. How far the pod is in a group restart is reported after that, because the other pods rely on it: an
/// agent that starts again takes it back only if the disk has failed.
async fn record_waits(
    journal: &mut JournalWriter,
    entry: &mut Entry,
    operation: &Operation,
    observer: &Observer,
) {
    let Some(written) = &entry.open else { return };
    let is_further = written.group != operation.group;
    if written.drain == operation.drain && !is_further {
        return;
    }
    entry.open = Some(operation.clone());
    let limit = if is_further { time_limits::journal_write(operation) } else { JOURNAL_LIMIT };
    if let Err(error) = write_within(journal, entry, limit).await {
        tracing::warn!(
            pod = %operation.pod,
            %error,
            "the journal cannot be written: if this process dies, the pod is drained again, or waits for its group again"
        );
    }
    if is_further {
        observer(OperationEvent::Status(&report::status(operation)));
    }
}

/// Shifts the recorded times of `operation` by the amount by which the clock was set. The caller must do this before
/// it records a time of the present clock in the operation; otherwise that time would be shifted too.
fn shift_times(watch: &mut clock::Watch, operation: &mut Operation) {
    let Some(by) = watch.jumped() else { return };
    tracing::warn!(
        pod = %operation.pod,
        ?by,
        "the clock was set during an operation: its deadline is shifted by the same amount"
    );
    operation.shift(by);
}

/// Journals and reports the end of `operation`. Gives the permit back if the write fails and has to be repeated.
/// Returns when the write is durable or when the process shuts down: the next process that works on the pod must not
/// find the operation open and carry it out again.
async fn conclude(
    node: &Node,
    mut entry: Entry,
    operation: &Operation,
    journal: &mut JournalWriter,
    shutdown: &CancellationToken,
    observer: &Observer,
) -> Status {
    let status = report::status(operation);
    entry.owed_gate = operation.owed_gate(entry.owed_gate);
    entry.remember_hashes(operation);
    entry.conclude(status.clone());
    let written = write_within(journal, &entry, JOURNAL_LIMIT).await;
    observer(OperationEvent::Status(&status));
    if let Err(error) = written {
        node.permit.give_back();
        persist(node, journal, &entry, error, shutdown).await;
    }
    node.forget_panics(&operation.pod).await;
    status
}

/// Repeats the write of an operation's end, which has failed with `error`, until the disk accepts it or the process
/// shuts down. Does not wait if the file holds no open operation, as when even its beginning could not be written.
pub(super) async fn persist(
    node: &Node,
    journal: &mut JournalWriter,
    entry: &Entry,
    error: JournalError,
    shutdown: &CancellationToken,
) {
    let pod = &entry.pod;
    let is_late = matches!(error, JournalError::Late { .. });
    if !is_late
        && node.load(pod).await.is_ok_and(|on_disk| on_disk.open.is_none() && on_disk.foreign.is_none())
    {
        tracing::error!(%pod, %error, "neither the start nor the end of the operation is in the journal");
        return;
    }
    tracing::error!(%pod, %error, "the end of the operation cannot be written to the journal: retrying");
    if shutdown.run_until_cancelled(journal.persist(entry, error)).await.is_some() {
        tracing::info!(%pod, "the end of the operation was written to the journal");
    } else {
        tracing::error!(%pod, "the process exits while the operation is still open in the journal");
    }
}

/// Applies new hook measurements to the operation, and journals those that must not be repeated.
async fn take_in_measurements(
    journal: &mut JournalWriter,
    entry: &mut Entry,
    operation: &mut Operation,
    hooks: &mut HookSession,
    observer: &Observer,
) {
    let updates = hooks.take_in(operation);
    if updates.finished {
        entry.open = Some(operation.clone());
        if let Err(error) = write_within(journal, entry, JOURNAL_LIMIT).await {
            tracing::warn!(
                pod = %operation.pod,
                %error,
                "the journal cannot be written: if this process dies, the hook's measurements are repeated"
            );
        }
    }
    if updates.any {
        let status = report::status(operation);
        observer(OperationEvent::Progress(&status.message));
        if updates.is_due {
            observer(OperationEvent::Status(&status));
        }
    }
}

/// Observes the pod through the runtime and the API server.
pub(super) async fn observe(node: &Node, operation: &Operation) -> Result<Snapshot, String> {
    let names: Vec<_> = operation.targets.iter().map(|target| target.name.as_str()).collect();
    let limit = time_limits::observation(operation);
    let client = node.client.within(limit);
    node.see(&client, &operation.pod, &names).await.map_err(|error| error.to_string())
}

/// Observes the pod, and gives the operation the time that was lost since the last observation.
async fn observe_timed(
    node: &Node,
    operation: &mut Operation,
    lost: &mut Option<LostTime>,
) -> Result<Snapshot, String> {
    let (asked, observed_at) = (Instant::now(), clock::now());
    let seen = observe(node, operation).await;
    match (lost, &seen) {
        (Some(lost), Ok(_)) => lost.take().into_iter().for_each(|time| operation.regain(time)),
        (Some(lost), Err(_)) => lost.not_seen(asked),
        (None, _) => {}
    }
    seen.map(|snapshot| Snapshot { observed_at: Some(observed_at), ..snapshot })
}

/// The `EndpointSlice`s that send traffic to the pod. They are watched only while the operation waits for them.
fn listen(node: &Node, operation: &Operation, slices: &mut Option<PodSlices>) -> Option<Vec<String>> {
    let Some(pods) = node.cluster.as_ref().filter(|_| operation.awaits_slices()) else {
        *slices = None;
        return None;
    };
    slices.get_or_insert_with(|| pods.slices(&operation.pod)).serving()
}

/// What is known about the group restart that the operation is part of.
fn signal(node: &Node, operation: &Operation) -> GroupSignal {
    let groups = node.groups.as_ref().zip(operation.group.as_ref());
    groups.map_or(GroupSignal::Unknown, |(groups, group)| groups.signal(&group.task.rollout, &operation.pod))
}

/// Adds what proves a standby to `snapshot`; `None` after a shutdown or withdrawal signal. Boxed by the caller: few operations
/// have a standby, and every one would hold the space.
async fn prove(
    node: &Node,
    operation: &Operation,
    snapshot: Snapshot,
    control: &mut ControlHandle,
) -> Option<Snapshot> {
    let listeners = standby::listeners(node, operation, &snapshot).await;
    let snapshot = Snapshot { listeners, ..snapshot };
    let goes_on = !control.shutdown.is_cancelled();
    let probed = tokio::select! {
        probed = standby::probed(node, operation, &snapshot), if goes_on => probed,
        () = reported(control), if goes_on => return None,
        else => None,
    };
    Some(Snapshot { probed, ..snapshot })
}

/// Applies every note, and returns the first other decision. Returns `None` if a decision
/// rests on cached data about the pod that must be `confirmed` first. Notes without end, which would stop the whole agent,
/// are an error of this program: the operation then waits for its next observation.
fn settle(
    operation: &mut Operation,
    snapshot: &Snapshot,
    observer: &Observer,
    confirmed: bool,
) -> Option<Next> {
    let is_doubted = |note: &Note| match &snapshot.declared {
        Some(_) => note.needs_confirmation(),
        None => snapshot.absent && matches!(note, Note::End(_)),
    };
    for _ in 0..MAX_NOTES {
        match next(operation, snapshot, clock::now()) {
            Next::Note(note) if !confirmed && is_doubted(&note) => return None,
            Next::Note(note) => {
                let report = matches!(note, Note::Step(_) | Note::RollBack(_) | Note::Reached(..));
                operation.note(note);
                if report {
                    observer(OperationEvent::Status(&report::status(operation)));
                }
            }
            other => return Some(other),
        }
    }
    tracing::error!(pod = %operation.pod, step = %operation.step, "internal error: no decision; please report this");
    if let Some(outcome) = undecided(operation, clock::now()) {
        return Some(Next::Done(outcome));
    }
    let until = clock::now().saturating_add(NO_DECISION_PAUSE).unwrap_or(operation.deadline_at);
    Some(Next::Wait(Waiting { until, on: "an internal error of the agent: see its log".to_owned() }))
}

/// What the execution of an effect needs.
struct EffectContext<'a> {
    node: &'a Node,
    journal: &'a mut JournalWriter,
    executor: &'a mut EffectExecutor,
    watch: &'a mut clock::Watch,
}

/// Replaces the record of an effect that is not carried out. Its write may still reach the disk: the next process must
/// not take the effect for one that was begun.
async fn take_back(journal: &mut JournalWriter, entry: &mut Entry, operation: &Operation) {
    entry.open = Some(operation.clone());
    entry.intent = None;
    // Behind an earlier write, a write waits for what exceeds the first `JOURNAL_LIMIT`.
    if let Err(error) = write_within(journal, entry, 2 * JOURNAL_LIMIT).await {
        tracing::warn!(pod = %operation.pod, %error, "the journal may hold an effect that has not begun");
    }
}

/// Journals `effect`, carries it out, and records the result.
///
/// If the journal cannot be written and no container was touched yet, the operation ends instead, and cleans up what
/// it has created without the journal; a shutdown or withdrawal signal ends the wait for the write. After a container
/// was touched, the operation goes on without the write: the journal holds enough to continue from an observation, and
/// a container that is down must come up.
async fn act(
    EffectContext { node, journal, executor, watch }: EffectContext<'_>,
    entry: &mut Entry,
    operation: &mut Operation,
    (effect, observed_at): (&Effect, Instant),
    control: &mut ControlHandle,
    observer: &Observer,
) {
    shift_times(watch, operation);
    // A shutdown signal that arrived earlier does not interrupt a pull: the operation could not pause at that time.
    let is_ending = control.shutdown.is_cancelled();
    let is_free = !operation.touched() && operation.ending.is_none();
    let limit_of_write = time_limits::journal_write(operation);
    let before = is_free.then(|| operation.clone());
    let decided_at = clock::now();
    operation.begin(effect, decided_at);
    entry.open = Some(operation.clone());
    entry.intent = Some(effect.clone());
    let written = tokio::select! {
        written = write_within(journal, entry, limit_of_write) => written,
        // The next decision takes the signal into account.
        () = reported(control), if is_free && !is_ending => {
            if let Some(before) = before {
                *operation = before;
            }
            return take_back(journal, entry, operation).await;
        }
    };
    if let Err(error) = written {
        if let Some(before) = before {
            *operation = before;
            let failure = Failure::Journal { message: error.to_string() };
            operation.note(Note::End(Outcome::Failed { failure, then: None, touched: false }));
            return;
        }
        tracing::error!(pod = %operation.pod, %error, "the journal cannot be written: continuing without it");
    } else if let Some(before) =
        before.filter(|before| is_obsolete(node, before, effect, decided_at, control))
    {
        *operation = before;
        return take_back(journal, entry, operation).await;
    }
    concurrency::before(node, operation, effect);
    let limit = time_limits::effect(operation, effect);
    let started = Instant::now();
    let progress = |line: String| observer(OperationEvent::Progress(&line));
    // Boxed: the future is held next to another one, and would otherwise occupy space twice in every operation's
    // future.
    let executing = Box::pin(async {
        fault::point(&operation.pod.uid, || format!("before effect {:?}", effect.verb())).await;
        fault::delay(|| format!("{:?}", effect.verb())).await;
        if let Some(effect_error) = outdated(node, operation, effect, observed_at).await {
            return Err(effect_error);
        }
        executor.execute(operation, effect, limit, &progress).await
    });
    let mut begun = Vec::new();
    let result = match effect {
        // An interrupted pull has no visible effect, and a pull may take too long for a shutdown or a withdrawal.
        Effect::Pull { .. } => tokio::select! {
            result = executing => result,
            () = reported(control), if !is_ending => return,
        },
        Effect::Start { container, id } => {
            fences::maintained(node, operation, (container, id), executing).await
        }
        Effect::PreStop { .. } | Effect::Stop { .. } | Effect::StopStandby { .. } => {
            let mut journal = StandbyJournal { writer: journal, entry, begun: &mut begun };
            fences::released(node, operation, &mut journal, executing).await
        }
        _ => executing.await,
    };
    fault::point(&operation.pod.uid, || format!("after effect {:?}", effect.verb())).await;
    let effect_error = result.as_ref().err();
    let (verb, container, took) = (effect.verb(), effect.container(), started.elapsed());
    observer(OperationEvent::Effect {
        verb,
        container,
        took,
        effect_error: effect_error.map(|effect_error| effect_error.class),
    });
    tracing::debug!(pod = %operation.pod, container, ?verb, ?took, ?effect_error, "effect");
    for (standby, at) in &begun {
        operation.begin(standby, *at);
    }
    shift_times(watch, operation);
    operation.record(effect, result, clock::now());
    concurrency::after(node, effect);
    // The time of this effect cannot be observed later, and other times are counted from it.
    if matches!(effect.verb(), Verb::Gate | Verb::Respec) {
        entry.open = Some(operation.clone());
        if let Err(error) = write_within(journal, entry, JOURNAL_LIMIT).await {
            tracing::error!(pod = %operation.pod, %error, "the effect cannot be written to the journal");
        }
    }
}

/// Waits for a permit, for a signal, until the operation has to observe its pod again, or until it is too late to begin.
async fn wait_for_permit(node: &Node, operation: &Operation, control: &mut ControlHandle) {
    let mut end = clock::until(operation.touch_until());
    // The fence keeps the kubelet from starting a container that ends meanwhile.
    if operation.is_fenced_ahead() {
        end = end.min(MAX_PAUSE);
    }
    tokio::select! {
        () = node.permit.acquire() => {}
        () = reported(control) => {}
        () = sleep(end) => {}
    }
}

/// Whether a process that shuts down may leave the operation now. Not while a container is down or being stopped
/// because of the operation, and not during cleanup, which is short.
fn may_pause(operation: &Operation, snapshot: &Snapshot, next: &Next) -> bool {
    let cleans_up = matches!(next, Next::Do(effect) if effect.verb() == Verb::Remove);
    let serves = |target: &Target| {
        !target.touched || (target.reached.is_some() && !snapshot.running(&target.name).is_empty())
    };
    !cleans_up && !matches!(next, Next::Done(_)) && operation.targets.iter().all(serves)
}

/// Waits for `pause`, a hook result, a `change` by another program, or the first shutdown or withdrawal signal.
async fn rest(
    control: &mut ControlHandle,
    hooks: &mut HookSession,
    journal: &mut JournalWriter,
    change: impl Future<Output = ()>,
    pause: Duration,
) {
    let ending = control.shutdown.is_cancelled();
    tokio::select! {
        () = sleep(pause) => {}
        () = change => {}
        () = journal.catch_up() => {}
        () = hooks.updates() => {}
        () = reported(control), if !ending => {}
    }
}

/// Waits for a shutdown or withdrawal signal.
async fn reported(control: &mut ControlHandle) {
    let ControlHandle { withdrawal, shutdown } = control;
    let withdrawn = async {
        if withdrawal.changed().await.is_err() {
            // The sender is gone: no withdrawal can arrive.
            pending::<()>().await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = withdrawn => {}
    }
}

pub(super) async fn write_within(
    journal: &mut JournalWriter,
    entry: &Entry,
    limit: Duration,
) -> Result<(), JournalError> {
    let uid = entry.pod.uid.as_str();
    let verb = || entry.intent.as_ref().map_or("none".to_owned(), |effect| format!("{:?}", effect.verb()));
    fault::point(uid, || format!("before journal {}", verb())).await;
    let written = journal.write(entry, limit).await;
    fault::point(uid, || format!("after journal {}", verb())).await;
    written
}
