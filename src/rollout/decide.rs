//! The decision: from what a rollout wants and what is seen to writes and a status.

use jiff::{SignedDuration, Timestamp};

use crate::api::annotation;
use crate::api::in_place_rollout::{InPlaceRolloutStatus, RolloutPhase};
use crate::rollout::budget::{Bounds, Budget};
use crate::rollout::check;
use crate::rollout::disruption::Room;
use crate::rollout::halt::{self, Halt, halt};
use crate::rollout::mark::{End, Mark, Stage};
use crate::rollout::order;
use crate::rollout::pod::Pod;
use crate::rollout::reach::ReadyAgents;
use crate::rollout::report;
use crate::rollout::target::Target;
use crate::rollout::view::{State, View};
use crate::rollout::wish::Wish;
use crate::workload::action::{Event, PodPatch, PodRef};
use crate::workload::turn::later;

/// How long a target may take to come into being.
const UNTIL_THERE: SignedDuration = SignedDuration::from_secs(60);
/// How soon a target that is not there is looked for again.
const LOOK_FOR: SignedDuration = SignedDuration::from_secs(2);
/// How soon budgets of others that let nobody go are asked again.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(1);

/// What is seen.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// The target.
    pub target: &'a Target,
    /// Pods that could be its own.
    pub pods: Vec<&'a Pod>,
    /// The budgets of its namespace.
    pub room: Room,
    /// The name of a newer rollout of the same target.
    pub newer: Option<&'a str>,
    /// The nodes whose agent is ready; `None`: nothing is known of agents.
    pub agents: Option<&'a ReadyAgents>,
    /// The time.
    pub now: Timestamp,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// What is to be written, in this order.
    pub writes: Vec<Write>,
    /// Entries to write anew: the name of a budget and of a pod.
    pub renewals: Vec<(String, String)>,
    /// What is told then.
    pub status: InPlaceRolloutStatus,
    /// What is told to people once the status is written.
    pub events: Vec<Event>,
    /// When to look again although nothing happens.
    pub look_again: Option<Timestamp>,
    /// Its time is over: delete it.
    pub delete: bool,
}

/// A write on a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// Which.
    pub pod: PodRef,
    /// Its mark, its request, its label.
    pub patch: PodPatch,
    /// What for.
    pub what: What,
}

/// What a write on a pod is for.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The request. Before it, claims at these budgets.
    Begin(Vec<String>),
    /// The request is taken back.
    Recall,
    /// It has ended. Before it, the entries at these budgets go.
    End(End, Vec<String>),
}

impl Write {
    /// True when it has to do with budgets.
    pub fn claims(&self) -> bool {
        match &self.what {
            What::Begin(claims) | What::End(_, claims) => !claims.is_empty(),
            What::Recall => false,
        }
    }
}

/// Decides.
pub fn decide(wish: &Wish, mut seen: Seen<'_>) -> Decision {
    let before = &wish.before;
    if before.phase.is_terminal() {
        return forgotten(wish, seen.now);
    }
    let problems = check::spec(&wish.spec);
    if !problems.is_empty() {
        return refused(wish, &Halt::failed("Invalid", problems.join("; ")), seen.now);
    }
    seen.pods.retain(|pod| pod.base.is_active() && seen.target.has(wish, pod));
    let Some(started) = before.started_at else { return begin(wish, &seen) };
    carry_on(wish, seen, started)
}

/// One that has ended is only kept for a while.
fn forgotten(wish: &Wish, now: Timestamp) -> Decision {
    let mut status = wish.before.clone();
    status.observed_generation = wish.generation;
    let ttl = wish.spec.ttl_seconds_after_finished;
    let end = ttl.zip(status.finished_at).map(|(ttl, at)| later(at, SignedDuration::from_secs(ttl.into())));
    let delete = end.is_some_and(|end| end <= now);
    Decision { status, look_again: end.filter(|_| !delete), delete, ..Decision::default() }
}

/// It ends before it has begun.
fn refused(wish: &Wish, halt: &Halt, now: Timestamp) -> Decision {
    let status = report::ended_early(wish, halt, now);
    let events = report::events(wish, &status);
    Decision { status, events, ..Decision::default() }
}

/// The first look. Nothing is touched before it is written down when that was.
fn begin(wish: &Wish, seen: &Seen<'_>) -> Decision {
    let now = seen.now;
    if let Some(newer) = seen.newer {
        let message = format!("InPlaceRollout {newer} is newer and has the same target");
        return refused(wish, &Halt::superseded(message), now);
    }
    let by_labels = wish.spec.target.workload_ref.is_none();
    if *seen.target == Target::Absent || by_labels && seen.pods.is_empty() {
        let what = if by_labels { "there is no pod with the labels" } else { "there is no" };
        let message = format!("{what} {} in namespace {}", wish.target(), wish.namespace);
        let until = later(wish.created, UNTIL_THERE);
        if until <= now {
            return refused(wish, &Halt::failed("TargetNotFound", message), now);
        }
        let status = report::pending(wish, message);
        return Decision { status, look_again: Some(later(now, LOOK_FOR).min(until)), ..Decision::default() };
    }
    if let Some(drift) = seen.target.drift(wish).filter(|_| !wish.spec.allow_template_drift) {
        return refused(wish, &Halt::failed("TemplateDrift", drift), now);
    }
    let views: Vec<_> = seen.pods.iter().map(|pod| View::of(pod, wish, seen.agents, now, now)).collect();
    let bounds = Bounds::of(&wish.spec, views.len());
    if let Some(halt) = given_up(wish, seen.target, &views, bounds) {
        return refused(wish, &halt, now);
    }
    let mut status = report::status(wish, &views, bounds);
    status.started_at = Some(now);
    status.phase = if wish.spec.paused { RolloutPhase::Paused } else { RolloutPhase::Running };
    report::conditions(wish, &mut status, now);
    let events = report::events(wish, &status);
    Decision { status, events, look_again: Some(now), ..Decision::default() }
}

/// The owner would take what is still to be begun for failures, too many of them.
fn given_up(wish: &Wish, target: &Target, views: &[View<'_>], bounds: Bounds) -> Option<Halt> {
    let more = Budget::of(bounds, views).rest() * wish.spec.containers.len();
    let why = target.gives_up(wish, views.iter().map(|view| view.pod), more)?;
    Some(Halt::failed("BackoffLimit", why))
}

fn carry_on(wish: &Wish, mut seen: Seen<'_>, started: Timestamp) -> Decision {
    let now = seen.now;
    let pods = std::mem::take(&mut seen.pods);
    let views: Vec<_> = pods.iter().map(|pod| View::of(pod, wish, seen.agents, started, now)).collect();
    let bounds = Bounds::of(&wish.spec, views.len());
    let mut status = report::status(wish, &views, bounds);
    status.started_at = Some(started);
    let failed = usize::try_from(status.failed).unwrap_or(0);
    let halt = halt(wish, &seen, started, failed, bounds.failures)
        .or_else(|| given_up(wish, seen.target, &views, bounds))
        .map(|halt| halt.naming(&wish.before.reason, report::unreachable(&views)));

    let mut hand = Hand { wish, now, decision: Decision::default(), waits: report::Waits::default() };
    for view in &views {
        hand.end_or_recall(view, halt.as_ref());
        hand.renew(view, &seen.room);
        hand.wake(view);
    }
    if halt.is_none() && !wish.spec.paused {
        hand.begin(&views, Budget::of(bounds, &views), &mut seen.room);
    }
    let Hand { mut decision, waits, .. } = hand;
    let begun = decision.writes.iter().filter(|write| matches!(write.what, What::Begin(_))).count();
    status.busy += i32::try_from(begun).unwrap_or(0);
    report::phase(wish, &mut status, &views, bounds, halt.as_ref(), &waits, now);
    let deadline = halt::deadline(wish, started).filter(|_| halt.is_none());
    let lost = (*seen.target == Target::Absent).then(|| later(now, LOOK_FOR));
    let times = [decision.look_again, deadline, lost];
    decision.look_again = times.into_iter().flatten().min().filter(|_| !status.phase.is_terminal());
    decision.events = report::events(wish, &status);
    decision.status = status;
    decision
}

struct Hand<'a> {
    wish: &'a Wish,
    now: Timestamp,
    decision: Decision,
    waits: report::Waits,
}

impl Hand<'_> {
    fn at(&mut self, time: Timestamp) {
        if time > self.now {
            let again = &mut self.decision.look_again;
            *again = Some(again.map_or(time, |known| known.min(time)));
        }
    }

    fn mark(&self, view: &View<'_>) -> Option<Mark> {
        view.pod.mark.clone().filter(|mark| mark.rollout == self.wish.uid)
    }

    fn end_or_recall(&mut self, view: &View<'_>, halt: Option<&Halt>) {
        let mark = self.mark(view).unwrap_or_else(|| Mark::new(self.wish, self.now, Vec::new()));
        match &view.state {
            State::Ended(end) => {
                self.decision.writes.push(end_of(view.pod, &mark, end));
            }
            State::Busy { touched: false } if halt.is_some() && mark.stage == Stage::Ordered => {
                self.decision.writes.push(recall_of(view.pod, &mark));
            }
            _ => {}
        }
    }

    /// Claims hold for two minutes, and an operation may take longer.
    fn renew(&mut self, view: &View<'_>, room: &Room) {
        let Some(mark) = self.mark(view).filter(|_| view.is_busy()) else { return };
        let (due, next) = room.due(view.pod, &mark.claims, self.now);
        let name = &view.pod.base.name;
        self.decision.renewals.extend(due.into_iter().map(|budget| (budget, name.clone())));
        if let Some(at) = next {
            self.at(at);
        }
    }

    /// When time alone changes how it stands.
    fn wake(&mut self, view: &View<'_>) {
        let min_ready = SignedDuration::from_secs(self.wish.spec.pod.min_ready_seconds.into());
        if let Some(since) = view.pod.base.ready_since.filter(|_| view.ready && !view.available) {
            self.at(later(since, min_ready));
        }
        if let Some(mark) = self.mark(view).filter(|_| view.is_busy()) {
            self.at(mark.silent_at());
            self.at(mark.lost_at());
        }
    }

    fn begin(&mut self, views: &[View<'_>], mut budget: Budget, room: &mut Room) {
        let mut next: Vec<_> =
            views.iter().filter(|view| view.state == State::Waiting && view.reach.is_given()).collect();
        next.sort_by(|one, other| order::compare(one, other));
        for view in next {
            if budget.rest() == 0 {
                break;
            }
            if room.is_disrupted(view.pod) {
                self.waits.taken += 1;
                continue;
            }
            if !budget.allows(view) {
                continue;
            }
            match room.claim(view.pod, view.ready) {
                Ok(claims) => {
                    budget.spend(view);
                    let mark = Mark::new(self.wish, self.now, claims.clone());
                    self.decision.writes.push(begin_of(self.wish, view.pod, &mark, claims));
                }
                Err(name) => {
                    self.waits.budgets.insert(name);
                }
            }
        }
        self.waits.taken += views.iter().filter(|view| view.state == State::Taken).count();
        self.waits.unreachable = report::unreachable(views);
        let holds_up = |view: &&View<'_>| !view.available && !view.is_busy() && !view.is_unreachable();
        self.waits.unavailable = views.iter().filter(holds_up).count();
        if !self.waits.budgets.is_empty() || self.waits.taken > 0 {
            self.at(later(self.now, ASK_AGAIN));
        }
    }
}

impl Mark {
    fn new(wish: &Wish, now: Timestamp, claims: Vec<String>) -> Self {
        Self {
            rollout: wish.uid.clone(),
            name: wish.name.clone(),
            stage: Stage::Ordered,
            at: now,
            seconds: wish.request().deadline_seconds,
            claims,
            reason: String::new(),
            note: String::new(),
        }
    }
}

/// The mark, and the label that says whose pod it is.
fn marked(mark: &Mark, label: Option<String>) -> PodPatch {
    let text = serde_json::to_string(mark).ok();
    PodPatch {
        labels: [(annotation::ROLLOUT_UID.to_owned(), label)].into(),
        annotations: [(annotation::ROLLOUT.to_owned(), text)].into(),
    }
}

fn begin_of(wish: &Wish, pod: &Pod, mark: &Mark, claims: Vec<String>) -> Write {
    let mut patch = marked(mark, Some(wish.uid.clone()));
    patch.annotations.insert(annotation::REQUEST.to_owned(), serde_json::to_string(&wish.request()).ok());
    Write { pod: PodRef::of(&pod.base), patch, what: What::Begin(claims) }
}

/// Takes the request of `mark` back, if it is still there.
pub(super) fn recall_of(pod: &Pod, mark: &Mark) -> Write {
    let mut patch = marked(&mark.at_stage(Stage::Recalled), Some(mark.rollout.clone()));
    if pod.base.request.as_ref() == Some(&mark.rollout) {
        patch.annotations.insert(annotation::REQUEST.to_owned(), None);
    }
    Write { pod: PodRef::of(&pod.base), patch, what: What::Recall }
}

/// Writes down how it ended. A request that nobody answered goes, so that nobody takes it up later.
pub(super) fn end_of(pod: &Pod, mark: &Mark, end: &End) -> Write {
    let mut patch = marked(&mark.ended(end), None);
    let answer = pod.base.answer.as_ref().filter(|answer| answer.id == mark.rollout);
    let answered = answer.is_some_and(|answer| answer.phase.is_terminal());
    if pod.base.request.as_ref() == Some(&mark.rollout) && !answered {
        patch.annotations.insert(annotation::REQUEST.to_owned(), None);
    }
    Write { pod: PodRef::of(&pod.base), patch, what: What::End(end.clone(), mark.claims.clone()) }
}
