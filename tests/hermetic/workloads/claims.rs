//! Volume claims of a `GameStatefulSet`: no pod is created without them.

use super::super::api_server::Fault;
use super::*;

impl Fixture {
    /// `shop/db`, each pod with a claim.
    fn set(&self, replicas: u32) {
        let mut template = template("app:1");
        template["metadata"]["labels"]["app"] = json!("db");
        self.api.put(json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameStatefulSet",
            "metadata": {"namespace": "shop", "name": "db", "generation": 1},
            "spec": {"replicas": replicas, "serviceName": "db", "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": "db"}}, "template": template,
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]},
        }));
    }

    fn claim(&self, name: &str) -> Option<Value> {
        self.api.get("persistentvolumeclaims", "shop", name)
    }
}

/// A bound claim of `shop/db`, as the API server and its controllers leave it.
fn bind(claim: &mut Value) {
    claim["spec"]["storageClassName"] = json!("fast");
    claim["status"] = json!({"phase": "Bound"});
}

fn scale_failed(store: &Store) -> Option<String> {
    let set = store.get("gamestatefulsets", "shop", "db").unwrap();
    let conditions = set["status"]["conditions"].as_array()?.clone();
    let failed = conditions.iter().find(|one| one["type"] == "ScaleFailed" && one["status"] == "True")?;
    failed["message"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_pod_waits_until_its_claim_can_be_made() {
    let fixture = Fixture::start().await;
    fixture.api.on("POST persistentvolumeclaim").times(2).fault(Fault::Answer(403, "exceeded quota: claims"));
    let _controller = fixture.controller();
    fixture.set(1);
    fixture
        .api
        .until("the refusal is reported", |store| {
            scale_failed(store).is_some_and(|message| message.contains("exceeded quota"))
        })
        .await;
    assert_eq!(fixture.api.count("POST pod"), 0, "{:#?}", fixture.api.calls());
    fixture.api.until("the pod is made", |store| store.pods().count() == 1).await;
    assert!(fixture.claim("data-db-0").is_some());
}

#[tokio::test]
async fn a_pod_waits_while_its_claim_is_being_deleted_and_gets_a_new_one() {
    let fixture = Fixture::start().await;
    fixture.api.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {},
        "metadata": {"namespace": "shop", "name": "data-db-0", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["kubernetes.io/pvc-protection"]}}));
    let old = fixture.claim("data-db-0").unwrap()["metadata"]["uid"].clone();
    let _controller = fixture.controller();
    fixture.set(2);
    fixture
        .api
        .until("the other pod is made, and it is reported what the first one waits for", |store| {
            scale_failed(store).is_some_and(|message| message.contains("waits for its claim data-db-0"))
                && store.pods().map(name).eq(["db-1".to_owned()])
        })
        .await;
    fixture.api.store(|store| store.remove_of("persistentvolumeclaims", "shop", "data-db-0"));
    fixture.api.until("the first pod is made", |store| store.pods().count() == 2).await;
    assert_ne!(fixture.claim("data-db-0").unwrap()["metadata"]["uid"], old);
    fixture.api.until("nothing is wrong any more", |store| scale_failed(store).is_none()).await;
}

#[tokio::test]
async fn a_pod_that_lost_its_claim_gets_another_one() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.set(1);
    fixture.api.until("the pod is made", |store| store.pods().count() == 1).await;
    let old = fixture.claim("data-db-0").unwrap()["metadata"]["uid"].clone();
    // The pod is Pending when its claim is deleted by another client.
    fixture.api.store(|store| store.remove_of("persistentvolumeclaims", "shop", "data-db-0"));
    let there = |store: &Store| store.get("persistentvolumeclaims", "shop", "data-db-0").is_some();
    fixture.api.until("it has another one", there).await;
    assert_ne!(fixture.claim("data-db-0").unwrap()["metadata"]["uid"], old);
    assert_eq!(fixture.api.count("DELETE pod"), 0);
}

#[tokio::test]
async fn a_claim_grows_when_its_class_allows_it_and_goes_with_a_pod_that_is_scaled_in() {
    let fixture = Fixture::start().await;
    // The plural is the kind and an `s`.
    let class = |expands: bool| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClasse", "metadata": {"name": "fast"},
        "provisioner": "x", "allowVolumeExpansion": expands})
    };
    fixture.api.put(class(false));
    let _controller = fixture.controller();
    fixture.set(2);
    let change = |change: &dyn Fn(&mut Value)| {
        fixture.api.edit_of("gamestatefulsets", "shop", "db", |set| {
            change(&mut set["spec"]);
            set["metadata"]["generation"] = json!(set["metadata"]["generation"].as_i64().unwrap() + 1);
        });
    };
    let storage = |set: &mut Value, storage: &str| {
        set["volumeClaimTemplates"][0]["spec"]["resources"] = json!({"requests": {"storage": storage}});
    };
    change(&|set| storage(set, "1Gi"));
    fixture.api.until("two pods are made", |store| store.pods().count() == 2).await;
    for name in ["data-db-0", "data-db-1"] {
        fixture.api.edit_of("persistentvolumeclaims", "shop", name, |claim| {
            bind(claim);
            claim["spec"]["resources"] = json!({"requests": {"storage": "1Gi"}});
        });
    }
    change(&|set| storage(set, "2Gi"));
    let condition = |store: &Store| -> Option<String> {
        let set = store.get("gamestatefulsets", "shop", "db").unwrap();
        let conditions = set["status"]["conditions"].as_array()?.clone();
        let failed = conditions.into_iter().find(|one| one["reason"] == "ClaimNotExpanded")?;
        failed["message"].as_str().map(str::to_owned)
    };
    let says =
        |store: &Store| condition(store).is_some_and(|text| text.contains("fast does not allow expansion"));
    fixture.api.until("the condition says why not", says).await;
    assert_eq!(fixture.api.count("PATCH persistentvolumeclaim"), 0, "{:#?}", fixture.api.calls());
    fixture.api.edit_of("storageclasses", "", "fast", |class| class["allowVolumeExpansion"] = json!(true));
    change(&|set| set["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Delete"}));
    let request = |store: &Store, name: &str| {
        store.get("persistentvolumeclaims", "shop", name).unwrap()["spec"]["resources"]["requests"]["storage"]
            .clone()
    };
    let grown = |store: &Store| ["data-db-0", "data-db-1"].iter().all(|name| request(store, name) == "2Gi");
    fixture.api.until("both claims have grown", grown).await;
    fixture.api.forget();
    change(&|set| set["replicas"] = json!(1));
    fixture.api.until("the pod is deleted", |store| store.pods().map(name).eq(["db-0".to_owned()])).await;
    let owners = |name: &str| fixture.claim(name).unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!((owners("data-db-1")[0]["kind"].clone(), owners("data-db-0")), (json!("Pod"), Value::Null));
    let calls = fixture.api.writes();
    let at = |what: &str| calls.iter().position(|call| call.starts_with(what)).unwrap();
    assert!(at("PATCH persistentvolumeclaim") < at("DELETE pod"), "{calls:#?}");
}
