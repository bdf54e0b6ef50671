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
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    // The first connections were closed, because they were idle.
    let first = timeout(Duration::from_secs(10), open[0].read(&mut [0; 1])).await;
    assert!(matches!(first, Ok(Ok(0) | Err(_))), "connections are not bounded");
}

/// The review of a change of one of this project's kinds by `user`.
async fn written(guard_fixture: &GuardFixture, user: &str, kind: &str, old: Value, new: Value) -> Value {
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    let group = if kind == "InPlaceRollout" { "inplace.dev" } else { "tkex.tencent.com" };
    let request = json!({"operation": operation, "name": "it", "object": new, "oldObject": old,
        "userInfo": {"username": user, "uid": "u-1", "groups": ["devs"], "extra": {"scopes": ["some"]}},
        "kind": {"group": group, "version": "v1alpha1", "kind": kind}});
    guard_fixture.asked("validate", &request).await
}

fn hook(provider: &Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": "it"},
        "spec": {"metrics": [{"name": "m", "count": 1, "successCondition": "true", "provider": provider}]}})
}

fn rollout() -> Value {
    json!({"metadata": {"namespace": "shop", "name": "it"},
        "spec": {"target": {"selector": {"matchLabels": {"app": "web"}}}, "containers": [{"name": "app", "image": "a:2"}]}})
}

#[tokio::test]
async fn hooks_and_rollouts_are_written_by_those_who_have_the_rights_that_they_amount_to() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    let exec = hook(&json!({"exec": {"container": "app", "command": ["id"]}}));
    let web = hook(&json!({"web": {"url": "http://10.0.0.1/"}}));
    let prometheus = hook(&json!({"prometheus": {"address": "http://10.0.0.1/", "query": "up"}}));
    let field = json!([{"path": "metadata.annotations.a", "value": "b"}]);
    let patch = hook(&json!({"kubernetes": {"function": "patch", "fields": field}}));
    let get = hook(&json!({"kubernetes": {"function": "get", "fields": field}}));
    for (kind, object, right) in [
        ("HookTemplate", &exec, "create pods/exec"),
        ("HookRun", &exec, "create pods/exec"),
        ("HookTemplate", &web, "create pods/exec"),
        ("HookRun", &web, "create pods/exec"),
        ("HookRun", &prometheus, "create pods/exec"),
        ("HookTemplate", &patch, "patch pods"),
        ("HookRun", &patch, "patch pods"),
        ("HookRun", &get, "get pods"),
        ("InPlaceRollout", &rollout(), "patch pods"),
    ] {
        let reported = written(&guard_fixture, "ann", kind, Value::Null, object.clone()).await;
        assert_eq!(reported["allowed"], false, "{kind} {object} is made without any right");
        assert!(no(&reported, 403).contains(right), "{reported}");
        // The right in another namespace, or another right, does not help.
        for other in [format!("ann {right} other"), "ann list pods shop".to_owned()] {
            api.store(|store| store.rights.insert(other));
        }
        no(&written(&guard_fixture, "ann", kind, Value::Null, object.clone()).await, 403);
        api.store(|store| store.rights.insert(format!("ann {right} shop")));
        is_yes(&written(&guard_fixture, "ann", kind, Value::Null, object.clone()).await);
        api.store(|store| store.rights.clear());
    }
    // All fields of the user are passed on.
    let asked = api.store(|store| store.access_reviews[0].clone());
    assert_eq!(
        (&asked["user"], &asked["uid"], &asked["groups"], &asked["extra"]),
        (&json!("ann"), &json!("u-1"), &json!(["devs"]), &json!({"scopes": ["some"]}))
    );
    // An unchanged spec needs no right; a changed one does, also when the object is being deleted.
    let mut noted = exec.clone();
    noted["metadata"]["annotations"] = json!({"inplace.dev/approve": "true"});
    for kind in ["HookRun", "HookTemplate"] {
        is_yes(&written(&guard_fixture, "ann", kind, exec.clone(), noted.clone()).await);
        no(&written(&guard_fixture, "ann", kind, exec.clone(), web.clone()).await, 403);
        let mut leaving = web.clone();
        leaving["metadata"]["deletionTimestamp"] = json!("2026-03-01T12:00:00Z");
        no(&written(&guard_fixture, "ann", kind, exec.clone(), leaving).await, 403);
    }
    is_yes(&written(&guard_fixture, "ann", "InPlaceRollout", rollout(), rollout()).await);
    let mut other = rollout();
    other["spec"]["paused"] = json!(true);
    is_yes(&written(&guard_fixture, "ann", "InPlaceRollout", rollout(), other.clone()).await);
    other["spec"]["maxUnavailable"] = json!("100%");
    no(&written(&guard_fixture, "ann", "InPlaceRollout", rollout(), other).await, 403);
    let mut ended = exec.clone();
    ended["spec"]["terminate"] = json!(true);
    is_yes(&written(&guard_fixture, "ann", "HookRun", exec.clone(), ended).await);
    // A HookRun that is moved to a node, or that is no longer an operation's, counts as a new one.
    for label in ["inplace.dev/node", "inplace.dev/operation"] {
        let mut moved = exec.clone();
        moved["metadata"]["labels"] = json!({label: "n1"});
        no(&written(&guard_fixture, "ann", "HookRun", exec.clone(), moved.clone()).await, 403);
        no(&written(&guard_fixture, "ann", "HookRun", moved, exec.clone()).await, 403);
    }
    // If the rights cannot be checked, the write is refused.
    api.on("POST subjectaccessreview").fault(super::super::api_server::Fault::Answer(500, "etcd is busy"));
    let reported = written(&guard_fixture, "ann", "HookRun", Value::Null, exec.clone()).await;
    assert!(no(&reported, 403).contains("Try again"), "{reported}");
    // The controller's own HookRuns come from templates, whose writers were checked.
    let controller = "system:serviceaccount:inplace-system:inplace-controller";
    for (kind, object) in [("HookRun", &exec), ("InPlaceRollout", &rollout())] {
        is_yes(&written(&guard_fixture, controller, kind, Value::Null, object.clone()).await);
    }
    no(&written(&guard_fixture, controller, "HookTemplate", Value::Null, exec).await, 403);
    // An account of the same name in another namespace is another user.
    let other = "system:serviceaccount:shop:inplace-controller";
    no(&written(&guard_fixture, other, "InPlaceRollout", Value::Null, rollout()).await, 403);
}

#[tokio::test]
async fn nobody_but_the_controller_says_what_a_run_lets_pass() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    let (ann, agent) = ("ann", "system:serviceaccount:inplace-system:inplace-agent");
    let controller = "system:serviceaccount:inplace-system:inplace-controller";
    api.store(|store| {
        store.rights.extend(["ann", agent].map(|user| format!("{user} create pods/exec shop")));
    });
    let plain = hook(&json!({"exec": {"container": "app", "command": ["id"]}}));
    for (field, key) in [
        ("labels", "inplace.dev/delete-guard"),
        ("annotations", "inplace.dev/task"),
        ("annotations", "inplace.dev/turn"),
        ("annotations", "inplace.dev/pod-uid"),
    ] {
        let mut run = plain.clone();
        run["metadata"][field] = json!({key: "x"});
        for (old, new) in [(Value::Null, &run), (plain.clone(), &run), (run.clone(), &plain)] {
            let reported = written(&guard_fixture, ann, "HookRun", old.clone(), new.clone()).await;
            assert_eq!(reported["allowed"], false, "{key} is written by anybody");
            assert!(no(&reported, 403).contains(key), "{reported}");
            no(&written(&guard_fixture, agent, "HookRun", old.clone(), new.clone()).await, 403);
            is_yes(&written(&guard_fixture, controller, "HookRun", old, new.clone()).await);
        }
    }
    // A HookRun that is created as approved or as ended was never run; one of an operation may only be written by
    // an agent. The rights of the user do not matter.
    let mut approved = plain.clone();
    approved["metadata"]["annotations"] = json!({"inplace.dev/approve": "true"});
    let mut ended = plain.clone();
    ended["status"] = json!({"phase": "Successful"});
    let mut shown = plain.clone();
    shown["metadata"]["labels"] = json!({"inplace.dev/operation": "x", "inplace.dev/node": "n1"});
    for (new, says) in
        [(&approved, "inplace.dev/approve"), (&ended, "status"), (&shown, "inplace.dev/operation")]
    {
        let reported = written(&guard_fixture, ann, "HookRun", Value::Null, new.clone()).await;
        assert_eq!(reported["allowed"], false, "{says} is written by whoever makes a HookRun");
        assert!(no(&reported, 403).contains(says), "{reported}");
        is_yes(&written(&guard_fixture, controller, "HookRun", Value::Null, new.clone()).await);
    }
    for (old, new) in [(&plain, &shown), (&shown, &plain)] {
        let reported = written(&guard_fixture, ann, "HookRun", old.clone(), new.clone()).await;
        assert_eq!(reported["allowed"], false, "a HookRun becomes an operation's, or nobody's, by anybody");
    }
    is_yes(&written(&guard_fixture, ann, "HookRun", shown.clone(), shown).await);

    // An agent publishes the hooks of its operations, and names the runner of those of its node. It starts,
    // changes and approves none.
    is_yes(&written(&guard_fixture, ann, "HookRun", Value::Null, plain.clone()).await);
    no(&written(&guard_fixture, agent, "HookRun", Value::Null, plain.clone()).await, 403);
    let mut mirror = plain.clone();
    mirror["metadata"]["labels"] = json!({"inplace.dev/operation": "x", "inplace.dev/node": "n1"});
    is_yes(&written(&guard_fixture, agent, "HookRun", Value::Null, mirror.clone()).await);
    let mut taken = plain.clone();
    taken["metadata"]["annotations"] = json!({"inplace.dev/runner": "node/n1"});
    is_yes(&written(&guard_fixture, agent, "HookRun", plain.clone(), taken).await);
    let mut approved = plain.clone();
    approved["metadata"]["annotations"] = json!({"inplace.dev/approve": "true"});
    no(&written(&guard_fixture, agent, "HookRun", plain.clone(), approved.clone()).await, 403);
    is_yes(&written(&guard_fixture, ann, "HookRun", plain.clone(), approved).await);
    mirror["metadata"]["annotations"] = json!({"inplace.dev/approve": "true"});
    no(&written(&guard_fixture, agent, "HookRun", Value::Null, mirror.clone()).await, 403);
    no(&written(&guard_fixture, agent, "HookRun", mirror, plain.clone()).await, 403);
    no(
        &written(&guard_fixture, agent, "HookRun", plain, hook(&json!({"web": {"url": "http://10.0.0.1/"}})))
            .await,
        403,
    );
}

#[tokio::test]
async fn whoever_the_settings_exempt_is_not_held() {
    let mut guard_fixture = GuardFixture::found().await;
    let by = |user: &str, groups: &[&str]| json!({"userInfo": {"username": user, "groups": groups}});
    // A preemption is not stopped by a label of a pod of lower priority; a namespace deletion and an
    // administrator are.
    let reported = guard_fixture.deleted(by("system:kube-scheduler", &[])).await;
    assert_eq!(reported["allowed"], true, "{reported}");
    assert!(
        reported["warnings"][0].as_str().unwrap().contains("this user is exempt from the delete guard"),
        "{reported}"
    );
    assert_eq!((guard_fixture.events("DeleteGuardExempt").len(), guard_fixture.runs().len()), (1, 0));
    no(&guard_fixture.deleted(by("root", &["system:masters"])).await, 403);
    no(&guard_fixture.deleted(by("system:serviceaccount:kube-system:namespace-controller", &[])).await, 403);
    for run in guard_fixture.runs() {
        let name = run["metadata"]["name"].as_str().unwrap().to_owned();
        guard_fixture.fixture.api.store(|store| store.remove_of("hookruns", "shop", &name));
    }

    let guard = GuardArgs {
        guard_exempt_users: vec!["gc".to_owned()],
        guard_exempt_groups: vec!["system:masters".to_owned()],
        guard_longest_hold: Some(jiff::SignedDuration::from_mins(1)),
        guard_labelled_namespaces_only: true,
    };
    let other = guard_fixture.fixture.replica(&WebhookArgs { guard, ..WebhookArgs::default() }).await;
    guard_fixture.fixture.ready(&other).await;
    guard_fixture.replicas = [other.clone(), other];
    let api = &guard_fixture.fixture.api;
    // The namespace has no label: no pod in it is held.
    is_yes(&guard_fixture.deleted(json!({})).await);
    api.edit_of("namespaces", "", "shop", |space| {
        space["metadata"]["labels"] = json!({"inplace.dev/delete-guard": "true"});
    });
    no(&guard_fixture.deleted(by("system:kube-scheduler", &[])).await, 403);
    let [run] = guard_fixture.runs().try_into().unwrap();
    let made_at = |at: String| {
        let name = run["metadata"]["name"].as_str().unwrap();
        api.edit_of("hookruns", "shop", name, |run| run["metadata"]["creationTimestamp"] = json!(at));
    };
    made_at(inplace::process::clock::now().to_string());
    assert_eq!(guard_fixture.deleted(by("gc", &[])).await["allowed"], true);
    assert_eq!(guard_fixture.evicted_by("root", &["system:masters"]).await["allowed"], true);
    no(&guard_fixture.deleted(by("gc2", &["gc"])).await, 403);
    // The hook was started too long ago.
    made_at("2026-03-01T12:00:00Z".to_owned());
    let reported = guard_fixture.deleted(json!({})).await;
    assert_eq!(reported["allowed"], true, "{reported}");
    assert!(
        guard_fixture.events("DeleteGuardExpired")[0].contains("refused since 2026-03-01T12:00:00Z"),
        "{reported}"
    );
}

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
    let end = Instant::now() + Duration::from_secs(20);
    while !asks(Some(&theirs.1)).await {
        assert!(Instant::now() < end, "the other authority is never taken up");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!asks(Some(&ours.1)).await);
    // Without the file nothing is served.
    let args = WebhookArgs { webhook_client_ca: Some(folder.path().join("none")), ..WebhookArgs::default() };
    let target = Target { kubeconfig: Some(guard_fixture.fixture.api.kubeconfig()), context: None };
    let webhooks = Webhooks::new(&args, Server::new(connect(&target).await.unwrap().0), NAMESPACE, terms());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = webhooks.serve(listener, CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("none: "), "{error}");
}
