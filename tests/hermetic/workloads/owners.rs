//! Ownership of pods and revisions.

use super::super::api_server::Fault;
use super::*;

fn controller_of(pod: &Value) -> Option<&str> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)?["uid"].as_str()
}

fn orphan(name: &str) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": name},
        "spec": template("app:1")["spec"]});
    pod["metadata"]["labels"] = json!({"app": "web"});
    bring_up(&mut pod);
    pod
}

#[tokio::test]
async fn a_pod_that_nobody_controls_is_adopted_and_one_that_is_not_meant_any_more_is_released() {
    let fixture = Fixture::start().await;
    fixture.deployment(2);
    fixture.api.put(orphan("web-alone"));
    let _controller = fixture.controller();
    let uid = fixture.web()["metadata"]["uid"].as_str().unwrap().to_owned();
    fixture
        .api
        .until("it is adopted, and one is made", |store| {
            store.pods().count() == 2 && store.pods().all(|pod| controller_of(pod) == Some(&uid))
        })
        .await;
    fixture.kubelet();
    fixture.reported("readyReplicas", 2).await;
    fixture.api.edit("shop", "web-alone", |pod| pod["metadata"]["labels"]["app"] = json!("debug"));
    fixture
        .api
        .until("it is released, and another one is made", |store| {
            let released = store.pod("shop", "web-alone").unwrap();
            controller_of(&released).is_none() && store.pods().count() == 3
        })
        .await;
    // A pod that appears later is adopted, too; then there is a surplus of one.
    fixture.kubelet();
    fixture.reported("readyReplicas", 2).await;
    fixture.api.put(orphan("web-late"));
    fixture.reported("replicas", 2).await;
    let own = |store: &Store| store.pods().filter(|pod| controller_of(pod) == Some(&uid)).count();
    fixture.api.until("one of them has left", |store| own(store) == 2 && store.pods().count() == 3).await;
}

#[tokio::test]
async fn nothing_is_adopted_for_a_workload_that_was_deleted_meanwhile() {
    let fixture = Fixture::start().await;
    fixture.deployment(0);
    let _controller = fixture.controller();
    fixture.reported("replicas", 0).await;
    // The workload is deleted with the objects it owns and created again under its name; the watch has not reported
    // it yet.
    fixture.api.on("GET gamedeployment").first(|store| {
        store.remove_of("gamedeployments", "shop", "web");
        let owned: Vec<_> = store.all("controllerrevisions").map(name).collect();
        for revision in owned {
            store.remove_of("controllerrevisions", "shop", &revision);
        }
    });
    fixture.api.put(orphan("web-alone"));
    fixture.api.arrived("GET gamedeployment", 1).await;
    fixture.deployment(0);
    let uid = fixture.web()["metadata"]["uid"].as_str().unwrap().to_owned();
    // The new workload adopts the pod and then has a surplus of one.
    fixture.api.until("it is gone", |store| store.pods().count() == 0).await;
    let adopted: Vec<_> =
        fixture.api.calls().into_iter().filter(|call| call.starts_with("PATCH pod")).collect();
    assert_eq!(adopted, ["PATCH pod shop/web-alone"], "once, for {uid}");
}

#[tokio::test]
async fn a_revision_of_somebody_else_is_never_used() {
    let fixture = Fixture::start().await;
    let first = fixture.controller();
    fixture.deployment(1);
    fixture.ready(1).await;
    let revision = fixture.api.store(|store| store.all("controllerrevisions").next().unwrap().clone());
    drop(first);
    // Another cluster, where that name is taken.
    let other = Fixture::start().await;
    let taken = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {"other": true},
        "metadata": {"namespace": "shop", "name": name(&revision)}});
    other.api.put(taken);
    let _controller = other.controller();
    other.deployment(1);
    other.ready(1).await;
    let web = other.web();
    assert_eq!(web["status"]["collisionCount"], 1, "{web:#}");
    assert_ne!(web["status"]["updateRevision"], revision["metadata"]["name"]);
    let pod = other.api.store(|store| store.pods().next().unwrap().clone());
    assert_eq!(pod["metadata"]["labels"]["controller-revision-hash"], web["status"]["updateRevision"]);
}

#[tokio::test]
async fn a_name_that_is_not_to_be_had_is_left_out() {
    let fixture = Fixture::start().await;
    let first = fixture.controller();
    fixture.deployment(2);
    fixture.ready(2).await;
    let names = fixture.names();
    drop(first);
    let other = Fixture::start().await;
    let mut foreign = orphan(names.first().unwrap());
    foreign["metadata"]["labels"] = json!({"app": "other"});
    other.api.put(foreign);
    // The same uid gives the same names.
    let uid = fixture.web()["metadata"]["uid"].clone();
    let mut web = fixture.web();
    web["metadata"] = json!({"namespace": "shop", "name": "web", "generation": 1, "uid": uid});
    web.as_object_mut().unwrap().remove("status");
    other.api.put(web);
    let _controller = other.controller();
    other.api.until("two are made beside it", |store| store.pods().count() == 3).await;
    other.kubelet();
    other.reported("readyReplicas", 2).await;
}

/// The object as `kubectl delete --cascade=orphan` leaves it.
fn orphaned(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["ownerReferences", "uid", "resourceVersion"] {
        metadata.remove(field);
    }
    object
}

#[tokio::test]
async fn an_orphaned_revision_whose_content_does_not_fit_its_name_is_left_alone() {
    let first = Fixture::start().await;
    let controller = first.controller();
    first.deployment(1);
    first.ready(1).await;
    drop(controller);
    let mut forged =
        orphaned(first.api.store(|store| store.all("controllerrevisions").next().unwrap().clone()));
    forged["data"]["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:forged");
    let fixture = Fixture::start().await;
    fixture.api.put(forged.clone());
    let _controller = fixture.controller();
    fixture.deployment(1);
    fixture.ready(1).await;
    let revision = fixture.api.get("controllerrevisions", "shop", &name(&forged)).unwrap();
    assert_eq!(controller_of(&revision), None, "it is not adopted");
    let pods = fixture.api.store(|store| store.pods().cloned().collect::<Vec<_>>());
    assert!(!json!(pods).to_string().contains("app:forged"), "{pods:#?}");
    // It is reconciled several times and reported once.
    fixture.spec(|spec| spec["replicas"] = json!(2));
    fixture.ready(2).await;
    let reported = |store: &Store| {
        let about = |event: &&Value| event["reason"] == "RevisionNotAdopted";
        store.events.iter().filter(about).cloned().collect::<Vec<_>>()
    };
    let events = fixture.api.store(|store| reported(store));
    assert_eq!(events.len(), 1, "{events:#?}");
    assert!(events[0]["message"].as_str().unwrap().contains(&name(&forged)), "{events:#?}");
    assert_eq!(events[0]["count"], 1, "{events:#?}");
}

#[tokio::test]
async fn a_revision_that_somebody_put_into_the_history_stops_nothing_and_makes_no_pod() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.deployment(2);
    fixture.ready(2).await;
    let owner = fixture.web()["metadata"]["uid"].clone();
    for (name, number) in [("web-forged", i64::MAX), ("web-first", 0)] {
        let forged = json!({"spec": {"template": template("app:forged")}});
        fixture.api.put(json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": number, "data": forged,
            "metadata": {"namespace": "shop", "name": name, "labels": {"app": "web"}, "ownerReferences": [
                {"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "web", "uid": owner,
                    "controller": true}]}}));
    }
    fixture.spec(|spec| {
        spec["template"] = template("app:2");
        spec["updateStrategy"]["partition"] = json!(1);
    });
    fixture.agents_bring("app:2", 1).await;
    fixture.spec(|spec| spec["replicas"] = json!(4));
    fixture.ready(4).await;
    let pods = fixture.api.store(|store| store.pods().cloned().collect::<Vec<_>>());
    assert!(!json!(pods).to_string().contains("app:forged"), "{pods:#?}");
}

#[tokio::test]
async fn the_template_of_an_old_revision_is_read_when_a_pod_is_at_it() {
    let fixture = Fixture::start().await;
    let controller = fixture.controller();
    fixture.deployment(3);
    fixture.ready(3).await;
    assert_eq!(fixture.api.count("GET controllerrevision"), 0, "it is that of the workload");
    fixture.spec(|spec| {
        spec["template"] = template("app:2");
        spec["updateStrategy"]["partition"] = json!(2);
    });
    fixture.agents_bring("app:2", 1).await;
    assert_eq!(fixture.api.count("GET controllerrevision"), 1, "once, however often it is looked at");
    drop(controller);
    // A revision that cannot be read now is not replaced by another one.
    fixture.api.on("GET controllerrevision").times(2).fault(Fault::Answer(500, "not now"));
    let old = fixture.api.store(|store| store.pods().find(|pod| runs(pod) == "app:1").map(name).unwrap());
    fixture.api.store(|store| store.remove("shop", &old));
    let _controller = fixture.controller();
    fixture.ready(3).await;
    let held = fixture.api.store(|store| store.pods().filter(|pod| runs(pod) == "app:1").count());
    assert_eq!(held, 2, "the one that is held back is made again as it was");
    assert_eq!(fixture.api.count("GET controllerrevision"), 4, "two that failed, and one");
}

#[tokio::test]
async fn what_was_orphaned_is_taken_over_as_it_is() {
    for way in ["RollingUpdate", "InplaceUpdate"] {
        let first = Fixture::start().await;
        let controller = first.controller();
        first.deployment(2);
        first.ready(2).await;
        first.spec(|spec| spec["template"] = template("app:2"));
        first.agents_bring("app:2", 2).await;
        drop(controller);
        let left: Vec<_> = first.api.store(|store| {
            store.all("controllerrevisions").chain(store.pods()).cloned().map(orphaned).collect()
        });
        let fixture = Fixture::start().await;
        for object in left {
            fixture.api.put(object);
        }
        let before = fixture.api.store(|store| store.all("controllerrevisions").cloned().collect::<Vec<_>>());
        assert_eq!(before.len(), 2);
        // The workload is applied again unchanged.
        let _controller = fixture.controller();
        fixture.deployment(2);
        fixture.spec(|spec| {
            spec["template"] = template("app:2");
            spec["updateStrategy"]["type"] = json!(way);
        });
        fixture.reported("updatedReadyReplicas", 2).await;
        let uid = fixture.web()["metadata"]["uid"].as_str().unwrap().to_owned();
        fixture
            .api
            .until("the history is its own", |store| {
                store.all("controllerrevisions").all(|revision| controller_of(revision) == Some(&uid))
            })
            .await;
        let after = fixture.api.store(|store| store.all("controllerrevisions").cloned().collect::<Vec<_>>());
        let content = |revisions: &[Value]| -> Vec<_> {
            revisions.iter().map(|one| (name(one), one["data"].clone(), one["revision"].clone())).collect()
        };
        assert_eq!(content(&after), content(&before), "{way}: no new revision, and none is lost");
        assert_eq!(fixture.api.count("DELETE pod") + fixture.api.count("POST pod"), 0, "{way}");
        assert!(
            fixture.api.store(|store| store.pods().all(|pod| open(pod).is_none())),
            "{way}: nothing is asked for"
        );
    }
}
