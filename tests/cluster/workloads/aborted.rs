//! An update to an image that cannot be pulled is aborted: the pods go back in place to the last revision that all of
//! them reached.

use serde_json::{Value, json};

use super::{Fixture, condition, is_complete, object};
use crate::{cluster::Cluster, support::http_server::HttpServer};

pub(super) fn a_failed_update_takes_the_pods_back_in_place(cluster: &Cluster, _: &HttpServer) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "aborted" };
    fixture.apply(&object(
        "GameDeployment",
        "aborted",
        &json!({
            "replicas": 2,
            "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1, "onFailure": "Abort"},
        }),
    ));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    cluster.kubectl(&["wait", "--for=condition=Ready", "gamedeployment/aborted", "--timeout=180s"]);
    let stable = fixture.get()["status"]["updateRevision"].clone();
    assert_eq!(fixture.get()["status"]["stableRevision"], stable);
    let before = fixture.pods();

    // One pod gets another revision, and the other one stays at the stable revision.
    let partition = |held: u32| fixture.patch(&json!({"spec": {"updateStrategy": {"partition": held}}}));
    partition(1);
    fixture.image("lab/app:v2");
    fixture.until("one pod is updated", |status| {
        condition(status, "Progressing")["reason"] == "PartitionReached"
            && condition(status, "Ready")["status"] == "True"
    });
    assert_eq!(fixture.get()["status"]["stableRevision"], stable);

    fixture.image("lab/app:never-pushed");
    partition(0);
    let status =
        fixture.until("it is aborted", |status| condition(status, "Progressing")["reason"] == "Aborted");
    cluster.kubectl(&["wait", "--for=condition=Stalled", "gamedeployment/aborted", "--timeout=180s"]);
    assert_eq!(status["abortedRevision"], status["updateRevision"], "{status:#}");
    let said = condition(&status, "UpdateFailed");
    assert!(said["message"].as_str().unwrap().contains("pods could not be updated"), "{said:#}");
    let after = fixture.pods();
    let image = cluster.named("lab/app:v1");
    let mut restarts = Vec::new();
    for (name, pod) in &after {
        assert_eq!(pod["metadata"]["uid"], before[name]["metadata"]["uid"], "{name}");
        assert_eq!(pod["spec"]["containers"][0]["image"], image.as_str(), "{pod:#}");
        restarts.push(pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap());
    }
    restarts.sort_unstable();
    assert_eq!(restarts, [0, 2], "only the pod that was changed was restarted: once there and once back");
    let events = |reason: &str| cluster.events("aborted", reason).len();
    // Events are written after the status.
    fixture.wait("the abort is reported", || (events("Aborted") > 0).then_some(()));
    assert_eq!((events("Aborting"), events("Aborted")), (1, 1));

    // Another template ends the abort.
    fixture.image("lab/app:v2");
    let status = fixture.until("it is complete", |status| is_complete(status, 2));
    assert_eq!(status["abortedRevision"], Value::Null, "{status:#}");
    fixture.delete();
}
