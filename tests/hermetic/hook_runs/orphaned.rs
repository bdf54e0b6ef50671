//! HookRuns that an agent has left at the API server when it was killed at the wrong moment.

use inplace::api::pod_ref::PodRef;
use inplace::cluster::pod::FurtherGates;
use inplace::cluster::pods::NodePods;
use inplace::node::hook::LeftoverHookRuns;
use inplace::node::journal::{Entry, Journal};

use super::super::api_server::pods;
use super::*;

#[tokio::test]
async fn runs_of_ended_operations_go_and_what_failed_or_is_open_stays() {
    let fixture = Fixture::start().await;
    let put = |name: &str, pod: &str, operation: &str, phase: &str| {
        let meta = json!({"labels": {"inplace.dev/operation": operation},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": format!("{pod}-uid")}]});
        let mut run = fixture.put_as(name, &json!({"metrics": [fixture.metric("/", &json!({}))]}), &meta);
        run["status"] = json!({"phase": phase});
        fixture.api.put(run);
    };
    put("left-running", "web", "r1", "Running");
    put("left-successful", "web", "r1", "Successful");
    put("failed", "web", "r1", "Failed");
    put("open", "web", "r2", "Running");
    put("of-another-pod", "db", "r1", "Running");
    put("of-the-next-pod", "again", "r1", "Running");
    put("of-a-static-pod", "static", "r1", "Running");
    for name in ["web", "db", "again", "static"] {
        let mut pod = pods::pod("shop", name, "node-1");
        pod["metadata"]["uid"] = json!(format!("{name}-uid"));
        if name == "static" {
            pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("uid-on-the-node");
        }
        fixture.api.put(pod);
    }
    let state = tempfile::tempdir().unwrap();
    let journal = Journal::open(state.path()).unwrap();
    // The pod `again` was made again since.
    for (name, uid) in [("web", "web-uid"), ("again", "earlier-uid"), ("static", "uid-on-the-node")] {
        let mut entry = Entry::new(PodRef { namespace: "shop".into(), name: name.into(), uid: uid.into() });
        entry.finished.push("r1".to_owned());
        journal.write(&entry).unwrap();
    }

    let target = ConnectOptions { kubeconfig: Some(fixture.api.kubeconfig()), ..ConnectOptions::default() };
    let client = connect(&target).await.unwrap().0;
    let server = Server::new(client.clone());
    let watching = CancellationToken::new();
    let pods = NodePods::watch(client, "node-1", FurtherGates::default(), watching.clone());
    let runs = HookRuns::watch(server.clone(), "HookRuns", "", watching.clone());
    LeftoverHookRuns::of(&journal).await.delete(server, pods, runs).await;
    watching.cancel();
    let there = |name: &&str| fixture.api.get("hookruns", "shop", name).is_some();
    let all = [
        "left-running",
        "left-successful",
        "failed",
        "open",
        "of-another-pod",
        "of-the-next-pod",
        "of-a-static-pod",
    ];
    assert_eq!(
        all.iter().copied().filter(|name| there(name)).collect::<Vec<_>>(),
        ["failed", "open", "of-another-pod", "of-the-next-pod"]
    );
}
