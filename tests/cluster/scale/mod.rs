//! Thousands of pods in one `GameDeployment` on a real API server, beside pods of others: a whole update in place, its
//! cost for the API server and the controller, how soon watches have what was written, what the watches of agents cost,
//! and that the budget holds at every moment. Nodes, kubelets and agents are simulated by [`nodes`]; [`agents`] has the
//! watches of the agents, which are those of the agent. [`group`] has a group restart. `make scale` sets larger
//! [`sizes`] than CI has.

#![expect(clippy::print_stderr, reason = "the figures are for whoever wants them")]

mod agents;
mod figures;
mod foreign;
mod group;
mod lag;
mod nodes;
mod sizes;
mod watches;
mod world;

use std::time::Duration;

use tokio::time::Instant;

use self::{
    agents::Agents,
    figures::load,
    lag::{Watch, percentile},
    sizes::{Sizes, asserts_times},
    watches::Cost,
    world::World,
};
use crate::api_server::ApiServer;

/// Pods of a smaller workload, for comparison.
const FEW: u32 = 100;
/// Budget: calls of the controller per pod of the rollout. The request and its end, and the rest for the workload's own
/// status, whose writes depend on the time, and for occasional retries: less of each for a pod of more than 2000.
const CALLS: f64 = 2.2;
const LARGE_CALLS: f64 = 2.1;
/// Budget: mebibytes of resident memory, for 2000 pods twice the measured value, for more 150 MB.
const RSS: f64 = 60.0;
const LARGE_RSS: f64 = 150_000_000.0 / 1_048_576.0;
/// Milliseconds of processor time that are within the accuracy of a measurement: of a change that needs nothing, and of a
/// decision.
const NOISE: f64 = 0.1;
const DECISION: f64 = 2.0;
/// Budget: milliseconds of a decision per pod of the workload, more than twice the measured value (0.0075).
const DECISION_OF_POD: f64 = 0.02;
/// Budget: the time from a write of a pod to a watch, of 99 of 100 writes.
const LAG: Duration = Duration::from_secs(1);

#[tokio::test]
async fn thousands_of_pods_are_updated_in_place_within_their_budget() {
    let sizes = Sizes::of_environment();
    let (mut world, server) = World::start(sizes).await;
    eprintln!("{sizes:?}, load of the machine: {}", load());

    world.create("few", FEW).await;
    let alone = (world.noise("few").await, world.decided("few").await);
    foreign::create(&world.client, sizes.foreign, sizes.nodes).await;

    let start = world.figures().await;
    world.create("many", sizes.pods).await;
    let created = world.figures().await;
    start.until(&created).print("created", sizes.pods);

    let agents = watched(&world, &server).await;
    assert_eq!(world.nodes.most(), 0, "somebody was asked before there was anything to ask");
    world.nodes.ledger().clear();
    let created = world.figures().await;
    world.set_image("many", "app:v2").await;
    world.all_at("many", sizes.pods, "app:v2").await;
    let updated = world.figures().await;
    let rollout = created.until(&updated);
    rollout.print("updated in place", sizes.pods);
    let (most, budget) = (world.nodes.most(), sizes.budget());
    eprintln!("out at once: {most} of {budget}");
    let [all, node] = [Watch::All, Watch::Node].map(|watch| world.nodes.ledger().lags(watch));
    let reaction = world.nodes.reactions();
    print_times(&[
        ("write of a pod -> a watch of all pods has it", &all),
        ("write of a pod -> the watch of its agent has it", &node),
        ("end of a pod -> the request of the next one", &reaction),
    ]);
    drop(agents);
    changes(&world, alone).await;
    let replaced = Instant::now();
    world.replace_controller(&server, "few", FEW + 1).await;
    let took = replaced.elapsed();
    let next = world.figures().await;
    eprintln!("a new controller: {:.1} MiB at most, {:.1} s to its first pod", next.rss, took.as_secs_f64());

    // The simulated nodes are slow enough that the budget is used up.
    assert_eq!(most, budget);
    assert_eq!(world.nodes.done(), sizes.pods, "each once");
    let calls = rollout.calls_per(sizes.pods);
    let large = sizes.pods + sizes.foreign > 2000;
    let most = if large { LARGE_CALLS } else { CALLS };
    assert!(calls <= most, "{calls:.2} calls for a pod");
    let rss = if large { LARGE_RSS } else { RSS };
    assert!(updated.rss <= rss && next.rss <= rss, "{:.1} MiB, {:.1} MiB", updated.rss, next.rss);
    if asserts_times() {
        let lags = [percentile(&all, 99), percentile(&node, 99)];
        assert!(lags.iter().all(|lag| *lag <= LAG), "{lags:?}");
    }
}

/// Compares the controller's work for a change of a pod with the same among few pods (`alone`): only the pods of the same
/// workload may add to it, and only if the controller decides about the workload.
async fn changes(world: &World, alone: (f64, f64)) {
    let sizes = world.sizes;
    let among = (world.noise("few").await, world.decided("few").await);
    let many = (world.noise("many").await, world.decided("many").await);
    eprintln!(
        "| controller: processor time per change of a pod, ms | needs nothing | is decided about |\n|---|---|---|"
    );
    let others = sizes.pods + sizes.foreign;
    eprintln!("| {FEW} pods in the cluster | {:.2} | {:.2} |", alone.0, alone.1);
    eprintln!("| {FEW} pods in the workload, {others} others | {:.2} | {:.2} |", among.0, among.1);
    eprintln!("| {} pods in the workload | {:.2} | {:.2} |", sizes.pods, many.0, many.1);
    for noise in [among.0, many.0] {
        assert!(noise <= 2.0 * alone.0 + NOISE, "{noise:.2} ms for a change that needs nothing");
    }
    assert!(among.1 <= 2.0 * alone.1 + DECISION, "{:.2} ms for a decision among others", among.1);
    let most = 2.0 * alone.1 + DECISION + DECISION_OF_POD * f64::from(sizes.pods);
    assert!(many.1 <= most, "{:.2} ms for a decision about {} pods", many.1, sizes.pods);
}

/// Starts the agents, and prints what their watches cost the API server.
async fn watched(world: &World, server: &ApiServer) -> Agents {
    let (sizes, api_server) = (world.sizes, server.process());
    let cost = async || Cost::of(&world.client, api_server, "many").await;
    // The first measurement fills the caches of the API server.
    cost().await;
    let mut costs = vec![("no agent".to_owned(), cost().await)];
    let before = (Instant::now(), api_server.cpu());
    let mut agents = Agents::start(server, sizes.nodes, world.nodes.ledger()).await;
    let (took, cpu) = (before.0.elapsed(), api_server.cpu().saturating_sub(before.1));
    let known = usize::try_from(sizes.pods + sizes.foreign + FEW).unwrap();
    assert_eq!(agents.pods(), known, "each pod is known to one agent");
    costs.push((format!("{} watches of a node's pods", sizes.nodes), cost().await));
    agents.watch_the_rest().await;
    costs.push((format!("all watches of {} agents", sizes.nodes), cost().await));
    watches::print(&costs);
    eprintln!(
        "{} agents list and watch the pods of their nodes within {:.1} s: {:.1} s of processor time of the API server",
        sizes.nodes,
        took.as_secs_f64(),
        cpu.as_secs_f64()
    );
    agents
}

/// Prints percentiles of times.
fn print_times(rows: &[(&str, &[Duration])]) {
    eprintln!("| ms | number | p50 | p99 | most |\n|---|---|---|---|---|");
    for (what, times) in rows {
        let [p50, p99, most] = [50, 99, 100].map(|percent| percentile(times, percent).as_millis());
        eprintln!("| {what} | {} | {p50} | {p99} | {most} |", times.len());
    }
}
