//! Runs the decisions against a random world without an API server: a runtime that refuses, loses responses and is
//! late, a kubelet that restarts dead containers, images that exit, a sandbox that vanishes, users who cancel, and an
//! agent that is killed at any point. All time is virtual. The rules are checked at every step and at the end.

mod checks;
mod events;
mod runtime;
mod scenario;
mod world;

use std::collections::BTreeMap;

use inplace::api::request::{ContainerRequest, HookRef, OnFailure, PreHookPhase, Request};
use inplace::operation::effect::Verb;
use inplace::operation::next::{Next, next, unseen};
use inplace::operation::note::Note;
use inplace::operation::outcome::{Outcome, Withdrawal};
use inplace::operation::plan::Plan;
use inplace::operation::preflight::{Hooks, Runtime, Situation, Source, admit};
use inplace::operation::report;
use inplace::operation::snapshot::Owner;
use inplace::operation::state::Operation;

use super::hooks::{self, Forgetful, Script};
use super::{Agent, ID, cases, epoch, ms, search};
use checks::{check_claim, check_end};
use scenario::{Image, Scenario, scenario};
use world::{Sabotage, World};

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
                if matches!(note, Note::NotRunning(_)) {
                    world.hooks.measures_anew();
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
        request.containers.push(ContainerRequest { name: format!("c{index}"), image });
    }
    request.min_ready_seconds = scenario.min_ready;
    request.deadline_seconds = scenario.deadline;
    let hook = |script: Option<Script>| {
        script.map(|_| HookRef { template_name: "gate".into(), args: Vec::new(), phase: PreHookPhase::Start })
    };
    (request.pre_hook, request.post_hook) = (hook(scenario.pre_hook), hook(scenario.post_hook));
    request.on_failure = if scenario.keep { OnFailure::Keep } else { OnFailure::Rollback };
    request
}

fn begin(request: Request, world: &mut World) -> Operation {
    let source = Source { image_present: true, runs_declared: true, ..Source::default() };
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
    let situation = Situation {
        snapshot,
        runtime,
        sources,
        hashes: BTreeMap::new(),
        hooks,
        memory: None,
        group: None,
        now: epoch(),
    };
    Plan::of(admit(request, &situation).unwrap()).begin(epoch(), None)
}

fn search_for(usual: u32, sabotage: Sabotage) -> Result<BTreeMap<String, u32>, String> {
    search(cases(usual), &scenario(), |scenario| {
        run(scenario, sabotage).map(|outcome| format!("{} {}", outcome.phase(), outcome.reason()))
    })
}

#[test]
fn whatever_the_world_does_the_rules_hold() {
    let tally = search_for(4000, Sabotage::default()).unwrap_or_else(|broken| panic!("{broken}"));
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
    let found = search_for(3000, broken).unwrap_err();
    assert!(found.contains("run at once"), "{found}");
}

#[test]
fn without_the_journal_the_same_search_finds_a_lie() {
    let broken = Sabotage { journal_is_not_written: true, ..Sabotage::default() };
    assert!(search_for(3000, broken).is_err());
}

#[test]
fn without_what_was_measured_the_same_search_finds_a_second_measurement() {
    let broken = Sabotage { hooks: Forgetful(true), ..Sabotage::default() };
    let found = search_for(3000, broken).unwrap_err();
    assert!(found.contains("was made twice"), "{found}");
}
