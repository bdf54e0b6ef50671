//! The example of `docs/hot-standby.md` as users apply it: clients that stay connected, and a client with a connection for
//! each request, while its container is restarted and updated with `order: StartFirst`.

#![expect(clippy::print_stderr, reason = "figures for whoever reads the log")]

use std::{net::SocketAddr, path::Path};

use inplace::api::status::{Engine, Phase};
use jiff::SignedDuration;
use serde_json::json;

use crate::{
    agent::Agent,
    cluster::Cluster,
    pod::{Pod, is_ready},
    request::{adopted, restart},
    start_first::start_first,
    support::{
        lab::run,
        session_clients::{Clients, connect, count, gap, servers},
    },
};

/// The name of the image in the example. It is the only part that the test replaces.
const IMAGE: &str = "image: python:3.13-slim";
/// How long a process of the example loads.
const LOAD: SignedDuration = SignedDuration::from_secs(3);
/// Where the example says so.
const LOAD_SECONDS: &str = "- name: LOAD_SECONDS\n          value: \"3\"\n";
/// How many clients stay connected.
const STAYING: usize = 4;

#[test]
fn the_example_keeps_its_sessions_and_their_connections() {
    Agent::shared();
    let cluster = Cluster::shared();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples/hot-standby");
    let manifest = run(cluster.kubectl_command(&["kustomize"]).arg(example));
    assert_eq!(
        (manifest.matches(IMAGE).count(), manifest.matches(LOAD_SECONDS).count()),
        (1, 1),
        "{manifest}"
    );
    // As users apply it: `kubectl` knows a field that does not exist.
    cluster.try_apply(&[], &manifest.replace(IMAGE, "image: lab/python3:v1")).unwrap();
    let pod = Pod::existing(cluster, "default", "hot-standby-0");
    pod.wait("it is Ready", is_ready);

    let address: SocketAddr = format!("{}:7777", pod.facts().ip).parse().unwrap();
    let clients = Clients::start(address, STAYING, 1);
    for (image, tag, engine) in
        [(None, "v1", Engine::Recreate), (Some("lab/python3:v2"), "v2", Engine::Respec)]
    {
        let status = start_first(&pod, ("app", image), json!({}), Phase::Succeeded);
        assert_eq!(status.containers[0].engine, engine);
        assert_eq!(adopted(&pod, "app", &format!("lab/python3:{tag}")).version, tag);
    }
    let answers = clients.end();
    eprintln!(
        "{} requests, each counted once; longest time between two answers of a client: {} ms",
        answers.iter().map(Vec::len).sum::<usize>(),
        answers.iter().map(|answers| gap(answers)).max().unwrap().as_millis()
    );

    // The first instance, and twice a standby and a new instance. Each loads while the one before it answers.
    let processes = servers(&answers[0]);
    assert_eq!(processes.len(), 5, "{processes:?}");
    for (session, answers) in answers.iter().enumerate() {
        assert_eq!(servers(answers), processes, "session {session}");
        assert!(answers.iter().all(|answer| answer.at >= answer.server + LOAD), "session {session}");
        for started in &processes[1..] {
            let loads = *started + LOAD / 2..*started + LOAD;
            assert!(answers.iter().any(|answer| loads.contains(&answer.at)), "session {session}, {started}");
        }
    }

    // The sessions, but not the connections, outlive a restart that stops first as well.
    restart(&pod, "app", json!({}), Phase::Succeeded);
    let (counted, server) = count(&mut connect(address).unwrap(), 0).unwrap();
    assert_eq!(counted, answers[0].len() + 1);
    assert!(!processes.contains(&server));
    cluster.kubectl(&["delete", "statefulset,configmap", "hot-standby"]);
}
