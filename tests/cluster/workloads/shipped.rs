//! The controller as users install it: from its image, as the pods of its Deployment, called by the API server
//! through its Service, also while it is replaced. The cluster's own autoscaler scales its workload.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

use super::{Fixture, LONG, is_complete, object, same_but_restarted};
use crate::{
    cluster::Cluster,
    installed::{AGENT, CONTROLLER, NAMESPACE, install, rolled_out, upgrade_by_chart},
    support::wait::{eventually, eventually_within},
    traffic::End,
};

#[test]
fn the_controller_as_shipped_is_asked_through_its_service_and_replaced_unnoticed() {
    let cluster = Cluster::own();
    install(&cluster, "one");
    let fixture = Fixture { cluster: &cluster, kind: "gamedeployment", name: "web" };
    let strategy = json!({"type": "InplaceUpdate", "maxUnavailable": 1});
    let good = object("GameDeployment", "web", &json!({"replicas": 2, "updateStrategy": strategy}));
    let mut bad = good.clone();
    bad["spec"]["selector"]["matchLabels"]["app"] = "another".into();
    eventually_within(LONG, "the API server asks the controller", || judged(&cluster, &good, &bad));

    fixture.apply(&good);
    fixture.until("two pods are Ready", |status| status["readyReplicas"] == 2);
    let before = fixture.pods();
    let (over, wrong, asked) = (AtomicBool::new(false), Mutex::new(Vec::new()), Mutex::new(0));
    thread::scope(|scope| {
        let _end = End(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                wrong.lock().unwrap().extend(judged(&cluster, &good, &bad).err());
                *asked.lock().unwrap() += 1;
            }
        });
        upgrade_by_chart(&cluster, "two");
        rolled_out(&cluster, CONTROLLER);
        rolled_out(&cluster, AGENT);
        fixture.image("lab/app:v2");
        let first = leader(&cluster);
        cluster.kubectl(&["delete", "pod", &first, "-n", NAMESPACE, "--wait=false"]);
        eventually_within(LONG, "another one leads", || {
            Some(leader(&cluster)).filter(|now| *now != first).ok_or(first.as_str())
        });
        fixture.until("both are updated", |status| is_complete(status, 2));
        rolled_out(&cluster, CONTROLLER);
    });
    let (wrong, asked) = (wrong.into_inner().unwrap(), asked.into_inner().unwrap());
    assert!(wrong.is_empty(), "of {asked}: {wrong:#?}");
    assert!(asked > 5, "{asked} are no proof");
    for (name, pod) in &fixture.pods() {
        same_but_restarted(&before[name], pod);
    }
    an_autoscaler_scales_it(&cluster);
}

/// Returns an error with the output unless a valid object is accepted and an invalid one is refused as expected.
fn judged(cluster: &Cluster, good: &Value, bad: &Value) -> Result<(), String> {
    let asked = |object: &Value| cluster.try_apply(&["--dry-run=server"], &object.to_string());
    asked(good)?;
    match asked(bad) {
        Err(reported) if reported.contains("spec.selector") => Ok(()),
        Ok(reported) | Err(reported) => Err(reported),
    }
}

/// The pod of the leader; waits while there is none.
fn leader(cluster: &Cluster) -> String {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/inplace-controller");
    eventually("a leader", || {
        let lease = cluster.read(&path);
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        holder.split('_').next().filter(|pod| !pod.is_empty()).map(str::to_owned)
    })
}

/// One pod uses four times its CPU request, so the autoscaler must scale to the maximum. The measurements are
/// objects that the test writes; to the autoscaler they look like those of a metrics server.
fn an_autoscaler_scales_it(cluster: &Cluster) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "scaled" };
    let container = json!({"name": "app", "image": "lab/app:v1", "resources": {"requests": {"cpu": "10m"}}});
    let template = json!({"metadata": {"labels": {"app": "scaled"}},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [container]}});
    fixture.apply(&object("GameDeployment", "scaled", &json!({"replicas": 1, "template": template})));
    fixture.until("a pod is Ready", |status| status["readyReplicas"] == 1);
    let pod = fixture.pods().into_keys().next().unwrap();

    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    fixture.apply(&json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pods.metrics.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in"}},
        "spec": {"group": "metrics.k8s.io", "scope": "Namespaced", "names": {"plural": "pods", "kind": "PodMetrics"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}}));
    let measured = json!({"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics",
        "metadata": {"name": pod, "namespace": "default", "labels": {"app": "scaled"}},
        "timestamp": "2999-01-01T00:00:00Z", "window": "30s",
        "containers": [{"name": "app", "usage": {"cpu": "40m", "memory": "1Mi"}}]});
    fixture.wait("measurements can be written", || cluster.try_apply(&[], &measured.to_string()).ok());
    fixture.apply(&json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "scaled", "namespace": "default"},
        "spec": {"scaleTargetRef": {"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "scaled"},
            "minReplicas": 1, "maxReplicas": 3, "targetCPUUtilizationPercentage": 50}}));
    fixture.until("three pods are Ready", |status| status["readyReplicas"] == 3);
    assert_eq!(fixture.get()["spec"]["replicas"], 3);
    assert!(fixture.pods().contains_key(&pod));
}
