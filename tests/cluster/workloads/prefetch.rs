//! The image of an update is pulled while its pods wait: no request has been sent, and no container was touched.

use std::net::SocketAddr;

use inplace::cri::{client::Client, endpoint::Endpoint};
use serde_json::{Value, json};

use super::{Fixture, is_complete, object, same_but_restarted};
use crate::{
    cluster::{Cluster, block_on},
    registry_gate::RegistryGate,
    support::http_server::HttpServer,
};

/// A template whose hook succeeds only by an approval: it measures for ten minutes.
fn waiting_template(cluster: &Cluster, name: &str, address: SocketAddr) {
    let metric = json!({"name": "webtest", "count": 600, "interval": "1s", "successfulLimit": 1,
        "successCondition": "asInt(result) > 100",
        "provider": {"web": {"url": format!("http://{address}/{name}/{{{{ args.owner }}}}/{{{{ args.ModifiedContainer[0] }}}}"),
            "jsonPath": "{$.age}"}}});
    let args = json!([{"name": "owner"}, {"name": "ModifiedContainer[0]"}]);
    let template = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"args": args, "metrics": [metric]}});
    cluster.apply(&template.to_string());
}

fn is_on_the_node(cluster: &Cluster, image: &str) -> bool {
    let endpoint = Endpoint::parse(&cluster.node().endpoint).unwrap();
    block_on(async { Client::new(&endpoint, None).image(image, false).await.unwrap().is_some() })
}

pub(super) fn the_image_arrives_while_a_hook_runs(cluster: &Cluster, published: &HttpServer) {
    waiting_template(cluster, "patient", published.address);
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "ahead" };
    fixture.apply(&object(
        "GameDeployment",
        "ahead",
        &json!({
            "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1},
            "preInplaceUpdateStrategy":
                {"hook": {"templateName": "patient", "args": [{"name": "owner", "value": "ahead"}]}},
        }),
    ));
    fixture.until("a pod is there", |status| is_complete(status, 1));
    let before = fixture.pods();
    let registry_gate = RegistryGate::before(&cluster.lab().registry);
    let image = registry_gate.image("app:v2");
    assert!(!is_on_the_node(cluster, &image));
    fixture.image(&image);
    fixture.wait("the image is on the node", || is_on_the_node(cluster, &image).then_some(()));
    let annotation =
        |pod: &Value, name: &str| pod["metadata"]["annotations"][format!("inplace.dev/{name}")].clone();
    for (name, pod) in &fixture.pods() {
        assert_eq!(annotation(pod, "update-prefetch"), image.as_str(), "{pod:#}");
        assert_eq!(pod["status"]["containerStatuses"], before[name]["status"]["containerStatuses"]);
        assert_eq!(annotation(pod, "request"), Value::Null);
    }
    let status = fixture.until("the hook runs", |status| {
        status["preInplaceHookCondition"][0]["phase"] == "Running"
            && published.count("/patient/ahead/app") > 0
    });
    let select = ["get", "hookruns", "-l", "hookrun-type=pre-inplace-step"];
    let created =
        cluster.kubectl(&[&select[..], &["-o", "jsonpath={.items[*].metadata.creationTimestamp}"]].concat());
    let name = before.first_key_value().unwrap().0;
    assert_eq!(
        status["preInplaceHookCondition"],
        json!([{"podName": name, "startTime": created, "phase": "Running"}]),
        "{status:#}"
    );
    // The update finds the image, although the registry does not answer any more.
    registry_gate.shut();
    let approval =
        ["annotate", "hookruns", "-l", "hookrun-type=pre-inplace-step", "inplace.dev/approve=true"];
    cluster.kubectl(&approval);
    let status = fixture.until("it is updated", |status| is_complete(status, 1));
    assert_eq!(status["preInplaceHookCondition"], Value::Null, "{status:#}");
    for (name, pod) in &fixture.pods() {
        same_but_restarted(&before[name], pod);
        assert_eq!(annotation(pod, "update-prefetch"), Value::Null, "{pod:#}");
    }
    fixture.delete();
}
