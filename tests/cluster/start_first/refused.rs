//! An image that the admission of the cluster refuses: a webhook like that of a policy engine refuses each update of a pod
//! that gives a container the tag `v2`.

use std::collections::BTreeSet;

use k8s_openapi::ByteString;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

use super::*;
use crate::support::http_server::{HttpServer, answer_json};

/// A server with its own certificate, and that certificate.
fn policy_engine() -> (HttpServer, ByteString) {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    // `main` of the program does the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let server = HttpServer::start_with("127.0.0.1:0", Some(config), |request, stream| {
        let review: Value = serde_json::from_str(&request.body).unwrap();
        let image = review["request"]["object"]["spec"]["containers"][0]["image"].as_str().unwrap();
        let allowed = !image.ends_with(":v2");
        let response = json!({"uid": review["request"]["uid"], "allowed": allowed,
            "status": {"code": 403, "message": "images with the tag v2 are not signed"}});
        let answer =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        answer_json(stream, &answer.to_string())
    });
    (server, ByteString(certificate.pem().into_bytes()))
}

/// A request is an annotation, of which the policy knows nothing.
#[test]
fn an_image_that_admission_refuses_is_not_even_started_as_a_standby() {
    Agent::shared();
    let cluster = Cluster::shared();
    let (server, authority) = policy_engine();
    let name = format!("signed-{}", std::process::id());
    let spec: Value = serde_saphyr::from_str(&cluster.named(SHARED)).unwrap();
    let labels = json!({"images": name});
    let pod = Pod::make(cluster, "signed", json!({"metadata": {"labels": labels}, "spec": spec}));
    pod.wait("it is Ready", is_ready);
    cluster.apply(
        &json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name}, "webhooks": [{"name": "images.example.com", "admissionReviewVersions": ["v1"],
                "sideEffects": "None", "failurePolicy": "Fail", "objectSelector": {"matchLabels": labels},
                "clientConfig": {"url": format!("https://{}/", server.address), "caBundle": authority},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"]}]}]})
        .to_string(),
    );
    let image = cluster.image("app:v2");
    let patch = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": image}]).to_string();
    eventually("the policy is in force", || {
        let tried = ["patch", "pod", &pod.name, "--type=json", "--dry-run=server", "-p", &patch];
        let output = cluster.kubectl_command(&tried).output().unwrap();
        String::from_utf8_lossy(&output.stderr).contains("are not signed").then_some(())
    });
    let client = Client::of(&pod);
    let before = pod.facts().settled();
    let status = start_first(&pod, ("app", Some("lab/app:v2")), json!({}), Phase::Failed);
    assert!(status.message.contains("images with the tag v2 are not signed"), "{status:#?}");
    assert_eq!(
        (status.reason.as_str(), status.step),
        ("NotStartedBeside", Some(Step::Standby)),
        "{status:#?}"
    );
    assert_eq!(pod.facts().settled(), before);
    // One that is admitted.
    start_first(&pod, ("app", None), json!({}), Phase::Succeeded);
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", &name]);
    let answers: BTreeSet<String> =
        client.answers.lock().unwrap().iter().filter_map(|answer| answer.version.clone().ok()).collect();
    client.was_always_served("a refused image");
    assert_eq!(answers, BTreeSet::from(["v1".to_owned()]), "the refused image has served nobody");
}
