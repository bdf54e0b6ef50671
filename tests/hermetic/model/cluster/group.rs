//! Runs group restarts: several pods, each with its runtime, kubelet and agent, and the controller of their rollout. The
//! controller is away for a while, what it publishes arrives late, agents are killed, and pods are deleted.

use std::collections::{BTreeMap, BTreeSet};

use inplace::api::group::{GroupPhase, OnUnprepared, task};
use inplace::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutStatus, RolloutPhase};
use inplace::api::request::RequestedEngine;
use inplace::api::status::Status;
use inplace::operation::group::GroupMembership;
use inplace::operation::outcome::Outcome;
use inplace::operation::report;
use inplace::operation::snapshot::{Container, GroupSignal, RestartPolicy};
use inplace::operation::state::Operation;
use inplace::podtask::disruption::DisruptionAllowance;
use inplace::podtask::priority::NodeLabels;
use inplace::rollout::decide::{RolloutInput, decide};
use inplace::rollout::desired::Rollout;
use inplace::rollout::pod::Pod;
use inplace::rollout::target::TargetState;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::scenario::{Image, Scenario, scenario};
use super::world::World;
use super::{Progress, Sabotage, admitted, dies, step};
use crate::model::{Agent, Dice, ID, cases, epoch, ms, rarely, search, within};

/// The most time between two looks of an agent at the group restart, in milliseconds: here it is asked, a real one is notified.
const LOOK: i64 = 1000;

/// The parameters of one group restart.
#[derive(Clone, Debug)]
struct Group {
    pods: Vec<Scenario>,
    barrier: bool,
    barrier_timeout: i32,
    prepare_timeout: i32,
    on_unprepared: OnUnprepared,
    /// From when and for how long no controller runs.
    controller_away: Option<(i64, i64)>,
    /// The most time from a report until the controller has acted on it, in milliseconds.
    controller_lag: i64,
    seed: u64,
}

fn groups() -> impl Strategy<Value = Group> {
    (
        proptest::collection::vec(member(), 2..5),
        proptest::bool::weighted(0.8),
        15_i32..40,
        3_i32..20,
        any::<bool>(),
        rarely((0_i64..20_000, 0_i64..90_000)),
        prop_oneof![3 => 1_i64..100, 1 => 1_i64..3000],
        any::<u64>(),
    )
        .prop_map(|(pods, barrier, barrier_timeout, prepare_timeout, skip, away, lag, seed)| Group {
            pods,
            barrier,
            barrier_timeout,
            prepare_timeout,
            on_unprepared: if skip { OnUnprepared::Skip } else { OnUnprepared::Fail },
            controller_away: away,
            controller_lag: lag,
            seed,
        })
}

/// A pod of a group: its containers are restarted, all of them by this program.
fn member() -> impl Strategy<Value = Scenario> {
    scenario().prop_map(|scenario| Scenario {
        swaps: vec![false; scenario.swaps.len()],
        engine: RequestedEngine::Auto,
        policy: RestartPolicy::Always,
        // One of eight pods cannot be part of a group restart.
        cloneable: !scenario.seed.is_multiple_of(8),
        drain: 0,
        old_image: Image::Good,
        pull: None,
        withdrawn_at: None,
        deleted_at: scenario.deleted_at.map(|at| at * 3),
        ..scenario
    })
}

/// A pod with its agent.
struct Member {
    name: String,
    world: World,
    agent: Option<Agent>,
    is_refused: bool,
    outcome: Option<Outcome>,
    /// What the API server has of the agent's reports.
    reports: Vec<(Timestamp, Status)>,
    /// When its agent acts next.
    next_at: Timestamp,
    /// The newest status of the rollout that it has received.
    seen: usize,
    idle: u32,
}

/// The controller, and what it has published.
struct Controller {
    rollout: Rollout,
    published: Vec<(Timestamp, InPlaceRolloutStatus)>,
    next_at: Timestamp,
    /// What it knew at its last decision, and when it decides again without a change.
    known: Vec<(usize, bool, bool)>,
    requeue_at: Option<Timestamp>,
    dice: Dice,
}

/// Runs one group restart, and returns how it ended.
fn run(group: &Group, ignores_barrier: bool) -> Result<String, String> {
    let mut members: Vec<_> =
        group.pods.iter().enumerate().map(|(index, pod)| Member::new(index, pod)).collect();
    let mut controller = Controller::new(group);
    let end = epoch() + ms(3_600_000);
    loop {
        let open = members.iter().any(|member| member.agent.is_some() && member.outcome.is_none());
        if controller.has_ended() && !open {
            break;
        }
        let next = members.iter_mut().min_by_key(|member| member.next_at).unwrap();
        let now = next.next_at.min(controller.next_at);
        if now > end {
            return Err(format!("no end within an hour: {:?}", controller.published.last()));
        }
        if controller.next_at <= next.next_at {
            controller.act(group, &mut members);
            continue;
        }
        next.act(group, &controller.published, ignores_barrier);
        if let Some(broken) = next.world.broken.take() {
            return Err(format!("{}: {broken}\n{}", next.name, next.tail()));
        }
    }
    check(group, &controller, &mut members).map_err(|broken| {
        let logs: Vec<_> =
            members.iter().map(|member| format!("{}:\n{}", member.name, member.tail())).collect();
        format!("{broken}\n{:?}\n{}", controller.published.last(), logs.join("\n"))
    })?;
    let (_, status) = controller.published.last().unwrap();
    Ok(format!("{:?} {}", status.phase, status.reason))
}

impl Member {
    fn new(index: usize, scenario: &Scenario) -> Self {
        Self {
            name: format!("web-{index}"),
            world: World::new(scenario.clone(), Sabotage::default()),
            agent: None,
            is_refused: false,
            outcome: None,
            reports: Vec::new(),
            next_at: epoch(),
            seen: 0,
            idle: 0,
        }
    }

    fn uid(&self) -> String {
        format!("u-{}", self.name)
    }

    /// What the agent knows about the group restart. It gets nothing new while its API server is away.
    fn signal(&mut self, published: &[(Timestamp, InPlaceRolloutStatus)]) -> GroupSignal {
        if self.world.now < self.world.unsynced_until {
            return GroupSignal::Unknown;
        }
        let is_away = self.world.api_away();
        if !is_away {
            let received = self.world.now - ms(self.world.dice.ms(0, self.world.scenario.lag));
            let newest = published.iter().rposition(|(at, _)| *at <= received);
            self.seen = self.seen.max(newest.unwrap_or_default());
        }
        match published.get(self.seen).map(|(_, status)| status) {
            Some(InPlaceRolloutStatus { phase, group: Some(group), .. }) if !phase.is_terminal() => {
                let is_left_out = group.left_out.contains(&self.uid());
                if is_left_out { GroupSignal::LeftOut } else { GroupSignal::Phase(group.phase) }
            }
            _ if is_away => GroupSignal::Unknown,
            _ => GroupSignal::Over,
        }
    }

    fn act(&mut self, group: &Group, published: &[(Timestamp, InPlaceRolloutStatus)], ignores_barrier: bool) {
        let before = self.world.now;
        self.world.advance(self.next_at);
        let signal = self.signal(published);
        self.world.group = match signal {
            GroupSignal::Phase(GroupPhase::Stop) if ignores_barrier => GroupSignal::Phase(GroupPhase::Start),
            signal => signal,
        };
        let look = self.world.now + ms(self.world.dice.ms(1, LOOK));
        self.next_at = match &mut self.agent {
            None if signal == GroupSignal::Phase(GroupPhase::Prepare) && !self.is_refused => {
                self.begin(group, published);
                self.world.now
            }
            Some(agent) if self.outcome.is_none() => match step(&mut self.world, agent) {
                Progress::Acted => self.world.now,
                Progress::Waits(until) => {
                    let kills = self.world.scenario.kills / 8;
                    let _ = dies(&mut self.world, agent, kills);
                    until.min(look).max(self.world.now)
                }
                Progress::Ended(outcome) => {
                    self.world.check_end(&agent.operation, &outcome);
                    self.outcome = Some(outcome);
                    look
                }
            },
            _ => look,
        };
        self.report();
        self.idle = if self.world.now > before { 0 } else { self.idle + 1 };
        if self.idle > 60 {
            self.world.violate(format!("no end: {:?}", self.agent.as_ref().map(|agent| &agent.operation)));
        }
    }

    /// Admits the request of the group restart, as the agent does.
    fn begin(&mut self, group: &Group, published: &[(Timestamp, InPlaceRolloutStatus)]) {
        let status = published[self.seen].1.group.as_ref().unwrap();
        let (request, task) = task(&object(group), status).unwrap();
        match admitted(&mut self.world, request, Some(task.clone())) {
            Ok(mut operation) => {
                operation.group = Some(GroupMembership::new(task));
                self.agent = Some(Agent::new(operation, true));
            }
            Err(refusal) => {
                self.reports.push((self.world.now, report::refused(ID, &refusal, self.world.now)));
                self.is_refused = true;
            }
        }
    }

    /// Writes the status of the operation, if it has changed and the API server is there.
    fn report(&mut self) {
        let Some(agent) = self.agent.as_ref().filter(|_| !self.world.api_away()) else { return };
        let status = report::status(&agent.operation);
        if self.reports.last().is_none_or(|(_, last)| *last != status) {
            self.reports.push((self.world.now, status));
        }
    }

    /// What decides whether there is something new for the controller: the number of reports, whether it is deleted, and is gone.
    fn version(&self, at: Timestamp) -> (usize, bool, bool) {
        let reports = self.reports.iter().take_while(|(since, _)| *since <= at).count();
        (reports, self.world.api_at(at).deleting, self.world.sandbox.is_none())
    }

    /// The pod as the controller has received it; `None` once it is gone.
    fn received(&self, at: Timestamp) -> Option<Pod> {
        self.world.sandbox.as_ref()?;
        let status = self.reports.iter().rev().find(|(since, _)| *since <= at).map(|(_, status)| status);
        let annotations = status.map_or(json!({}), |status| {
            let text = serde_json::to_string(status).unwrap();
            let number = status.group.as_ref().map_or(0, |group| group.epoch).to_string();
            json!({"inplace.dev/status": text, "inplace.dev/group-epoch": number})
        });
        let api = self.world.api_at(at);
        let deleted = api.deleting.then_some(at);
        let is_ready = api.reported.iter().all(|container| container.ready);
        let ready = if is_ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {"name": self.name, "uid": self.uid(), "resourceVersion": "1",
                "labels": {"app": "web"}, "annotations": annotations, "deletionTimestamp": deleted,
                "creationTimestamp": epoch() - ms(3_600_000)},
            "spec": {"nodeName": "n", "containers": [{"name": "app", "image": "app:1"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        Some(Pod::read(&serde_json::from_value(pod).unwrap()))
    }

    fn operation(&self) -> Option<&Operation> {
        self.agent.as_ref().map(|agent| &agent.operation)
    }

    /// True if a container that ran before the barrier opened at `opened` runs at `at`. One that ended by itself was not stopped.
    fn runs_at(&self, at: Timestamp, opened: Timestamp) -> bool {
        let kept = |name: &str| {
            let is_before = |one: &&Container| {
                let is_by_kubelet = one.is_instance() && one.operation.is_none();
                one.name == name && is_by_kubelet && one.started_at.is_some_and(|started| started < opened)
            };
            let mut ends = self.world.instances.iter().filter(is_before).map(|one| one.finished_at);
            ends.any(|end| end.is_none_or(|end| end > at))
        };
        let mut targets = self.operation().into_iter().flat_map(|operation| &operation.targets);
        targets.any(|target| target.stopped_at.map_or_else(|| kept(&target.name), |stop| stop > at))
    }

    /// When its agent started the first container again. A kubelet may start what ends by itself while it is prepared.
    fn started_at(&self) -> Option<Timestamp> {
        let ours = self.world.instances.iter().filter(|one| one.is_instance() && one.operation.is_some());
        ours.filter_map(|one| one.started_at).min()
    }

    fn tail(&self) -> String {
        let is_shown = |line: &&String| !line.contains("kubelet: [Start") && !line.contains(" back for ");
        let log: Vec<_> = self.world.log.iter().filter(is_shown).map(String::as_str).collect();
        log[log.len().saturating_sub(60)..].join("\n")
    }
}

impl Controller {
    fn new(group: &Group) -> Self {
        let mut rollout = Rollout::read(object(group));
        rollout.before.started_at = Some(epoch());
        rollout.is_labelled = true;
        let published = vec![(epoch(), rollout.before.clone())];
        Self {
            rollout,
            published,
            next_at: epoch(),
            known: Vec::new(),
            requeue_at: None,
            dice: Dice(group.seed),
        }
    }

    fn has_ended(&self) -> bool {
        self.rollout.before.phase.is_terminal()
    }

    fn act(&mut self, group: &Group, members: &mut [Member]) {
        let now = self.next_at;
        self.next_at = now + ms(self.dice.ms(1, group.controller_lag));
        if self.has_ended() || within(now, group.controller_away) {
            return;
        }
        let known: Vec<_> = members.iter().map(|member| member.version(now)).collect();
        if known == self.known && self.requeue_at.is_none_or(|at| at > now) {
            return;
        }
        self.known = known;
        let pods: Vec<_> = members.iter().filter_map(|member| member.received(now)).collect();
        let target =
            TargetState::Present { owners: None, templates: Vec::new(), desired: None, gives_up_at: None };
        let (nodes, allowance) = (NodeLabels::new(), DisruptionAllowance::new(std::iter::empty(), "v1"));
        let (pods, target, nodes) = (pods.iter().collect(), &target, &nodes);
        let decision = decide(
            &self.rollout,
            RolloutInput {
                nodes,
                target,
                pods,
                allowance,
                newer: None,
                aborting: None,
                active: BTreeSet::new(),
                agents: None,
                now,
            },
        );
        self.requeue_at = decision.requeue_at;
        if decision.status != self.rollout.before {
            self.rollout.before = decision.status.clone();
            self.published.push((now, decision.status));
        }
    }

    /// When the group restart entered this phase.
    fn entered(&self, phase: GroupPhase) -> Option<Timestamp> {
        let group = self.rollout.before.group.as_ref()?;
        match phase {
            GroupPhase::Prepare => group.prepare_at,
            GroupPhase::Stop => group.stop_at,
            GroupPhase::Start => group.start_at,
        }
    }
}

fn object(group: &Group) -> InPlaceRollout {
    let skip = if group.on_unprepared == OnUnprepared::Skip { "Skip" } else { "Fail" };
    let containers: Vec<_> = (0..group.pods.iter().map(|pod| pod.swaps.len()).min().unwrap())
        .map(|index| json!({"name": super::names::name_of(index)}))
        .collect();
    let object = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"namespace": "default", "name": "one", "uid": ID, "generation": 1, "creationTimestamp": epoch()},
        "spec": {"target": {"selector": {"matchLabels": {"app": "web"}}}, "containers": containers, "strategy": "Together",
            "pod": {"deadlineSeconds": 200, "readyTimeoutSeconds": 15},
            "together": {"barrier": group.barrier, "barrierTimeoutSeconds": group.barrier_timeout,
                "prepareTimeoutSeconds": group.prepare_timeout, "onUnprepared": skip}}});
    serde_json::from_value(object).unwrap()
}

/// The rules that hold in every group restart, at its end and when every kubelet has had the time to react.
fn check(group: &Group, controller: &Controller, members: &mut [Member]) -> Result<(), String> {
    let status = &controller.rollout.before;
    let is_deleted = |member: &Member| member.world.scenario.deleted_at.is_some();
    let entered = [GroupPhase::Stop, GroupPhase::Start].map(|phase| controller.entered(phase));
    if entered == [None, None]
        && let Some(one) = members.iter().find(|one| one.operation().is_some_and(Operation::touched))
    {
        return Err(format!("{} was touched, and not all were prepared", one.name));
    }
    for member in members.iter().filter(|_| group.barrier) {
        check_barrier(group, controller, members, member)?;
    }
    if status.phase == RolloutPhase::Succeeded
        && let Some(one) =
            members.iter().find(|one| !is_deleted(one) && one.outcome != Some(Outcome::Succeeded))
    {
        return Err(format!("{:?} of {}, and the rollout has succeeded", one.outcome, one.name));
    }
    for member in members.iter_mut() {
        let is_late = member.world.late;
        member.world.advance(member.world.now + ms(20_000));
        if let (Some(agent), Some(outcome)) = (&member.agent, &member.outcome) {
            member.world.check_aftermath(&agent.operation, outcome);
        }
        if let Some(broken) = member.world.broken.take() {
            return Err(format!("{}: {broken}", member.name));
        }
        let is_stuck = member.operation().is_some_and(|operation| !operation.stuck.is_empty());
        if is_deleted(member) || is_late || is_stuck {
            continue;
        }
        for index in 0..member.world.scenario.swaps.len() {
            let name = super::names::name_of(index);
            // The longest back-off of a kubelet here may come first.
            let end = member.world.now + ms(180_000);
            while member.world.running(&name).is_empty() && member.world.now < end {
                member.world.advance(member.world.now + ms(5000));
            }
            let running = member.world.running(&name).len();
            if running != 1 {
                return Err(format!("{running} of {name} of {} run in the end", member.name));
            }
        }
    }
    Ok(())
}

/// No container of `member` was started before those of the others had stopped, unless it had waited for as long as it may.
fn check_barrier(
    group: &Group,
    controller: &Controller,
    members: &[Member],
    member: &Member,
) -> Result<(), String> {
    let Some(started) = member.started_at() else { return Ok(()) };
    let operation = member.operation().unwrap();
    let timeout = ms(i64::from(group.barrier_timeout) * 1000);
    let first_stop = operation.targets.iter().filter_map(|target| target.stopped_at).min();
    // A container may have ended before the group restart, which touches nothing before it stops the pods.
    let touched = controller.entered(GroupPhase::Stop);
    let since = |at: Timestamp| touched.map_or(at, |touched| at.max(touched));
    let has_waited = first_stop.is_none_or(|at| started >= since(at) + timeout)
        || operation.group.as_ref().is_some_and(|group| group.has_failed);
    let all_waited = controller
        .entered(GroupPhase::Stop)
        .zip(controller.entered(GroupPhase::Start))
        .is_some_and(|(stop, start)| start >= stop + timeout);
    let was_over =
        controller.published.iter().any(|(at, status)| status.phase.is_terminal() && *at <= started);
    if has_waited || all_waited || was_over {
        return Ok(());
    }
    let opened = controller.entered(GroupPhase::Start).unwrap_or(started);
    let runs = |other: &&Member| {
        let touched = other.operation().is_some_and(Operation::touched);
        touched && other.world.scenario.deleted_at.is_none() && other.runs_at(started, opened)
    };
    match members.iter().find(runs) {
        None => Ok(()),
        Some(other) => {
            Err(format!("{} was started at {started}, while {} still ran", member.name, other.name))
        }
    }
}

fn look_for(usual: u32, ignores_barrier: bool) -> Result<BTreeMap<String, u32>, String> {
    search(cases(usual), &groups(), |group| run(group, ignores_barrier))
}

#[test]
fn whatever_becomes_of_pods_agents_and_controller_no_pod_of_a_group_stays_stopped() {
    let tally = look_for(400, false).unwrap_or_else(|broken| panic!("{broken}"));
    for kind in ["Succeeded AllPodsDone", "Failed PodsUnprepared", "Failed SomePodsFailed"] {
        assert!(tally.get(kind).is_some_and(|count| *count >= 10), "{kind} is rare: {tally:#?}");
    }
}

#[test]
fn a_barrier_that_does_not_hold_is_found() {
    let found = look_for(400, true).unwrap_err();
    assert!(found.contains("was started at"), "{found}");
}
