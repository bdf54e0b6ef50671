//! A group restart of a thousand pods, each on a simulated node of its own: every agent has its own watch of the group
//! restarts, as in production, and reports the phases of its pod at once. Shows what the control plane needs for it.
//! `INPLACE_GROUP_PODS` sets another number of pods (`make scale`).

#![expect(clippy::print_stderr, reason = "the figures are for whoever wants them")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inplace::{
    api::{
        annotation::STATUS,
        group::{GroupPhase, GroupProgress},
        in_place_rollout::{InPlaceRollout, RolloutPhase},
        status::{Phase, Status},
    },
    cluster::{
        groups::{Group, GroupRestarts},
        server::Server,
    },
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    World,
    figures::load,
    nodes::now,
    sizes::{Sizes, asserts_times, number},
};

/// Pods of the group, and as many agents.
const PODS: u32 = 1000;
/// Budget: calls of the controller for the whole group restart, whatever its size: the label, the begin, the phases, the end,
/// and the events.
const CALLS: f64 = 20.0;
/// Budget: further calls per second, for the counts of prepared and stopped pods, which it writes once a second at most.
const CALLS_PER_SECOND: f64 = 2.0;
/// Budget: API writes of an agent and of the controller per pod.
const WRITES: f64 = 3.0;
/// Budgets of the control plane's part, up to so many pods.
const CONTROL_PLANE: [(u32, SignedDuration); 2] =
    [(1000, SignedDuration::from_secs(2)), (5000, SignedDuration::from_secs(8))];
/// The pause of an agent after a write that the API server did not take.
const RETRY: Duration = Duration::from_millis(500);
const WORKLOAD: &str = "train";

/// When an agent was notified of each phase, and when the API server had its report.
#[derive(Clone, Copy, Debug)]
struct Seen {
    phase: GroupPhase,
    notified: Timestamp,
    reported: Timestamp,
}

type Log = Arc<Mutex<Vec<Seen>>>;

#[tokio::test]
async fn a_thousand_pods_are_restarted_together_by_three_writes_of_each_agent() {
    let count = number("INPLACE_GROUP_PODS").unwrap_or(PODS);
    let sizes = Sizes { pods: count, foreign: 0, nodes: 20 };
    let (world, server) = World::start(sizes).await;
    world.create(WORKLOAD, count).await;
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    let selection = ListParams::default().labels(&format!("app={WORKLOAD}"));
    let names = pods.list_metadata(&selection).await.unwrap().items;
    let (stop, log, retries) = (CancellationToken::new(), Log::default(), Arc::default());
    let mut agents = JoinSet::new();
    for pod in names {
        let client = server.admin().await;
        let groups = GroupRestarts::watch(Server::new(client.clone()), stop.clone());
        agents.spawn(agent(
            client,
            groups,
            pod.metadata.name.unwrap(),
            (Arc::clone(&log), Arc::clone(&retries)),
        ));
    }
    let start = world.figures().await;
    let began = now();
    let api: Api<InPlaceRollout> = Api::default_namespaced(world.client.clone());
    let rollout = json!({
        "apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout", "metadata": {"name": WORKLOAD},
        "spec": {"target": {"selector": {"matchLabels": {"app": WORKLOAD}}}, "containers": [{"name": "app"}],
            "strategy": "Together", "together": {"prepareTimeoutSeconds": 300, "barrierTimeoutSeconds": 300},
            "pod": {"deadlineSeconds": 900}},
    });
    api.create(&PostParams::default(), &serde_json::from_value(rollout).unwrap()).await.unwrap();
    let has_ended = |rollout: Option<&InPlaceRollout>| {
        let status = rollout.and_then(|rollout| rollout.status.as_ref());
        status.is_some_and(|status| status.phase.is_terminal())
    };
    let ended =
        timeout(sizes.long(), await_condition(api.clone(), WORKLOAD, has_ended)).await.expect("it ends");
    drop(ended.unwrap());
    let status = api.get(WORKLOAD).await.unwrap().status.unwrap();
    assert_eq!(
        (status.phase, status.done),
        (RolloutPhase::Succeeded, i32::try_from(count).unwrap()),
        "{status:#?}"
    );
    let end = world.figures().await;
    while let Some(agent) = agents.join_next().await {
        agent.unwrap();
    }
    stop.cancel();
    let span = start.until(&end);
    span.print("restarted together", count);
    let log = log.lock().unwrap();
    assert_eq!(log.len(), usize::try_from(3 * count).unwrap(), "each agent is notified of each phase once");
    let control_plane = print(&log, began, count);
    let retries = f64::from(retries.load(Ordering::Relaxed));
    eprintln!("{retries} writes of agents were made again");
    // Without those of the agents: each lists the rollouts once and reports three times.
    let calls = (span.calls_per(count) - 4.0) * f64::from(count) - retries;
    let budget = CALLS + CALLS_PER_SECOND * span.seconds();
    assert!(calls <= budget, "{calls} calls of the controller, {budget} at most");
    let writes = span.writes_per(count) - retries / f64::from(count);
    // The controller writes to no pod: the rest is that of the rollout, divided among the pods.
    assert!(writes <= WRITES + budget / f64::from(count), "{writes} writes per pod");
    if asserts_times() {
        let budget = CONTROL_PLANE.iter().find(|(pods, _)| count <= *pods);
        let (_, budget) = budget.expect("a budget for that many pods: INPLACE_GROUP_PODS is 5000 at most");
        assert!(control_plane <= *budget, "{control_plane:#} of the control plane");
    }
}

/// Reports each phase of the pod as soon as it is notified of it, without any work in between.
async fn agent(
    client: Client,
    mut groups: GroupRestarts,
    name: String,
    (log, retries): (Log, Arc<AtomicU32>),
) {
    let pods: Api<Pod> = Api::default_namespaced(client);
    let mut last = None;
    while last != Some(GroupPhase::Start) {
        groups.changed().await;
        let Some(group) = groups.in_progress().pop() else { continue };
        // The phase Stop may have passed before the agent looks.
        if last == Some(group.phase) {
            continue;
        }
        let (phase, notified) = (group.phase, now());
        let status = serde_json::to_string(&report(&group, notified)).unwrap();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {STATUS: status}}}));
        // An API server that is overloaded refuses or ends a write; an agent makes it again.
        while let Err(error) = pods.patch_metadata(&name, &PatchParams::default(), &patch).await {
            assert!(matches!(&error, kube::Error::Api(status) if status.code >= 429), "{error}");
            retries.fetch_add(1, Ordering::Relaxed);
            sleep(RETRY).await;
        }
        log.lock().unwrap().push(Seen { phase, notified, reported: now() });
        last = Some(phase);
    }
}

/// The status of a pod that has done what its phase asks for.
fn report(group: &Group, at: Timestamp) -> Status {
    let progress = GroupProgress::of(&group.task);
    let stopped_at = (group.phase != GroupPhase::Prepare).then_some(at);
    let ended = group.phase == GroupPhase::Start;
    Status {
        id: group.task.rollout.clone(),
        phase: if ended { Phase::Succeeded } else { Phase::Running },
        step: None,
        reason: String::new(),
        message: String::new(),
        started_at: Some(at),
        finished_at: ended.then_some(at),
        group: Some(GroupProgress { prepared_at: Some(at), stopped_at, ..progress }),
        containers: Vec::new(),
    }
}

/// Prints the time of each part. Those between the last report of a phase and the last agent that is notified of the next one
/// are the control plane's, and are returned.
fn print(log: &[Seen], began: Timestamp, count: u32) -> SignedDuration {
    let notified =
        |phase| log.iter().filter(|seen| seen.phase == phase).map(|seen| seen.notified).max().unwrap();
    let reported =
        |phase| log.iter().filter(|seen| seen.phase == phase).map(|seen| seen.reported).max().unwrap();
    let [prepare, stop, start] = [GroupPhase::Prepare, GroupPhase::Stop, GroupPhase::Start];
    let rows = [
        ("created -> the last agent knows the phase Prepare", began, notified(prepare)),
        ("-> the last report that a pod is prepared", notified(prepare), reported(prepare)),
        ("-> the last agent knows the phase Stop", reported(prepare), notified(stop)),
        ("-> the last report that a pod has stopped", notified(stop), reported(stop)),
        ("-> the last agent knows the phase Start", reported(stop), notified(start)),
    ];
    eprintln!("| {count} agents | ms |\n|---|---|");
    for (what, from, to) in rows {
        let took: SignedDuration = to.duration_since(from);
        eprintln!("| {what} | {} |", took.as_millis());
    }
    let control_plane =
        [0, 2, 4].map(|row: usize| rows[row].2.duration_since(rows[row].1)).iter().sum::<SignedDuration>();
    eprintln!("| the control plane's part | {} |", control_plane.as_millis());
    eprintln!("| load of the machine | {} |", load());
    control_plane
}
