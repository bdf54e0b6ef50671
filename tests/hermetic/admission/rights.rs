//! Who may write hooks, HookRuns and rollouts, and whom the guard does not hold: users with the rights that the object
//! amounts to, and the program's own accounts.

use super::guard::{GuardFixture, is_yes, no};
use super::*;

/// The review of a change of one of this project's kinds by `user`.
async fn written(guard_fixture: &GuardFixture, user: &str, kind: &str, old: Value, new: Value) -> Value {
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    let group = match kind {
        "InPlaceRollout" => "inplace.dev",
        "ContainerRecreateRequest" => "apps.kruise.io",
        _ => "tkex.tencent.com",
    };
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

/// A `ContainerRecreateRequest` restarts containers of a pod: its writer needs the right to patch pods of that namespace. How
/// long the object stays after its end is no matter of the pod.
#[tokio::test]
async fn a_recreate_request_is_written_by_those_who_may_patch_pods() {
    let guard_fixture = GuardFixture::found().await;
    let api = &guard_fixture.fixture.api;
    let object = |more: Value| {
        let mut spec = json!({"podName": "web", "containers": [{"name": "app"}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"metadata": {"namespace": "shop", "name": "it"}, "spec": spec})
    };
    let judged = async |user: &str, old: Value, new: Value| {
        written(&guard_fixture, user, "ContainerRecreateRequest", old, new).await
    };
    let plain = || object(json!({}));
    for other in
        ["ann patch pods other", "ann get pods shop", "ann create pods/exec shop", "bob patch pods shop"]
    {
        api.store(|store| store.rights.insert(other.to_owned()));
    }
    let reported = judged("ann", Value::Null, plain()).await;
    assert!(no(&reported, 403).contains("patch pods"), "{reported}");
    // A user who may write the object and not patch pods may change what is not about the pod.
    is_yes(&judged("ann", plain(), object(json!({"ttlSecondsAfterFinished": 5}))).await);
    for change in [
        json!({"podName": "db"}),
        json!({"containers": [{"name": "app"}, {"name": "side"}]}),
        json!({"strategy": {"terminationGracePeriodSeconds": 0}}),
        json!({"activeDeadlineSeconds": 5}),
        json!({"newField": true}),
    ] {
        no(&judged("ann", plain(), object(change)).await, 403);
    }
    // The controller writes none: it has no exception.
    no(&judged("system:serviceaccount:inplace-system:inplace-controller", Value::Null, plain()).await, 403);
    is_yes(&judged("bob", Value::Null, plain()).await);
    api.store(|store| store.rights.insert("ann patch pods shop".to_owned()));
    is_yes(&judged("ann", Value::Null, plain()).await);
    is_yes(&judged("ann", plain(), object(json!({"podName": "db"}))).await);
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
