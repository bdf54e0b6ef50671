//! Many requests at once: the limits of a node hold, every request ends, and the agent stays small.

#![expect(clippy::print_stderr, reason = "the figures are for whoever wants them")]

use std::{
    fs,
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
    asked::request as request_text,
    cluster::{Cluster, block_on, runtime},
    installed::{install, metrics, process, writes},
    pod::{Pod, container, eventually, eventually_or, is_ready},
    traffic::End,
};

/// With the agent and one more these are the 110 of the budget.
const PODS: usize = 109;
/// `--max-operations` as it is shipped.
const MOST: usize = 32;
/// Mebibytes of resident memory that an agent at rest may have.
const RSS: f64 = 15.0;
/// The same after the most work there is: a busier machine has more of it at once, and its traces stay in the heap.
const RSS_WORKED: f64 = 16.0;
/// How long all pods may take to come up, and a burst to end, on a machine that does much else.
const LONG: Duration = Duration::from_secs(600);

/// One that waits, as light as can be.
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
    // What pulls gives its permit to another operation meanwhile. Here nothing has to be pulled.
    let brings = Pod::create(&cluster, "brings", &LIGHT.replace("app:v1", "app:v2"));
    brings.wait_for(LONG, "it is Ready", is_ready);
    drop(brings);
    let pods: Vec<_> = (0..PODS).map(|_| Pod::create(&cluster, "light", LIGHT)).collect();
    for pod in &pods {
        pod.wait_for(LONG, "it is Ready", is_ready);
    }
    let process = process(&cluster, &cluster.node());
    at_rest(&cluster, process);
    let fresh = memory(process, "VmRSS:");
    let own = memory(process, "RssAnon:");

    let before = writes(&cluster).len();
    let answers = burst(&cluster, &pods, None, 1);
    within_budget(&cluster, &pods, &answers, before);
    burst(&cluster, &pods, Some("lab/app:v2"), 2);
    assert!(pods.iter().all(|pod| pod.facts().running("app").version == "v2"));

    at_rest(&cluster, process);
    let (worked, peak) = (memory(process, "VmRSS:"), memory(process, "VmHWM:"));
    let owns = memory(process, "RssAnon:");
    eprintln!(
        "the agent with {PODS} pods: {fresh:.1} MiB, {own:.1} of them its own; after two bursts {worked:.1} MiB, \
         {owns:.1} of them its own; at most {peak:.1} MiB"
    );
    assert!(fresh <= RSS, "{fresh} MiB at rest");
    assert!(worked <= RSS_WORKED, "{worked} MiB at rest after work");
}

/// Asks all pods at once for the same, a restart or a swap to that image, and waits until all have ended as they should.
/// Each operation takes so long that the requests of most pods are there before the first one ends.
fn burst(cluster: &Cluster, pods: &[Pod<'_>], image: Option<&str>, turn: i32) -> Vec<Status> {
    let text = &request_text(cluster, &[("app", image)], json!({"minReadySeconds": 3}));
    let (over, open) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let answers: Vec<Status> = thread::scope(|scope| {
        let _end = End(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let found = samples(&metrics(&cluster.node()), &["inplace_open_operations"]);
                open.lock().unwrap().extend(found);
                thread::sleep(Duration::from_millis(20));
            }
        });
        request(pods, text);
        let id = Request::parse(Some(text)).unwrap().unwrap().id;
        pods.iter().map(|pod| pod.answer_within(LONG, &id)).collect()
    });
    for (pod, answer) in pods.iter().zip(&answers) {
        assert_eq!(answer.phase, Phase::Succeeded, "{pod:?}: {answer:#?}\n{:#?}", pod.facts());
        // Its kubelet may have collected all that was dead in the middle of a swap, and made the new one itself: it counts
        // lives from the beginning then. It also does where it collects the new one later, although that runs by then: it had
        // noted it while it did not, and a fence was younger (docs/limits.md).
        let anew = answer.containers[0].to.as_ref().is_some_and(|to| to.attempt == 0);
        pod.wait("the kubelet tells one restart more", |pod| {
            is_ready(pod) && container(pod, "app").is_some_and(|app| app.restart_count == turn || anew)
        });
        let facts = pod.facts().settled();
        let attempt = facts.running("app").attempt.cast_signed();
        assert!(
            attempt == turn || (attempt == 0 && facts.instances.len() == 1),
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
    // It is no limit if nothing waits for it.
    assert!(most > MOST / 2, "only {most} at once");
    answers
}

/// Writes the request into all of them, as fast as the API server takes it.
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

/// How many operations were under way at the same moment, by their own times.
fn most_at_once(answers: &[Status]) -> usize {
    let mut turns: Vec<_> = answers
        .iter()
        .flat_map(|answer| [(answer.started_at.unwrap(), 1), (answer.finished_at.unwrap(), -1)])
        .collect();
    // What ends in a millisecond makes room for what begins in it.
    turns.sort_unstable();
    let mut open = 0_isize;
    turns
        .iter()
        .map(|(_, turn)| {
            open += turn;
            open
        })
        .max()
        .unwrap()
        .cast_unsigned()
}

/// A begin, an end and an event for each restart; and that it waits, where it had to. On a busy machine a step may last
/// long enough to be told, which is after two seconds.
fn within_budget(cluster: &Cluster, pods: &[Pod<'_>], answers: &[Status], before: usize) {
    let settled = || samples(&metrics(&cluster.node()), &["inplace_pending_answers"]) == [0.0];
    eventually("all is written", || settled().then_some(()));
    let writes = writes(cluster).split_off(before);
    let of = |resource: &str, name: Option<&str>| {
        let fits = |write: &&serde_json::Value| {
            let what = &write["objectRef"];
            what["resource"] == resource && name.is_none_or(|name| what["name"] == name)
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

/// Waits until nothing is under way any more, nor a thread left that was made for work: what it needs then is what it
/// needs all day.
fn at_rest(cluster: &Cluster, process: u32) {
    eventually_or("the agent to rest", || {
        let told = metrics(&cluster.node());
        let busy = ["inplace_open_operations", "inplace_pending_answers"].map(|name| samples(&told, &[name]));
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().count();
        let rests = busy.iter().flatten().all(|count| *count == 0.0) && threads == 1;
        if rests { Ok(()) } else { Err(format!("{busy:?}, {threads} threads")) }
    });
}

/// Mebibytes, by the kernel.
pub(crate) fn memory(process: u32, key: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB"));
    line.unwrap().trim().parse::<f64>().unwrap() / 1024.0
}
