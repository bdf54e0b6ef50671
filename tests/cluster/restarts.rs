//! Restarts beside a live kubelet: only the container is affected, the kubelet does not start it a second time,
//! and no back-off delays it.

#![expect(clippy::print_stderr, reason = "the figures are worth reading")]

use std::{collections::BTreeMap, sync::Mutex, thread};

use inplace::api::status::{Engine, Phase, Status};
use k8s_openapi::api::core::v1::Pod as Object;
use serde_json::json;

use crate::{
    agent::{Agent, Setup, USER, status},
    cluster::Cluster,
    instances::Instances,
    pod::{PAIR, Pod, container, is_ready},
    support::facts::Facts,
};

/// The requests for each pod in each half: ten restarts of its two containers, in eight requests.
const CYCLES: [&str; 8] = ["app", "side", "app", "app,side", "side", "app", "side,app", "side"];
const PODS: usize = 5;
/// The shortest back-off of a kubelet in milliseconds: whatever takes less is work.
const HOLDS_BACK_MS: i64 = 10_000;
/// The longest back-off in seconds. Each restart doubles it up to that: the back-offs of ten restarts take much longer.
const BACK_OFFS: i64 = 300;
/// The permitted writes of one request: its start, its end, an event; and one more for each period of this many
/// seconds that it takes, because a long step is reported.
const WRITES: usize = 3;
const WORD: i64 = 2;

/// Waits until the kubelet reports the running instance as ready. Returns its restart count.
fn adopted(pod: &Pod<'_>, name: &str, facts: &Facts) -> i32 {
    let id = format!("containerd://{}", facts.running(name).id);
    let taken = |pod: &Object| {
        container(pod, name)
            .is_some_and(|reported| reported.ready && reported.container_id.as_ref() == Some(&id))
    };
    let object = pod.wait(&format!("the kubelet reports {name} {id}"), taken);
    container(&object, name).unwrap().restart_count
}

/// Every version since the pod was Ready for the first time.
fn since_ready(pod: &Pod<'_>) -> Vec<Object> {
    pod.seen().versions().skip_while(|version| !is_ready(version)).cloned().collect()
}

/// Asserts that the pod was always Running; returns the reported waiting states of its containers.
fn always_running(pod: &Pod<'_>) -> Vec<(String, String)> {
    let mut waits = Vec::new();
    for version in since_ready(pod) {
        let status = version.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Running"), "{pod:?}: {status:#?}");
        for reported in status.container_statuses.into_iter().flatten() {
            let waiting = reported.state.and_then(|state| state.waiting);
            waits.extend(waiting.map(|w| (w.reason.unwrap_or_default(), w.message.unwrap_or_default())));
        }
    }
    waits
}

/// Waiting states that a kubelet reports when it syncs the pod while the container is down: the name that it
/// wants is taken, or, if that has happened before, a back-off; newer ones report no reason for an instance that
/// is created and not yet started. The back-off has no effect, because the new instance exists before the next
/// sync.
fn is_passing(reason: &str, message: &str) -> bool {
    match reason {
        "CreateContainerError" => message.contains("is reserved for"),
        "CrashLoopBackOff" | "" => true,
        _ => false,
    }
}

/// The restart counts that were reported for a container, each once.
fn counts(pod: &Pod<'_>, name: &str) -> Vec<i32> {
    let mut counts: Vec<_> =
        since_ready(pod).iter().map(|version| container(version, name).unwrap().restart_count).collect();
    counts.dedup();
    counts
}

/// Asserts that each container in the status has the next attempt, made over the runtime's socket, and was down for less than
/// the back-off of a kubelet that has started every instance; returns the downtimes in milliseconds.
fn check_new_instances(status: &Status) -> Vec<i64> {
    let reports = status.containers.iter().map(|report| {
        assert_eq!(report.engine, Engine::Recreate, "{status:#?}");
        assert_eq!(report.to.as_ref().unwrap().attempt, report.from.attempt + 1, "{status:#?}");
        let down = report.downtime_ms.unwrap_or_else(|| panic!("{status:#?}"));
        // The first restart has none, and the second one's is as short as a slow start.
        let restart = report.from.attempt + 1;
        let back_off = (HOLDS_BACK_MS << restart.saturating_sub(2)).min(1_000 * BACK_OFFS);
        assert!(restart < 3 || down < back_off, "{status:#?}");
        down
    });
    reports.collect()
}

/// What a restart must preserve of a pod.
fn kept(facts: &Facts) -> impl PartialEq + std::fmt::Debug + use<> {
    (facts.sandbox.clone(), facts.ip.clone(), facts.shm.clone())
}

#[test]
fn a_restart_beside_the_kubelet_is_answered() {
    let pod = Pod::run(Cluster::shared(), "restarted", PAIR);
    Agent::shared();
    let before = pod.facts().settled();
    let status = pod.ask("restart app", Phase::Succeeded);
    check_new_instances(&status);
    let after = pod.facts().settled();
    assert_eq!(status.containers[0].to.as_ref().unwrap().container_id, after.running("app").id);
    assert_eq!((kept(&after), after.running("side")), (kept(&before), before.running("side")));
    assert_eq!((adopted(&pod, "app", &after), adopted(&pod, "side", &after)), (1, 0));
    let waits = always_running(&pod);
    assert!(waits.iter().all(|(reason, message)| is_passing(reason, message)), "{waits:?}");
}

#[test]
fn each_container_waits_for_the_one_before_where_that_is_asked_for() {
    let probe = "readinessProbe: {exec: {command: [\"true\"]}, initialDelaySeconds: 2, periodSeconds: 1, timeoutSeconds: 30}";
    let spec = PAIR.replace("name: app,", &format!("name: app, {probe},"));
    let pod = Pod::run(Cluster::shared(), "each", &spec);
    Agent::shared();
    let ask = json!({"id": "each", "containers": [{"name": "app"}, {"name": "side"}], "eachReady": true});
    let status = pod.ask(&ask.to_string(), Phase::Succeeded);
    let [first, second] = &status.containers[..] else { panic!("{status:#?}") };
    assert!(second.stopped_at.unwrap() >= first.ready_at.unwrap(), "{status:#?}");
    let facts = pod.facts().settled();
    assert_eq!((facts.running("app").attempt, facts.running("side").attempt), (1, 1));
}

#[test]
fn a_hundred_restarts_and_the_kubelet_holds_none_back_and_starts_no_second_one() {
    let cluster = Cluster::leased();
    let pods: Vec<_> = (0..PODS).map(|_| Pod::create(&cluster, "many", PAIR)).collect();
    let before: Vec<_> = pods
        .iter()
        .map(|pod| {
            pod.wait("it is Ready", is_ready);
            pod.facts().settled()
        })
        .collect();
    let instances = Instances::watch(&cluster.node());
    let quick = Agent::start(&cluster, &[]);
    let natural = half(&pods, "quick", false);
    let quiet: Vec<_> = pods.iter().flat_map(always_running).collect();
    quick.stop();
    let slow = Setup { env: &[("INPLACE_FAULT_DELAY", "Start=1200")], ..Setup::default() };
    let _slow = Agent::start_with(&cluster, &slow);
    let stretched = half(&pods, "slow", true);
    let record = instances.end();

    let each = 2 * CYCLES.iter().filter(|cycle| cycle.contains("app")).count();
    assert_eq!((natural.len(), stretched.len(), each), (50, 50, 10));
    // A single start may be slow.
    for (downs, bound) in [(&natural, HOLDS_BACK_MS), (&stretched, 3 * HOLDS_BACK_MS)] {
        assert!(2 * downs.iter().filter(|ms| **ms < bound).count() > downs.len(), "{downs:?}, {bound} ms");
    }
    for (pod, before) in pods.iter().zip(&before) {
        let after = pod.facts().settled();
        assert_eq!(kept(&after), kept(before));
        for name in ["app", "side"] {
            let all: Vec<_> = (0..=each).collect();
            let attempts = record.one_at_a_time(&pod.uid, name).into_iter();
            assert_eq!(attempts.map(|(attempt, _)| attempt as usize).collect::<Vec<_>>(), all);
            assert_eq!(
                counts(pod, name).into_iter().map(|n| usize::try_from(n).unwrap()).collect::<Vec<_>>(),
                all
            );
        }
    }
    let loud: Vec<_> = pods.iter().flat_map(always_running).collect();
    for (reason, message) in &loud {
        assert!(is_passing(reason, message), "{reason}: {message}");
    }
    let writes = writes(&cluster, &pods);
    for pod in &pods {
        let (count, may) = (writes[&pod.name], may_write(pod));
        assert!(count <= may, "{pod:?}: {count} writes for {} requests, {may} at most", 2 * CYCLES.len());
    }
    report("at its natural speed", natural, &quiet);
    report("create..start stretched", stretched, &loud[quiet.len()..]);
    let (sum, observations) = (writes.values().sum::<usize>(), record.observations);
    eprintln!(
        "{sum} writes for {} requests; the runtime was observed {observations} times",
        PODS * 2 * CYCLES.len()
    );
}

/// Sends every pod its requests, one pod at a time or all pods at once. Returns the downtime of each container. Asserts that
/// no new instance was held back, and that the requests of a pod took less than the back-offs of so many restarts.
fn half(pods: &[Pod<'_>], id: &str, at_once: bool) -> Vec<i64> {
    // All at once wait for each other, and come after so many restarts that each back-off would be many times the shortest.
    let bound = if at_once { 3 * HOLDS_BACK_MS } else { HOLDS_BACK_MS };
    let alone = Mutex::new(());
    let cycles = |pod: &Pod<'_>| {
        let (mut down, mut took) = (Vec::new(), 0);
        for (number, names) in CYCLES.iter().enumerate() {
            let cycle = (!at_once).then(|| alone.lock());
            let status = pod.ask(&format!("restart {names} #{id}-{number}"), Phase::Succeeded);
            drop(cycle);
            down.extend(check_new_instances(&status));
            took += seconds(&status);
            // The next request waits until the kubelet has reported this restart, so that every count is
            // observed.
            let facts = pod.facts().settled();
            for name in names.split(',') {
                let (count, new) = (adopted(pod, name, &facts), facts.running(name));
                assert_eq!(count, i32::try_from(new.attempt).unwrap());
                // A back-off delays the creation, a slow machine most of all the start.
                let report = status.containers.iter().find(|report| report.name == name).unwrap();
                let until = new.created_at / 1_000_000 - report.stopped_at.unwrap().as_millisecond();
                assert!(until < bound, "{pod:?}: {name} was created after {until} ms: {status:#?}");
            }
        }
        assert!(took < BACK_OFFS, "{pod:?}: {} restarts took {took} s", down.len());
        down
    };
    thread::scope(|scope| {
        let threads: Vec<_> = pods.iter().map(|pod| scope.spawn(move || cycles(pod))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// The number of the agents' writes about each pod that took effect. An earlier test may have left writes about other pods.
fn writes(cluster: &Cluster, pods: &[Pod<'_>]) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for write in cluster.writes().iter().filter(|write| write["user"]["username"] == USER) {
        let name = write["objectRef"]["name"].as_str().unwrap_or_default();
        // The name of an event begins with its pod's name.
        let about = |pod: &&Pod<'_>| name == pod.name || name.starts_with(&format!("{}.", pod.name));
        let Some(pod) = pods.iter().find(about) else { continue };
        assert_ne!(write["responseStatus"]["code"], 403, "{write:#}");
        if Cluster::is_done(write) {
            *counts.entry(pod.name.clone()).or_default() += 1;
        }
    }
    assert_eq!(counts.len(), pods.len());
    counts
}

/// The number of writes that are permitted, by the statuses that the pod has had.
fn may_write(pod: &Pod<'_>) -> usize {
    let mut took = BTreeMap::new();
    for status in pod.seen().versions().filter_map(status).filter(|status| status.phase.is_terminal()) {
        let span = seconds(&status);
        took.insert(status.id, WRITES + usize::try_from(span / WORD).unwrap());
    }
    assert_eq!(took.len(), 2 * CYCLES.len());
    took.into_values().sum()
}

/// How long a request took.
fn seconds(status: &Status) -> i64 {
    status.finished_at.unwrap().duration_since(status.started_at.unwrap()).as_secs()
}

fn report(what: &str, mut down: Vec<i64>, waits: &[(String, String)]) {
    down.sort_unstable();
    let at = |percent: usize| down[(down.len() * percent).div_ceil(100) - 1];
    let of = |wanted: &str| waits.iter().filter(|(reason, _)| reason == wanted).count();
    eprintln!(
        "{what}: {} restarts, down p50 {} ms, p99 {} ms; the kubelet reported {} CreateContainerError, {} CrashLoopBackOff",
        down.len(),
        at(50),
        at(99),
        of("CreateContainerError"),
        of("CrashLoopBackOff"),
    );
}
