//! Decides which writes and which status follow from a rollout's spec and the cached objects. Writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::api::annotation;
use crate::api::group::Strategy;
use crate::api::in_place_rollout::{InPlaceRolloutStatus, RolloutPhase};
use crate::api::request::{Order, PreHookPhase, Request};
use crate::podtask::budget::Budget;
use crate::podtask::disruption::{ASK_AGAIN, DisruptionAllowance};
use crate::podtask::node_load::NodeLoad;
use crate::podtask::priority::{Group, NodeLabels, group};
use crate::podtask::state::{End, Stage};
use crate::podtask::time::{later, whole_seconds};
use crate::podtask::write::{Event, PodPatch, VersionedRef};
use crate::rollout::abort;
use crate::rollout::back;
use crate::rollout::budget::Bounds;
use crate::rollout::check;
use crate::rollout::desired::Rollout;
use crate::rollout::order;
use crate::rollout::pod::Pod;
use crate::rollout::prefetch;
use crate::rollout::reach::ReadyAgents;
use crate::rollout::record::PodRecord;
use crate::rollout::report;
use crate::rollout::stop_reason::{self, StopReason, stop_reason};
use crate::rollout::target::TargetState;
use crate::rollout::together;
use crate::rollout::view::{PodView, State};

/// How long after its creation a rollout waits for a target that does not exist.
const UNTIL_THERE: SignedDuration = SignedDuration::from_secs(60);
/// Interval between reconciles while the target does not exist.
const REQUEUE: SignedDuration = SignedDuration::from_secs(2);

/// The input of a decision.
#[derive(Clone, Debug)]
pub struct RolloutInput<'a> {
    /// The target of the rollout.
    pub target: &'a TargetState,
    /// Pods that may belong to the target.
    pub pods: Vec<&'a Pod>,
    /// The `PodDisruptionBudget`s of the namespace.
    pub allowance: DisruptionAllowance,
    /// The labels of the nodes of the pods, as far as `priority` needs them.
    pub nodes: &'a NodeLabels,
    /// The name of a newer rollout of the same target that supersedes this one.
    pub newer: Option<&'a str>,
    /// The name of an older rollout of the same target whose abort must end before this one begins.
    pub aborting: Option<&'a str>,
    /// The uids of the active rollouts of the namespace.
    pub active: BTreeSet<String>,
    /// The nodes whose agent is ready; `None`: agents are not in the cache.
    pub agents: Option<&'a ReadyAgents>,
    /// The time of the reconcile.
    pub now: Timestamp,
}

/// The result of one reconcile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The writes, in order.
    pub writes: Vec<Write>,
    /// `PodDisruptionBudget` claims to renew: pairs of the name of a budget and the name of a pod.
    pub renewals: Vec<(String, String)>,
    /// True when the rollout gets the label with which agents watch it, before the status is written.
    pub labels: bool,
    /// The status to write after that.
    pub status: InPlaceRolloutStatus,
    /// The events to record once the status is written.
    pub events: Vec<Event>,
    /// When to reconcile if no event arrives before.
    pub requeue_at: Option<Timestamp>,
    /// The TTL of the finished rollout is over: delete it.
    pub delete: bool,
}

/// A write on a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The pod, with the version that the write is conditional on.
    pub pod: VersionedRef,
    /// The record, the request and the label.
    pub patch: PodPatch,
    /// The purpose.
    pub what: What,
}

/// The purpose of a write on a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Write the request. Before that, claim at these budgets.
    Begin(Vec<String>),
    /// Change which images the agent is to pull in advance.
    Prefetch,
    /// Withdraw the request.
    Recall,
    /// Remove the label of a rollout that is gone, of which the pod has no record in progress.
    Release,
    /// Record the end. Before that, remove the entries at these budgets.
    End(End, Vec<String>),
}

impl Write {
    /// True when the write involves budgets.
    pub fn claims(&self) -> bool {
        match &self.what {
            What::Begin(claims) | What::End(_, claims) => !claims.is_empty(),
            What::Recall | What::Release | What::Prefetch => false,
        }
    }
}

/// Decides about a rollout.
pub fn decide(rollout: &Rollout, mut input: RolloutInput<'_>) -> Decision {
    let before = &rollout.before;
    if before.phase.is_terminal() {
        return expire(rollout, input.now);
    }
    let problems = check::spec(&rollout.spec);
    if !problems.is_empty() {
        return refused(rollout, &StopReason::failed("Invalid", problems.join("; ")), input.now);
    }
    let missing = input.target.missing(rollout, &input.pods, input.now);
    input.pods.retain(|pod| input.target.has(rollout, pod));
    if let (Strategy::Together, Some(started)) = (rollout.spec.strategy, before.started_at) {
        return together::reconcile(rollout, &input, started);
    }
    input.pods.retain(|pod| pod.base.is_active());
    let Some(started) = before.started_at else { return begin(rollout, &input) };
    carry_on(rollout, input, started, missing)
}

/// A rollout that has ended is kept until its TTL is over.
fn expire(rollout: &Rollout, now: Timestamp) -> Decision {
    let mut status = rollout.before.clone();
    status.observed_generation = rollout.generation;
    // A rollout that ended under an earlier release has fewer conditions.
    report::conditions(rollout, &mut status, now);
    let ttl = rollout.spec.ttl_seconds_after_finished;
    let end = ttl.zip(status.finished_at).map(|(ttl, at)| later(at, SignedDuration::from_secs(ttl.into())));
    let delete = end.is_some_and(|end| end <= now);
    Decision { status, requeue_at: end.filter(|_| !delete), delete, ..Decision::default() }
}

/// Ends a rollout at once: before it has begun, or because its spec has become invalid.
fn refused(rollout: &Rollout, stop_reason: &StopReason, now: Timestamp) -> Decision {
    let status = report::ended_early(rollout, stop_reason, now);
    let events = report::events(rollout, &status);
    Decision { status, events, ..Decision::default() }
}

/// The first reconcile. The start is recorded in the status before any pod is touched.
fn begin(rollout: &Rollout, input: &RolloutInput<'_>) -> Decision {
    let now = input.now;
    if let Some(newer) = input.newer {
        let message = format!("InPlaceRollout {newer} is newer and has the same target");
        return refused(rollout, &StopReason::superseded(message), now);
    }
    if let Some(aborting) = input.aborting {
        let message = format!(
            "InPlaceRollout {aborting} has the same target and is being aborted: this restart begins when the abort has ended"
        );
        let status = report::pending(rollout, report::ABORT_IN_PROGRESS, message, now);
        return Decision { status, ..Decision::default() };
    }
    let by_labels = rollout.spec.target.workload_ref.is_none();
    if *input.target == TargetState::Absent || by_labels && input.pods.is_empty() {
        let (target, namespace) = (rollout.target(), &rollout.namespace);
        let message = if by_labels {
            format!("no pod in namespace {namespace} has the labels {target}")
        } else {
            format!("the target {target} does not exist in namespace {namespace}")
        };
        let until = later(rollout.created, UNTIL_THERE);
        if until <= now {
            return refused(rollout, &StopReason::failed(report::TARGET_NOT_FOUND, message), now);
        }
        let status = report::pending(rollout, report::TARGET_NOT_FOUND, message, now);
        return Decision { status, requeue_at: Some(later(now, REQUEUE).min(until)), ..Decision::default() };
    }
    if let Some(drift) = input.target.drift(rollout).filter(|_| !rollout.spec.allow_template_drift) {
        return refused(rollout, &StopReason::failed("TemplateDrift", drift), now);
    }
    let started = start(rollout, input);
    let views: Vec<_> =
        input.pods.iter().map(|pod| PodView::of(pod, rollout, input.agents, started, now)).collect();
    let bounds = Bounds::of(&rollout.spec, views.len());
    if let Some(stop_reason) = given_up(rollout, input.target, &views, bounds) {
        return refused(rollout, &stop_reason, now);
    }
    let mut status = report::status(rollout, &views, bounds);
    status.started_at = Some(started);
    status.progressed_at = (!rollout.spec.paused).then(|| whole_seconds(now));
    status.phase = if rollout.spec.paused { RolloutPhase::Paused } else { RolloutPhase::Running };
    report::conditions(rollout, &mut status, now);
    let events = report::events(rollout, &status);
    Decision { status, events, requeue_at: Some(now), ..Decision::default() }
}

/// When the rollout starts: after the creation of every pod that exists, also if the clock of the controller is behind
/// that of the API server, whose times of creation have whole seconds.
fn start(rollout: &Rollout, input: &RolloutInput<'_>) -> Timestamp {
    let created = input.pods.iter().map(|pod| pod.base.created).filter(|created| *created >= input.now);
    let after = created.max().map(|newest| later(newest, SignedDuration::from_secs(1)));
    input.now.max(rollout.created).max(after.unwrap_or(input.now))
}

/// The stop reason when the remaining restarts would reach the owner's backoff limit, because it counts them as
/// failures.
fn given_up(
    rollout: &Rollout,
    target: &TargetState,
    views: &[PodView<'_>],
    bounds: Bounds,
) -> Option<StopReason> {
    let more = bounds.remaining(views) * rollout.spec.containers.len();
    let why = target.gives_up(rollout, views.iter().map(|view| view.pod), more)?;
    Some(StopReason::failed("BackoffLimit", why))
}

fn carry_on(rollout: &Rollout, mut input: RolloutInput<'_>, started: Timestamp, missing: usize) -> Decision {
    let now = input.now;
    let pods = std::mem::take(&mut input.pods);
    let views: Vec<_> =
        pods.iter().map(|pod| PodView::of(pod, rollout, input.agents, started, now)).collect();
    let bounds = Bounds::of(&rollout.spec, views.len());
    let mut status = report::status(rollout, &views, bounds);
    status.started_at = Some(started);
    let failed = usize::try_from(status.failed).unwrap_or(0);
    let aborts = status.abort.as_ref().zip(rollout.before.abort.as_ref());
    let (counts_from, mut progressed, stop_reason) = if let Some((abort, before)) = aborts {
        let progressed = abort.returned > before.returned || abort.failed > before.failed;
        let stop_reason = abort::stops(rollout, &input, &views, bounds, abort, progressed);
        (abort.started_at.unwrap_or(started), progressed, stop_reason)
    } else {
        let progressed = status.done > rollout.before.done || status.failed > rollout.before.failed;
        let stop_reason = stop_reason(rollout, &input, started, failed, bounds.failures, progressed)
            .or_else(|| given_up(rollout, input.target, &views, bounds));
        (started, progressed, stop_reason)
    };
    let stop_reason = stop_reason
        .map(|stop_reason| stop_reason.naming(&rollout.before.reason, report::unreachable(&views)));
    let abort_begins = abort::begins(rollout, stop_reason.as_ref(), input.target, now);

    let mut planner = Planner {
        rollout,
        nodes: input.nodes,
        now,
        decision: Decision::default(),
        waits: report::Waits::default(),
    };
    for view in &views {
        planner.end_or_recall(view, stop_reason.is_some() || rollout.aborts() && !view.is_back());
        planner.renew(view, &input.allowance);
        planner.wake(view);
    }
    let may_begin = stop_reason.is_none() && !rollout.spec.paused;
    if may_begin {
        planner.waits.missing = missing;
        let remaining = if rollout.aborts() { views.len() } else { bounds.remaining(&views) };
        planner.begin(&views, bounds.budget(&views, missing, remaining), &mut input.allowance);
    }
    let Planner { mut decision, waits, .. } = planner;
    let begun = decision.writes.iter().filter(|write| matches!(write.what, What::Begin(_))).count();
    // The nodes have, or had, the images from before.
    let pulls = may_begin && !rollout.aborts();
    let remaining = if pulls { bounds.remaining(&views).saturating_sub(begun) } else { 0 };
    prefetch::add(rollout, &views, remaining, &input.active, &mut decision.writes);
    status.busy += i32::try_from(begun).unwrap_or(0);
    if rollout.aborts() {
        // Pods that begin to go back are no longer done.
        let begins = |view: &PodView<'_>| {
            let begins =
                |write: &Write| matches!(write.what, What::Begin(_)) && write.pod.uid == view.pod.base.uid;
            decision.writes.iter().any(begins)
        };
        status.done =
            report::number(views.iter().filter(|view| view.is_done(rollout) && !begins(view)).count());
    }
    let mut begins_at = None;
    if abort_begins.is_some() {
        (status.abort, begins_at, progressed) = (abort_begins, Some(now), true);
        abort::phase(rollout, &mut status, &views, None, &waits);
    } else if rollout.aborts() {
        abort::phase(rollout, &mut status, &views, stop_reason.as_ref(), &waits);
    } else {
        report::phase(rollout, &mut status, &views, bounds, stop_reason.as_ref(), &waits);
    }
    report::complete(rollout, &mut status, now);
    let deadline = stop_reason::deadline(rollout, counts_from).filter(|_| stop_reason.is_none());
    let lost = (*input.target == TargetState::Absent).then(|| later(now, REQUEUE));
    if status.phase != RolloutPhase::Paused {
        let since = rollout.before.progressed_at.filter(|_| !progressed);
        status.progressed_at = Some(since.unwrap_or_else(|| whole_seconds(now)));
    }
    let stalled =
        stop_reason::progress_deadline(rollout, status.progressed_at).filter(|_| stop_reason.is_none());
    let times = [decision.requeue_at, deadline, stalled, lost, begins_at];
    decision.requeue_at = times.into_iter().flatten().min().filter(|_| !status.phase.is_terminal());
    decision.events = report::events(rollout, &status);
    decision.status = status;
    decision
}

struct Planner<'a> {
    rollout: &'a Rollout,
    nodes: &'a NodeLabels,
    now: Timestamp,
    decision: Decision,
    waits: report::Waits,
}

impl Planner<'_> {
    fn at(&mut self, time: Timestamp) {
        if time > self.now {
            let again = &mut self.decision.requeue_at;
            *again = Some(again.map_or(time, |earlier| earlier.min(time)));
        }
    }

    /// The group of a pod by the keys of `priority`.
    fn group(&self, view: &PodView<'_>) -> Group {
        let base = &view.pod.base;
        let node = base.node.as_ref().and_then(|node| self.nodes.get(node));
        group(&self.rollout.spec.priority, base, node.map(AsRef::as_ref))
    }

    fn record(&self, view: &PodView<'_>) -> Option<PodRecord> {
        view.pod.record.clone().filter(|record| record.rollout == self.rollout.uid)
    }

    fn end_or_recall(&mut self, view: &PodView<'_>, recalls: bool) {
        let record = self
            .record(view)
            .unwrap_or_else(|| PodRecord { back: view.is_back(), ..PodRecord::new(self.rollout, self.now) });
        match &view.state {
            State::Ended(end) => {
                self.decision.writes.push(end_of(view.pod, &record, end));
            }
            State::Busy { touched: false } if recalls && record.stage == Stage::Ordered => {
                self.decision.writes.push(recall_of(view.pod, &record));
            }
            _ => {}
        }
    }

    /// Claims are valid for two minutes, and an operation may take longer.
    fn renew(&mut self, view: &PodView<'_>, allowance: &DisruptionAllowance) {
        let Some(record) = self.record(view).filter(|record| view.is_busy() && record.stage.is_live()) else {
            return;
        };
        let (due, next) = allowance.due(&view.pod.base, &record.claims, self.now);
        let name = &view.pod.base.name;
        self.decision.renewals.extend(due.into_iter().map(|budget| (budget, name.clone())));
        if let Some(at) = next {
            self.at(at);
        }
    }

    /// Requeues for the time when the pod's state changes without an event.
    fn wake(&mut self, view: &PodView<'_>) {
        let min_ready = SignedDuration::from_secs(self.rollout.spec.pod.min_ready_seconds.into());
        if let Some(at) = view.pod.base.available_at(min_ready).filter(|_| !view.available) {
            self.at(at);
        }
        if let Some(record) = self.record(view).filter(|_| view.is_busy()) {
            self.at(record.silent_at(view.pod.base.answer.as_ref()));
            self.at(record.lost_at());
        }
    }

    /// The record of a task that begins on the pod, without claims.
    fn begun(&self, view: &PodView<'_>) -> PodRecord {
        let new = PodRecord::new(self.rollout, self.now).replacing(view.pod.record.as_ref());
        if self.rollout.aborts() {
            let images = self.record(view).map(|record| record.images).unwrap_or_default();
            return PodRecord { images, back: true, ..new };
        }
        let image = |name: &str| Some((name.to_owned(), view.pod.images.get(name)?.clone()));
        PodRecord { images: self.rollout.images().filter_map(|(name, _)| image(name)).collect(), ..new }
    }

    fn begin(&mut self, views: &[PodView<'_>], mut budget: Budget, allowance: &mut DisruptionAllowance) {
        for view in views.iter().filter(|view| view.is_busy() && view.ready) {
            if let Some(record) = self.record(view) {
                allowance.deduct(&view.pod.base, &record.claims);
            }
        }
        // A group is completed before the next one begins. Pods that no agent reaches hold up no other group.
        let pending = views.iter().filter(|view| {
            matches!(view.state, State::Waiting | State::Busy { .. } | State::Taken) && !view.is_unreachable()
        });
        let current = pending.map(|view| self.group(view)).min();
        let begins = |view: &&PodView<'_>| {
            view.state == State::Waiting
                && view.reach.is_reachable()
                && current.as_ref().is_none_or(|current| self.group(view) == *current)
        };
        let mut next: Vec<_> = views.iter().filter(begins).collect();
        next.sort_by(|one, other| order::compare(one, other));
        let in_progress = views.iter().filter(|view| view.is_busy() || view.taken);
        let mut is_spent = false;
        let mut load = NodeLoad::of(in_progress.map(|view| view.pod.base.node.as_deref()));
        for view in next {
            if budget.tasks == 0 {
                break;
            }
            let repairs = self.rollout.aborts() && !view.ready;
            let Some(order) = self.rollout.order(&view.pod.base, repairs) else {
                self.waits.not_ready += 1;
                continue;
            };
            let node = view.pod.base.node.as_deref();
            if !load.has_room(node, view.reach.at_once()) {
                self.waits.nodes.extend(node.map(str::to_owned));
                continue;
            }
            if allowance.is_disrupted(&view.pod.base) {
                self.waits.taken += 1;
                continue;
            }
            if !budget.allows(view.available) {
                is_spent = true;
                continue;
            }
            match allowance.claim(&view.pod.base, view.ready) {
                Ok(claims) => {
                    budget.spend(view.available);
                    load.add(node);
                    let record = PodRecord { claims: claims.clone(), ..self.begun(view) };
                    self.decision.writes.push(begin_of(self.rollout, view.pod, &record, order, claims));
                }
                Err(name) => {
                    self.waits.budgets.insert(name);
                }
            }
        }
        // A pod that needs no request delays the others only by what it takes from the budget.
        let delays = |view: &&PodView<'_>| view.state == State::Taken || is_spent && view.taken;
        self.waits.taken += views.iter().filter(delays).count();
        self.waits.unreachable = report::unreachable(views);
        let holds_up = |view: &&PodView<'_>| !view.available && !view.is_busy() && !view.is_unreachable();
        self.waits.unavailable = views.iter().filter(holds_up).count();
        if !self.waits.budgets.is_empty() || self.waits.taken > 0 {
            self.at(later(self.now, ASK_AGAIN));
        }
    }
}

impl PodRecord {
    fn new(rollout: &Rollout, now: Timestamp) -> Self {
        Self {
            rollout: rollout.uid.clone(),
            name: rollout.name.clone(),
            stage: Stage::Ordered,
            at: now,
            seconds: rollout.request().deadline_seconds,
            claims: Vec::new(),
            reason: String::new(),
            note: String::new(),
            images: BTreeMap::new(),
            back: false,
            earlier: Vec::new(),
        }
    }
}

/// The record, and the label that names the rollout working on the pod.
fn record_patch(record: &PodRecord, label: Option<String>) -> PodPatch {
    let text = serde_json::to_string(record).ok();
    PodPatch {
        labels: [(annotation::ROLLOUT_UID.to_owned(), label)].into(),
        annotations: [(annotation::ROLLOUT.to_owned(), text)].into(),
    }
}

fn begin_of(rollout: &Rollout, pod: &Pod, record: &PodRecord, order: Order, claims: Vec<String>) -> Write {
    let mut patch = record_patch(record, Some(rollout.uid.clone()));
    let request = match back::containers(rollout, pod) {
        Ok(containers) if record.back => back::request(rollout, containers),
        _ => rollout.request(),
    };
    let mut request = Request { order, ..request };
    // Without a standby nothing exists that a hook at the handover could check.
    if order == Order::StopFirst {
        request.pre_hook = request.pre_hook.filter(|hook| hook.phase != PreHookPhase::Handover);
    }
    patch.send(&request);
    Write { pod: VersionedRef::of(&pod.base), patch, what: What::Begin(claims) }
}

/// Withdraws the request of `record`, if it is still on the pod.
pub(super) fn recall_of(pod: &Pod, record: &PodRecord) -> Write {
    let mut patch = record_patch(&record.at_stage(Stage::Recalled), Some(record.rollout.clone()));
    patch.withdraw(&pod.base, &record.id());
    Write { pod: VersionedRef::of(&pod.base), patch, what: What::Recall }
}

/// Records how a task ended. A request without a terminal answer is removed, so that no agent accepts it later.
pub(super) fn end_of(pod: &Pod, record: &PodRecord, end: &End) -> Write {
    let mut patch = record_patch(&record.ended(end), None);
    let id = record.id();
    let answer = pod.base.answer.as_ref().filter(|answer| answer.id == id);
    let answered = answer.is_some_and(|answer| answer.phase.is_terminal());
    if end.stage.withdraws(answered) {
        patch.withdraw(&pod.base, &id);
    }
    Write { pod: VersionedRef::of(&pod.base), patch, what: What::End(end.clone(), record.claims.clone()) }
}
