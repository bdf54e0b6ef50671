//! The delete guard and the readiness gate, as the API server calls them: the answers, the writes, and the
//! behaviour when the API server does not answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use inplace::controller::admission::GATE_CONFIGURATION;

use super::*;
use crate::api_server::Fault;

/// Two processes that answer alternately, and a namespace with a guarded pod and its hook.
pub(super) struct GuardFixture {
    pub(super) fixture: Fixture,
    pub(super) replicas: [Replica; 2],
    asked: AtomicUsize,
    late: AtomicUsize,
    pub(super) pod: Value,
}

impl GuardFixture {
    pub(super) async fn found() -> Self {
        let (fixture, leader) = Fixture::settled().await;
        let replicas = [leader, fixture.replica(&WebhookArgs::default()).await];
        fixture.ready(&replicas[1]).await;
        fixture.api.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        let metric = json!({"name": "webtest", "count": 1, "successCondition": "asInt(result) > 0",
            "provider": {"web": {"url": "http://{{ args.PodIP }}/leave", "jsonPath": "{$.done}"}}});
        fixture.api.put(json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
            "metadata": {"namespace": "shop", "name": "leave"}, "spec": {"metrics": [metric]}}));
        let pod = fixture.api.put(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": "web-0", "labels": {"inplace.dev/delete-guard": "true"},
                "annotations": {"inplace.dev/pre-delete-hook": "leave"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "app:1"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.7"},
        }));
        fixture.api.forget();
        Self { fixture, replicas, asked: AtomicUsize::new(0), late: AtomicUsize::new(0), pod }
    }

    pub(super) async fn asked(&self, path: &str, request: &Value) -> Value {
        let mut whole = json!({"uid": "u", "namespace": "shop", "userInfo": {"username": "ann"}});
        whole.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": whole});
        let trusted = self.fixture.trusted().unwrap();
        let replica = &self.replicas[self.asked.fetch_add(1, Ordering::Relaxed) % 2];
        ask_at(path, &trusted, replica.address, &review).await.unwrap()["response"].take()
    }

    /// A deletion of the pod; `more` overrides fields of the review.
    pub(super) async fn deleted(&self, more: Value) -> Value {
        let mut request = json!({"operation": "DELETE", "name": "web-0", "object": null, "oldObject": self.pod,
            "kind": {"group": "", "version": "v1", "kind": "Pod"}});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.asked("guard", &request).await
    }

    /// A deletion by somebody who asks again: a guard on a busy machine refuses what it cannot decide in time.
    async fn deleted_in_time(&self) -> Value {
        const TRIES: usize = 20;
        let mut answer = self.deleted(json!({})).await;
        for _ in 1..TRIES {
            let message = answer["status"]["message"].as_str().unwrap_or_default();
            if !message.contains("cannot be determined now") {
                break;
            }
            self.late.fetch_add(1, Ordering::Relaxed);
            answer = self.deleted(json!({})).await;
        }
        answer
    }

    /// An eviction, as a node drain sends it.
    pub(super) async fn evicted(&self, name: &str, options: Value) -> Value {
        let eviction = json!({"metadata": {"namespace": "shop", "name": name}, "deleteOptions": options});
        let request = json!({"operation": "CREATE", "name": name, "subResource": "eviction", "object": eviction,
            "kind": {"group": "policy", "version": "v1beta1", "kind": "Eviction"}});
        self.asked("guard", &request).await
    }

    /// The same by a user of these groups.
    pub(super) async fn evicted_by(&self, user: &str, groups: &[&str]) -> Value {
        let eviction = json!({"metadata": {"namespace": "shop", "name": "web-0"}});
        let request = json!({"operation": "CREATE", "name": "web-0", "subResource": "eviction", "object": eviction,
            "userInfo": {"username": user, "groups": groups}, "kind": {"group": "policy", "version": "v1", "kind": "Eviction"}});
        self.asked("guard", &request).await
    }

    pub(super) fn runs(&self) -> Vec<Value> {
        self.fixture.api.store(|store| store.all("hookruns").cloned().collect())
    }

    /// Writes the end of the hook, as its runner does.
    pub(super) fn ends(&self, run: &Value, phase: &str) {
        let at = inplace::process::clock::now().to_string();
        let name = run["metadata"]["name"].as_str().unwrap();
        self.fixture.api.edit_of("hookruns", "shop", name, |run| {
            let measured = json!([{"phase": phase, "startedAt": at, "finishedAt": at}]);
            run["status"] = json!({"phase": phase, "metricResults": [{"name": "webtest", "phase": phase,
                "measurements": measured}]});
        });
    }

    pub(super) fn events(&self, reason: &str) -> Vec<String> {
        let all = self.fixture.api.events();
        let reported = all.iter().filter(|event| event["reason"] == reason);
        reported.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for GuardFixture {
    fn drop(&mut self) {
        self.fixture.stop.cancel();
    }
}

/// The message of a refusal, whose code must be this one.
pub(super) fn no(response: &Value, code: u16) -> &str {
    assert_eq!(
        (&response["allowed"], &response["status"]["code"]),
        (&json!(false), &json!(code)),
        "{response}"
    );
    response["status"]["message"].as_str().unwrap()
}

pub(super) fn is_yes(response: &Value) {
    assert_eq!(*response, json!({"uid": "u", "allowed": true}));
}

#[tokio::test]
async fn fifty_deletions_at_once_are_one_hook_and_all_pass_once_it_has_succeeded() {
    let guard_fixture = GuardFixture::found().await;
    let answers = join_all((0..50).map(|_| guard_fixture.deleted_in_time())).await;
    let [run] = guard_fixture.runs().try_into().unwrap();
    let name = run["metadata"]["name"].as_str().unwrap();
    for answer in &answers {
        assert!(no(answer, 403).contains(name), "{answer}");
    }
    assert!(name.starts_with("pre-delete-hook-web-0-") && name.ends_with("-leave-1"), "{name}");
    let meta = &run["metadata"];
    assert_eq!(
        (&meta["labels"]["hookrun-type"], &meta["labels"]["inplace.dev/node"]),
        (&json!("pre-delete-step"), &json!("n1"))
    );
    let owner = &meta["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Pod"), &guard_fixture.pod["metadata"]["uid"]));
    assert!(run["spec"]["args"].as_array().unwrap().contains(&json!({"name": "PodIP", "value": "10.0.0.7"})));
    // A review that runs out of time after it has made the HookRun writes no event.
    let late = guard_fixture.late.load(Ordering::Relaxed);
    let reported = guard_fixture.events("DeleteGuardAsked");
    let note = format!("the deletion by ann is refused until HookRun {name} has succeeded");
    assert!(reported == [note] || reported.is_empty() && late > 0, "{late} were late: {reported:?}");

    guard_fixture.ends(&run, "Running");
    assert!(no(&guard_fixture.deleted_in_time().await, 403).contains("is Running"));
    guard_fixture.ends(&run, "Successful");
    for answer in join_all((0..50).map(|_| guard_fixture.deleted_in_time())).await {
        is_yes(&answer);
    }
    assert_eq!((guard_fixture.runs().len(), guard_fixture.events("DeleteGuardPassed").len()), (1, 1));
}

#[tokio::test]
async fn an_eviction_is_held_as_a_drain_expects_it_and_a_dry_run_changes_nothing() {
    let guard_fixture = GuardFixture::found().await;
    let dry = guard_fixture.deleted(json!({"dryRun": true})).await;
    assert!(no(&dry, 403).contains("would be started as HookRun pre-delete-hook-web-0-"), "{dry}");
    let dry = guard_fixture.evicted("web-0", json!({"dryRun": ["All"]})).await;
    assert!(no(&dry, 429).contains("without the dry run"), "{dry}");
    // The controller of the certificates may write at the same time.
    let mut writes = guard_fixture.fixture.api.writes();
    writes.retain(|call| call.contains("hookrun") || call.contains("event") || call.contains("pod"));
    assert_eq!(writes, Vec::<String>::new());

    let held = guard_fixture.evicted("web-0", Value::Null).await;
    assert_eq!(held["status"]["reason"], "TooManyRequests");
    // With this field kubectl would wait and hide the message.
    assert_eq!(held["status"]["details"].get("retryAfterSeconds"), None);
    let [run] = guard_fixture.runs().try_into().unwrap();
    guard_fixture.ends(&run, "Failed");
    let reported = guard_fixture.evicted("web-0", json!({})).await;
    assert!(no(&reported, 429).contains("inplace.dev/delete-guard-retry="), "{reported}");
    guard_fixture.fixture.api.edit("shop", "web-0", |pod| {
        pod["metadata"]["annotations"]["inplace.dev/delete-guard-retry"] = json!("1");
    });
    no(&guard_fixture.evicted("web-0", json!({})).await, 429);
    let again =
        guard_fixture.runs().into_iter().find(|other| other["metadata"]["name"] != run["metadata"]["name"]);
    guard_fixture.ends(&again.unwrap(), "Successful");
    is_yes(&guard_fixture.evicted("web-0", json!({})).await);
    assert_eq!(guard_fixture.runs().len(), 2);

    // No other pod is held.
    guard_fixture.fixture.api.edit("shop", "web-0", |pod| pod["metadata"]["labels"] = json!({}));
    is_yes(&guard_fixture.evicted("web-0", json!({})).await);
    is_yes(&guard_fixture.evicted("nobody", json!({})).await);
    guard_fixture.fixture.api.edit("shop", "web-0", |pod| {
        pod["metadata"]["labels"] = json!({"inplace.dev/delete-guard": "true"});
        pod["metadata"]["deletionTimestamp"] = json!("2026-03-01T12:00:00Z");
    });
    is_yes(&guard_fixture.deleted(json!({})).await);
}

#[tokio::test]
async fn without_the_api_servers_answer_the_answer_is_no_and_comes_in_time() {
    let guard_fixture = GuardFixture::found().await;
    guard_fixture.fixture.api.on("LIST hookruns").times(2).fault(Fault::Hang);
    let began = Instant::now();
    let (deleted, evicted) =
        tokio::join!(guard_fixture.deleted(json!({})), guard_fixture.evicted("web-0", json!({})));
    // The limit is 3 s. Without it each call to the API server lasts 10 s.
    assert!(began.elapsed() < Duration::from_secs(9), "the API server waits no longer");
    for (answer, code) in [(deleted, 403), (evicted, 429)] {
        assert!(no(&answer, code).contains("takes too long to answer. Try again"), "{answer}");
    }
    guard_fixture.fixture.api.on("LIST hookruns").fault(Fault::Answer(500, "etcd is busy"));
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("etcd is busy"));
    guard_fixture.fixture.api.on("POST hookrun").fault(Fault::CutAfterEffect);
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("Try again"));
    // The HookRun was created all the same: the next request finds it.
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("is Pending"));
    assert_eq!(guard_fixture.runs().len(), 1);
    guard_fixture.fixture.api.go_away().await;
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("connection refused"));
    guard_fixture.fixture.api.come_back().await;
    guard_fixture.ends(&guard_fixture.runs()[0], "Successful");
    is_yes(&guard_fixture.deleted(json!({})).await);
}

#[tokio::test]
async fn what_is_missing_is_named_and_a_person_has_the_last_word() {
    let guard_fixture = GuardFixture::found().await;
    let deleted = async |notes: Value| {
        guard_fixture.fixture.api.edit("shop", "web-0", |pod| pod["metadata"]["annotations"] = notes);
        guard_fixture.deleted(json!({})).await
    };
    let reported = deleted(json!({})).await;
    assert!(
        no(&reported, 403).contains("annotate pod web-0 inplace.dev/pre-delete-hook=TEMPLATE"),
        "{reported}"
    );
    let reported = deleted(json!({"inplace.dev/pre-delete-hook": "other"})).await;
    assert!(
        no(&reported, 403).contains("HookTemplate shop/other of its pre-delete hook does not exist"),
        "{reported}"
    );
    let reported = deleted(json!({"inplace.dev/delete-guard-override": "ticket 42"})).await;
    assert_eq!(reported["allowed"], true);
    assert!(
        reported["warnings"][0].as_str().unwrap().contains("ann deletes the pod without its pre-delete hook"),
        "{reported}"
    );
    let expected = "ann deletes the pod without its pre-delete hook: the annotation inplace.dev/delete-guard-override of the pod allows it: ticket 42";
    assert_eq!(guard_fixture.events("DeleteGuardOverridden"), [expected]);
    assert_eq!(guard_fixture.fixture.api.events()[0]["type"], "Warning");

    // In a terminating namespace no hook can be started.
    let api = &guard_fixture.fixture.api;
    api.edit("shop", "web-0", |pod| {
        pod["metadata"]["annotations"] = guard_fixture.pod["metadata"]["annotations"].clone();
    });
    api.edit_of("namespaces", "", "shop", |space| {
        space["metadata"]["deletionTimestamp"] = json!("2026-03-01T12:00:00Z");
    });
    let reported = guard_fixture.deleted(json!({})).await;
    assert!(
        no(&reported, 403)
            .contains("kubectl annotate namespace shop inplace.dev/delete-guard-override=REASON"),
        "{reported}"
    );
    api.edit_of("namespaces", "", "shop", |space| {
        space["metadata"]["annotations"] = json!({"inplace.dev/delete-guard-override": "closing down"});
    });
    assert_eq!(guard_fixture.deleted(json!({})).await["allowed"], true);
    assert_eq!(guard_fixture.runs(), Vec::<Value>::new());

    // The hook of the workload that controls the pod, and the HookRun that its controller made.
    api.edit_of("namespaces", "", "shop", |space| space["metadata"]["annotations"] = json!({}));
    api.put(json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"preDeleteUpdateStrategy": {"hook": {"templateName": "leave"}}}}));
    let owner = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "web", "uid": "w",
        "controller": true});
    api.put(json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
        "metadata": {"namespace": "shop", "name": "of-web",
            "labels": {"hookrun-type": "pre-delete-step", "instance-id": "0"},
            "annotations": {"inplace.dev/task": "ScaleIn//1", "inplace.dev/pod-uid": guard_fixture.pod["metadata"]["uid"]},
            "ownerReferences": [owner]},
        "spec": {"metrics": []}}));
    api.edit("shop", "web-0", |pod| {
        pod["metadata"]["annotations"] = json!({});
        pod["metadata"]["ownerReferences"] = json!([owner]);
    });
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("HookRun of-web is Pending"));
    guard_fixture.ends(&guard_fixture.runs()[0], "Successful");
    is_yes(&guard_fixture.deleted(json!({})).await);
}

#[tokio::test]
async fn who_asks_only_once_is_asked_for() {
    let guard_fixture = GuardFixture::found().await;
    guard_fixture.fixture.api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "spec": {"taints": [{"key": "gone", "value": "yes", "effect": "NoExecute"}]}}));
    let node_controller = json!({"username": "system:serviceaccount:kube-system:node-controller"});
    no(&guard_fixture.deleted(json!({})).await, 403);
    let marked = |run: &Value| run["metadata"]["labels"]["inplace.dev/delete-guard"] == "finish";
    assert!(!marked(&guard_fixture.runs()[0]));
    no(&guard_fixture.deleted(json!({"userInfo": node_controller, "dryRun": true})).await, 403);
    assert!(!marked(&guard_fixture.runs()[0]));
    no(&guard_fixture.deleted(json!({"userInfo": node_controller})).await, 403);
    assert!(marked(&guard_fixture.runs()[0]));
    guard_fixture.ends(&guard_fixture.runs()[0], "Running");
    guard_fixture.ends(&guard_fixture.runs()[0], "Successful");
    guard_fixture.fixture.api.until("the pod is deleted", |store| store.pod("shop", "web-0").is_none()).await;
    assert_eq!(guard_fixture.fixture.api.count("DELETE pod shop/web-0"), 1);
}

#[tokio::test]
async fn new_pods_get_the_gate_by_a_configuration_of_its_own() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    let webhook =
        json!({"name": "readiness-gate.inplace.dev", "clientConfig": {"service": {"name": SECRET}}});
    // The configuration may be installed after the controller.
    api.put(json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": GATE_CONFIGURATION}, "webhooks": [webhook]}));
    let trusted = |store: &Store| {
        let found = store.get("mutatingwebhookconfigurations", "", GATE_CONFIGURATION).unwrap();
        found["webhooks"][0]["clientConfig"]["caBundle"].is_string()
    };
    api.until("it is trusted", trusted).await;
    let pod = json!({"operation": "CREATE", "object": {"metadata": {"generateName": "web-"}, "spec": {"containers": []}},
        "kind": {"group": "", "version": "v1", "kind": "Pod"}});
    let answer = guard_fixture.asked("mutate-pods", &pod).await;
    assert_eq!((&answer["allowed"], &answer["patchType"]), (&json!(true), &json!("JSONPatch")));
    let patch: ByteString = serde_json::from_value(answer["patch"].clone()).unwrap();
    let patch: Value = serde_json::from_slice(&patch.0).unwrap();
    assert_eq!(patch[0]["value"], json!([{"conditionType": "InPlaceUpdateReady"}]));
}

/// A replica that holds no pod for longer than this.
async fn holds_for(guard_fixture: &GuardFixture, longest: jiff::SignedDuration) -> Replica {
    let guard = GuardArgs { guard_longest_hold: Some(longest), ..GuardArgs::default() };
    let replica = guard_fixture.fixture.replica(&WebhookArgs { guard, ..WebhookArgs::default() }).await;
    guard_fixture.fixture.ready(&replica).await;
    replica
}

fn ago(minutes: i64) -> String {
    (inplace::process::clock::now() - jiff::SignedDuration::from_mins(minutes)).to_string()
}

#[tokio::test]
async fn a_pod_whose_hook_cannot_be_started_is_held_no_longer_than_it_may_be() {
    let mut guard_fixture = GuardFixture::found().await;
    let replica = holds_for(&guard_fixture, jiff::SignedDuration::from_mins(10)).await;
    guard_fixture.replicas = [replica.clone(), replica];
    let api = &guard_fixture.fixture.api;
    api.edit("shop", "web-0", |pod| {
        pod["metadata"]["annotations"]["inplace.dev/pre-delete-hook"] = json!("nobody-made-it");
    });
    let held_since = || {
        let pod = api.pod("shop", "web-0");
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let held = all.into_iter().find(|one| one["type"] == "inplace.dev/DeleteGuardHeld");
        held.map(|held| held["lastTransitionTime"].as_str().unwrap().to_owned())
    };
    let set = |at: &str| {
        api.edit("shop", "web-0", |pod| pod["status"]["conditions"][0]["lastTransitionTime"] = json!(at));
    };
    // A dry run writes nothing.
    no(&guard_fixture.deleted(json!({"dryRun": true})).await, 403);
    assert_eq!(held_since(), None);
    let reported = guard_fixture.deleted(json!({})).await;
    assert!(
        no(&reported, 403).contains("nobody-made-it of its pre-delete hook does not exist"),
        "{reported}"
    );
    assert!(held_since().is_some(), "nothing remembers since when the pod is held");
    // The first refusal counts, not later ones.
    let first = ago(9);
    set(&first);
    no(&guard_fixture.deleted(json!({})).await, 403);
    assert_eq!(held_since(), Some(first));
    // Annotations and labels of a user who may not write a pod's status have no effect.
    api.edit("shop", "web-0", |pod| {
        pod["metadata"]["annotations"]["inplace.dev/DeleteGuardHeld"] = json!(ago(60));
        pod["metadata"]["labels"]["inplace.dev/DeleteGuardHeld"] = json!("True");
    });
    no(&guard_fixture.deleted(json!({})).await, 403);
    set(&ago(11));
    let reported = guard_fixture.deleted(json!({})).await;
    assert_eq!(reported["allowed"], true, "the pod is held for ever: {reported}");
    assert_eq!(guard_fixture.events("DeleteGuardExpired").len(), 1);
    assert_eq!(guard_fixture.runs(), Vec::<Value>::new());

    // A hook that has passed since then ends the earlier hold: this is another deletion.
    api.edit("shop", "web-0", |pod| {
        pod["metadata"]["annotations"]["inplace.dev/pre-delete-hook"] = json!("leave");
    });
    set(&ago(9));
    no(&guard_fixture.deleted(json!({})).await, 403);
    let [run] = guard_fixture.runs().try_into().unwrap();
    guard_fixture.ends(&run, "Successful");
    let name = run["metadata"]["name"].as_str().unwrap();
    api.edit_of("hookruns", "shop", name, |run| {
        run["metadata"]["creationTimestamp"] = json!(ago(30));
        run["status"]["metricResults"][0]["measurements"][0]["finishedAt"] = json!(ago(29));
    });
    set(&ago(40));
    no(&guard_fixture.deleted(json!({})).await, 403);
    assert!(held_since().unwrap() > ago(1), "{:?}", held_since());
}

#[tokio::test]
async fn a_run_of_the_guards_name_that_is_somebody_elses_holds_up_nobody() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    let uid: String = guard_fixture.pod["metadata"]["uid"]
        .as_str()
        .unwrap()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(8)
        .collect();
    let name = |number: u32| format!("pre-delete-hook-web-0-{uid}-leave-{number}");
    let foreign = |number: u32| {
        api.put(json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": {"namespace": "shop", "name": name(number), "creationTimestamp": ago(600)},
            "spec": {"metrics": []}}));
    };
    let ours = || {
        let mut runs = guard_fixture.runs();
        runs.retain(|run| run["metadata"]["annotations"]["inplace.dev/pod-uid"].is_string());
        runs
    };
    foreign(1);
    let reported = guard_fixture.deleted(json!({})).await;
    let [run] = ours().try_into().unwrap_or_else(|_| panic!("nothing is started: {reported}"));
    assert_eq!(run["metadata"]["name"], name(2));
    assert_eq!(run["metadata"]["annotations"]["inplace.dev/task"], "DeleteGuard/leave//2");
    assert!(no(&reported, 403).contains(&name(2)), "{reported}");
    let warned = guard_fixture.events("DeleteGuardNameTaken");
    assert!(warned.len() == 1 && warned[0].contains(&name(1)), "{warned:?}");
    // From now on it is the attempt, and no second one is made.
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("is Pending"));
    guard_fixture.ends(&run, "Successful");
    is_yes(&guard_fixture.deleted(json!({})).await);
    // Any number of names may be taken in advance.
    for run in guard_fixture.runs() {
        api.store(|store| store.remove_of("hookruns", "shop", run["metadata"]["name"].as_str().unwrap()));
    }
    (1..=40).for_each(foreign);
    no(&guard_fixture.deleted(json!({})).await, 403);
    let [run] = ours().try_into().unwrap_or_else(|_| panic!("whoever takes enough names holds the pod"));
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("is Pending"));
    guard_fixture.ends(&run, "Successful");
    is_yes(&guard_fixture.deleted(json!({})).await);
}

/// The HookRuns of one namespace may be many and large, and whoever owns them can delete its pods again and again.
#[tokio::test]
async fn reviews_that_take_long_hold_up_no_pod_without_the_guard() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    let mut plain = guard_fixture.pod.clone();
    plain["metadata"] = json!({"namespace": "shop", "name": "plain"});
    api.put(plain);
    api.on("LIST hookruns").times(1000).fault(Fault::Hang);
    let flood = join_all((0..64).map(|_| guard_fixture.deleted(json!({}))));
    let evicted = async {
        // Of 16 at once a namespace has 12, in each of the two processes.
        eventually_async(WAIT_LIMIT, "the reviews wait", async || {
            let count = api.count("LIST hookruns");
            if count >= 24 { Ok(()) } else { Err(format!("{count} lists")) }
        })
        .await;
        guard_fixture.evicted("plain", json!({})).await
    };
    let (refused, evicted) = tokio::join!(flood, evicted);
    assert_eq!(evicted["allowed"], true, "{evicted}");
    assert!(refused.iter().all(|answer| no(answer, 403).contains("takes too long")));
}

#[tokio::test]
async fn a_creation_that_the_api_server_refuses_for_a_moment_is_tried_again() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    let conflict = Fault::Answer(409, "Operation cannot be fulfilled on resourcequotas");
    api.on("POST hookrun").times(5).fault(conflict);
    assert!(no(&guard_fixture.deleted(json!({})).await, 403).contains("resourcequotas"));
    assert_eq!(guard_fixture.runs(), Vec::<Value>::new());
    api.on("POST hookrun").fault(conflict);
    let reported = guard_fixture.deleted(json!({})).await;
    let [run] = guard_fixture.runs().try_into().unwrap_or_else(|_| panic!("no hook: {reported}"));
    assert!(no(&reported, 403).contains(run["metadata"]["name"].as_str().unwrap()), "{reported}");
}
