//! Images of native sidecars in the template of a workload, with an API server that keeps `restartPolicy` of init
//! containers, as Kubernetes does from 1.29 on.

use inplace::api::request::Request;
use serde_json::{Value, json};

use super::{Fixture, open};

/// The image of each container that a request names.
fn images(request: &Request) -> Vec<(&str, Option<&str>)> {
    request.containers.iter().map(|target| (target.name.as_str(), target.image.as_deref())).collect()
}

/// The agent and the kubelet carry out the request: each image is changed where the pod has the container.
fn carry_out(pod: &mut Value) {
    let request = open(pod).unwrap();
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().unwrap() {
            let target = request.containers.iter().find(|target| container["name"] == target.name.as_str());
            if let Some(target) = target {
                container["image"] = json!(target.image);
            }
        }
    }
    let answer = json!({"id": request.id, "phase": "Succeeded", "step": null, "reason": "", "message": "",
        "startedAt": null, "finishedAt": null, "containers": []});
    pod["metadata"]["annotations"]["inplace.dev/status"] = json!(answer.to_string());
}

impl Fixture {
    /// Waits until the only pod has a request, and returns it.
    async fn requested(&self) -> Request {
        self.api.until("the pod has a request", |store| store.pods().any(|pod| open(pod).is_some())).await;
        self.api.store(|store| store.pods().find_map(open)).unwrap()
    }
}

#[tokio::test]
async fn the_image_of_a_native_sidecar_is_changed_in_place_before_that_of_the_container() {
    let fixture = Fixture::start().await;
    let _running = fixture.controller();
    fixture.deployment(1);
    fixture.spec(|spec| {
        spec["template"]["spec"]["initContainers"] = json!([
            {"name": "setup", "image": "setup:1"},
            {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"},
        ]);
    });
    fixture.api.until("the pod is there", |store| store.pods().count() == 1).await;
    fixture
        .api
        .until("it has its sidecar", |store| {
            store.pods().all(|pod| pod["spec"]["initContainers"][1]["restartPolicy"] == "Always")
        })
        .await;
    fixture.ready(1).await;
    let before = fixture.names();

    fixture.spec(|spec| spec["template"]["spec"]["initContainers"][1]["image"] = json!("proxy:2"));
    assert_eq!(images(&fixture.requested().await), [("proxy", Some("proxy:2"))]);
    let pod = before.first().unwrap();
    fixture.api.edit("shop", pod, carry_out);
    fixture.reported("updatedReadyReplicas", 1).await;

    fixture.spec(|spec| {
        spec["template"]["spec"]["initContainers"][1]["image"] = json!("proxy:3");
        spec["template"]["spec"]["containers"][0]["image"] = json!("app:2");
    });
    let both = [("proxy", Some("proxy:3")), ("app", Some("app:2"))];
    assert_eq!(images(&fixture.requested().await), both);
    fixture.api.edit("shop", pod, carry_out);
    fixture.reported("updatedReadyReplicas", 1).await;
    assert_eq!(fixture.names(), before, "the pod is the same");

    // An init container that ends has no container to replace: nothing happens in place.
    fixture.spec(|spec| spec["template"]["spec"]["initContainers"][0]["image"] = json!("setup:2"));
    let stopped = |web: &Value| {
        let conditions = web["status"]["conditions"].as_array().unwrap();
        let failed = conditions.iter().find(|condition| condition["type"] == "UpdateFailed").unwrap();
        failed["reason"] == "NotInPlace"
            && failed["message"].as_str().unwrap().contains("spec.initContainers[0].image")
    };
    fixture.status("the change is refused", stopped).await;
    assert!(fixture.api.store(|store| store.pods().all(|pod| open(pod).is_none())));
    assert_eq!(fixture.names(), before);
}
