//! Another controller writes the status of a workload: the controller does nothing until that has stopped.

use serde_json::{Value, json};

use super::super::api_server::Store;
use super::*;

/// The managed fields after a write of the status by this client, so many seconds ago.
#[allow(clippy::disallowed_methods, reason = "an API server has the time of the machine")]
fn written(manager: &str, seconds: i64) -> Value {
    let at = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds);
    json!([{"manager": manager, "operation": "Update", "apiVersion": "tkex.tencent.com/v1alpha1", "time": at.to_string(),
        "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:replicas": {}}}}])
}

#[tokio::test]
async fn nothing_is_done_while_another_controller_writes_the_status() {
    let fixture = Fixture::start().await;
    fixture.deployment(2);
    fixture.api.edit_of("gamedeployments", "shop", "web", |web| {
        web["metadata"]["managedFields"] = written("bcs-gamedeployment-operator", 1);
    });
    let _running = fixture.controller();
    let reported = |store: &Store| store.events.iter().any(|event| event["reason"] == "AnotherController");
    fixture.api.until("it is reported", reported).await;
    let touched = ["POST pod", "POST controllerrevision", "PATCH gamedeployment"];
    assert_eq!(touched.map(|call| fixture.api.count(call)), [0; 3], "{:?}", fixture.api.calls());
    // Its last write is older than the time for which the workload is left alone.
    fixture.api.edit_of("gamedeployments", "shop", "web", |web| {
        web["metadata"]["managedFields"] = written("bcs-gamedeployment-operator", 121);
        web["metadata"]["generation"] = json!(2);
        web["spec"]["replicas"] = json!(3);
    });
    fixture.ready(3).await;
}
