//! The admission webhooks over real TLS. Requests are sent as an API server sends them: it trusts the authorities
//! of its configuration, which it has read a moment ago.

mod attacks;
mod client_authority;
mod flood;
mod guard;
mod keep_alive;
mod rights;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use inplace::cluster::client::{ConnectOptions, connect};
use inplace::cluster::server::Server;
use inplace::controller::admission::{CONFIGURATION, GuardArgs, SECRET, Terms, WebhookArgs, Webhooks};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::api_server::{ApiServer, Fault, Store};
use crate::support::wait::{WAIT_LIMIT, eventually_async, until};

const NAMESPACE: &str = "inplace-system";
const HOST: &str = "inplace-webhook.inplace-system.svc";
/// The age of the configuration that the simulated API server uses.
const LAG: Duration = Duration::from_millis(60);

/// No test lasts until a certificate is replaced.
fn terms() -> Terms {
    Terms {
        lifetime: Duration::from_secs(3600),
        renew_before: Duration::from_secs(60),
        settle: Duration::from_millis(250),
        poll: Duration::from_millis(20),
        await_leader: Duration::from_secs(15),
    }
}

/// A new certificate every three seconds. A review is sent and answered before what it trusts is replaced.
fn short_terms() -> Terms {
    Terms { renew_before: Duration::from_millis(3_599_800), settle: Duration::from_secs(3), ..terms() }
}

struct Fixture {
    api: ApiServer,
    terms: Terms,
    stop: CancellationToken,
}

/// One process: its webhooks and their address.
#[derive(Clone)]
struct Replica {
    webhooks: Webhooks,
    address: SocketAddr,
    /// Cancelled when it no longer serves.
    over: CancellationToken,
}

impl Fixture {
    /// A cluster with the objects of the manifests.
    async fn found() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let api = ApiServer::start().await;
        api.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": NAMESPACE, "name": SECRET}}));
        api.put(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": CONFIGURATION},
            "webhooks": [{"name": "validate.inplace.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"service": {"namespace": NAMESPACE, "name": SECRET}}}],
        }));
        Self { api, terms: terms(), stop: CancellationToken::new() }
    }

    /// The same with one process that leads and has a certificate.
    async fn settled() -> (Self, Replica) {
        let fixture = Self::found().await;
        let replica = fixture.replica(&WebhookArgs::default()).await;
        fixture.lead(&replica);
        fixture.ready(&replica).await;
        (fixture, replica)
    }

    async fn replica(&self, args: &WebhookArgs) -> Replica {
        let target = ConnectOptions { kubeconfig: Some(self.api.kubeconfig()), ..ConnectOptions::default() };
        let server = Server::new(connect(&target).await.unwrap().0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let webhooks = Webhooks::new(args, server, NAMESPACE, self.terms);
        let (serving, stop, over) = (webhooks.clone(), self.stop.clone(), CancellationToken::new());
        let end = over.clone().drop_guard();
        tokio::spawn(async move {
            let _end = end;
            serving.serve(listener, stop).await.unwrap();
        });
        Replica { webhooks, address, over }
    }

    fn lead(&self, replica: &Replica) -> CancellationToken {
        let (webhooks, stop) = (replica.webhooks.clone(), self.stop.child_token());
        let over = stop.clone();
        tokio::spawn(async move { webhooks.lead(&over).await });
        stop
    }

    /// The authorities in the API server's configuration.
    fn trusted(&self) -> Option<String> {
        let found = self.api.get("validatingwebhookconfigurations", "", CONFIGURATION).unwrap();
        let bundle = found["webhooks"][0]["clientConfig"].get("caBundle")?.clone();
        Some(String::from_utf8(serde_json::from_value::<ByteString>(bundle).unwrap().0).unwrap())
    }

    fn kept(&self, key: &str) -> Option<String> {
        let secret = self.api.get("secrets", NAMESPACE, SECRET).unwrap();
        let bytes = serde_json::from_value::<ByteString>(secret["data"].get(key)?.clone()).unwrap();
        Some(String::from_utf8(bytes.0).unwrap())
    }

    async fn ready(&self, replica: &Replica) {
        let ready = || replica.webhooks.ready().is_ok() && self.trusted().is_some();
        timeout(WAIT_LIMIT, until(ready)).await.expect("a certificate");
    }
}

/// One review over a connection of its own, from a client that trusts only `authorities`.
async fn ask(authorities: &str, address: SocketAddr, review: &Value) -> Result<Value, reqwest::Error> {
    ask_at("validate", authorities, address, review).await
}

async fn ask_at(
    path: &str,
    authorities: &str,
    address: SocketAddr,
    review: &Value,
) -> Result<Value, reqwest::Error> {
    let roots = reqwest::Certificate::from_pem_bundle(authorities.as_bytes())?;
    let client =
        reqwest::Client::builder().tls_certs_only(roots).resolve(HOST, address).no_proxy().build()?;
    let url = format!("https://{HOST}:{}/{path}", address.port());
    let answer = client.post(url).body(review.to_string()).send().await?.error_for_status()?;
    Ok(serde_json::from_str(&answer.text().await?).unwrap())
}

/// A `GameDeployment` whose selector matches labels `app: web`.
fn review(app: &str) -> Value {
    let spec = json!({"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "app", "image": "a:1"}]}}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": format!("uid-{app}"), "operation": "CREATE", "name": "web", "namespace": "shop",
        "kind": {"group": "tkex.tencent.com", "version": "v1alpha1", "kind": "GameDeployment"},
        "object": {"metadata": {"name": "web"}, "spec": spec}, "oldObject": null}})
}

#[tokio::test]
async fn no_review_is_lost_while_certificates_change() {
    let fixture = Fixture { terms: short_terms(), ..Fixture::found().await };
    let [first, second] =
        [fixture.replica(&WebhookArgs::default()).await, fixture.replica(&WebhookArgs::default()).await];
    assert!(first.webhooks.ready().unwrap_err().contains("no certificate yet"));
    let leads = fixture.lead(&first);
    fixture.ready(&first).await;
    fixture.ready(&second).await;

    let (mut seen, mut asked, mut handed_over) = (Vec::new(), 0, false);
    let end = Instant::now() + WAIT_LIMIT;
    while seen.len() < 5 || asked < 20 {
        assert!(Instant::now() < end, "{} certificates, {asked} reviews", seen.len());
        let known = fixture.trusted().unwrap();
        sleep(LAG).await;
        for (replica, app, allowed) in [(&first, "web", true), (&second, "db", false)] {
            let answer = ask(&known, replica.address, &review(app)).await;
            let answer = answer.unwrap_or_else(|error| panic!("review {asked}: {error:?}"));
            let response = &answer["response"];
            assert_eq!(
                (&response["uid"], &response["allowed"]),
                (&json!(format!("uid-{app}")), &json!(allowed))
            );
            asked += 1;
        }
        let authority = fixture.kept("ca.crt").unwrap();
        if seen.last() != Some(&authority) {
            seen.push(authority);
        }
        // From here on the second process leads, and continues where the first one stopped.
        if seen.len() == 3 && !std::mem::replace(&mut handed_over, true) {
            leads.cancel();
            fixture.lead(&second);
        }
    }
    // The authority of the first certificate is no longer trusted, that of the present one is.
    let trusted = fixture.trusted().unwrap();
    assert!(!trusted.contains(&seen[0]) && trusted.contains(seen.last().unwrap()));
    // A Secret with invalid content is replaced.
    fixture.api.edit_of("secrets", NAMESPACE, SECRET, |secret| {
        secret["data"]["tls.crt"] = json!(ByteString(b"spoiled".to_vec()));
    });
    let mended = |store: &Store| {
        let secret = store.get("secrets", NAMESPACE, SECRET).unwrap();
        secret["data"]["tls.crt"] != json!(ByteString(b"spoiled".to_vec()))
    };
    fixture.api.until("another certificate", mended).await;
    // The authority of another cluster is not accepted.
    let (stranger, _other) = Fixture::settled().await;
    ask(&stranger.trusted().unwrap(), first.address, &review("web")).await.unwrap_err();
    fixture.stop.cancel();
    stranger.stop.cancel();
}

#[tokio::test]
async fn files_of_the_operator_are_served_and_read_again() {
    // The origin of the files does not matter: here two other clusters made them.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut trusted = Vec::new();
    let mut made = Vec::new();
    for _ in 0..2 {
        let (fixture, _replica) = Fixture::settled().await;
        trusted.push(fixture.trusted().unwrap());
        made.push([fixture.kept("tls.crt").unwrap(), fixture.kept("tls.key").unwrap()]);
        fixture.stop.cancel();
    }
    let put = |[cert, key]: &[String; 2]| {
        std::fs::write(at("key"), key).unwrap();
        std::fs::write(at("cert"), cert).unwrap();
    };
    put(&made[0]);
    let fixture = Fixture::found().await;
    let (webhook_cert, webhook_key) = (Some(at("cert")), Some(at("key")));
    let replica = fixture.replica(&WebhookArgs { webhook_cert, webhook_key, ..WebhookArgs::default() }).await;
    // The leader does not replace a certificate from files.
    fixture.lead(&replica);
    for (number, authorities) in trusted.iter().enumerate() {
        put(&made[number]);
        let answered = async || ask(authorities, replica.address, &review("web")).await.map(drop);
        eventually_async(WAIT_LIMIT, &format!("certificate {number}"), answered).await;
    }
    assert_eq!((fixture.trusted(), fixture.kept("tls.crt")), (None, None));
    // The key does not match the certificate: the previous pair is still served.
    std::fs::write(at("key"), &made[0][1]).unwrap();
    std::fs::write(at("cert"), "nothing").unwrap();
    sleep(LAG).await;
    ask(&trusted[1], replica.address, &review("web")).await.unwrap();
    fixture.stop.cancel();
}

/// The leader of an installation that is changed may serve no webhooks, or have its certificate from files.
#[tokio::test]
async fn whoever_needs_a_certificate_makes_it_if_the_leader_does_not() {
    let fixture = Fixture { terms: Terms { await_leader: LAG, ..terms() }, ..Fixture::found().await };
    let none = Some(std::path::PathBuf::from("no-such-file"));
    let files = WebhookArgs { webhook_cert: none.clone(), webhook_key: none, ..WebhookArgs::default() };
    let leader = fixture.replica(&files).await;
    fixture.lead(&leader);
    let [first, second] =
        [fixture.replica(&WebhookArgs::default()).await, fixture.replica(&WebhookArgs::default()).await];
    for replica in [first, second] {
        fixture.ready(&replica).await;
        let answer = ask(&fixture.trusted().unwrap(), replica.address, &review("web")).await.unwrap();
        assert_eq!(answer["response"]["allowed"], true);
    }
    assert_eq!(fixture.trusted(), fixture.kept("ca.crt"));
    assert!(leader.webhooks.ready().is_err());
    fixture.stop.cancel();
}

/// The process has other names than the leader, as a process of another configuration.
#[tokio::test]
async fn only_the_leader_replaces_a_certificate_that_can_be_served() {
    let (leaders, _replica) = Fixture::settled().await;
    let stored = leaders.api.get("secrets", NAMESPACE, SECRET).unwrap();
    leaders.stop.cancel();
    let terms = Terms { await_leader: Duration::ZERO, ..terms() };
    for is_empty_at_first in [false, true] {
        let fixture = Fixture { terms, ..Fixture::found().await };
        let filled = stored.clone();
        let fill = move |store: &mut Store| {
            store.put(filled.clone());
        };
        if is_empty_at_first {
            fixture.api.on("GET secret").nth(2).first(fill);
        } else {
            fixture.api.store(fill);
            fixture.api.on("GET secret").fault(Fault::Answer(403, "not yet"));
        }
        let args = WebhookArgs { webhook_names: vec!["other.test".to_owned()], ..WebhookArgs::default() };
        let replica = fixture.replica(&args).await;
        // The second read is the first that finds a certificate; what follows from it is done before the third.
        fixture.api.arrived("GET secret", 3).await;
        replica.webhooks.ready().unwrap();
        assert_eq!(fixture.api.count("PUT secret"), 0, "{is_empty_at_first}: {:?}", fixture.api.calls());
        fixture.stop.cancel();
    }
}

/// An installation is changed to certificates of its own: the processes of before still make theirs.
#[tokio::test]
async fn an_authority_of_the_operator_stays_trusted() {
    let (fixture, replica) = Fixture::settled().await;
    let (made, (own, _)) = (fixture.kept("ca.crt").unwrap(), client_authority::authority());
    fixture.api.edit_of("validatingwebhookconfigurations", "", CONFIGURATION, |found| {
        found["webhooks"][0]["clientConfig"]["caBundle"] = json!(ByteString(own.clone().into_bytes()));
    });
    let both = || fixture.trusted() == Some(format!("{made}{own}"));
    timeout(WAIT_LIMIT, until(both)).await.expect("the authority of the leader beside that of the operator");
    ask(&fixture.trusted().unwrap(), replica.address, &review("web")).await.unwrap();
    // The next authority of the leader replaces the first one only.
    fixture.api.edit_of("secrets", NAMESPACE, SECRET, |secret| {
        secret["data"]["tls.crt"] = json!(ByteString(b"spoiled".to_vec()));
    });
    let replaced = || {
        let next = fixture.kept("ca.crt").unwrap();
        next != made && fixture.trusted() == Some(format!("{next}{own}"))
    };
    timeout(WAIT_LIMIT, until(replaced)).await.expect("the next authority");
    fixture.stop.cancel();
}

#[tokio::test]
async fn whoever_is_slow_or_talks_nonsense_holds_up_nobody() {
    let (fixture, replica) = Fixture::settled().await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(tokio::net::TcpStream::connect(replica.address).await.unwrap());
    }
    let answer = ask(&fixture.trusted().unwrap(), replica.address, &review("web")).await.unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    let nonsense =
        ask(&fixture.trusted().unwrap(), replica.address, &json!({"what": "?"})).await.unwrap_err();
    assert_eq!(nonsense.status().map(|status| status.as_u16()), Some(400));
    drop(silent);
    fixture.stop.cancel();
}
