//! Tests of both workload kinds: manifests of users are parsed, and Kubernetes 1.20 accepts the definitions.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::*;
use crate::api::game_stateful_set::{GameStatefulSet, PodManagementPolicy};
use crate::api::workload::ContainerOrder;

fn read<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_saphyr::from_str(text).unwrap()
}

fn schema(crd: &impl serde::Serialize) -> Value {
    serde_json::to_value(crd).unwrap()["spec"]["versions"][0].clone()
}

/// All schemas inside `schema`, by path.
fn walk(path: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), inner, visit);
    }
    if schema["items"].is_object() {
        walk(&format!("{path}[]"), &schema["items"], visit);
    }
    if schema["additionalProperties"].is_object() {
        walk(&format!("{path}.*"), &schema["additionalProperties"], visit);
    }
}

#[test]
fn a_manifest_with_little_in_it_gets_the_documented_defaults() {
    let object: GameDeployment = read(
        "
apiVersion: tkex.tencent.com/v1alpha1
kind: GameDeployment
metadata: {name: web}
spec:
  serviceName: not-used
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: 'app:1', someFieldOfTomorrow: {a: 1}}]}
  preDeleteUpdateStrategy: {hook: {templateName: test}}
",
    );
    let spec = &object.spec;
    assert_eq!((spec.replicas, spec.revision_history_limit, spec.min_ready_seconds), (1, 10, 0));
    let update = &spec.update_strategy;
    assert_eq!(update.kind, UpdateType::RollingUpdate);
    assert_eq!((&update.max_unavailable, &update.max_surge), (&quarter(), &nothing()));
    assert!(!update.paused && !spec.pre_delete_update_strategy.as_ref().unwrap().retry);
    assert_eq!(update.in_place_update_strategy.policy, ContainerOrder::DisOrdered);
    assert_eq!(spec.scale_strategy.create_batch, everything());
    let back = serde_json::to_value(&object).unwrap();
    assert_eq!(back["spec"]["template"]["spec"]["containers"][0]["someFieldOfTomorrow"], json!({"a": 1}));
    assert_eq!(
        back["spec"]["preDeleteUpdateStrategy"]["retry"], false,
        "kubectl can replace it by a JSON patch"
    );
}

#[test]
fn every_field_is_read_from_where_users_write_it() {
    let object: GameDeployment = read(
        "
apiVersion: tkex.tencent.com/v1alpha1
kind: GameDeployment
metadata: {name: web}
spec:
  replicas: 6
  minReadySeconds: 30
  revisionHistoryLimit: 3
  disableReadinessGate: true
  selector: {matchLabels: {app: web}}
  scaleStrategy: {podsToDelete: [web-a], createBatch: 10%}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: 'app:1'}]}
  preDeleteUpdateStrategy: {retry: true, hook: {templateName: a, args: [{name: k, value: v}]}}
  preInplaceUpdateStrategy: {hook: {templateName: b}}
  postInplaceUpdateStrategy: {hook: {templateName: c}}
  updateStrategy:
    type: InplaceUpdate
    partition: 20%
    maxUnavailable: 2
    maxSurge: 1
    paused: true
    inPlaceUpdateStrategy: {gracePeriodSeconds: 30, policy: OrderedReady}
    canary: {steps: [{partition: 3}, {pause: {duration: 60}}, {pause: {}}, {hook: {templateName: d}}]}
",
    );
    let spec = &object.spec;
    let update = &spec.update_strategy;
    assert_eq!(update.partition, IntOrString::String("20%".into()));
    assert_eq!((update.in_place_update_strategy.grace_period_seconds, update.paused), (30, true));
    assert_eq!(update.in_place_update_strategy.policy, ContainerOrder::OrderedReady);
    let steps = &update.canary.as_ref().unwrap().steps;
    assert_eq!(steps[0].partition, Some(IntOrString::Int(3)));
    assert_eq!(steps[1].pause.as_ref().unwrap().duration, Some(60));
    assert_eq!(steps[2].pause.as_ref().unwrap().duration, None);
    assert_eq!(steps[3].hook.as_ref().unwrap().template_name, "d");
    let hook = spec.pre_delete_update_strategy.as_ref().unwrap();
    assert_eq!((hook.retry, hook.hook.as_ref().unwrap().args[0].name.as_str()), (true, "k"));
    assert_eq!(spec.scale_strategy.pods_to_delete, ["web-a"]);

    let set: GameStatefulSet = read(
        "
apiVersion: tkex.tencent.com/v1alpha1
kind: GameStatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 5
  podManagementPolicy: Parallel
  reserveOrders: [1]
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: 'app:1'}]}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce]}}]
  updateStrategy: {type: HotPatchUpdate, rollingUpdate: {partition: 3}, inPlaceUpdateStrategy: {gracePeriodSeconds: 30}}
",
    );
    let spec = &set.spec;
    assert_eq!(spec.pod_management_policy, PodManagementPolicy::Parallel);
    assert_eq!(spec.volume_claim_templates[0].name(), "data");
    let rolling = spec.update_strategy.rolling_update.as_ref().unwrap();
    assert_eq!((&rolling.partition, &rolling.max_unavailable), (&IntOrString::Int(3), &quarter()));
    assert_eq!((spec.update_strategy.kind, &spec.reserve_orders[..]), (UpdateType::HotPatchUpdate, &[1][..]));
}

#[test]
fn the_printer_columns_are_those_of_the_seeds() {
    let columns = |version: Value| -> Vec<(String, String, String)> {
        let columns = version["additionalPrinterColumns"].as_array().unwrap().clone();
        let text = |column: &Value, field: &str| column[field].as_str().unwrap().to_owned();
        columns
            .iter()
            .map(|one| (text(one, "name").to_uppercase(), text(one, "jsonPath"), text(one, "type")))
            .collect()
    };
    let row = |name: &str, path: &str| (name.to_owned(), path.to_owned(), "integer".to_owned());
    let age = ("AGE".to_owned(), ".metadata.creationTimestamp".to_owned(), "date".to_owned());
    assert_eq!(
        columns(schema(&GameDeployment::crd())),
        [
            row("DESIRED", ".spec.replicas"),
            row("UPDATED", ".status.updatedReplicas"),
            row("UPDATED_READY", ".status.updatedReadyReplicas"),
            row("READY", ".status.readyReplicas"),
            row("TOTAL", ".status.replicas"),
            age.clone(),
        ]
    );
    assert_eq!(
        columns(schema(&GameStatefulSet::crd())),
        [
            row("REPLICAS", ".spec.replicas"),
            row("READYREPLICAS", ".status.readyReplicas"),
            row("CURRENTREPLICAS", ".status.currentReplicas"),
            row("UPDATEDREPLICAS", ".status.updatedReplicas"),
            row("UPDATEDREADY_REPLICAS", ".status.updatedReadyReplicas"),
            age,
        ]
    );
}

#[test]
fn status_and_scale_are_subresources_that_an_autoscaler_can_use() {
    for version in [schema(&GameDeployment::crd()), schema(&GameStatefulSet::crd())] {
        let expected = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.labelSelector"}});
        assert_eq!(version["subresources"], expected);
    }
    // No short names, as the reference has none.
    assert_eq!(GameDeployment::crd().spec.names.plural, "gamedeployments");
    assert_eq!(GameStatefulSet::crd().spec.names.plural, "gamestatefulsets");
    assert_eq!(GameStatefulSet::crd().spec.names.short_names.unwrap_or_default(), Vec::<String>::new());
}

#[test]
fn the_schemas_are_structural_small_and_keep_what_a_pod_may_hold() {
    for version in [schema(&GameDeployment::crd()), schema(&GameStatefulSet::crd())] {
        let whole = &version["schema"]["openAPIV3Schema"];
        assert!(whole.to_string().len() < 64 * 1024, "{} bytes", whole.to_string().len());
        let mut preserved = Vec::new();
        walk("", whole, &mut |path, schema| {
            let fields = schema.as_object().unwrap();
            for word in ["$ref", "oneOf", "anyOf", "allOf", "definitions", "$defs", "patternProperties"] {
                assert!(!fields.contains_key(word), "{path} has {word}");
            }
            let loose = schema["x-kubernetes-int-or-string"] == true;
            assert!(schema["type"].is_string() || loose || path.is_empty(), "{path} has no type: {schema}");
            assert!(
                fields.get("additionalProperties") != Some(&json!(false)),
                "{path}: not allowed beside properties"
            );
            assert!(
                schema.get("default").is_none_or(|default| !default.is_null()),
                "{path} defaults to null"
            );
            // The type of a field with a default cannot parse a null, so the field must not be nullable.
            assert!(!(fields.contains_key("default") && schema["nullable"] == true), "{path} may be null");
            if schema["x-kubernetes-preserve-unknown-fields"] == true {
                preserved.push(path.to_owned());
            }
        });
        assert!(preserved.contains(&".spec.template.spec".to_owned()), "{preserved:?}");
        assert!(preserved.contains(&".spec.template.spec.containers[]".to_owned()));
        assert!(
            preserved.iter().all(|path| path.contains("template") || path.contains("volumeClaimTemplates"))
        );
        let strategy = &whole["properties"]["spec"]["properties"]["updateStrategy"];
        assert_eq!(strategy["properties"]["paused"]["default"], false);
        assert_eq!(strategy["properties"]["type"]["default"], "RollingUpdate");
        let hook = &whole["properties"]["spec"]["properties"]["preDeleteUpdateStrategy"]["properties"];
        assert_eq!(hook["retry"]["default"], false);
    }
}

#[test]
fn hook_conditions_are_lists_with_a_singular_name() {
    let status = GameDeploymentStatus {
        pre_delete_hook_condition: vec![HookCondition {
            pod_name: "web-f9tkt".into(),
            start_time: Some("2020-11-19T10:25:17Z".parse().unwrap()),
            phase: "Failed".into(),
        }],
        ..GameDeploymentStatus::default()
    };
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(
        json["preDeleteHookCondition"],
        json!([{"podName": "web-f9tkt", "startTime": "2020-11-19T10:25:17Z", "phase": "Failed"}])
    );
    assert_eq!(json["updatedReplicas"], 0, "a column that says 0 and is not blank");
    assert!(json.get("preInplaceHookCondition").is_none() && json.get("canary").is_none());
}
