//! Fields of a pod template that Kubernetes does not have: pods are created without them, and no error says so. Pure.

use serde_json::Value;

use crate::api::pod_template::PodTemplate;

/// The paths of these fields, from `spec.template` on; fields of releases newer than the types of this program are among
/// them. Empty for a template that cannot be decoded.
pub fn unknown_fields(template: &PodTemplate) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Ok(Ok(typed)) = template.typed().map(serde_json::to_value) {
        lost("spec.template", &template.0, &typed, &mut unknown);
    }
    unknown
}

/// Adds the paths of the fields of `value` that `typed` has lost.
fn lost(path: &str, value: &Value, typed: &Value, unknown: &mut Vec<String>) {
    match (value, typed) {
        (Value::Object(fields), Value::Object(typed)) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                match typed.get(name) {
                    Some(typed) => lost(&path, value, typed, unknown),
                    // The types leave out what is empty.
                    None if is_empty(value) => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(items), Value::Array(typed)) => {
            for (at, (item, typed)) in items.iter().zip(typed).enumerate() {
                lost(&format!("{path}[{at}]"), item, typed, unknown);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn unknown(spec: &Value) -> Vec<String> {
        unknown_fields(&PodTemplate(json!({"metadata": {"labels": {"any": "x"}}, "spec": spec})))
    }

    #[test]
    fn a_misspelt_field_is_named_by_its_path() {
        let spec = json!({"hostNetwrk": true, "nodeSelector": {"any": "x"}, "volumes": [], "containers": [
            {"name": "app", "image": "app:1", "imagePullPolcy": "Always", "resources": {"limits": {"example.com/any": "1"}},
                "readinessProbe": {"httpGet": {"port": 80, "pth": "/"}}}]});
        assert_eq!(
            unknown(&spec),
            [
                "spec.template.spec.containers[0].imagePullPolcy",
                "spec.template.spec.containers[0].readinessProbe.httpGet.pth",
                "spec.template.spec.hostNetwrk",
            ]
        );
    }

    #[test]
    fn fields_that_kubernetes_has_are_known() {
        let container = json!({"name": "app", "image": "app:1", "env": [{"name": "A", "value": ""}], "command": [], "tty": false,
            "securityContext": {}, "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": false}]});
        let spec = json!({"containers": [container], "initContainers": [{"name": "side", "restartPolicy": "Always"}],
            "volumes": [{"name": "v", "emptyDir": {}}], "affinity": {"podAntiAffinity": {}}, "hostUsers": false,
            "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0});
        assert_eq!(unknown(&spec), Vec::<String>::new());
        assert_eq!(unknown(&json!({"containers": "none"})), Vec::<String>::new(), "another check refuses it");
    }
}
