//! The ready agents that a controller knows, also while the API server does not answer.

use inplace::cluster::agents::Agents;
use inplace::cluster::client::{ConnectOptions, connect};
use inplace::cluster::server::Server;
use tokio_util::sync::CancellationToken;

use super::super::api_server::{ApiServer, pods::agent};

/// A rollout waits for the agent of a dead node. If no node had an agent now, its pod would count as failed.
#[tokio::test]
async fn a_dead_node_is_still_known_while_the_watch_is_interrupted() {
    let api = ApiServer::start().await;
    api.put(agent("node-1", "True"));
    api.put(agent("node-2", "False"));
    let target = ConnectOptions { kubeconfig: Some(api.kubeconfig()), ..ConnectOptions::default() };
    let (client, _) = connect(&target).await.unwrap();
    let stop = CancellationToken::new();
    let mut agents = Agents::watch(Server::new(client), "inplace-system", stop.clone());
    let _stop = stop.drop_guard();
    assert_eq!(agents.by_node(), None);
    let listed = async {
        while agents.ready().is_none() {
            agents.changed().await;
        }
    };
    api.patiently("the agents are listed", listed).await;
    let before = agents.by_node().unwrap();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["node-1"]);
    api.go_away().await;
    let interrupted = async {
        while agents.ready().is_some() {
            agents.changed().await;
        }
    };
    api.patiently("the watch is interrupted", interrupted).await;
    assert_eq!(agents.by_node(), Some(before));
}
