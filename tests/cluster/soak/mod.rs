//! A run of random operations under random faults on a cluster with two nodes. What happens is decided by a seed
//! ([`plan`]); users' operations ([`operate`], [`rollout`]) and faults ([`fault`]) go on at the same time, and a checker
//! that knows the Kubernetes API and the CRI of both nodes alone asserts the invariants all the time ([`checker`]).
//!
//! `make soak MINUTES=60 SEED=1` runs one. Settings are environment variables: `INPLACE_SOAK_SEED`, `INPLACE_SOAK_MINUTES`,
//! `INPLACE_SOAK_OPERATIONS` (ends earlier, after so many), `INPLACE_SOAK_REPORT` (a JSON file), and
//! `INPLACE_SOAK_SABOTAGE`, with which the test itself breaks an invariant, to show that the checker notices.

#![expect(clippy::print_stderr, reason = "the report of a run is for people")]

mod checker;
mod client;
mod deletion;
mod excuse;
mod fault;
mod history;
mod operate;
mod plan;
mod report;
mod rollout;
mod run;
mod sabotage;
mod time_limit;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    cluster::{Cluster, environment},
    support::{hook_server::HookServer, wait::eventually},
    traffic::End,
};
use client::{Client, FailedRequest};
use history::SECOND;
use plan::{Fault, Move, NODES, Operation, PODS, Plan, PodKind, WORKLOAD, kind_of, node_of};
use report::Report;
use run::{LIMIT, Run, name_of};
use watch::{Watch, clock};

/// The length of the run in the suite, in minutes.
const MINUTES: u64 = 2;
const SEED: u64 = 1;
/// A run with more violations ends.
const MOST_VIOLATIONS: usize = 20;
/// How many operations may wait for one target before the moves wait.
const WAITING: usize = 2;
/// The number of the move before which the test breaks an invariant itself, if it is to.
const SABOTAGED: usize = 3;
/// The interval of the checks.
const CHECKS: Duration = Duration::from_millis(500);

fn number(name: &str, default: u64) -> u64 {
    environment(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is needed")))
}

fn is_sabotaged() -> bool {
    environment("INPLACE_SOAK_SABOTAGE").is_some()
}

#[test]
fn random_operations_under_random_faults_break_no_invariant() {
    let seed = number("INPLACE_SOAK_SEED", SEED);
    let minutes = number("INPLACE_SOAK_MINUTES", MINUTES);
    let most = number("INPLACE_SOAK_OPERATIONS", u64::MAX);
    eprintln!("soak: seed {seed}, {minutes} minutes");
    let cluster = Cluster::own();
    let nodes = vec![cluster.node(), cluster.add_node("node-2")];
    nodes.iter().for_each(fault::mount_journal);
    let run = Run {
        watch: Watch::begin(&cluster, &nodes),
        agents: nodes.iter().map(|_| Mutex::new(None)).collect(),
        controller: Mutex::new(None),
        hooks: HookServer::open(),
        faults: Mutex::default(),
        report: Mutex::new(Report { seed, ..Report::default() }),
        moves: Mutex::default(),
        most_violations: if is_sabotaged() { 1 } else { MOST_VIOLATIONS },
        last: Mutex::default(),
        cluster: &cluster,
        nodes,
    };
    let began = clock();
    set_up(&run);
    let clients = clients(&run);
    let end = clock() + i64::try_from(minutes * 60).unwrap() * SECOND;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = End(&is_over);
        scope.spawn(|| check(&run, &clients, &is_over));
        drive(&run, seed, end, most);
    });
    quiesce(&run);
    examine(&run, &clients);
    let report = run.report.into_inner().unwrap();
    let report = finished(report, &clients, began, &run.watch.history.lock().unwrap().observations);
    eprintln!("{report}");
    if let Some(file) = environment("INPLACE_SOAK_REPORT") {
        fs::write(file, serde_json::to_string_pretty(&report).unwrap()).unwrap();
    }
    assert!(
        report.is_clean(),
        "{} violations, {} stuck; replay with INPLACE_SOAK_SEED={seed}:\n{report}",
        report.violations.len(),
        report.stuck.len()
    );
    // A run that is to end after few operations may have met no fault.
    assert!(most < u64::MAX || report.is_proof(NODES), "too little has happened:\n{report}");
}

/// Starts the agents and the controller, and creates the pods.
fn set_up(run: &Run<'_>) {
    for node in 0..run.nodes.len() {
        run.launch_agent(node);
    }
    run.launch_controller();
    deletion::install(run);
    operate::apply_template(run);
    rollout::create(run);
    (0..PODS).for_each(|pod| operate::create(run, pod));
    for pod in 0..PODS {
        run.settled(pod).unwrap_or_else(|why| panic!("{} does not start: {why}", name_of(pod)));
    }
    eventually("the pods of the Deployment", || rollout::is_settled(run).ok());
}

fn clients(run: &Run<'_>) -> Vec<Client> {
    let served = (0..PODS).filter(|pod| kind_of(*pod) == PodKind::Served);
    served.map(|pod| Client::of(&name_of(pod), node_of(pod), run.watch.pods.clone())).collect()
}

/// Makes the moves until the time is over, or so many operations have begun, or there are too many violations. When this
/// returns, all operations have ended and all faults are undone.
fn drive(run: &Run<'_>, seed: u64, end: i64, most: u64) {
    thread::scope(|scope| {
        // Operations wait for those of the same target; a fault waits for the end of the one before.
        let targets: Vec<SyncSender<(Operation, usize)>> = (0..=WORKLOAD)
            .map(|target| {
                let (sender, receiver) = sync_channel(WAITING);
                scope.spawn(move || {
                    for (operation, number) in receiver {
                        operate_on(run, target, operation, number);
                    }
                });
                sender
            })
            .collect();
        let (faults, receiver) = sync_channel::<(Fault, usize, u64)>(0);
        scope.spawn(move || {
            for (fault, node, milliseconds) in receiver {
                fault::disturb(run, fault, node, Duration::from_millis(milliseconds));
            }
        });
        let sabotage = is_sabotaged().then_some(SABOTAGED);
        let mut operations = 0;
        for (number, made) in Plan::new(seed).enumerate() {
            if clock() > end || operations >= most || run.ends_early() {
                break;
            }
            run.moves.lock().unwrap().push(made);
            run.report.lock().unwrap().moves = number + 1;
            if sabotage == Some(number) {
                sabotage::duplicate(run);
            }
            match made {
                Move::Operate { target, operation } => {
                    operations += 1;
                    targets[target].send((operation, number)).unwrap();
                }
                Move::Disturb { fault, node, milliseconds } => {
                    faults.send((fault, node, milliseconds)).unwrap();
                }
                Move::Pause { milliseconds } => thread::sleep(Duration::from_millis(milliseconds)),
            }
        }
    });
}

fn operate_on(run: &Run<'_>, target: usize, operation: Operation, number: usize) {
    if target == WORKLOAD {
        rollout::operate(run, operation, number);
    } else {
        operate::operate(run, target, operation, number);
    }
}

/// Checks the invariants at intervals, until the run is over.
fn check(run: &Run<'_>, clients: &[Client], is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        examine(run, clients);
        thread::sleep(CHECKS);
    }
}

/// Checks all invariants that hold at every moment.
fn examine(run: &Run<'_>, clients: &[Client]) {
    let mut found = BTreeSet::new();
    {
        let history = run.watch.history.lock().unwrap();
        found.extend(checker::duplicates(&history));
        found.extend(checker::replaced_sandboxes(&history, &run.faults()));
    }
    found.extend(std::mem::take(&mut run.watch.pods.lock().unwrap().wrong));
    found.extend(run.cluster.harm().err());
    for client in clients {
        // Taken, so that what fails later is seen, however much a reboot made fail.
        let failed = std::mem::take(&mut *client.shared.failed.lock().unwrap());
        let faults = run.faults();
        let is_unexplained =
            |one: &&FailedRequest| !checker::may_be_refused(&faults, client.node, one.began, one.ended);
        if let Some(FailedRequest { began, error, .. }) = failed.iter().find(is_unexplained) {
            found.insert(format!("a request to {} at {began} failed: {error}", client.pod));
        }
    }
    for what in found {
        run.violation(what);
    }
}

/// Waits until nothing is in progress and nothing is left: pods Ready, gates open, no fence, no standby, journals without
/// an open operation. What is not so after the limit is stuck. Then the pods must be what they were after their last
/// operation.
fn quiesce(run: &Run<'_>) {
    let mut last = Vec::new();
    let quiet = run.within(LIMIT, || {
        last = unfinished(run);
        last.is_empty().then_some(())
    });
    if quiet.is_none() {
        run.stuck(format!("at the end: {}", last.join("; ")));
        return;
    }
    for pod in 0..PODS {
        match run.settled(pod) {
            Ok(now) => run.compare(&name_of(pod), node_of(pod), &now),
            Err(why) => run.stuck(format!("{} at the end: {why}", name_of(pod))),
        }
    }
    match rollout::settled(run) {
        Ok(now) => rollout::compare(run, &now),
        Err(why) => run.stuck(format!("{} at the end: {why}", rollout::NAME)),
    }
}

fn unfinished(run: &Run<'_>) -> Vec<String> {
    let mut left = checker::left(&run.watch.history.lock().unwrap());
    for pod in 0..PODS {
        left.extend(run.is_settled(&name_of(pod)).err().map(|why| format!("{}: {why}", name_of(pod))));
    }
    left.extend(rollout::is_settled(run).err());
    for node in &run.nodes {
        let Ok(entries) = fs::read_dir(fault::journal_folder(node).join("journal")) else { continue };
        for path in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
        {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let entry: Value = serde_json::from_str(&text).unwrap_or_default();
            if !entry["open"].is_null() || !entry["owed_gate"].is_null() {
                left.push(format!("{} is open: {} {}", path.display(), entry["open"], entry["owed_gate"]));
            }
        }
    }
    left
}

/// The report with the figures of the clients and of the observation.
fn finished(
    mut report: Report,
    clients: &[Client],
    began: i64,
    observations: &BTreeMap<usize, u64>,
) -> Report {
    report.seconds = u64::try_from((clock() - began) / SECOND).unwrap();
    report.served = clients.iter().map(|client| client.shared.served.load(Ordering::Relaxed)).sum();
    report.refused = clients.iter().map(|client| client.shared.refused.load(Ordering::Relaxed)).sum();
    report.observations = observations.clone();
    report
}
