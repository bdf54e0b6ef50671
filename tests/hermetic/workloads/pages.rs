//! The pods of a whole cluster are listed page by page, within the memory of a controller.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::super::api_server::{ApiServer, Crowd, Store, pods};
use super::Fixture;
use crate::support::process::Process;

/// The watches of pods: those of all namespaces, the agents, those that rollouts work on, and those of groups. Each begins after
/// its list.
const WATCHES: usize = 4;
/// More than two pages and less than three.
const PODS: usize = 1_234;
/// Budget: resident memory of a controller with 10 000 pods of workloads and 20 000 other pods, in mebibytes.
const RSS: f64 = 150.0;
/// Time limit for 30 000 pods in a build without optimization.
const LONG: Duration = Duration::from_secs(300);

/// One replica is desired; its pod is the last one of the list.
fn fill(fixture: &Fixture) {
    fixture.api.store(|store| {
        for number in 0..PODS {
            store.put(pods::pod("other", &format!("web-{number:05}"), "node-1"));
        }
    });
}

#[tokio::test]
async fn the_pods_of_all_namespaces_are_listed_in_pages() {
    let fixture = Fixture::start().await;
    fill(&fixture);
    let running = fixture.controller();
    fixture.api.arrived("WATCH pods", WATCHES).await;
    assert_eq!(fixture.api.count("NEXT pods"), 2, "three pages");
    drop(running);
}

#[tokio::test]
async fn a_list_whose_token_expires_starts_again_and_misses_nothing() {
    let fixture = Fixture::start().await;
    fill(&fixture);
    fixture.deployment(1);
    let mut pod = pods::pod("shop", "web-zzzzz", "node-1");
    pod["metadata"]["ownerReferences"] = json!(null);
    pod["metadata"]["labels"]["app"] = json!("web");
    fixture.api.put(pod);
    // The history is dropped between two pages, and again at the second attempt.
    fixture.api.on("NEXT pods").nth(2).first(Store::compact);
    fixture.api.on("NEXT pods").nth(3).first(Store::compact);
    let running = fixture.controller();
    let adopted =
        |store: &Store| !store.pod("shop", "web-zzzzz").unwrap()["metadata"]["ownerReferences"].is_null();
    fixture.api.until("the pod after the break is adopted", adopted).await;
    assert_eq!(fixture.api.count("POST pod"), 0, "a pod that was not listed counts as missing");
    drop(running);
}

/// A controller; killed on drop.
pub(super) struct Controller(pub(super) Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "the figure is for whoever wants it")]
async fn the_pods_of_a_large_cluster_fit_into_the_memory_of_a_controller() {
    let api = ApiServer::start().await;
    let crowd = Crowd::new(10_000, 20_000);
    assert!((5 << 10..10 << 10).contains(&crowd.pod_bytes()), "{} bytes", crowd.pod_bytes());
    api.store(|store| store.crowd = Some(crowd));
    let config = api.kubeconfig();
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.args(["controller", "--namespace=inplace-system", "--listen=127.0.0.1:0", "--kubeconfig"]);
    let child = command.arg(config).stderr(Stdio::null()).spawn().unwrap();
    let controller = Controller(child);
    let opened = async {
        while api.count("WATCH pods") < WATCHES {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let done = tokio::time::timeout(LONG, opened).await;
    assert!(done.is_ok(), "the pods are not listed: {:#?}", api.calls());
    let peak = Process(controller.0.id()).peak();
    eprintln!("30 000 pods: {peak:.1} MiB at most");
    assert!(peak <= RSS, "{peak:.1} MiB");
}
