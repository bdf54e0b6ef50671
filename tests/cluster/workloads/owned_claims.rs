//! Claims of a `GameStatefulSet` with a retention policy and a larger storage request: the API server accepts the
//! writes with the shipped rights, and the garbage collector deletes what a pod or the set owns.

use serde_json::{Value, json};

use super::{Fixture, object};
use crate::cluster::Cluster;

pub(super) fn claims_grow_and_go_as_the_policy_says(cluster: &Cluster) {
    cluster.apply(
        &json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "growing"},
            "provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": true})
        .to_string(),
    );
    for ordinal in 0..2 {
        let path = cluster.node().dir.join(format!("owned-{ordinal}"));
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("owned-{ordinal}")},
            "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "growing",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}});
        cluster.apply(&volume.to_string());
    }
    let templates = |storage: &str| {
        json!([{"metadata": {"name": "data"}, "spec": {"storageClassName": "growing",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}}])
    };
    let fixture = Fixture { cluster, kind: "gamestatefulset", name: "owned" };
    fixture.apply(&object(
        "GameStatefulSet",
        "owned",
        &json!({"replicas": 2, "serviceName": "owned", "podManagementPolicy": "Parallel",
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
            "volumeClaimTemplates": templates("1Mi")}),
    ));
    fixture.until("two pods are Ready", |status| status["readyReplicas"] == 2);
    let claim = |ordinal: u32| -> Value {
        let name = format!("data-owned-{ordinal}");
        cluster.find("/api/v1/namespaces/default/persistentvolumeclaims", &name).unwrap_or_default()
    };
    fixture.wait("the set owns both claims", || {
        let of_set = |ordinal| claim(ordinal)["metadata"]["ownerReferences"][0]["kind"] == "GameStatefulSet";
        (of_set(0) && of_set(1)).then_some(())
    });

    fixture.patch(&json!({"spec": {"volumeClaimTemplates": templates("2Mi")}}));
    fixture.wait("both claims request more", || {
        let requests = |ordinal| claim(ordinal)["spec"]["resources"]["requests"]["storage"] == "2Mi";
        (requests(0) && requests(1)).then_some(())
    });

    let first = claim(0)["metadata"]["uid"].clone();
    cluster.kubectl(&["scale", "gamestatefulset/owned", "--replicas=1"]);
    fixture.wait("the claim of the removed pod is deleted", || claim(1).is_null().then_some(()));
    assert_eq!(claim(0)["metadata"]["uid"], first);
    cluster.kubectl(&["delete", "pod", "owned-0"]);
    fixture.until("the pod is there again", |status| status["readyReplicas"] == 1);
    assert_eq!(claim(0)["metadata"]["uid"], first, "a pod that stays keeps its claim");
    fixture.delete();
    fixture.wait("the other claim is deleted with the set", || claim(0).is_null().then_some(()));
}
