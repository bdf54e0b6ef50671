//! Uninstalling removes the program and no workload: this project's CRDs stay, and their objects with them. Needs
//! etcd and kube-apiserver, no node.

use std::process::Command;

use inplace::api::game_deployment::GameDeployment;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

use crate::api_server::ApiServer;

#[tokio::test]
async fn an_uninstall_deletes_no_workload() {
    let server = ApiServer::start().await;
    server.know_our_kinds().await;
    let admin = server.admin().await;
    let workloads = Api::<GameDeployment>::namespaced(admin.clone(), "default");
    let web = serde_json::from_value(json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "repo/app:v1"}]}}},
    }))
    .unwrap();
    let made = workloads.create(&PostParams::default(), &web).await.unwrap();
    server.apply("daemonset/base");

    // No controller runs here that would remove the namespace, so the test does not wait for that.
    let mut delete = Command::new("kubectl");
    delete.arg("--kubeconfig").arg(server.kubeconfig());
    delete.args(["delete", "--wait=false", "-k", server.base()]);
    let output = delete.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let agents = Api::<DaemonSet>::all(admin.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(agents.items.len(), 0, "it was uninstalled");
    let left = workloads.get("web").await.unwrap().metadata;
    assert_eq!((left.uid, left.deletion_timestamp), (made.metadata.uid, None));
    // A CRD that is being deleted removes its objects a moment later.
    let kinds = Api::<CustomResourceDefinition>::all(admin).list(&ListParams::default()).await.unwrap().items;
    assert_eq!(kinds.len(), 5);
    assert!(kinds.iter().all(|kind| kind.metadata.deletion_timestamp.is_none()));
}
