//! Runs the decisions beside a kubelet and its API server. Both are late, both fail, both are away for a while, and
//! the kubelet acts on its last observation.

use std::collections::BTreeMap;

use inplace::api::group::GroupTask;
use inplace::api::request::{ContainerRequest, OnFailure, Order, Request, RequestedEngine};
use inplace::operation::next::{Next, next};
use inplace::operation::note::Note;
use inplace::operation::outcome::{Outcome, Withdrawal};
use inplace::operation::plan::Plan;
use inplace::operation::preflight::{Hashes, Hooks, Refusal, Runtime, Situation, Source, admit};
use inplace::operation::report;
use inplace::operation::snapshot::{RestartPolicy, Snapshot, State};
use inplace::operation::spec_hash;
use inplace::operation::state::{self, Operation};

use jiff::Timestamp;
use proptest::strategy::Strategy;

use self::names::{ALIAS, NEW, OLD, image_id, name_of};
use self::scenario::{Image, Scenario, scenario};
use self::world::World;
use super::{Agent, ID, cases, epoch, ms, search};

mod checks;
mod execute;
mod group;
mod kubelet;
mod names;
mod scenario;
mod world;

/// Planted defects. The checks must detect each of them.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
struct Sabotage {
    fences_hold_nothing: bool,
    fences_do_not_run: bool,
    journal_is_not_written: bool,
    /// A new instance counts when it has the right image, whatever spec it was created from.
    image_is_enough: bool,
    gate_is_not_opened: bool,
    spec_is_not_put_back: bool,
    everything_is_ready: bool,
}

/// Runs one world and returns a short description of how it ended.
fn run(scenario: &Scenario, sabotage: Sabotage) -> Result<String, String> {
    let mut world = World::new(scenario.clone(), sabotage);
    let operation = match begin(&mut world) {
        Ok(operation) => operation,
        Err(refusal) => return Ok(format!("not begun {}", refusal.reason())),
    };
    let engine = format!("{:?}", operation.targets[0].engine);
    let mut agent = Agent::new(operation, !sabotage.journal_is_not_written);
    let outcome = carry_out(&mut world, &mut agent);
    if let Some(outcome) = outcome {
        world.check_end(&agent.operation, &outcome);
        let message = report::status(&agent.operation).message;
        if message.len() < 10 || message.starts_with(':') {
            world.violate(format!("nothing is said: {message:?}"));
        }
        world.advance(world.now + ms(20_000));
        world.check_aftermath(&agent.operation, &outcome);
        if world.broken.is_none() {
            let helped = if world.helped { " with help" } else { "" };
            let is_probed = |target: &state::Target| target.replacement().ended_by_probe > 0;
            let probed = if agent.operation.targets.iter().any(is_probed) { " after a probe" } else { "" };
            return Ok(format!("{engine} {} {}{helped}{probed}", outcome.phase(), outcome.reason()));
        }
    }
    let tail = world.log.len().saturating_sub(80);
    Err(format!("{}\n{}", world.broken.unwrap_or_default(), world.log[tail..].join("\n")))
}

/// What one step of the operation was.
enum Progress {
    Acted,
    Waits(Timestamp),
    Ended(Outcome),
}

/// Runs the operation from the first observation to the end. `None` when a rule was violated.
fn carry_out(world: &mut World, agent: &mut Agent) -> Option<Outcome> {
    let kills = world.scenario.kills;
    let (mut steps, mut idle) = (0, 0);
    loop {
        steps += 1;
        idle += 1;
        if steps > 30_000 || idle > 60 {
            world.violate(format!("no end after {steps} steps: {:?}", agent.operation));
        }
        if world.broken.is_some() {
            return None;
        }
        if world.scenario.withdrawn_at.is_some_and(|at| world.now >= epoch() + ms(at)) {
            agent.operation.withdraw(Withdrawal::Deleted);
        }
        let before = world.now;
        match step(world, agent) {
            Progress::Acted => {}
            Progress::Waits(until) => {
                world.advance(until);
                let _ = dies(world, agent, kills / 8);
            }
            Progress::Ended(outcome) => return Some(outcome),
        }
        if world.now > before {
            idle = 0;
        }
    }
}

/// Takes one step of the operation: decides, and does what follows.
fn step(world: &mut World, agent: &mut Agent) -> Progress {
    let kills = world.scenario.kills;
    world.check_serving(&agent.operation);
    let snapshot = world.snapshot();
    let snapshot = world.count_sockets(&agent.operation, snapshot);
    let snapshot = if world.sabotage.image_is_enough { tamper(snapshot, &agent.operation) } else { snapshot };
    match next(&agent.operation, &snapshot, world.now) {
        Next::Note(note) => {
            world.say(|| format!("{note:?}"));
            if let Note::End(outcome) = &note {
                world.check_claim(&agent.operation, outcome);
            }
            let reached = match &note {
                Note::Reached(name, _) => Some(name.clone()),
                _ => None,
            };
            // What the other pods of a group rely on is in the journal before it is reported.
            let is_for_group = matches!(note, Note::Prepared(_) | Note::AtBarrier(_));
            agent.operation.note(note);
            if is_for_group {
                agent.write();
            }
            for target in
                agent.operation.targets.iter().filter(|target| Some(&target.name) == reached.as_ref())
            {
                world.check_speed(target);
            }
        }
        Next::Do(effect) => {
            agent.operation.begin(&effect, world.now);
            if dies(world, agent, kills) {
                return Progress::Acted;
            }
            agent.write();
            if dies(world, agent, kills) {
                return Progress::Acted;
            }
            let result = world.call(&agent.operation, &effect);
            if !dies(world, agent, kills) {
                agent.operation.record(&effect, result, world.now);
            }
        }
        Next::Wait(waiting) => {
            if waiting.until <= world.now {
                world.violate(format!("waits for the past: {waiting:?}"));
            }
            return Progress::Waits(waiting.until);
        }
        Next::Done(outcome) => {
            agent.operation.finish(outcome.clone(), world.now);
            return Progress::Ended(outcome);
        }
    }
    Progress::Acted
}

/// Decides at random whether the agent dies here. True when it did, and has restarted.
fn dies(world: &mut World, agent: &mut Agent, percent: u64) -> bool {
    let Some(gone) = agent.dies(&mut world.dice, percent) else { return false };
    world.say(|| format!("the agent dies and is gone for {gone} ms"));
    world.advance(world.now + ms(gone));
    agent.comes_back(world.now);
    // A restarted agent must receive its pods first.
    let syncs = world.dice.ms(0, 500);
    world.unsynced_until = world.now + ms(syncs);
    if let Some((from, long)) = world.scenario.api_away.filter(|_| world.api_away()) {
        world.unsynced_until = epoch() + ms(from + long + syncs);
    }
    true
}

fn begin(world: &mut World) -> Result<Operation, Refusal> {
    let scenario = world.scenario.clone();
    let mut request = Request::new(ID.into(), Vec::new());
    for (index, swap) in scenario.swaps.iter().enumerate() {
        let image = swap.then(|| NEW.to_owned());
        request.containers.push(ContainerRequest { name: name_of(index), image });
    }
    request.engine = scenario.engine;
    request.order = if scenario.start_first { Order::StartFirst } else { Order::StopFirst };
    request.grace_period_seconds = scenario.drain;
    request.min_ready_seconds = scenario.min_ready;
    request.ready_timeout_seconds = scenario.ready_timeout;
    let stops = if scenario.start_first { 4 } else { 2 }
        * scenario.swaps.len()
        * (usize::try_from(scenario.grace).unwrap() + 2);
    request.deadline_seconds =
        20 + u32::try_from(stops).unwrap() + scenario.drain + scenario.min_ready + scenario.deadline;
    if scenario.start_first {
        request.deadline_seconds += 2 * scenario.min_ready.max(6);
    }
    request.on_failure = if scenario.keep { OnFailure::Keep } else { OnFailure::Rollback };
    admitted(world, request, None)
}

/// The operation of a request, if it is not refused.
fn admitted(world: &mut World, request: Request, group: Option<GroupTask>) -> Result<Operation, Refusal> {
    let scenario = &world.scenario;
    let source = Source {
        not_cloneable: (!scenario.cloneable).then(|| "a field is not known".to_owned()),
        image_present: true,
        alias: scenario.alias.then(|| ALIAS.to_owned()),
        runs_declared: true,
        ..Source::default()
    };
    let sources: BTreeMap<_, _> =
        request.containers.iter().map(|target| (target.name.clone(), source.clone())).collect();
    let runtime = Runtime { name: "containerd".into(), version: "2.1".into() };
    let snapshot = world.snapshot();
    let situation = Situation {
        snapshot,
        runtime,
        sources,
        hashes: hashes(world),
        hooks: Hooks::default(),
        memory: None,
        group,
        now: world.now,
    };
    Ok(Plan::of(admit(request, &situation)?).begin(world.now, None))
}

/// The hashes that the kubelet wrote on containers earlier, as far as they are remembered.
fn hashes(world: &World) -> Hashes {
    let of = |name: &str| [OLD, NEW, ALIAS].map(|image| (image.to_owned(), world.hash(name, image))).into();
    let names = (0..world.scenario.swaps.len()).map(name_of).filter(|_| world.scenario.remembered);
    names.map(|name| (name.clone(), of(&name))).collect()
}

/// Makes every instance of the requested image appear to be created from the desired spec.
fn tamper(mut snapshot: Snapshot, operation: &Operation) -> Snapshot {
    for target in &operation.targets {
        let Some(change) = &target.change else { continue };
        let requested = if operation.rollback_cause.is_some() { &change.from } else { &change.to };
        let right = |instance: &&mut inplace::operation::snapshot::Container| {
            instance.name == target.name
                && instance.state == State::Running
                && instance.attempt > target.from.attempt
                && instance.image_id == image_id(requested)
        };
        for instance in snapshot.containers.iter_mut().filter(right) {
            instance.spec_hash =
                change.hash.clone().unwrap_or_else(|| spec_hash::of(&target.name, requested));
        }
    }
    snapshot
}

fn look_for(usual: u32, sabotage: Sabotage) -> Result<BTreeMap<String, u32>, String> {
    search_among(&scenario(), usual, sabotage)
}

fn search_among(
    worlds: &impl Strategy<Value = Scenario>,
    usual: u32,
    sabotage: Sabotage,
) -> Result<BTreeMap<String, u32>, String> {
    search(cases(usual), worlds, |scenario| run(scenario, sabotage))
}

#[test]
fn whatever_the_kubelet_and_its_api_server_do_the_rules_hold() {
    let tally = look_for(3000, Sabotage::default()).unwrap_or_else(|broken| panic!("{broken}"));
    // A search that does not reach these outcomes proves nothing.
    for kind in [
        "Recreate Succeeded ",
        "Respec Succeeded ",
        "Stop Succeeded ",
        "Respec RolledBack Exited",
        "Respec RolledBack NotReady",
        "Recreate Failed SandboxGone",
        "Respec Cancelled RequestDeleted",
        "not begun BackOff",
    ] {
        let of_kind = tally.iter().filter(|(end, _)| end.starts_with(kind)).map(|(_, count)| count);
        assert!(of_kind.sum::<u32>() >= 10, "{kind} is rare: {tally:#?}");
    }
}

/// The worlds in which a standby may run.
fn with_standbys() -> impl Strategy<Value = Scenario> {
    scenario().prop_map(|scenario| Scenario {
        start_first: true,
        policy: RestartPolicy::Always,
        cloneable: true,
        swaps: scenario.swaps[..1].to_vec(),
        ready_after: scenario.ready_after % 2000,
        // Until it becomes Ready, a container needs more time than `ready_after` alone.
        ready_timeout: scenario.ready_timeout.max(5),
        ..scenario
    })
}

#[test]
fn with_a_standby_the_rules_hold_and_something_serves_all_the_time() {
    let tally =
        search_among(&with_standbys(), 2000, Sabotage::default()).unwrap_or_else(|broken| panic!("{broken}"));
    for kind in [
        "Recreate Succeeded ",
        "Respec Succeeded ",
        "Recreate Failed NotStartedBeside",
        "Respec Failed NotStartedBeside",
        "Respec Cancelled RequestDeleted",
    ] {
        assert!(tally.get(kind).is_some_and(|count| *count >= 10), "{kind} is rare: {tally:#?}");
    }
}

/// Every start is slow enough for the kubelet to observe the container before it, and nothing else goes wrong.
#[test]
fn an_instance_that_its_kubelet_probed_before_the_start_is_replaced() {
    let worlds = scenario().prop_map(|scenario| Scenario {
        swaps: vec![false],
        engine: RequestedEngine::Recreate,
        policy: RestartPolicy::Always,
        cloneable: true,
        faults: 0,
        api_faults: 0,
        kills: 0,
        old_image: Image::Good,
        ready_after: 0,
        lag: scenario.lag % 100,
        kubelet_lag: 0,
        relist: 1200,
        api_away: None,
        kubelet_away: None,
        dies_at: None,
        withdrawn_at: None,
        deleted_at: None,
        swept_at: None,
        pull: None,
        startup_probe: Some(100),
        ..scenario
    });
    let tally = search_among(&worlds, 1000, Sabotage::default()).unwrap_or_else(|broken| panic!("{broken}"));
    let count =
        |part: &str| tally.iter().filter(|(kind, _)| kind.contains(part)).map(|(_, n)| n).sum::<u32>();
    // The kubelet's report may be replaced by the next one before the agent receives it.
    let (replaced, failed) = (count("Succeeded  after a probe"), count("Exited"));
    assert!(replaced >= 20 && failed * 20 <= replaced, "{tally:#?}");
}

fn finds(sabotage: Sabotage, what: &str) {
    let found = look_for(3000, sabotage).unwrap_err();
    assert!(found.contains(what), "{found}");
}

/// Checks that the rules hold in the first number of `worlds`, and that among the second number, with the sabotage,
/// the search finds one of `what`.
fn finds_only_with(
    sabotage: Sabotage,
    worlds: &impl Strategy<Value = Scenario>,
    (without, with): (u32, u32),
    what: &[&str],
) {
    search_among(worlds, without, Sabotage::default()).unwrap_or_else(|broken| panic!("{broken}"));
    let found = search_among(worlds, with, sabotage).unwrap_err();
    assert!(what.iter().any(|what| found.contains(what)), "{found}");
}

#[test]
fn without_the_fence_the_search_finds_two_running() {
    finds(Sabotage { fences_hold_nothing: true, ..Sabotage::default() }, "run at once");
}

/// Starts take long, and the kubelet collects containers that do not run in the meantime.
#[test]
fn a_fence_that_does_not_run_is_collected_and_the_search_finds_what_comes_of_it() {
    let worlds = scenario().prop_map(|scenario| Scenario {
        swaps: vec![false],
        engine: RequestedEngine::Auto,
        policy: RestartPolicy::Always,
        old_image: Image::Good,
        relist: 100,
        swept_at: Some(20 + scenario.swept_at.unwrap_or(0) % 600),
        ..scenario
    });
    let sabotage = Sabotage { fences_do_not_run: true, ..Sabotage::default() };
    // Or the kubelet counts from 0, because the fence was the last container of that name.
    finds_only_with(sabotage, &worlds, (1000, 5000), &["run at once", "not a new life"]);
}

#[test]
fn by_the_image_alone_the_search_finds_an_instance_that_does_not_last() {
    // Restarts through the spec, of a container that crashes before its kubelet has received the change.
    let worlds = scenario().prop_map(|scenario| Scenario {
        swaps: vec![false],
        engine: RequestedEngine::Respec,
        policy: RestartPolicy::Always,
        alias: true,
        old_image: Image::Good,
        kubelet_lag: 1500,
        relist: 100,
        dies_at: Some(20 + scenario.dies_at.unwrap_or(0) % 200),
        ..scenario
    });
    let sabotage = Sabotage { image_is_enough: true, ..Sabotage::default() };
    // Or the old instance counts as the new one: it has the same image.
    finds_only_with(sabotage, &worlds, (500, 3000), &["its kubelet will not keep it", "not a new life"]);
}

#[test]
fn a_gate_that_stays_closed_is_found() {
    finds(Sabotage { gate_is_not_opened: true, ..Sabotage::default() }, "leaves the gate");
}

#[test]
fn a_spec_that_is_not_put_back_is_found() {
    let found = look_for(3000, Sabotage { spec_is_not_put_back: true, ..Sabotage::default() }).unwrap_err();
    // The kubelet keeps stopping the restored container, or the container stays and the spec names another image.
    assert!(
        ["the spec was not put back", "the way back of"].iter().any(|what| found.contains(what)),
        "{found}"
    );
}

#[test]
fn readiness_that_is_not_waited_for_is_found() {
    finds(Sabotage { everything_is_ready: true, ..Sabotage::default() }, "it is not ready");
}

#[test]
fn a_journal_that_is_not_written_is_found() {
    assert!(look_for(3000, Sabotage { journal_is_not_written: true, ..Sabotage::default() }).is_err());
}
