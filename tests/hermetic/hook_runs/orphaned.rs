//! HookRuns that an agent has left at the API server when it was killed at the wrong moment.

use inplace::api::pod_ref::PodRef;
use inplace::node::hook::LeftoverHookRuns;
use inplace::node::journal::{Entry, Journal};

use super::*;

#[tokio::test]
async fn runs_of_ended_operations_go_and_what_failed_or_is_open_stays() {
    let fixture = Fixture::start().await;
    let put = |name: &str, pod: &str, operation: &str, phase: &str| {
        let meta = json!({"labels": {"inplace.dev/operation": operation},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": "uid"}]});
        let mut run = fixture.put_as(name, &json!({"metrics": [fixture.metric("/", &json!({}))]}), &meta);
        run["status"] = json!({"phase": phase});
        fixture.api.put(run);
    };
    put("left-running", "web", "r1", "Running");
    put("left-successful", "web", "r1", "Successful");
    put("failed", "web", "r1", "Failed");
    put("open", "web", "r2", "Running");
    put("of-another-pod", "db", "r1", "Running");
    let state = tempfile::tempdir().unwrap();
    let journal = Journal::open(state.path()).unwrap();
    let (namespace, name, uid) = ("shop".to_owned(), "web".to_owned(), "web-uid".to_owned());
    let mut entry = Entry::new(PodRef { namespace, name, uid });
    entry.finished.push("r1".to_owned());
    journal.write(&entry).unwrap();

    let server = fixture.server().await;
    let watching = CancellationToken::new();
    let runs = HookRuns::watch(server.clone(), "HookRuns", "", watching.clone());
    LeftoverHookRuns::of(&journal).await.delete(server, runs).await;
    watching.cancel();
    let there = |name: &&str| fixture.api.get("hookruns", "shop", name).is_some();
    let all = ["left-running", "left-successful", "failed", "open", "of-another-pod"];
    assert_eq!(
        all.iter().copied().filter(|name| there(name)).collect::<Vec<_>>(),
        ["failed", "open", "of-another-pod"]
    );
}
