//! Pods of another namespace, of no workload of this project: large, spread over the nodes, and without any change
//! after their creation.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const NAMESPACE: &str = "others";
/// Requests at the same time.
const AT_ONCE: u32 = 32;
/// Size of an annotation: with the rest a pod has about 7 KiB.
const PADDING: usize = 6000;

/// Creates this many pods on this many nodes.
pub(super) async fn create(client: &Client, count: u32, nodes: u32) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &object("Namespace", NAMESPACE)).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    accounts.create(&PostParams::default(), &object("ServiceAccount", "default")).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let padding: Arc<str> = "x".repeat(PADDING).into();
    let mut workers = JoinSet::new();
    for worker in 0..AT_ONCE {
        let (pods, padding) = (pods.clone(), Arc::clone(&padding));
        workers.spawn(async move {
            for number in (worker..count).step_by(usize::try_from(AT_ONCE).unwrap()) {
                let pod = serde_json::from_value(pod(number, number % nodes, &padding)).unwrap();
                pods.create(&PostParams::default(), &pod).await.unwrap();
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
}

fn object<T: serde::de::DeserializeOwned>(kind: &str, name: &str) -> T {
    serde_json::from_value(json!({"kind": kind, "apiVersion": "v1", "metadata": {"name": name}})).unwrap()
}

fn pod(number: u32, node: u32, padding: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("other-{number}"),
            "labels": {"app": "other"},
            "annotations": {"padding": padding},
        },
        "spec": {
            "nodeName": format!("node-{node}"),
            "automountServiceAccountToken": false,
            "containers": [{"name": "app", "image": "app:v1"}],
        },
    })
}
