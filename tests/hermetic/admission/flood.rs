//! Attacks with costly bodies, stalled bodies or made-up reviews: they gain nothing.

use std::net::IpAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::guard::{GuardFixture, is_yes, no};
use super::*;

const BODY: usize = 3 << 20;
/// The time that an API server waits for the answer about an eviction.
const IN_TIME: Duration = Duration::from_secs(5);

/// Connects from this address as an API server does, without sending a request yet.
async fn connected(guard_fixture: &GuardFixture, from: IpAddr) -> TlsStream<TcpStream> {
    use rustls::pki_types::pem::PemObject as _;
    let mut roots = rustls::RootCertStore::empty();
    let trusted = guard_fixture.fixture.trusted().unwrap();
    for authority in rustls::pki_types::CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let stream = socket.connect(guard_fixture.replicas[0].address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    connector.connect(HOST.try_into().unwrap(), stream).await.unwrap()
}

/// One request over a connection of its own from this address: the status code and the text of the answer.
async fn sent(guard_fixture: &GuardFixture, from: IpAddr, path: &str, body: &str) -> (u16, String) {
    let mut stream = connected(guard_fixture, from).await;
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server stops reading a body that it refuses.
    let _ = stream.write_all(body.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8(answer).unwrap();
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    (code, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn here() -> IpAddr {
    [127, 0, 0, 1].into()
}

fn elsewhere() -> IpAddr {
    [127, 0, 0, 2].into()
}

/// `entry`, repeated up to this size.
fn many(entry: &str, size: usize) -> String {
    let mut list = entry.repeat(size / entry.len());
    list.pop();
    list
}

/// A review of this kind with these fields.
fn of(group: &str, kind: &str, operation: &str, fields: &str) -> String {
    format!(
        r#"{{"request":{{"uid":"u","operation":"{operation}","namespace":"shop","name":"it","kind":{{"group":"{group}","version":"v1","kind":"{kind}"}},{fields}}}}}"#
    )
}

#[tokio::test]
async fn a_review_that_costs_more_than_its_size_is_refused_with_what_is_too_much() {
    let guard_fixture = GuardFixture::found().await;
    let ours = "tkex.tencent.com";
    let keys = |from: usize| (0..from).map(|n| format!(r#""k{n}":[]"#)).collect::<Vec<_>>().join(",");
    let texts = |from: usize| (0..from).map(|n| format!(r#""k{n}":"""#)).collect::<Vec<_>>().join(",");
    let user = |field: &str| format!(r#""userInfo":{{"username":"ann",{field}}}"#);
    let spec = |spec: &str| {
        of(
            ours,
            "GameDeployment",
            "CREATE",
            &format!(r#""object":{{"metadata":{{"name":"it"}},"spec":{spec}}}"#),
        )
    };
    let (empty, list, object) = (many("\"\",", 2 << 20), many("[],", 2 << 20), many("{},", 60 << 10));
    let cases = [
        ("groups", of(ours, "HookRun", "CREATE", &user(&format!(r#""groups":[{empty}]"#)))),
        ("extra", of(ours, "HookRun", "CREATE", &user(&format!(r#""extra":{{{}}}"#, keys(100_000))))),
        ("extra", of(ours, "HookRun", "CREATE", &user(&format!(r#""extra":{{"a":[{empty}]}}"#)))),
        (
            "username",
            of(ours, "HookRun", "CREATE", &format!(r#""userInfo":{{"username":"{}"}}"#, "x".repeat(2 << 20))),
        ),
        ("operation", of(ours, "HookRun", &"x".repeat(2 << 20), r#""object":null"#)),
        (
            "object",
            of(
                ours,
                "HookRun",
                "CREATE",
                &format!(
                    r#""object":{{"metadata":{{"labels":{{{}}}}},"spec":{{"metrics":[]}}}}"#,
                    texts(150_000)
                ),
            ),
        ),
        ("object", spec(&format!(r#"{{"template":{{"spec":{{"x":[{list}]}}}}}}"#))),
        (
            "object",
            spec(&format!(r#"{{"selector":{{}},"template":{{"spec":{{"containers":[{object}]}}}}}}"#)),
        ),
        (
            "object",
            of(ours, "HookTemplate", "CREATE", &format!(r#""object":{{"spec":{{"metrics":[{object}]}}}}"#)),
        ),
    ];
    for (what, body) in cases {
        assert!(body.len() < BODY, "{}", body.len());
        let (code, text) = sent(&guard_fixture, here(), "validate", &body).await;
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        let code = if code == 200 {
            answer["response"]["status"]["code"].as_u64().unwrap_or(200)
        } else {
            code.into()
        };
        let start = &text[..text.len().min(400)];
        assert_eq!(code, 413, "{} bytes of {what} are taken: {start}", body.len());
        assert!(text.contains(what) && text.contains("more than"), "{what}: {start}");
    }
}

#[tokio::test]
async fn honest_reviews_that_are_large_are_answered() {
    let guard_fixture = GuardFixture::found().await;
    let groups: Vec<_> = (0..500).map(|n| format!("cn=team-{n},ou=groups,dc=example,dc=org")).collect();
    let extra: BTreeMap<_, _> =
        (0..20).map(|n| (format!("example.org/{n}"), vec!["x".repeat(200)])).collect();
    let user = json!({"username": "ann", "uid": "u-1", "groups": groups, "extra": extra});
    // A pod of 1 MiB: its managed fields are as dense as possible.
    let owned: serde_json::Map<_, _> = (0..30_000).map(|n| (format!("f:field-{n}"), json!({}))).collect();
    let managed =
        json!([{"manager": "kubectl", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": owned}}]);
    let mut pod = guard_fixture.pod.clone();
    pod["metadata"]["managedFields"] = managed;
    pod["metadata"]["annotations"]["long"] = json!("x".repeat(512 << 10));
    let request = json!({"name": "web-0", "operation": "DELETE", "oldObject": pod, "object": null, "userInfo": user,
        "kind": {"group": "", "version": "v1", "kind": "Pod"}});
    assert!(request.to_string().len() > 1 << 20);
    assert!(no(&guard_fixture.asked("guard", &request).await, 403).contains("was started as HookRun"));
    let request = json!({"operation": "CREATE", "object": pod, "userInfo": user,
        "kind": {"group": "", "version": "v1", "kind": "Pod"}});
    assert_eq!(guard_fixture.asked("mutate-pods", &request).await["patchType"], "JSONPatch");

    // A workload of 30 containers with 50 variables each, old and new.
    let variables: Vec<_> =
        (0..50).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "x".repeat(20)})).collect();
    let containers: Vec<_> =
        (0..30).map(|n| json!({"name": format!("c{n}"), "image": "a:1", "env": variables})).collect();
    let owned: serde_json::Map<_, _> = (0..1500)
        .map(|n| (format!("k:{{\"name\":\"VARIABLE_{n}\"}}"), json!({".": {}, "f:name": {}, "f:value": {}})))
        .collect();
    let managed = json!([{"manager": "kubectl", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": owned}}]);
    let workload = json!({"metadata": {"name": "web", "managedFields": managed}, "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}}});
    let request = json!({"operation": "UPDATE", "name": "web", "object": workload, "oldObject": workload,
        "userInfo": user, "kind": {"group": "tkex.tencent.com", "version": "v1alpha1", "kind": "GameDeployment"}});
    is_yes(&guard_fixture.asked("validate", &request).await);
    // The rights of a hook's author are checked with all groups.
    let hook = json!({"metadata": {"name": "it"}, "spec": {"metrics": [{"name": "m", "count": 1,
        "successCondition": "true", "provider": {"web": {"url": "http://10.0.0.1/"}}}]}});
    let request = json!({"operation": "CREATE", "name": "it", "object": hook, "userInfo": user,
        "kind": {"group": "tkex.tencent.com", "version": "v1alpha1", "kind": "HookRun"}});
    guard_fixture.fixture.api.store(|store| store.rights.insert("ann create pods/exec shop".to_owned()));
    is_yes(&guard_fixture.asked("validate", &request).await);
    let asked = guard_fixture.fixture.api.store(|store| store.access_reviews.pop().unwrap());
    assert_eq!((&asked["groups"], &asked["extra"]), (&json!(groups), &json!(extra)));
}

#[tokio::test]
async fn stalled_bodies_hold_up_nobody() {
    let guard_fixture = GuardFixture::found().await;
    let mut large = review("web");
    large["request"]["object"]["metadata"]["annotations"] = json!({"long": "x".repeat(1 << 20)});
    let (large, small) = (large.to_string(), review("web").to_string());
    // A busy machine needs more time for the same review.
    let began = Instant::now();
    assert_eq!(sent(&guard_fixture, here(), "validate", &large).await.0, 200);
    let in_time = IN_TIME + 10 * began.elapsed();
    let mut stalled = JoinSet::new();
    for _ in 0..40 {
        let mut stream = connected(&guard_fixture, elsewhere()).await;
        stalled.spawn(async move {
            let head = format!("POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: {BODY}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let sent = stream.write_all(&vec![b' '; BODY * 2 / 3]).await.is_ok();
            (stream, sent)
        });
    }
    // The bodies for which there is memory are read as far as they were sent.
    let (held, sent_whole) = stalled.join_next().await.unwrap().unwrap();
    assert!(sent_whole);
    // For the longest time that a stalled body may stay.
    let end = Instant::now() + Duration::from_secs(8);
    let mut asked = 0;
    while Instant::now() < end {
        for (from, body, size) in
            [(here(), &small, "small"), (here(), &large, "large"), (elsewhere(), &small, "small")]
        {
            let began = Instant::now();
            let answered = timeout(in_time, sent(&guard_fixture, from, "validate", body)).await;
            let (code, text) =
                answered.unwrap_or_else(|_| panic!("no {size} review is answered in time, after {asked}"));
            assert_eq!(code, 200, "{size} from {from}, after {asked} in {:?}: {text}", began.elapsed());
            asked += 1;
        }
        sleep(Duration::from_millis(200)).await;
    }
    drop((held, stalled));
}

#[tokio::test]
async fn a_body_that_trickles_is_cut_off() {
    let guard_fixture = GuardFixture::found().await;
    let mut slow = connected(&guard_fixture, here()).await;
    let head = format!("POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: {BODY}\r\n\r\n");
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(&vec![b' '; 200 << 10]).await.unwrap();
    let began = Instant::now();
    let mut answer = Vec::new();
    let ended = timeout(Duration::from_secs(8), async {
        loop {
            let mut part = [0; 1024];
            tokio::select! {
                read = slow.read(&mut part) => match read {
                    Ok(0) | Err(_) => break,
                    Ok(count) => answer.extend_from_slice(&part[..count]),
                },
                () = sleep(Duration::from_millis(100)) => {
                    let _ = slow.write_all(b" ").await;
                }
            }
        }
    });
    assert!(ended.await.is_ok(), "ten bytes a second are enough");
    assert!(
        answer.starts_with(b"HTTP/1.1 408"),
        "{:?} {}",
        began.elapsed(),
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test]
async fn made_up_reviews_write_few_events() {
    let guard_fixture = GuardFixture::found().await;
    // This review has no uid of a pod; an API server always sends it.
    let made_up = guard_fixture.deleted(json!({"oldObject": null})).await;
    assert_eq!(made_up["allowed"], false, "{made_up}");
    let by_scheduler = json!({"userInfo": {"username": "system:kube-scheduler"}, "oldObject": null});
    let made_up = guard_fixture.deleted(by_scheduler).await;
    assert_eq!(
        (made_up["allowed"].as_bool(), guard_fixture.fixture.api.events().len(), guard_fixture.runs().len()),
        (Some(false), 0, 0)
    );
    // An eviction has no uid.
    for _ in 0..50 {
        guard_fixture.evicted_by("system:kube-scheduler", &[]).await;
    }
    let reported = guard_fixture.events("DeleteGuardExempt").len();
    assert!((1..=8).contains(&reported), "{reported} events of one pod");
}

/// A HookRun by `user` that runs a command and changes a pod.
fn hook_by(user: &str) -> Value {
    let provider =
        |provider: Value| json!({"name": "m", "count": 1, "successCondition": "true", "provider": provider});
    let field = json!([{"path": "metadata.annotations.a", "value": "b"}]);
    let metrics = json!([
        provider(json!({"exec": {"container": "app", "command": ["id"]}})),
        provider(json!({"kubernetes": {"function": "patch", "fields": field}}))
    ]);
    json!({"uid": "u", "operation": "CREATE", "namespace": "shop", "name": "it", "userInfo": {"username": user},
        "object": {"metadata": {"name": "it"}, "spec": {"metrics": metrics}},
        "kind": {"group": "tkex.tencent.com", "version": "v1alpha1", "kind": "HookRun"}})
}

async fn judged(guard_fixture: &GuardFixture, user: &str) -> Value {
    guard_fixture.asked("validate", &hook_by(user)).await
}

#[tokio::test]
async fn an_answer_to_anybody_reveals_nothing_about_the_rights_of_others() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    api.store(|store| {
        store.rights.extend(["ann create pods/exec shop", "bob patch pods shop"].map(str::to_owned));
        store.rights.extend(["eve create pods/exec shop", "eve patch pods shop"].map(str::to_owned));
    });
    is_yes(&judged(&guard_fixture, "eve").await);
    let mut reported = Vec::new();
    for user in ["zed", "ann", "bob"] {
        reported.push(no(&judged(&guard_fixture, user).await, 403).replace(user, "USER"));
    }
    assert!(
        reported.iter().all(|one| *one == reported[0]),
        "which right is lacking is reported: {reported:#?}"
    );
    // The rights that the object needs are no secret.
    let needs = |right: &str| reported[0].contains(right);
    assert!(needs("create pods/exec") && needs("namespace shop"), "{}", reported[0]);
    api.on("POST subjectaccessreview").fault(crate::api_server::Fault::Answer(500, "etcd is busy"));
    let unknown = judged(&guard_fixture, "eve").await;
    let unknown = no(&unknown, 403);
    assert!(unknown.contains("Try again") && !unknown.contains("etcd"), "{unknown}");

    // A client that has proved to be the API server gets the full answer.
    let (folder, ours) = (tempfile::tempdir().unwrap(), super::client_authority::authority());
    let file = folder.path().join("ca");
    std::fs::write(&file, &ours.0).unwrap();
    let args = WebhookArgs { webhook_client_ca: Some(file), ..WebhookArgs::default() };
    let replica = guard_fixture.fixture.replica(&args).await;
    guard_fixture.fixture.ready(&replica).await;
    let roots =
        reqwest::Certificate::from_pem_bundle(guard_fixture.fixture.trusted().unwrap().as_bytes()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only(roots).resolve(HOST, replica.address).no_proxy();
    let client = client.identity(reqwest::Identity::from_pem(ours.1.as_bytes()).unwrap()).build().unwrap();
    let asked = async |user: &str| {
        let review = json!({"request": hook_by(user)}).to_string();
        let url = format!("https://{HOST}:{}/validate", replica.address.port());
        let text = client.post(url).body(review).send().await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        no(&answer["response"], 403).to_owned()
    };
    assert!(asked("ann").await.contains("user ann may not patch pods in namespace shop"));
    assert!(asked("bob").await.contains("user bob may not create pods/exec in namespace shop"));
    api.on("POST subjectaccessreview").fault(crate::api_server::Fault::Answer(500, "etcd is busy"));
    assert!(asked("eve").await.contains("etcd is busy"));
}
