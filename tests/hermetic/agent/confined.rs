//! The agent checks at its start whether an admission policy confines it to its node, and leaves no object behind.

use inplace::cluster::client::{ConnectOptions, connect};
use inplace::cluster::confinement::Confinement;
use inplace::cluster::server::Server;

use super::super::api_server::Fault;
use super::Fixture;

const TRIED: &str = "WOULD POST hookrun";
const NO: &str = "hookruns.tkex.tencent.com \"inplace-confinement\" is forbidden: ValidatingAdmissionPolicy \
    'inplace-agent-hooks' with binding 'inplace-agent-hooks' denied request: the HookRun is not of node node-1";

#[tokio::test]
async fn an_agent_that_starts_tries_whether_a_policy_keeps_it_to_its_node_and_leaves_nothing() {
    let fixture = Fixture::found().await;
    let _agent = fixture.agent().await;
    fixture.api.arrived(TRIED, 1).await;
    let target = ConnectOptions { kubeconfig: Some(fixture.api.kubeconfig()), ..ConnectOptions::default() };
    let server = Server::new(connect(&target).await.unwrap().0);
    assert_eq!(server.confinement("shop").await, Confinement::Open, "an API server without the policy");
    fixture.api.on(TRIED).fault(Fault::Answer(403, NO));
    assert_eq!(server.confinement("shop").await, Confinement::Confined);
    fixture.api.on(TRIED).fault(Fault::Answer(503, "later"));
    let found = server.confinement("shop").await;
    assert!(matches!(&found, Confinement::Unknown(why) if why.contains("later")), "{found:?}");
    assert_eq!(fixture.api.writes(), Vec::<String>::new());
    assert!(fixture.api.get("hookruns", "shop", "inplace-confinement").is_none());
}
