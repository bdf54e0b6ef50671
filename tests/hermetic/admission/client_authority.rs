//! With an authority for clients, only clients with a certificate of it connect.

use super::guard::GuardFixture;
use super::*;

/// An authority, and a certificate of it with its key, all PEM.
pub(super) fn authority() -> (String, String) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["api-server".to_owned()]).unwrap();
    let cert = params.signed_by(&key, &issuer).unwrap();
    (issuer.pem(), format!("{}{}", cert.pem(), key.serialize_pem()))
}

#[tokio::test]
async fn with_an_authority_for_clients_nobody_else_connects() {
    let guard_fixture = GuardFixture::found().await;
    let (folder, [ours, theirs]) = (tempfile::tempdir().unwrap(), [authority(), authority()]);
    let file = folder.path().join("ca");
    std::fs::write(&file, &ours.0).unwrap();
    let args = WebhookArgs { webhook_client_ca: Some(file.clone()), ..WebhookArgs::default() };
    let replica = guard_fixture.fixture.replica(&args).await;
    guard_fixture.fixture.ready(&replica).await;
    let asks = async |identity: Option<&str>| {
        let roots =
            reqwest::Certificate::from_pem_bundle(guard_fixture.fixture.trusted().unwrap().as_bytes())
                .unwrap();
        let client =
            reqwest::Client::builder().tls_certs_only(roots).resolve(HOST, replica.address).no_proxy();
        let client = match identity {
            Some(pem) => client.identity(reqwest::Identity::from_pem(pem.as_bytes()).unwrap()),
            None => client,
        };
        let url = format!("https://{HOST}:{}/validate", replica.address.port());
        client.build().unwrap().post(url).body(review("web").to_string()).send().await.is_ok()
    };
    assert!(asks(Some(&ours.1)).await);
    assert!(!asks(None).await && !asks(Some(&theirs.1)).await);
    // An unusable file leaves the previous authority in force; a valid one replaces it.
    std::fs::write(&file, "nothing").unwrap();
    sleep(LAG).await;
    assert!(asks(Some(&ours.1)).await && !asks(None).await);
    std::fs::write(&file, &theirs.0).unwrap();
    let connects = async || if asks(Some(&theirs.1)).await { Ok(()) } else { Err("it cannot connect") };
    eventually_async(WAIT_LIMIT, "the other authority is in force", connects).await;
    assert!(!asks(Some(&ours.1)).await);
    // Without the file nothing is served.
    let args = WebhookArgs { webhook_client_ca: Some(folder.path().join("none")), ..WebhookArgs::default() };
    let target = ConnectOptions {
        kubeconfig: Some(guard_fixture.fixture.api.kubeconfig()),
        ..ConnectOptions::default()
    };
    let webhooks = Webhooks::new(&args, Server::new(connect(&target).await.unwrap().0), NAMESPACE, terms());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = webhooks.serve(listener, CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("none: "), "{error}");
}
