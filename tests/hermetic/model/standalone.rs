//! Runs the decisions against a random world without an API server: a runtime that refuses, loses responses and is
//! late, a kubelet that restarts dead containers, images that exit, a sandbox that vanishes, users who cancel, and an
//! agent that is killed at any point. All time is virtual. The rules are checked at every step and at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use inplace::api::request::{HookRef, OnFailure, Request, Target};
use inplace::api::status::Action;
use inplace::failure::Class;
use inplace::operation::effect::{Effect, EffectError, EffectOutput, ImageChoice, Leftover, Verb};
use inplace::operation::hook::Moment;
use inplace::operation::next::{Next, next, unseen};
use inplace::operation::note::Note;
use inplace::operation::outcome::{Outcome, Withdrawal};
use inplace::operation::plan::Plan;
use inplace::operation::preflight::{Hooks, Runtime, Situation, Source, admit};
use inplace::operation::report;
use inplace::operation::snapshot::{Container, Owner, Sandbox, Snapshot, State};
use inplace::operation::state::Operation;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::hooks::{self, Forgetful, Script};
use super::{Agent, Dice, ID, cases, epoch, ms, pod, rarely, search};

/// All parameters of a world. Smaller values mean fewer disturbances.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
struct Scenario {
    /// One entry per container: true for a swap.
    swaps: Vec<bool>,
    keep: bool,
    kubelet: bool,
    cleans_up: bool,
    pre_stop: bool,
    grace: u64,
    min_ready: u32,
    deadline: u32,
    /// Percentage of runtime calls that fail.
    faults: u64,
    /// Percentage of steps in which the agent is killed.
    kills: u64,
    new_image: Image,
    old_image: Image,
    /// The millisecond in which a container exits by itself.
    dies_at: Option<i64>,
    withdrawn_at: Option<i64>,
    sandbox: Option<(i64, Fate)>,
    /// True when the runtime refuses every removal.
    stubborn: bool,
    /// When another program, unaware of the agent, starts another instance of a container that is down.
    meddled_at: Option<i64>,
    /// When another program removes exited containers.
    swept_at: Option<i64>,
    /// From when and for how long the runtime cannot report whether a container runs.
    fog: Option<(i64, i64)>,
    /// True when the kubelet's spec already names the new image.
    ahead: bool,
    /// From when and for how long the runtime does not respond.
    away: Option<(i64, i64)>,
    pre_hook: Option<Script>,
    post_hook: Option<Script>,
    seed: u64,
}

/// The behaviour of an image's containers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Image {
    Good,
    DiesAfter(i64),
    NeverStarts,
    CannotBeCreated,
    CannotBePulled,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Gone,
    NotReady,
    Another,
}

/// Planted defects. The checks must detect each of them.
#[derive(Clone, Copy, Default)]
struct Sabotage {
    fences_hold_nothing: bool,
    journal_is_not_written: bool,
    hooks: Forgetful,
}

#[derive(Clone, Debug)]
struct Instance {
    seen: Container,
    /// True when a Stop by the agent ended it.
    stopped_by_us: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Exit(String),
    KubeletLooks,
    KubeletCreates { name: String, attempt: u32 },
    KubeletStarts(String),
    Late(Effect),
    Sandbox(Fate),
    Swept,
    Meddled,
}

struct World {
    scenario: Scenario,
    sabotage: Sabotage,
    now: Timestamp,
    dice: Dice,
    ids: u32,
    instances: Vec<Instance>,
    sandbox: Option<Sandbox>,
    events: Vec<(Timestamp, Event)>,
    /// The agent's starts that happened, by container name.
    started: BTreeMap<String, u32>,
    pre_stopped: BTreeSet<String>,
    felt: bool,
    hooks: hooks::Hooks,
    broken: Option<String>,
}

impl World {
    fn new(scenario: Scenario, sabotage: Sabotage) -> Self {
        let owner = match (scenario.kubelet, scenario.cleans_up) {
            (true, _) => Owner::Kubelet,
            (false, true) => Owner::NodeRun,
            (false, false) => Owner::Nobody,
        };
        let sandbox = Some(Sandbox { id: "sandbox-1".into(), pod: pod(), ready: true, owner });
        let dice = Dice(scenario.seed);
        let hooks = hooks::Hooks::new(scenario.pre_hook, scenario.post_hook);
        let mut world = Self {
            scenario,
            sabotage,
            now: epoch(),
            dice,
            ids: 0,
            instances: Vec::new(),
            sandbox,
            events: Vec::new(),
            started: BTreeMap::new(),
            pre_stopped: BTreeSet::new(),
            felt: false,
            hooks,
            broken: None,
        };
        for index in 0..world.scenario.swaps.len() {
            let name = format!("c{index}");
            for attempt in 0..3 {
                let image_id = if attempt < 2 { "sha:older" } else { "sha:old" };
                let id = world.create(&name, attempt, image_id, false, None);
                let instance = world.instance(&id).unwrap();
                instance.seen.started_at = Some(epoch());
                if attempt < 2 {
                    instance.seen.state = State::Exited;
                    instance.seen.finished_at = Some(epoch());
                } else {
                    instance.seen.state = State::Running;
                }
            }
        }
        if let Some(at) = world.scenario.dies_at {
            world.at(at, Event::Exit("id-3".into()));
        }
        if let Some((at, fate)) = world.scenario.sandbox {
            world.at(at, Event::Sandbox(fate));
        }
        if let Some(at) = world.scenario.meddled_at {
            world.at(at, Event::Meddled);
        }
        if let Some(at) = world.scenario.swept_at {
            world.at(at, Event::Swept);
        }
        if world.scenario.kubelet {
            world.at(1, Event::KubeletLooks);
        }
        world
    }

    fn within(&self, span: Option<(i64, i64)>) -> bool {
        super::within(self.now, span)
    }

    fn away(&self) -> bool {
        self.within(self.scenario.away)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice.roll(sides)
    }

    fn roll_ms(&mut self, least: i64, most: i64) -> i64 {
        self.dice.ms(least, most)
    }

    fn at(&mut self, delay: i64, event: Event) {
        self.events.push((self.now + ms(delay), event));
    }

    fn instance(&mut self, id: &str) -> Option<&mut Instance> {
        self.instances.iter_mut().find(|instance| instance.seen.id == id)
    }

    fn running(&self, name: &str) -> usize {
        let runs = |instance: &&Instance| {
            !instance.seen.fence && instance.seen.name == name && instance.seen.state == State::Running
        };
        self.instances.iter().filter(runs).count()
    }

    fn violate(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    fn image(&self, image_id: &str) -> Image {
        if image_id == "sha:new" { self.scenario.new_image } else { self.scenario.old_image }
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut containers: Vec<_> = self.instances.iter().map(|instance| instance.seen.clone()).collect();
        if self.within(self.scenario.fog) {
            let unclear = containers.iter_mut().filter(|container| container.state == State::Running);
            unclear.for_each(|container| container.state = State::Unknown);
        }
        if !containers.is_empty() {
            let by = usize::try_from(self.roll(64)).unwrap() % containers.len();
            containers.rotate_left(by);
        }
        Snapshot { sandbox: self.sandbox.clone(), containers, declared: None, absent: false, serving: None }
    }

    fn reserved(&self, name: &str, attempt: u32) -> bool {
        let holds = |instance: &Instance| !(instance.seen.fence && self.sabotage.fences_hold_nothing);
        self.instances
            .iter()
            .any(|instance| instance.seen.name == name && instance.seen.attempt == attempt && holds(instance))
    }

    fn create(&mut self, name: &str, attempt: u32, image_id: &str, fence: bool, by: Option<&str>) -> String {
        self.ids += 1;
        let id = format!("id-{}", self.ids);
        let seen = Container {
            id: id.clone(),
            name: name.into(),
            fence,
            holder: false,
            attempt,
            state: State::Created,
            image: image_id.replace("sha", "repo/app"),
            image_id: image_id.into(),
            spec_hash: String::new(),
            operation: by.map(str::to_owned),
            created_at: self.now,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            grace: Duration::from_secs(self.scenario.grace),
            has_pre_stop: self.scenario.pre_stop,
        };
        self.instances.push(Instance { seen, stopped_by_us: false });
        id
    }

    /// Simulates the start of `id` by the runtime; false when the image does not start.
    fn start(&mut self, id: &str) -> bool {
        let now = self.now;
        let image_id = self.instance(id).unwrap().seen.image_id.clone();
        let image = self.image(&image_id);
        if image == Image::NeverStarts {
            if self.roll(2) == 0 {
                let instance = self.instance(id).unwrap();
                instance.seen.state = State::Exited;
                instance.seen.exit_code = 128;
            }
            return false;
        }
        let instance = self.instance(id).unwrap();
        instance.seen.state = State::Running;
        instance.seen.started_at = Some(now);
        let name = instance.seen.name.clone();
        if let Image::DiesAfter(after) = image {
            self.at(after, Event::Exit(id.to_owned()));
        }
        // The other program may act between an observation and a start.
        if self.running(&name) > 1 && self.scenario.meddled_at.is_none() {
            self.violate(format!("{} of {name} run at once", self.running(&name)));
        }
        true
    }

    fn exit(&mut self, id: &str, by_us: bool) {
        let now = self.now;
        if let Some(instance) = self.instance(id).filter(|instance| instance.seen.state == State::Running) {
            instance.seen.state = State::Exited;
            instance.seen.finished_at = Some(now);
            instance.seen.exit_code = 1;
            instance.stopped_by_us = by_us;
        }
    }

    fn advance(&mut self, until: Timestamp) {
        while let Some(first) = (0..self.events.len()).min_by_key(|index| self.events[*index].0)
            && self.events[first].0 <= until
        {
            let (at, event) = self.events.swap_remove(first);
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now = self.now.max(until);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Exit(id) => self.exit(&id, false),
            Event::KubeletLooks => self.kubelet_looks(),
            Event::KubeletCreates { name, attempt } => {
                let again = self.roll_ms(20, 300);
                let swapped = self.scenario.swaps[name[1..].parse::<usize>().unwrap()];
                let image_id = if self.scenario.ahead && swapped { "sha:new" } else { "sha:old" };
                if self.sandbox.is_none() || self.reserved(&name, attempt) {
                    self.at(again, Event::KubeletLooks);
                } else {
                    let id = self.create(&name, attempt, image_id, false, None);
                    let takes = self.roll_ms(1, 60);
                    self.at(takes, Event::KubeletStarts(id));
                }
            }
            Event::KubeletStarts(id) => {
                if self.instance(&id).is_some_and(|instance| instance.seen.state == State::Created) {
                    self.start(&id);
                }
                let again = self.roll_ms(20, 300);
                self.at(again, Event::KubeletLooks);
            }
            Event::Late(effect) => {
                let _ = self.apply(&effect);
            }
            Event::Swept => {
                // A kubelet keeps the newest container of a name; a person may remove any.
                let mut newest = BTreeMap::new();
                for Instance { seen, .. } in self.instances.iter().filter(|instance| !instance.seen.fence) {
                    newest.insert(seen.name.clone(), seen.id.clone());
                }
                let mut instances = std::mem::take(&mut self.instances);
                instances.retain(|Instance { seen, .. }| {
                    let spared = newest.values().any(|id| *id == seen.id);
                    seen.state != State::Exited
                        || if self.scenario.kubelet { spared } else { self.roll(2) == 0 }
                });
                self.instances = instances;
            }
            Event::Meddled => {
                if self.running("c0") == 0 && self.sandbox.is_some() {
                    let instances = self.instances.iter().filter(|instance| instance.seen.name == "c0");
                    let attempt = instances.map(|instance| instance.seen.attempt).max().unwrap_or(0) + 2;
                    let id = self.create("c0", attempt, "sha:old", false, None);
                    self.start(&id);
                }
            }
            Event::Sandbox(fate) => {
                let ids: Vec<_> = self.instances.iter().map(|instance| instance.seen.id.clone()).collect();
                for id in ids {
                    self.exit(&id, false);
                }
                match fate {
                    Fate::Gone => {
                        self.sandbox = None;
                        self.instances.clear();
                    }
                    Fate::NotReady => self.sandbox.iter_mut().for_each(|sandbox| sandbox.ready = false),
                    Fate::Another => {
                        self.sandbox.iter_mut().for_each(|sandbox| sandbox.id = "sandbox-2".into());
                    }
                }
            }
        }
    }

    /// The newest container of a name decides. If it does not run, a new attempt is created
    /// some time after the observation.
    fn kubelet_looks(&mut self) {
        for index in 0..self.scenario.swaps.len() {
            let name = format!("c{index}");
            let instances = self
                .instances
                .iter()
                .map(|instance| &instance.seen)
                .filter(|seen| !seen.fence && seen.name == name);
            let newest = instances.max_by_key(|seen| (seen.created_at, seen.attempt));
            if newest.is_none_or(|newest| newest.state != State::Running) {
                let attempt = newest.map_or(0, |newest| newest.attempt + 1);
                let lag = self.roll_ms(1, 200);
                self.at(lag, Event::KubeletCreates { name, attempt });
                return;
            }
        }
        let again = self.roll_ms(5, 300);
        self.at(again, Event::KubeletLooks);
    }

    /// Executes `effect` or not, and responds or not.
    fn call(&mut self, operation: &Operation, effect: &Effect) -> Result<EffectOutput, EffectError> {
        self.check_effect(operation, effect);
        let effect_error = |class| Err(EffectError { class, message: format!("{class:?}") });
        let takes = match effect.verb() {
            Verb::Stop | Verb::PreStop => {
                self.roll_ms(1, 1000 * i64::try_from(self.scenario.grace).unwrap() + 5)
            }
            _ if self.roll(20) == 0 => self.roll_ms(200, 1500),
            _ => self.roll_ms(1, 40),
        };
        let fault = if self.roll(100) < self.scenario.faults { self.roll(4) } else { 9 };
        if effect.verb() == Verb::PreStop {
            self.felt = true;
        }
        match fault {
            _ if self.away() => {
                self.advance(self.now + ms(takes));
                effect_error(Class::Away)
            }
            0 => {
                self.advance(self.now + ms(takes));
                effect_error(Class::Refused)
            }
            1 => {
                self.advance(self.now + ms(takes));
                effect_error(Class::Away)
            }
            2 => {
                // The runtime is slower than the agent's timeout: the effect happens after
                // the agent has stopped waiting.
                let late = self.roll_ms(1, 1500);
                self.at(takes + late, Event::Late(effect.clone()));
                self.advance(self.now + ms(takes));
                effect_error(Class::Away)
            }
            _ => {
                self.advance(self.now + ms(takes));
                let result = self.apply(effect);
                if fault == 3 { effect_error(Class::Away) } else { result }
            }
        }
    }

    fn apply(&mut self, effect: &Effect) -> Result<EffectOutput, EffectError> {
        let effect_error = |class| Err(EffectError { class, message: format!("{class:?}") });
        match effect {
            Effect::Pull { image, .. } if self.scenario.new_image == Image::CannotBePulled => {
                Err(EffectError { class: Class::Final, message: format!("no {image}") })
            }
            Effect::Pull { image, .. } => Ok(EffectOutput::Image(ImageChoice {
                reference: image.clone(),
                id: "sha:new".into(),
                spec_hash: None,
            })),
            Effect::PreStop { .. } => Ok(EffectOutput::Nothing),
            Effect::Respec { .. } | Effect::Gate { .. } => effect_error(Class::Final),
            Effect::Fence { container, source, attempt, image, .. }
            | Effect::Create { container, source, attempt, image } => {
                let fence = effect.verb() == Verb::Fence;
                let Some(source) = self.instance(source).map(|instance| instance.seen.image_id.clone())
                else {
                    return effect_error(Class::Gone);
                };
                let image = image.as_ref().map_or(source, |image| image.id.clone());
                let taken =
                    self.instances.iter().any(|l| l.seen.name == *container && l.seen.attempt == *attempt);
                if taken && (fence || self.reserved(container, *attempt)) {
                    return effect_error(Class::NameTaken);
                }
                if self.sandbox.as_ref().is_none_or(|sandbox| !sandbox.ready) {
                    return effect_error(Class::Refused);
                }
                if self.image(&image) == Image::CannotBeCreated && (fence || self.roll(2) == 0) {
                    return effect_error(Class::Refused);
                }
                // Without a kubelet, a container that is created and removed again affects no running container.
                self.felt |= !fence && !self.scenario.cleans_up;
                self.create(container, *attempt, &image, fence, Some(ID));
                Ok(EffectOutput::Nothing)
            }
            Effect::Stop { id, .. } => {
                if self.instance(id).is_none() {
                    return effect_error(Class::Gone);
                }
                self.felt = true;
                self.exit(id, true);
                Ok(EffectOutput::Nothing)
            }
            Effect::Start { container, id } => match self.instance(id).map(|instance| instance.seen.state) {
                None => effect_error(Class::Gone),
                Some(State::Created) => {
                    self.felt = true;
                    if !self.start(id) {
                        return effect_error(Class::Refused);
                    }
                    *self.started.entry(container.clone()).or_default() += 1;
                    Ok(EffectOutput::Nothing)
                }
                Some(_) => effect_error(Class::Refused),
            },
            Effect::Remove { .. } if self.scenario.stubborn => effect_error(Class::Refused),
            Effect::Remove { id, .. } => {
                // A container of the agent that a late Start did run after all may be removed: it had been given up.
                let foreign = |seen: &Container| seen.operation.is_none() && seen.state == State::Running;
                if self.instance(id).is_some_and(|instance| foreign(&instance.seen)) {
                    self.violate(format!("{id} was removed while it ran"));
                }
                self.instances.retain(|instance| instance.seen.id != *id);
                Ok(EffectOutput::Nothing)
            }
        }
    }

    /// Checks that every effect works only on what the journal holds.
    fn check_effect(&mut self, operation: &Operation, effect: &Effect) {
        let target =
            operation.targets.iter().find(|target| target.name == effect.container()).unwrap().clone();
        let replacement = target.replacement().clone();
        let right = match effect {
            // Never while a container is down: every touched container runs again.
            Effect::Pull { .. } => {
                let mut touched = operation.targets.iter().filter(|target| target.touched);
                let runs = touched.all(|target| target.reached.is_some());
                !target.touched && operation.rollback_cause.is_none() && runs
            }
            Effect::Fence { attempt, .. } => *attempt == replacement.attempt + 1,
            Effect::PreStop { id, .. } => *id == replacement.replaces && self.pre_stopped.insert(id.clone()),
            Effect::Stop { id, timeout_seconds, .. } => *id == replacement.replaces && *timeout_seconds >= 2,
            // Ahead of the stop only where no kubelet can take it for the newest instance.
            Effect::Create { attempt, .. } => {
                let old = self.instance(&replacement.replaces);
                let ahead = old.is_some_and(|instance| instance.seen.state == State::Running);
                *attempt == replacement.attempt && (operation.unsupervised || !ahead)
            }
            Effect::Start { id, container } => {
                let alone = self.running(container) == 0;
                alone
                    && self.instance(id).is_none_or(|instance| {
                        instance.seen.attempt == replacement.attempt && !instance.seen.fence
                    })
            }
            Effect::Remove { id, what, .. } => {
                self.instance(id).is_none_or(|Instance { seen, .. }| match what {
                    Leftover::Fence => seen.fence,
                    Leftover::NeverStarted => {
                        !seen.fence && seen.operation.as_deref() == Some(ID) && seen.started_at.is_none()
                    }
                    Leftover::Old => {
                        let exited = seen.state == State::Exited && seen.attempt < target.from.attempt;
                        exited && operation.unsupervised
                    }
                })
            }
            // Only with an API server, which these worlds do not have.
            Effect::Respec { .. } | Effect::Gate { .. } => false,
        };
        let feels = match effect.verb() {
            Verb::PreStop | Verb::Stop | Verb::Start => true,
            Verb::Create => !operation.unsupervised,
            Verb::Pull | Verb::Fence | Verb::Remove | Verb::Respec | Verb::Gate => false,
        };
        let held_back = !matches!(effect.verb(), Verb::Pull | Verb::Remove);
        if held_back && !self.hooks.passed(Moment::Before) {
            self.violate(format!("{effect:?} before the hook has passed"));
        }
        if !right || (feels && !target.touched) {
            self.violate(format!("{effect:?} is not what the journal allows: {target:?}"));
        }
    }
}

/// Decides at random whether the agent dies here. True when it did, and has restarted.
fn dies(agent: &mut Agent, world: &mut World) -> bool {
    let Some(gone) = agent.dies(&mut world.dice, world.scenario.kills) else { return false };
    world.advance(world.now + ms(gone));
    agent.comes_back(world.now);
    world.hooks.died(&mut agent.operation, world.sabotage.hooks);
    true
}

/// Runs the hook that the operation waits for. True when a measurement finished.
fn attend(agent: &mut Agent, world: &mut World) -> bool {
    let measured = world.hooks.attend(&mut agent.operation, world.now);
    if measured && !dies(agent, world) {
        write(agent, world);
        dies(agent, world);
    }
    if let Some(broken) = world.hooks.broken.take() {
        world.violate(broken);
    }
    measured
}

fn write(agent: &mut Agent, world: &mut World) {
    agent.write();
    if agent.writes {
        world.hooks.wrote(&agent.operation);
    }
}

/// The outcome of one world.
fn run(scenario: &Scenario, sabotage: Sabotage) -> Result<Outcome, String> {
    let mut world = World::new(scenario.clone(), sabotage);
    let operation = begin(request(scenario), &mut world);
    let mut agent = Agent::new(operation, !sabotage.journal_is_not_written);
    let (mut steps, mut idle, mut away_since) = (0, 0, None);
    let outcome = loop {
        steps += 1;
        idle += 1;
        if world.broken.is_none() && (steps > 30_000 || idle > 60) {
            world.violate(format!("no end after {steps} steps: {:?}", agent.operation));
        }
        if let Some(broken) = world.broken {
            return Err(broken);
        }
        if scenario.withdrawn_at.is_some_and(|at| world.now >= epoch() + ms(at)) {
            agent.operation.withdraw(Withdrawal::Deleted);
        }
        if attend(&mut agent, &mut world) {
            idle = 0;
        }
        let touched = agent.operation.touched();
        if !world.away()
            && let Some(since) = away_since.take()
        {
            agent.operation.regain(world.now.duration_since(since));
        }
        if world.away() {
            away_since.get_or_insert(world.now);
            if let Some(outcome) = unseen(&agent.operation, world.now, "no answer") {
                check_end(&mut world, &agent.operation, &outcome);
                return world.broken.map_or(Ok(outcome), Err);
            }
            world.advance(world.now + ms(200));
            idle = 0;
            continue;
        }
        let snapshot = world.snapshot();
        let before = world.now;
        match next(&agent.operation, &snapshot, world.now) {
            Next::Note(note) => {
                if let Note::End(outcome) = &note {
                    check_claim(&mut world, &agent.operation, outcome);
                }
                agent.operation.note(note);
                if !dies(&mut agent, &mut world) {
                    write(&mut agent, &mut world);
                }
            }
            Next::Do(effect) => {
                if agent.operation.withdrawn.is_some() && !touched && effect.verb() != Verb::Remove {
                    world.violate(format!("{effect:?} after the withdrawal"));
                }
                agent.operation.begin(&effect, world.now);
                if dies(&mut agent, &mut world) {
                    continue;
                }
                write(&mut agent, &mut world);
                if dies(&mut agent, &mut world) {
                    continue;
                }
                let result = world.call(&agent.operation, &effect);
                if !dies(&mut agent, &mut world) {
                    agent.operation.record(&effect, result, world.now);
                }
            }
            Next::Wait(waiting) => {
                if waiting.until <= world.now {
                    world.violate(format!("waits for the past: {waiting:?}"));
                }
                let heard = world.hooks.due().unwrap_or(waiting.until);
                world.advance(waiting.until.min(heard));
            }
            Next::Done(outcome) => break outcome,
        }
        if world.now > before {
            idle = 0;
        }
    };
    check_end(&mut world, &agent.operation, &outcome);
    agent.operation.finish(outcome.clone(), world.now);
    let message = report::status(&agent.operation).message;
    if message.len() < 10 || message.starts_with(':') {
        world.violate(format!("nothing is said: {message:?}"));
    }
    // A decision that a kubelet made during the operation must do no harm after it either.
    world.advance(world.now + ms(5000));
    let lasts = scenario.old_image == Image::Good
        && scenario.kubelet
        && scenario.sandbox.is_none()
        && scenario.meddled_at.is_none();
    let alone = (0..scenario.swaps.len()).all(|index| world.running(&format!("c{index}")) == 1);
    if lasts && !alone && agent.operation.stuck.is_empty() && !scenario.swaps.contains(&true) {
        world.violate(format!("{outcome:?} left the kubelet unable to restart: {:?}", world.instances));
    }
    world.broken.map_or(Ok(outcome), Err)
}

fn request(scenario: &Scenario) -> Request {
    let mut request = Request::new(ID.into(), Vec::new());
    for (index, swap) in scenario.swaps.iter().enumerate() {
        let image = swap.then(|| "repo/app:new".to_owned());
        request.containers.push(Target { name: format!("c{index}"), image });
    }
    request.min_ready_seconds = scenario.min_ready;
    request.deadline_seconds = scenario.deadline;
    let hook =
        |script: Option<Script>| script.map(|_| HookRef { template_name: "gate".into(), args: Vec::new() });
    (request.pre_hook, request.post_hook) = (hook(scenario.pre_hook), hook(scenario.post_hook));
    request.on_failure = if scenario.keep { OnFailure::Keep } else { OnFailure::Rollback };
    request
}

fn begin(request: Request, world: &mut World) -> Operation {
    let source = Source {
        not_cloneable: None,
        image_present: true,
        alias: None,
        has_assigned_cpus: false,
        shares_termination_log: false,
        runs_declared: true,
    };
    let sources = request.containers.iter().map(|target| (target.name.clone(), source.clone())).collect();
    let mut snapshot = world.snapshot();
    // The preflight leaves swaps in a kubelet's pod to the API server. The rollback is tested
    // beside a kubelet all the same.
    if request.containers.iter().any(|target| target.image.is_some()) {
        let owner = if world.scenario.cleans_up { Owner::NodeRun } else { Owner::Nobody };
        snapshot.sandbox.iter_mut().for_each(|sandbox| sandbox.owner = owner);
    }
    let runtime = Runtime { name: "containerd".into(), version: "2.1".into() };
    let hooks = Hooks { pre: Some(Ok(hooks::spec())), post: Some(Ok(hooks::spec())) };
    let situation = Situation { snapshot, runtime, sources, hashes: BTreeMap::new(), hooks, now: epoch() };
    Plan::of(admit(request, &situation).unwrap()).begin(epoch())
}

/// Checks that the reported outcome matches the snapshot at that moment.
fn check_claim(world: &mut World, operation: &Operation, outcome: &Outcome) {
    world.scenario.fog = None;
    let snapshot = world.snapshot();
    for target in &operation.targets {
        let running = snapshot.running(&target.name);
        let right = match outcome {
            Outcome::Succeeded if !world.hooks.passed(Moment::After) => false,
            Outcome::Succeeded => {
                let image = if target.action == Action::Swap { "sha:new" } else { "sha:old" };
                let up = |instance: &&Container| {
                    instance.attempt > target.from.attempt && instance.image_id == image
                };
                running.len() == 1 && running.iter().all(up)
            }
            Outcome::RolledBack(_) => {
                running.len() == 1 && running[0].image_id == "sha:old" || !target.touched
            }
            Outcome::Failed { touched: false, .. } | Outcome::Cancelled(_) | Outcome::Refused(_) => {
                !world.felt
            }
            Outcome::Failed { .. } => operation.touched(),
        };
        if !right {
            world.violate(format!("{outcome:?} is not true of {target:?}: {snapshot:?}"));
        }
    }
}

fn check_end(world: &mut World, operation: &Operation, outcome: &Outcome) {
    let grace = i64::try_from(world.scenario.grace).unwrap() + 2;
    let latest = operation.deadline_at + SignedDuration::from_secs(grace + 30);
    if world.now > latest {
        world.violate(format!("{outcome:?} came at {}, after {latest}", world.now));
    }
    let late = world.events.iter().any(|(_, event)| matches!(event, Event::Late(_)));
    let left =
        |instance: &&Instance| instance.seen.operation.is_some() && instance.seen.state == State::Created;
    if let Some(instance) = world.instances.iter().find(left)
        && operation.stuck.is_empty()
        && !late
        && !world.away()
    {
        world.violate(format!("{outcome:?} leaves {:?} behind", instance.seen));
    }
    if matches!(outcome, Outcome::Cancelled(_) | Outcome::Failed { touched: false, .. }) {
        let killed = world.instances.iter().any(|instance| instance.stopped_by_us);
        if killed || world.felt {
            world.violate(format!("{outcome:?}, but it was felt"));
        }
    }
    if *outcome == Outcome::Succeeded {
        for target in &operation.targets {
            let started = world.started.get(&target.name).copied().unwrap_or(0);
            if started > 1 || (started == 0 && !world.scenario.kubelet) {
                world.violate(format!("{} was started {started} times", target.name));
            }
        }
    }
}

fn image() -> impl Strategy<Value = Image> {
    prop_oneof![
        4 => Just(Image::Good),
        2 => (0_i64..3000).prop_map(Image::DiesAfter),
        1 => Just(Image::NeverStarts),
        1 => Just(Image::CannotBeCreated),
        1 => Just(Image::CannotBePulled),
    ]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let old = prop_oneof![
        6 => Just(Image::Good),
        1 => (0_i64..3000).prop_map(Image::DiesAfter),
        1 => Just(Image::NeverStarts),
    ];
    let fate = prop_oneof![Just(Fate::Gone), Just(Fate::NotReady), Just(Fate::Another)];
    (
        (
            proptest::collection::vec(any::<bool>(), 1..4),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            rarely(0_i64..4000),
            rarely((1_i64..3000, 0_i64..3000)),
        ),
        (
            0_u64..4,
            0_u32..3,
            34_u32..90,
            prop_oneof![4 => Just(0_u64), 4 => 0_u64..40, 1 => 40_u64..95],
            prop_oneof![Just(0_u64), 0_u64..15],
            proptest::bool::weighted(0.05),
            rarely(0_i64..3000),
        ),
        (
            image(),
            old,
            rarely(0_i64..3000),
            rarely(0_i64..500),
            rarely((0_i64..5000, fate)),
            rarely((0_i64..3000, 0_i64..120_000)),
            any::<u64>(),
        ),
        (rarely(hooks::script()), rarely(hooks::script())),
    )
        .prop_map(|(shape, numbers, others, (pre_hook, post_hook))| {
            let (swaps, keep, kubelet, cleans_up, pre_stop, ahead, swept_at, fog) = shape;
            let (grace, min_ready, deadline, faults, kills, stubborn, meddled_at) = numbers;
            let (new_image, old_image, dies_at, withdrawn_at, sandbox, away, seed) = others;
            Scenario {
                swaps,
                keep,
                kubelet,
                // A pod of `node run` has no kubelet.
                cleans_up: cleans_up && !kubelet,
                pre_stop,
                grace,
                min_ready,
                deadline,
                faults,
                kills,
                new_image,
                old_image,
                dies_at,
                withdrawn_at,
                sandbox,
                stubborn,
                meddled_at,
                swept_at,
                fog,
                ahead,
                away,
                pre_hook,
                post_hook,
                seed,
            }
        })
}

fn look_for(usual: u32, sabotage: Sabotage) -> Result<BTreeMap<String, u32>, String> {
    search(cases(usual), &scenario(), |scenario| {
        run(scenario, sabotage).map(|outcome| format!("{} {}", outcome.phase(), outcome.reason()))
    })
}

#[test]
fn whatever_the_world_does_the_rules_hold() {
    let tally = look_for(4000, Sabotage::default()).unwrap_or_else(|broken| panic!("{broken}"));
    // A search that does not reach these outcomes proves nothing.
    for kind in [
        "Succeeded ",
        "RolledBack Exited",
        "RolledBack StartFailed",
        "Cancelled RequestDeleted",
        "Failed PreHookFailed",
        "RolledBack PostHookFailed",
    ] {
        assert!(tally.get(kind).is_some_and(|count| *count >= 10), "{kind} is rare: {tally:#?}");
    }
}

#[test]
fn without_the_fence_the_same_search_finds_two_running() {
    let broken = Sabotage { fences_hold_nothing: true, ..Sabotage::default() };
    let found = look_for(3000, broken).unwrap_err();
    assert!(found.contains("run at once"), "{found}");
}

#[test]
fn without_the_journal_the_same_search_finds_a_lie() {
    let broken = Sabotage { journal_is_not_written: true, ..Sabotage::default() };
    assert!(look_for(3000, broken).is_err());
}

#[test]
fn without_what_was_measured_the_same_search_finds_a_second_measurement() {
    let broken = Sabotage { hooks: Forgetful(true), ..Sabotage::default() };
    let found = look_for(3000, broken).unwrap_err();
    assert!(found.contains("was made twice"), "{found}");
}
