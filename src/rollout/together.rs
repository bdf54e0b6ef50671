//! Decides the phase of a group restart (`strategy: Together`). It writes to no pod: the agents read the phase in the status
//! of the rollout, and report in the status of each pod how far it is.
//!
//! | phase | ends when | and then |
//! |---|---|---|
//! | Prepare | all pods are prepared | Stop; without a barrier Start |
//! | Prepare | a pod cannot be prepared, or the time is over | as `onUnprepared` says: the rollout fails and nothing is stopped, or the others go on |
//! | Prepare | the rollout is superseded, deleted or late | the rollout ends and nothing is stopped |
//! | Stop | no prepared pod is left that has not stopped, or the time is over | Start |
//! | Start | each pod has reported its end, or its deadline is over | the rollout ends |
//!
//! A pod that is deleted meanwhile does not count any more, but the others wait at the barrier until it has stopped. From Stop on nothing takes a group restart back: each agent starts
//! its containers by itself when the barrier takes too long.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::api::annotation;
use crate::api::group::{GroupPhase, GroupStatus, MAX_LEFT_OUT, OnUnprepared, TogetherTerms};
use crate::api::in_place_rollout::{InPlaceRolloutStatus, PodFailure, RolloutPhase, SOME_FAILED};
use crate::api::status::{Phase, Status};
use crate::podtask::time::later;
use crate::rollout::decide::{Decision, RolloutInput};
use crate::rollout::desired::Rollout;
use crate::rollout::failed_write::WRITE_FAILED;
use crate::rollout::pod::Pod;
use crate::rollout::reach::Reach;
use crate::rollout::report::{self, MAX_FAILURES, MAX_NAMES, PAUSED, number};
use crate::rollout::stop_reason::{StopReason, stop_reason};
use crate::rollout::target::TargetState;

/// The reason when pods could not be prepared.
const UNPREPARED: &str = "PodsUnprepared";
/// The reason of a pod whose agent did not report in time.
const NO_REPORT: &str = "NoReport";
/// The reason of a pod whose report was replaced.
const REPLACED: &str = "ReportReplaced";
/// The shortest interval between two writes of the status in which only numbers differ.
const COUNT_INTERVAL: SignedDuration = SignedDuration::from_secs(1);
/// The API server sends each such write to the agents of all nodes: the part of the interval for one of them. So it sends a
/// thousand in a second, whatever the size of the cluster.
const COUNT_INTERVAL_OF_AGENT: SignedDuration = SignedDuration::from_millis(1);
/// How much later than a pod's own deadline its end may be reported.
const REPORT_SPARE: SignedDuration = SignedDuration::from_secs(30);

/// How far a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    /// Its agent has not reported that it is prepared.
    Waiting,
    /// No agent reaches it, and why.
    Unreachable(String),
    /// It is prepared.
    Prepared,
    /// Its containers have stopped and wait at the barrier.
    Stopped,
    /// All its containers run again.
    Done,
    /// It was not restarted, or not completely: reason, message.
    Failed(String, String),
}

/// A pod of the group.
struct Member<'a> {
    pod: &'a Pod,
    report: Option<&'a Status>,
    progress: Progress,
}

impl<'a> Member<'a> {
    fn of(pod: &'a Pod, rollout: &Rollout, input: &RolloutInput<'_>) -> Self {
        let report = pod.base.answer.as_ref().filter(|report| report.id == rollout.uid);
        let progress = match report {
            // An agent begins another request only after the group restart has ended on the pod.
            None if rollout
                .before
                .group
                .as_ref()
                .is_some_and(|group| group.phase == GroupPhase::Start && pod.epoch >= group.epoch) =>
            {
                let why = "another request replaced the report of its agent".to_owned();
                Progress::Failed(REPLACED.to_owned(), why)
            }
            None => match Reach::of(pod, input.agents) {
                reach if reach.is_reachable() => Progress::Waiting,
                reach => Progress::Unreachable(reach.problem()),
            },
            Some(report) if report.phase == Phase::Succeeded => Progress::Done,
            Some(report) if report.phase.is_terminal() => {
                let reason = if report.reason.is_empty() {
                    format!("{:?}", report.phase)
                } else {
                    report.reason.clone()
                };
                Progress::Failed(reason, report.message.clone())
            }
            Some(report) => match &report.group {
                Some(group) if group.stopped_at.is_some() => Progress::Stopped,
                Some(group) if group.prepared_at.is_some() => Progress::Prepared,
                _ => Progress::Waiting,
            },
        };
        Self { pod, report, progress }
    }

    /// True when the group restart goes on without it.
    fn is_left_out(&self, group: &GroupStatus) -> bool {
        group.left_out.contains(&self.pod.base.uid)
    }

    fn was_prepared(&self) -> bool {
        self.report.and_then(|report| report.group.as_ref()).is_some_and(|group| group.prepared_at.is_some())
    }

    /// True when its containers may still run although all are to stop: it has not reported the stop, or the failure came
    /// before it. Nobody waits for a pod that is left out.
    fn is_stopping(&self, group: &GroupStatus) -> bool {
        let own = self.report.and_then(|report| report.group.as_ref());
        let open = own.is_some_and(|own| own.prepared_at.is_some() && own.stopped_at.is_none());
        open && self.progress != Progress::Done && !self.is_left_out(group)
    }

    /// True when its agent has nothing more to report.
    fn has_ended(&self) -> bool {
        matches!(self.progress, Progress::Done | Progress::Failed(..))
    }

    /// When the pod reached the end of this phase.
    fn reached_at(&self, phase: GroupPhase) -> Option<Timestamp> {
        let report = self.report?;
        match phase {
            GroupPhase::Prepare => report.group.as_ref()?.prepared_at,
            GroupPhase::Stop => report.group.as_ref()?.stopped_at,
            GroupPhase::Start => report.finished_at,
        }
    }

    fn failure(&self) -> PodFailure {
        let (reason, message) = match &self.progress {
            Progress::Failed(reason, message) => (reason.clone(), message.clone()),
            Progress::Unreachable(why) => ("PodUnreachable".to_owned(), why.clone()),
            _ => (NO_REPORT.to_owned(), "its agent did not report in time".to_owned()),
        };
        let at = self.report.and_then(|report| report.finished_at);
        let base = &self.pod.base;
        PodFailure { pod: base.name.clone(), uid: base.uid.clone(), reason, message, at }
    }
}

/// What follows for the group.
enum Step {
    /// The phase goes on; look again at this time at the latest.
    Stay(Option<Timestamp>),
    /// The next phase begins.
    Enter(GroupPhase),
    /// The rollout ends.
    End(RolloutPhase, &'static str, String),
}

/// Decides about a rollout with the strategy `Together` that has begun.
pub(super) fn reconcile(rollout: &Rollout, input: &RolloutInput<'_>, started: Timestamp) -> Decision {
    let Some(group) = &rollout.before.group else { return prepare(rollout, input, started) };
    let terms = rollout.spec.together.unwrap_or_default();
    let belongs =
        |pod: &&&Pod| !pod.base.has_ended() && group.prepare_at.is_some_and(|at| pod.base.created <= at);
    let members = input.pods.iter().filter(belongs).map(|pod| Member::of(pod, rollout, input));
    let (leaving, members): (Vec<_>, Vec<_>) = members.partition(|member| member.pod.base.is_deleting());
    let leaving = leaving.iter().any(|member| member.is_stopping(group));
    let step = match group.phase {
        // Time while it is paused does not count towards `progressDeadlineSeconds`.
        GroupPhase::Prepare => match stop_reason(rollout, input, started, 0, 1, was_paused(rollout)) {
            Some(StopReason { phase, reason, message }) => Step::End(phase, reason, message),
            None => match prepared(group, terms, &members, input.now) {
                Step::Enter(_) if rollout.spec.paused => Step::Stay(None),
                step => step,
            },
        },
        GroupPhase::Stop => stopped(group, terms, &members, leaving, input.now),
        GroupPhase::Start => ended(rollout, group, &members, input.now),
    };
    let agents = input.agents.map_or(members.len(), BTreeMap::len);
    publish(rollout, group, &members, step, agents, input.now)
}

fn was_paused(rollout: &Rollout) -> bool {
    rollout.before.phase == RolloutPhase::Paused
}

/// The begin of a group restart. The label comes first, because agents watch only rollouts that have it.
fn prepare(rollout: &Rollout, input: &RolloutInput<'_>, started: Timestamp) -> Decision {
    let now = input.now;
    let mut status =
        InPlaceRolloutStatus { observed_generation: rollout.generation, ..rollout.before.clone() };
    if let Some(StopReason { phase, reason, message }) = stop_reason(rollout, input, started, 0, 1, false) {
        (status.phase, status.message) = (phase, message);
        reason.clone_into(&mut status.reason);
    } else if !rollout.is_labelled {
        let end = later(started, seconds(rollout.spec.together.unwrap_or_default().prepare_timeout_seconds));
        if now < end || status.reason != WRITE_FAILED {
            // The write changes the version of the rollout: the status follows from the next reconcile.
            let status = rollout.before.clone();
            return Decision { status, labels: true, requeue_at: Some(end), ..Decision::default() };
        }
        let label = annotation::TOGETHER;
        status.phase = RolloutPhase::Failed;
        UNPREPARED.clone_into(&mut status.reason);
        status.message = format!(
            "the rollout could not be given the label {label}, with which agents watch it. No container was stopped"
        );
    } else if rollout.spec.paused {
        (status.phase, status.message) = (RolloutPhase::Paused, "paused by spec.paused".to_owned());
        PAUSED.clone_into(&mut status.reason);
        status.progressed_at = None;
    } else {
        let owners = match input.target {
            TargetState::Present { owners: Some(owners), .. } => owners.iter().cloned().collect(),
            _ => Vec::new(),
        };
        let active = || input.pods.iter().filter(|pod| pod.base.is_active());
        let newest = active().map(|pod| pod.base.created).max();
        // Two group restarts of which no pod has reported have different numbers, too.
        let last = input.pods.iter().map(|pod| pod.epoch).max().unwrap_or_default();
        let epoch = now.as_millisecond().max(last + 1);
        let pods = number(active().count());
        status.phase = RolloutPhase::Running;
        "Prepare".clone_into(&mut status.reason);
        status.message = format!("group restart: {pods} pods are being prepared");
        (status.pods, status.wanted) = (pods, pods);
        status.progressed_at = Some(now);
        status.group = Some(GroupStatus {
            epoch,
            prepare_at: newest.max(Some(now)),
            owners,
            pods,
            ..GroupStatus::default()
        });
    }
    report::complete(rollout, &mut status, now);
    let requeue_at = status.group.as_ref().map(|_| now);
    let events = report::events(rollout, &status);
    Decision { status, events, requeue_at, ..Decision::default() }
}

/// What follows from the members in the phase Prepare.
fn prepared(group: &GroupStatus, terms: TogetherTerms, members: &[Member<'_>], now: Timestamp) -> Step {
    let end = later(group.prepare_at.unwrap_or(now), seconds(terms.prepare_timeout_seconds));
    let is_late = end <= now;
    let waits: Vec<_> = members
        .iter()
        .filter(|member| matches!(member.progress, Progress::Waiting | Progress::Unreachable(_)))
        .collect();
    let failed: Vec<_> = members.iter().filter(|member| member.has_ended()).collect();
    let unprepared = failed.len() + if is_late { waits.len() } else { 0 };
    let stops = terms.on_unprepared == OnUnprepared::Fail || unprepared == members.len();
    if unprepared > 0 && stops {
        let late = waits.into_iter().filter(|_| is_late);
        let names = names(failed.into_iter().chain(late));
        let message = format!(
            "{unprepared} of {} pods could not be prepared: {names}. No container was stopped",
            members.len()
        );
        return Step::End(RolloutPhase::Failed, UNPREPARED, message);
    }
    if !waits.is_empty() && !is_late {
        return Step::Stay(Some(end));
    }
    if unprepared > MAX_LEFT_OUT {
        let message = format!(
            "{unprepared} of {} pods could not be prepared, and a group restart leaves out {MAX_LEFT_OUT} pods at most. No \
             container was stopped",
            members.len()
        );
        return Step::End(RolloutPhase::Failed, UNPREPARED, message);
    }
    Step::Enter(if terms.barrier { GroupPhase::Stop } else { GroupPhase::Start })
}

/// What follows from the members in the phase Stop.
fn stopped(
    group: &GroupStatus,
    terms: TogetherTerms,
    members: &[Member<'_>],
    leaving: bool,
    now: Timestamp,
) -> Step {
    let end = later(group.stop_at.unwrap_or(now), seconds(terms.barrier_timeout_seconds));
    // Without a target its pods are not known.
    let is_unknown = members.is_empty() && group.pods > 0;
    let stopping = leaving || is_unknown || members.iter().any(|member| member.is_stopping(group));
    if stopping && now < end { Step::Stay(Some(end)) } else { Step::Enter(GroupPhase::Start) }
}

/// What follows from the members in the phase Start.
fn ended(rollout: &Rollout, group: &GroupStatus, members: &[Member<'_>], now: Timestamp) -> Step {
    let deadline = seconds(rollout.spec.pod.deadline_seconds).saturating_add(REPORT_SPARE);
    let end = later(group.start_at.unwrap_or(now), deadline);
    let is_open =
        |member: &&Member<'_>| member.was_prepared() && !member.has_ended() && !member.is_left_out(group);
    let open = members.iter().filter(is_open).count();
    if open > 0 && now < end {
        return Step::Stay(Some(end));
    }
    let done = members.iter().filter(|member| member.progress == Progress::Done).count();
    let failed = members.len() - done;
    let gone = usize::try_from(group.pods).unwrap_or(0).saturating_sub(members.len());
    let gone = if gone > 0 { format!(", {gone} were deleted meanwhile") } else { String::new() };
    let message = format!("group restart: {done} of {} pods are restarted{gone}", members.len());
    if members.is_empty() && group.pods > 0 {
        return Step::End(RolloutPhase::Failed, SOME_FAILED, message);
    }
    if failed > 0 {
        let message = format!("{message}, {failed} are not: see status.failures");
        return Step::End(RolloutPhase::Failed, SOME_FAILED, message);
    }
    Step::End(RolloutPhase::Succeeded, "AllPodsDone", message)
}

/// The decision with the status that follows from `step`.
fn publish(
    rollout: &Rollout,
    group: &GroupStatus,
    members: &[Member<'_>],
    step: Step,
    agents: usize,
    now: Timestamp,
) -> Decision {
    let mut status = counted(rollout, group, members, matches!(step, Step::End(..)));
    let is_count_only = matches!(step, Step::Stay(_));
    if let Some(group) = status.group.as_mut().filter(|_| !is_count_only) {
        group.last = last(members, group.phase).unwrap_or_default();
    }
    let mut requeue_at = None;
    match step {
        Step::Stay(until) => {
            requeue_at = until;
            status.message = line(group, members);
            // From Stop on nothing is held.
            if rollout.spec.paused && group.phase == GroupPhase::Prepare {
                status.phase = RolloutPhase::Paused;
                PAUSED.clone_into(&mut status.reason);
                status.message.push_str("; paused by spec.paused");
            } else {
                status.phase = RolloutPhase::Running;
                status.reason = format!("{:?}", group.phase);
            }
        }
        Step::Enter(phase) => {
            if let Some(group) = &mut status.group {
                if group.phase == GroupPhase::Prepare {
                    let left = members.iter().filter(|member| !member.was_prepared());
                    group.left_out = left.map(|member| member.pod.base.uid.clone()).collect();
                    group.skipped = number(group.left_out.len());
                }
                group.phase = phase;
                let at = if phase == GroupPhase::Stop { &mut group.stop_at } else { &mut group.start_at };
                *at = Some(now);
            }
            status.phase = RolloutPhase::Running;
            status.reason = format!("{phase:?}");
            status.message = line(&GroupStatus { phase, ..group.clone() }, members);
            requeue_at = Some(now);
        }
        Step::End(phase, reason, message) => {
            (status.phase, status.message) = (phase, message);
            reason.clone_into(&mut status.reason);
        }
    }
    let before = &rollout.before;
    let counted_at = before.progressed_at.map(|at| later(at, count_interval(agents)));
    if is_count_only
        && let Some(next) = counted_at.filter(|next| now < *next && status.reason == before.reason)
    {
        let status = InPlaceRolloutStatus { observed_generation: rollout.generation, ..before.clone() };
        let requeue_at = requeue_at.map_or(next, |at| at.min(next));
        return Decision { status, requeue_at: Some(requeue_at), ..Decision::default() };
    }
    let resumes = was_paused(rollout) && status.phase != RolloutPhase::Paused;
    let has_changed = resumes || status.group != before.group || status.done != before.done;
    status.progressed_at = if has_changed { Some(now) } else { before.progressed_at };
    report::complete(rollout, &mut status, now);
    let events = report::events(rollout, &status);
    Decision { status, events, requeue_at, ..Decision::default() }
}

/// The interval between two writes of the status in which only numbers differ, with this many agents.
fn count_interval(agents: usize) -> SignedDuration {
    COUNT_INTERVAL.max(COUNT_INTERVAL_OF_AGENT.saturating_mul(i32::try_from(agents).unwrap_or(i32::MAX)))
}

/// The status with the numbers of now.
fn counted(
    rollout: &Rollout,
    group: &GroupStatus,
    members: &[Member<'_>],
    ends: bool,
) -> InPlaceRolloutStatus {
    let count = |is: &dyn Fn(&Member<'_>) -> bool| number(members.iter().filter(|member| is(member)).count());
    let is_prepared = |member: &Member<'_>| member.was_prepared() || member.progress == Progress::Done;
    let is_failed = |member: &Member<'_>| {
        matches!(member.progress, Progress::Failed(..)) || ends && member.progress != Progress::Done
    };
    let skipped = count(&|member| member.is_left_out(group));
    let stopped = |member: &Member<'_>| {
        member.progress == Progress::Stopped || is_prepared(member) && member.has_ended()
    };
    let done = members.iter().filter(|member| member.progress == Progress::Done);
    InPlaceRolloutStatus {
        observed_generation: rollout.generation,
        pods: number(members.len()),
        wanted: number(members.len()),
        done: count(&|member| member.progress == Progress::Done),
        busy: if ends { 0 } else { count(&|member| member.was_prepared() && !member.has_ended()) },
        failed: count(&is_failed),
        unavailable: count(&|member| !member.pod.base.is_ready()),
        failures: members
            .iter()
            .filter(|member| is_failed(member))
            .map(Member::failure)
            .take(MAX_FAILURES)
            .collect(),
        downtime_ms: report::downtime(done.filter_map(|member| member.report)),
        group: Some(GroupStatus {
            prepared: count(&is_prepared),
            stopped: count(&stopped),
            skipped,
            ..group.clone()
        }),
        ..rollout.before.clone()
    }
}

/// One line for people: how many pods have reached the end of the phase, and which have not.
fn line(group: &GroupStatus, members: &[Member<'_>]) -> String {
    let (what, is_over): (_, fn(&Member<'_>) -> bool) = match group.phase {
        GroupPhase::Prepare => ("prepared", |member| member.was_prepared()),
        GroupPhase::Stop => ("stopped", |member| member.progress == Progress::Stopped || member.has_ended()),
        GroupPhase::Start => ("restarted", |member| member.has_ended()),
    };
    let open: Vec<_> = members.iter().filter(|member| !is_over(member)).collect();
    let waits = if open.is_empty() || open.len() > MAX_NAMES {
        String::new()
    } else {
        format!("; waiting for {}", names(open.iter().copied()))
    };
    format!("group restart: {} of {} pods are {what}{waits}", members.len() - open.len(), members.len())
}

/// The names of some members, with what is known about each.
fn names<'a, 'm: 'a>(members: impl Iterator<Item = &'a Member<'m>>) -> String {
    let mut why: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut count = 0;
    for member in members {
        count += 1;
        if count > MAX_NAMES {
            continue;
        }
        let reason = match &member.progress {
            Progress::Failed(reason, message) => format!("{reason}: {message}"),
            Progress::Unreachable(why) => why.clone(),
            _ => String::new(),
        };
        why.entry(reason).or_default().push(&member.pod.base.name);
    }
    let one = |(why, names): (&String, &Vec<&str>)| {
        let names = names.join(", ");
        if why.is_empty() { names } else { format!("{names} ({why})") }
    };
    let more = report::and_more(count);
    format!("{}{more}", why.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// The pod that was the last one to reach the end of this phase.
fn last(members: &[Member<'_>], phase: GroupPhase) -> Option<String> {
    let times = members.iter().filter_map(|member| Some((member.reached_at(phase)?, &member.pod.base.name)));
    times.max().map(|(_, name)| name.clone())
}

fn seconds(value: i32) -> SignedDuration {
    SignedDuration::from_secs(value.max(0).into())
}
