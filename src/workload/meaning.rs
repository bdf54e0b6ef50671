//! The meaning of a pod template: what the API server makes of it. Two templates with the same meaning are the same
//! revision, so that no pod is created again because of how a template is written.
//!
//! A template can come from YAML, from another operator's revision (a Go program writes `resources: {}`, omits empty
//! fields and rewrites quantities), or from a pod that has its defaults. Every rule here is one of the API's: a
//! default of the API server, or two forms that it stores as one. A field without a rule counts as it is written, so
//! that no change of meaning is overlooked.

use serde_json::{Map, Value, json};

use crate::api::pod_template::PodTemplate;

/// Fields whose keys are names that the user chooses.
const MAPS: [&str; 6] =
    ["labels", "annotations", "nodeSelector", "matchLabels", "volumeAttributes", "options"];
/// Fields whose values are quantities, by names.
const QUANTITY_MAPS: [&str; 3] = ["limits", "requests", "overhead"];
/// Fields that are quantities.
const QUANTITIES: [&str; 2] = ["divisor", "sizeLimit"];
/// Objects without fields that say nothing. An empty `emptyDir` or `labelSelector` says something.
const EMPTY: [&str; 10] = [
    "metadata",
    "resources",
    "securityContext",
    "affinity",
    "nodeAffinity",
    "podAffinity",
    "podAntiAffinity",
    "dnsConfig",
    "lifecycle",
    "capabilities",
];
/// Fields for which `false`, `0` and `""` are the same as nothing: the API has no pointers for them.
const ZERO: [&str; 23] = [
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "stdin",
    "stdinOnce",
    "tty",
    "readOnly",
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
    "hostPort",
    "nodeName",
    "serviceAccountName",
    "serviceAccount",
    "hostname",
    "subdomain",
    "priorityClassName",
    "workingDir",
    "subPath",
    "subPathExpr",
    "hostIP",
];

/// A template reduced to its meaning.
pub fn meaning(template: &PodTemplate) -> Value {
    let mut template = template.0.clone();
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        // Go writes it, and nothing reads it.
        metadata.remove("creationTimestamp");
    }
    reduced("template", &template).unwrap_or_else(|| json!({}))
}

/// The meaning of `value` in the field `place`; `None` if it says nothing. The items of a list are in the same place
/// as the list.
fn reduced(place: &str, value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(fields) if QUANTITY_MAPS.contains(&place) => {
            entries(fields.iter().map(|(name, value)| (name, quantity(value))))
        }
        Value::Object(fields) if MAPS.contains(&place) => entries(
            fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name, value.clone())),
        ),
        Value::Object(fields) => {
            let stated = |(name, value): (&String, &Value)| {
                let value = reduced(name, value).filter(|value| !is_default(place, name, value))?;
                Some((name.clone(), value))
            };
            let mut fields: Map<String, Value> = fields.iter().filter_map(stated).collect();
            // The former name of the field; the API server copies one to the other.
            if let Some(account) = fields.remove("serviceAccount") {
                fields.entry("serviceAccountName").or_insert(account);
            }
            (!fields.is_empty() || !EMPTY.contains(&place)).then_some(Value::Object(fields))
        }
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => {
            let items = items.iter().map(|item| match item {
                // An item without fields is still an item.
                Value::Object(_) => reduced(place, item).unwrap_or_else(|| json!({})),
                other => other.clone(),
            });
            Some(Value::Array(items.collect()))
        }
        value if QUANTITIES.contains(&place) => Some(quantity(value)),
        value => Some(value.clone()),
    }
}

fn entries<'a>(entries: impl Iterator<Item = (&'a String, Value)>) -> Option<Value> {
    let entries: Map<_, _> = entries.map(|(name, value)| (name.clone(), value)).collect();
    (!entries.is_empty()).then_some(Value::Object(entries))
}

/// True if the field `name` of an object in `place` has this value without being stated.
fn is_default(place: &str, name: &str, value: &Value) -> bool {
    let zero = *value == json!(false) || *value == json!(0) || *value == json!("");
    if zero && ZERO.contains(&name) {
        return true;
    }
    let default = match (place, name) {
        ("env" | "tolerations", "value")
        | ("tolerations", "key" | "operator" | "effect")
        | ("ports", "name")
        | ("emptyDir", "medium")
        | ("hostPath", "type") => json!(""),
        ("resourceFieldRef", "divisor") => quantity(&json!("0")),
        ("spec", "restartPolicy") => json!("Always"),
        ("spec", "dnsPolicy") => json!("ClusterFirst"),
        ("spec", "schedulerName") => json!("default-scheduler"),
        ("spec", "terminationGracePeriodSeconds") => json!(30),
        ("spec", "enableServiceLinks") => json!(true),
        ("containers" | "initContainers", "terminationMessagePath") => json!("/dev/termination-log"),
        ("containers" | "initContainers", "terminationMessagePolicy") => json!("File"),
        ("ports", "protocol") => json!("TCP"),
        ("livenessProbe" | "readinessProbe" | "startupProbe", "timeoutSeconds" | "successThreshold") => {
            json!(1)
        }
        ("livenessProbe" | "readinessProbe" | "startupProbe", "periodSeconds") => json!(10),
        ("livenessProbe" | "readinessProbe" | "startupProbe", "failureThreshold") => json!(3),
        ("httpGet", "scheme") => json!("HTTP"),
        ("httpGet", "path") => json!("/"),
        ("fieldRef", "apiVersion") => json!("v1"),
        ("secret" | "configMap" | "downwardAPI" | "projected", "defaultMode") => json!(420),
        ("serviceAccountToken", "expirationSeconds") => json!(3600),
        _ => return false,
    };
    *value == default
}

/// A quantity as a number of nanos, in one form for each number; another value as it is.
fn quantity(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return value.clone(),
    };
    nanos(&text).map_or_else(|| value.clone(), |nanos| json!(format!("{nanos}n")))
}

/// The number of nanos in a quantity; `None` if it is none, is no whole number of nanos, or is too large.
fn nanos(text: &str) -> Option<i128> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{part}");
    // With more digits than this the number may not fit.
    if digits.is_empty() || digits.len() > 30 || part.contains('.') {
        return None;
    }
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter().position(|known| *known == suffix);
    let exponent: i32 = match suffix {
        _ if binary.is_some() => 0,
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        _ => {
            suffix.strip_prefix(['e', 'E'])?.parse().ok().filter(|exponent| (-30..=30).contains(exponent))?
        }
    };
    let factor = 1024_i128.checked_pow(binary.map_or(0, |at| u32::try_from(at).unwrap_or(0) + 1))?;
    let value = digits.parse::<i128>().ok()?.checked_mul(factor)?;
    let shift = exponent + 9 - i32::try_from(part.len()).ok()?;
    let power = 10_i128.checked_pow(shift.unsigned_abs())?;
    let value =
        if shift >= 0 { value.checked_mul(power)? } else { (value % power == 0).then_some(value / power)? };
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests;
