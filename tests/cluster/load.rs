//! Many requests at once: the limits of a node hold, every request ends, and the agent's memory stays small.

#![expect(clippy::print_stderr, reason = "the figures are for whoever wants them")]

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use inplace::api::{
    annotation::REQUEST,
    request::Request,
    status::{Phase, Status},
};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    agent::samples,
    cluster::{Cluster, block_on, runtime},
    installed::{install, metrics, metrics_in_time, process, writes},
    pod::{Pod, container, is_ready},
    request::request as request_text,
    support::process::Process,
    support::wait::{eventually, eventually_or},
    traffic::End,
};

/// With the agent and one more these are the 110 pods of the budget.
const PODS: usize = 109;
/// The default of `--max-operations`.
const MOST: usize = 32;
/// Budget: mebibytes of resident memory of an idle agent.
const RSS: f64 = 15.0;
/// The same after the heaviest load: a busier machine does more at once, and the heap retains some of it. The budget is 18 MB. With
/// a program of 17.6 MB, most of whose pages that are resident are its code, 17.8 to 18.9 MB were measured on a machine that
/// does nothing else, and 19.0 MB beside builds.
const RSS_WORKED: f64 = 20_000_000.0 / 1_048_576.0;
/// Time limit for all pods to start, and for a burst to end, on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// The lightest pod: one waiting process.
const LIGHT: &str = "
hostNetwork: true
automountServiceAccountToken: false
terminationGracePeriodSeconds: 2
containers:
- {name: app, image: lab/app:v1}
";

#[test]
fn requests_on_all_pods_of_a_full_node_at_once() {
    let cluster = Cluster::own();
    install(&cluster, "one");
    // An operation that pulls lends its permit to another one meanwhile. Here the image is already on the node,
    // so nothing is pulled.
    let brings = Pod::create(&cluster, "brings", &LIGHT.replace("app:v1", "app:v2"));
    brings.wait_for(LONG, "it is Ready", is_ready);
    drop(brings);
    let pods: Vec<_> = (0..PODS).map(|_| Pod::create(&cluster, "light", LIGHT)).collect();
    for pod in &pods {
        pod.wait_for(LONG, "it is Ready", is_ready);
    }
    let process = Process(process(&cluster, &cluster.node()));
    at_rest(&cluster, process);
    let fresh = process.resident();
    let own = process.anonymous();

    let before = writes(&cluster).len();
    let answers = burst(&cluster, &pods, None, 1);
    within_budget(&cluster, &pods, &answers, before);
    burst(&cluster, &pods, Some("lab/app:v2"), 2);
    assert!(pods.iter().all(|pod| pod.facts().running("app").version == "v2"));

    at_rest(&cluster, process);
    let (worked, peak) = (process.resident(), process.peak());
    let owns = process.anonymous();
    eprintln!(
        "the agent with {PODS} pods: {fresh:.1} MiB, {own:.1} of them its own; after two bursts {worked:.1} MiB, \
         {owns:.1} of them its own; at most {peak:.1} MiB"
    );
    assert!(fresh <= RSS, "{fresh} MiB at rest");
    assert!(worked <= RSS_WORKED, "{worked} MiB at rest after work");
}

/// Writes the same request into all pods at once, a restart or a swap to that image, and waits until all have
/// succeeded. Each operation takes so long that most requests are written before the first one ends.
fn burst(cluster: &Cluster, pods: &[Pod<'_>], image: Option<&str>, cycle: i32) -> Vec<Status> {
    let text = &request_text(cluster, &[("app", image)], json!({"minReadySeconds": 3}));
    let (over, open) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let answers: Vec<Status> = thread::scope(|scope| {
        let _end = End(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let shown = metrics_in_time(&cluster.node()).unwrap_or_default();
                open.lock().unwrap().extend(samples(&shown, &["inplace_open_operations"]));
                thread::sleep(Duration::from_millis(200));
            }
        });
        request(pods, text);
        let id = Request::parse(Some(text)).unwrap().unwrap().id;
        pods.iter().map(|pod| pod.answer_within(LONG, &id)).collect()
    });
    for (pod, answer) in pods.iter().zip(&answers) {
        assert_eq!(answer.phase, Phase::Succeeded, "{pod:?}: {answer:#?}\n{:#?}", pod.facts());
        // In the middle of a swap the kubelet may have collected all exited containers and created the new one
        // itself; then it counts attempts from 0. It also does so if it collects the new container later although
        // that runs by then, because it had listed it before it ran, and a fence was younger (docs/limits.md).
        let anew = answer.containers[0].to.as_ref().is_some_and(|to| to.attempt == 0);
        pod.wait("the kubelet reports one restart more", |pod| {
            is_ready(pod) && container(pod, "app").is_some_and(|app| app.restart_count == cycle || anew)
        });
        let facts = pod.facts().settled();
        let attempt = facts.running("app").attempt.cast_signed();
        assert!(
            attempt == cycle || (attempt == 0 && facts.instances.len() == 1),
            "{facts:#?}\nafter {answer:#?}"
        );
    }
    let shown = open.into_inner().unwrap().into_iter().fold(0.0, f64::max);
    let most = most_at_once(&answers);
    let mut downtimes: Vec<_> =
        answers.iter().map(|answer| answer.containers[0].downtime_ms.unwrap()).collect();
    downtimes.sort_unstable();
    let [half, last] = [PODS / 2, PODS - 1].map(|index| downtimes[index]);
    eprintln!(
        "{text}: at most {most} at once, {shown} shown; down {half} ms in the middle, {last} ms at most"
    );
    assert!(most <= MOST && shown <= 32.0, "{most} at once, {shown} shown");
    // The limit is only tested if operations wait for it.
    assert!(most > MOST / 2, "only {most} at once");
    answers
}

/// Writes the request into all pods, as fast as the API server accepts it.
fn request(pods: &[Pod<'_>], text: &str) {
    let patch = json!({"metadata": {"annotations": {REQUEST: text}}});
    let mut writing = JoinSet::new();
    for pod in pods {
        let (api, name, patch) = (pod.api.clone(), pod.name.clone(), patch.clone());
        let write =
            async move { api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap() };
        writing.spawn_on(write, runtime());
    }
    block_on(writing.join_all());
}

/// Maximum number of operations at the same moment, by their own times.
fn most_at_once(answers: &[Status]) -> usize {
    let mut cycles: Vec<_> = answers
        .iter()
        .flat_map(|answer| [(answer.started_at.unwrap(), 1), (answer.finished_at.unwrap(), -1)])
        .collect();
    // An end sorts before a start in the same millisecond.
    cycles.sort_unstable();
    let mut open = 0_isize;
    cycles
        .iter()
        .map(|(_, cycle)| {
            open += cycle;
            open
        })
        .max()
        .unwrap()
        .cast_unsigned()
}

/// The writes per restart: a start, an end and an event; and the pending status where it had to wait. On a busy
/// machine a step may last longer than two seconds, and is reported then.
fn within_budget(cluster: &Cluster, pods: &[Pod<'_>], answers: &[Status], before: usize) {
    let settled = || samples(&metrics(&cluster.node()), &["inplace_pending_answers"]) == [0.0];
    eventually("all is written", || settled().then_some(()));
    let writes = writes(cluster).split_off(before);
    let of = |resource: &str, name: Option<&str>| {
        let fits = |write: &&serde_json::Value| {
            let what = &write["objectRef"];
            Cluster::is_done(write)
                && what["resource"] == resource
                && name.is_none_or(|name| what["name"] == name)
        };
        writes.iter().filter(fits).count()
    };
    for (pod, answer) in pods.iter().zip(answers) {
        let patches = of("pods", Some(&pod.name));
        let took = answer.finished_at.unwrap().duration_since(answer.started_at.unwrap());
        let most = 3 + usize::try_from(took.as_secs() / 2).unwrap();
        assert!((2..=most).contains(&patches), "{pod:?} was written to {patches} times in {took:#}");
    }
    let (patches, events) = (of("pods", None), of("events", None));
    eprintln!("{PODS} restarts: {patches} patches, {events} events");
    assert_eq!(events, PODS);
}

/// Waits until no operation is running and no worker thread is left: the memory after that is the agent's memory
/// at rest.
fn at_rest(cluster: &Cluster, process: Process) {
    eventually_or("the agent to rest", || {
        let reported = metrics(&cluster.node());
        let busy =
            ["inplace_open_operations", "inplace_pending_answers"].map(|name| samples(&reported, &[name]));
        let threads = process.threads();
        let rests = busy.iter().flatten().all(|count| *count == 0.0) && threads == 1;
        if rests { Ok(()) } else { Err(format!("{busy:?}, {threads} threads")) }
    });
}
