//! Compares a `CustomResourceDefinition` as an API server has it with that of this release: which fields the API server
//! removes from objects without an error, because its schema does not have them. Pure.

use serde_json::{Map, Value};

/// The fields of `own` that an API server with the definition `served` removes, by their paths, and what else of
/// `own` it does not have. Fields that only `served` has are not named.
pub fn missing(own: &Value, served: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    if served.pointer("/spec/preserveUnknownFields") == Some(&Value::Bool(true)) {
        return missing;
    }
    for version in own.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten() {
        let Some(name) = version.get("name").and_then(Value::as_str) else { continue };
        let versions = served.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
        let is_served = |other: &&Value| {
            other.get("name").and_then(Value::as_str) == Some(name)
                && other.get("served") == Some(&Value::Bool(true))
        };
        let Some(other) = versions.into_iter().find(is_served) else {
            missing.push(format!("the version {name}"));
            continue;
        };
        for subresource in ["status", "scale"] {
            let has = |version: &Value| version.pointer(&format!("/subresources/{subresource}")).is_some();
            if has(version) && !has(other) {
                missing.push(format!("the subresource {subresource}"));
            }
        }
        let schema =
            |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default();
        compare("", &schema(version), &schema(other), &mut missing);
    }
    missing
}

/// Adds the paths of the properties that `own` has and `served` removes.
fn compare(path: &str, own: &Value, served: &Value, missing: &mut Vec<String>) {
    if served.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        return;
    }
    let properties = |schema: &Value| schema.get("properties").and_then(Value::as_object).cloned();
    let others = properties(served).unwrap_or_default();
    // The schema of a map accepts every name.
    let map = served.get("additionalProperties");
    for (name, schema) in properties(own).unwrap_or_else(Map::new) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match others.get(&name).or(map) {
            Some(other) => compare(&path, &schema, other, missing),
            None => missing.push(path),
        }
    }
    for (part, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let (Some(own), Some(served)) = (own.get(part), served.get(part)) {
            compare(&format!("{path}{suffix}"), own, served, missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::crd;

    fn definition(plural: &str) -> Value {
        let all = crd::all().unwrap();
        all.into_iter().find(|(file, _)| *file == format!("{plural}.yaml")).unwrap().1
    }

    const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";

    #[test]
    fn nothing_is_missing_in_the_definitions_of_this_release() {
        for (file, own) in crd::all().unwrap() {
            assert!(missing(&own, &own).is_empty(), "{file}");
        }
    }

    #[test]
    fn every_field_that_is_taken_away_is_named_by_its_path() {
        let own = definition("gamedeployments");
        for (place, name, path) in [
            ("/properties/spec/properties", "minReadySeconds", "spec.minReadySeconds"),
            ("/properties/spec/properties/updateStrategy/properties", "paused", "spec.updateStrategy.paused"),
            (
                "/properties/status/properties/conditions/items/properties",
                "reason",
                "status.conditions[].reason",
            ),
            ("/properties", "status", "status"),
        ] {
            let mut served = own.clone();
            let fields = served.pointer_mut(&format!("{SCHEMA}{place}")).and_then(Value::as_object_mut);
            assert!(fields.unwrap().remove(name).is_some(), "{path}");
            assert_eq!(missing(&own, &served), [path]);
            assert!(missing(&served, &own).is_empty(), "a newer definition lacks nothing");
        }
    }

    #[test]
    fn what_is_kept_without_a_schema_is_not_missing() {
        let own = definition("gamedeployments");
        let mut open = own.clone();
        let spec = open.pointer_mut(&format!("{SCHEMA}/properties/spec")).unwrap();
        *spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        assert!(missing(&own, &open).is_empty());
        let mut old = json!({"spec": {"versions": []}});
        assert_eq!(missing(&own, &old), ["the version v1alpha1"]);
        old["spec"]["preserveUnknownFields"] = json!(true);
        assert!(missing(&own, &old).is_empty());
    }

    #[test]
    fn a_version_that_is_not_served_and_a_subresource_are_missing_too() {
        let own = definition("gamedeployments");
        let mut served = own.clone();
        let version = served.pointer_mut("/spec/versions/0").unwrap();
        version["subresources"] = json!({"status": {}});
        assert_eq!(missing(&own, &served), ["the subresource scale"]);
        served.pointer_mut("/spec/versions/0").unwrap()["served"] = json!(false);
        assert_eq!(missing(&own, &served), ["the version v1alpha1"]);
        for odd in [json!(null), json!([]), json!({"spec": {"versions": [7, {"name": 7}]}})] {
            assert_eq!(missing(&own, &odd), ["the version v1alpha1"]);
        }
    }
}
