//! Attacks by users who may write HookRuns, or by clients that can reach the webhook's port: they gain nothing.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::guard::{GuardFixture, is_yes, no};
use super::*;

const TAINT_MANAGER: &str = "system:serviceaccount:kube-system:node-controller";

/// A guarded pod on node `node`, with the hook of [`GuardFixture`].
fn guarded(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "labels": {"inplace.dev/delete-guard": "true"},
            "annotations": {"inplace.dev/pre-delete-hook": "leave"}},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "app:1"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7"}})
}

/// Evicts `pod` as the taint manager does, and lets its hook succeed: the pod is deleted.
async fn evicted_by_taint(guard_fixture: &GuardFixture, name: &str) {
    let api = &guard_fixture.fixture.api;
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "tainted"},
        "spec": {"taints": [{"key": "gone", "effect": "NoExecute"}]}}));
    let pod = api.put(guarded(name, "tainted"));
    let request = json!({"name": name, "oldObject": pod, "userInfo": {"username": TAINT_MANAGER}});
    no(&guard_fixture.deleted(request).await, 403);
    let of_pod = |run: &Value| run["metadata"]["ownerReferences"][0]["name"] == name;
    let run = guard_fixture.runs().into_iter().find(of_pod).unwrap();
    guard_fixture.ends(&run, "Successful");
    api.until("the evicted pod is deleted", |store| store.pod("shop", name).is_none()).await;
}

type Change = fn(&mut Value);

/// The HookRun that the guard would make for the pod of `guard_fixture`, as another user writes it.
fn forged(guard_fixture: &GuardFixture) -> Value {
    let (meta, now) = (&guard_fixture.pod["metadata"], inplace::process::clock::now().to_string());
    let uid: String = meta["uid"].as_str().unwrap().chars().filter(|c| *c != '-').take(8).collect();
    let labels = json!({"hookrun-type": "pre-delete-step", "instance-id": "0", "inplace.dev/node": "n1"});
    json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
        "metadata": {"namespace": "shop", "name": format!("pre-delete-hook-web-0-{uid}-leave-1"), "labels": labels,
            "annotations": {"inplace.dev/task": "DeleteGuard/leave//1", "inplace.dev/pod-uid": meta["uid"]},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": meta["uid"]}]},
        "spec": {"metrics": []}, "status": {"phase": "Successful", "metricResults": [{"name": "m", "phase": "Successful",
            "measurements": [{"phase": "Successful", "startedAt": now, "finishedAt": now}]}]}})
}

#[tokio::test]
async fn a_run_of_an_agents_operation_never_deletes_a_pod() {
    let guard_fixture = GuardFixture::found().await;
    let mut run = forged(&guard_fixture);
    run["metadata"]["name"] = json!("of-another-node");
    run["metadata"]["labels"] =
        json!({"inplace.dev/node": "n2", "inplace.dev/operation": "x", "inplace.dev/delete-guard": "finish"});
    run["metadata"]["annotations"] = json!({"inplace.dev/approve": "true"});
    guard_fixture.fixture.api.put(run);
    // After two rounds of evictions the forged HookRun was handled as well.
    evicted_by_taint(&guard_fixture, "first-1").await;
    evicted_by_taint(&guard_fixture, "second-2").await;
    assert_eq!(
        guard_fixture.fixture.api.count("DELETE pod shop/web-0"),
        0,
        "a forged HookRun deleted the pod"
    );
}

#[tokio::test]
async fn a_run_that_is_not_the_controllers_for_this_pod_lets_nobody_go() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    let real = forged(&guard_fixture);
    let name = real["metadata"]["name"].as_str().unwrap();
    let cases: [(&str, Change); 7] = [
        ("of an operation", |meta| meta["labels"]["inplace.dev/operation"] = json!("x")),
        ("of another node", |meta| meta["labels"]["inplace.dev/node"] = json!("n2")),
        ("without an owner", |meta| meta["ownerReferences"] = json!([])),
        ("of another pod", |meta| meta["ownerReferences"][0]["uid"] = json!("other")),
        ("of a pod of another name", |meta| meta["ownerReferences"][0]["name"] = json!("web-1")),
        ("of something else", |meta| meta["ownerReferences"][0]["kind"] = json!("Job")),
        ("of another name", |meta| meta["name"] = json!("passes-all")),
    ];
    for (what, change) in cases {
        let mut run = real.clone();
        change(&mut run["metadata"]);
        let made = run["metadata"]["name"].as_str().unwrap().to_owned();
        api.put(run);
        let reported = guard_fixture.deleted(json!({})).await;
        assert_eq!(reported["allowed"], false, "a HookRun {what} lets the pod go");
        api.store(|store| store.remove_of("hookruns", "shop", &made));
        if made != name && api.get("hookruns", "shop", name).is_some() {
            api.store(|store| store.remove_of("hookruns", "shop", name));
        }
    }
    // The same HookRun, made by the controller, is accepted.
    api.put(real);
    is_yes(&guard_fixture.deleted(json!({})).await);
}

#[tokio::test]
async fn a_made_up_eviction_by_the_taint_manager_deletes_no_pod() {
    let guard_fixture = GuardFixture::found().await;
    let by_taint = json!({"userInfo": {"username": TAINT_MANAGER}});
    // The pod is not being evicted: its node has no taint, and does not even exist.
    no(&guard_fixture.deleted(by_taint.clone()).await, 403);
    let marked = |run: &Value| run["metadata"]["labels"]["inplace.dev/delete-guard"] == "finish";
    assert!(!guard_fixture.runs().iter().any(marked), "a made-up eviction is to be finished");
    // A taint that the pod tolerates, one that evicts no pod, and an eviction that was cancelled.
    for taint in
        [json!({"key": "old", "effect": "NoExecute"}), json!({"key": "other", "effect": "NoSchedule"})]
    {
        guard_fixture.fixture.api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "spec": {"taints": [taint]}}));
        guard_fixture.fixture.api.edit("shop", "web-0", |pod| {
            pod["spec"]["tolerations"] = json!([{"key": "old", "operator": "Exists"}]);
        });
        no(&guard_fixture.deleted(by_taint.clone()).await, 403);
        assert!(!guard_fixture.runs().iter().any(marked), "{taint}");
    }
    // A HookRun that was marked has no effect once the taint is gone.
    let name = guard_fixture.runs()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    guard_fixture.fixture.api.edit_of("hookruns", "shop", &name, |run| {
        run["metadata"]["labels"]["inplace.dev/delete-guard"] = json!("finish");
    });
    guard_fixture.ends(&guard_fixture.runs()[0], "Successful");
    evicted_by_taint(&guard_fixture, "first-1").await;
    evicted_by_taint(&guard_fixture, "second-2").await;
    assert_eq!(
        guard_fixture.fixture.api.count("DELETE pod shop/web-0"),
        0,
        "a made-up eviction deleted the pod"
    );
}

#[tokio::test]
async fn what_a_review_says_of_its_pod_is_not_believed() {
    let guard_fixture = GuardFixture::found().await;
    let with = |change: &dyn Fn(&mut Value)| {
        let mut pod = guard_fixture.pod.clone();
        change(&mut pod);
        json!({"oldObject": pod})
    };
    let reported = guard_fixture.deleted(with(&|pod| pod["metadata"]["labels"] = json!({}))).await;
    assert_eq!(
        reported["allowed"], false,
        "a guarded pod goes because the review says that it is not guarded"
    );
    let reported = guard_fixture.deleted(with(&|pod| pod["metadata"]["uid"] = json!("another"))).await;
    assert!(no(&reported, 403).contains("another pod"), "{reported}");
    for run in guard_fixture.runs() {
        let name = run["metadata"]["name"].as_str().unwrap().to_owned();
        guard_fixture.fixture.api.store(|store| store.remove_of("hookruns", "shop", &name));
    }
    // The hook sends its request to the pod's address: the one in the API server counts.
    no(&guard_fixture.deleted(with(&|pod| pod["status"]["podIP"] = json!("6.6.6.6"))).await, 403);
    let [run] = guard_fixture.runs().try_into().unwrap();
    assert!(run["spec"]["args"].as_array().unwrap().contains(&json!({"name": "PodIP", "value": "10.0.0.7"})));
    // A pod that does not exist starts no hook.
    let ghost = with(&|pod| pod["metadata"]["name"] = json!("ghost"));
    guard_fixture.deleted(json!({"name": "ghost", "oldObject": ghost["oldObject"]})).await;
    assert_eq!(guard_fixture.runs().len(), 1);
}

/// Connects as the API server does, without sending a request yet.
async fn connected(
    guard_fixture: &GuardFixture,
    replica: &Replica,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    use rustls::pki_types::pem::PemObject as _;
    let mut roots = rustls::RootCertStore::empty();
    let trusted = guard_fixture.fixture.trusted().unwrap();
    for authority in rustls::pki_types::CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(replica.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    connector.connect(HOST.try_into().unwrap(), stream).await.unwrap()
}

#[tokio::test]
async fn a_body_that_is_too_large_or_never_ends_is_not_waited_for() {
    let guard_fixture = GuardFixture::found().await;
    let replica = &guard_fixture.replicas[0];
    let trusted = guard_fixture.fixture.trusted().unwrap();
    let mut large = review("web");
    large["request"]["object"]["metadata"]["annotations"] = json!({"long": "x".repeat(3 << 20)});
    let reported = ask(&trusted, replica.address, &large).await.unwrap_err();
    assert_eq!(reported.status().map(|status| status.as_u16()), Some(413));
    large["request"]["object"]["metadata"]["annotations"] = json!({"long": "x".repeat(5 << 19)});
    assert_eq!(ask(&trusted, replica.address, &large).await.unwrap()["response"]["allowed"], true);

    let mut slow = connected(&guard_fixture, replica).await;
    slow.write_all(b"POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    let mut answer = Vec::new();
    let ended = timeout(Duration::from_secs(30), slow.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "a body that never ends is waited for");
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn whoever_opens_all_connections_keeps_out_nobody() {
    let guard_fixture = GuardFixture::found().await;
    let replica = &guard_fixture.replicas[0];
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(connected(&guard_fixture, replica).await);
    }
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(TcpStream::connect(replica.address).await.unwrap());
    }
    let trusted = guard_fixture.fixture.trusted().unwrap();
    let began = Instant::now();
    let answer = ask(&trusted, replica.address, &review("web")).await.unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // The first connections were closed, because they were idle. Without a bound they stay open for 100 s.
    let first = timeout(Duration::from_secs(30), open[0].read(&mut [0; 1])).await;
    assert!(matches!(first, Ok(Ok(0) | Err(_))), "connections are not bounded");
}

#[tokio::test]
async fn runs_that_somebody_makes_beside_a_pods_own_are_read_some_at_a_time() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    for number in 0..35 {
        api.put(json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": {"namespace": "shop", "name": format!("large-{number}"),
                "labels": {"hookrun-type": "pre-delete-step", "instance-id": "0"}},
            "spec": {"metrics": []}}));
    }
    no(&guard_fixture.deleted(json!({})).await, 403);
    api.forget();
    // The last HookRun of all is found as well.
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("is Pending"));
    assert_eq!(api.count("LIST hookruns") + api.count("NEXT hookruns"), 4, "pages");
}

#[tokio::test]
async fn a_run_of_the_guards_name_that_is_gone_when_it_is_read_is_not_taken_for_the_hook() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    no(&guard_fixture.deleted(json!({})).await, 403);
    let [run] = guard_fixture.runs().try_into().unwrap_or_else(|_| panic!("no hook"));
    let name = run["metadata"]["name"].as_str().unwrap().to_owned();
    api.store(|store| store.remove_of("hookruns", "shop", &name));
    let mut foreign = run.clone();
    foreign["metadata"] = json!({"namespace": "shop", "name": name});
    api.before("POST hookrun", move |store| drop(store.put(foreign.clone())));
    let taken = name.clone();
    api.before("GET hookrun", move |store| store.remove_of("hookruns", "shop", &taken));
    let reported = guard_fixture.deleted(json!({})).await;
    assert!(no(&reported, 403).contains(&name), "{reported}");
    let [again] = guard_fixture.runs().try_into().unwrap_or_else(|_| panic!("no hook: {reported}"));
    assert_eq!(again["metadata"]["annotations"], run["metadata"]["annotations"]);
}
