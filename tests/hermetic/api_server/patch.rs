//! The kinds of patches that the API server accepts, and the fields that a patch may change.

use serde_json::{Map, Value};

use super::http::{Refusal, invalid, parsed, status};

/// Applies a patch to an object. `of_status`: through the status subresource.
pub(super) fn patched(pod: &Value, media: &str, body: &[u8], of_status: bool) -> Result<Value, Refusal> {
    let body = parsed(body)?;
    let mut changed = pod.clone();
    match media {
        "application/json-patch+json" => operate(&mut changed, &body)?,
        "application/strategic-merge-patch+json" => merge(&mut changed, &body, true),
        "application/merge-patch+json" => merge(&mut changed, &body, false),
        _ => return Err(status(415, "UnsupportedMediaType", media)),
    }
    if changed["metadata"]["resourceVersion"] != pod["metadata"]["resourceVersion"] {
        return Err(status(409, "Conflict", "the object has been modified"));
    }
    // A write through the main resource ignores the status, and a write through the status subresource ignores the
    // spec.
    let foreign = if of_status { "spec" } else { "status" };
    changed[foreign] = pod[foreign].clone();
    if changed[foreign].is_null() {
        changed.as_object_mut().unwrap().remove(foreign);
    }
    check(pod, &changed)?;
    Ok(changed)
}

/// Names never change. In a pod's spec only images may change (the few other mutable fields are not needed here).
fn check(pod: &Value, changed: &Value) -> Result<(), Refusal> {
    for field in ["uid", "name", "namespace"] {
        if pod["metadata"][field] != changed["metadata"][field] {
            return Err(invalid(&format!("metadata.{field}"), "field is immutable"));
        }
    }
    if pod["kind"] != "Pod" {
        return Ok(());
    }
    let without_images = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for kind in ["containers", "initContainers"] {
            for container in spec[kind].as_array_mut().into_iter().flatten() {
                container["image"] = Value::Null;
            }
        }
        spec
    };
    if without_images(pod) != without_images(changed) {
        return Err(invalid("spec", "Forbidden: pod updates may not change fields other than the image"));
    }
    Ok(())
}

/// RFC 6902, as far as it is used.
fn operate(object: &mut Value, operations: &Value) -> Result<(), Refusal> {
    // The API server's message for every patch that does not apply; it does not give the reason.
    let failed = || status(422, "Invalid", "the server rejected our request due to an error in our request");
    for operation in operations.as_array().ok_or_else(|| status(400, "BadRequest", "no list"))? {
        let path = operation["path"].as_str().ok_or_else(failed)?;
        let (parent, last) = path.rsplit_once('/').ok_or_else(failed)?;
        let last = last.replace("~1", "/").replace("~0", "~");
        let value = operation["value"].clone();
        match operation["op"].as_str() {
            Some("test") if object.pointer(path) == Some(&value) => {}
            Some("replace") => *object.pointer_mut(path).ok_or_else(failed)? = value,
            Some("add") => match object.pointer_mut(parent).ok_or_else(failed)? {
                Value::Object(map) => drop(map.insert(last, value)),
                Value::Array(items) if last == "-" => items.push(value),
                _ => return Err(failed()),
            },
            Some("remove") => {
                let map = object.pointer_mut(parent).and_then(Value::as_object_mut).ok_or_else(failed)?;
                map.remove(&last).ok_or_else(failed)?;
            }
            _ => return Err(failed()),
        }
    }
    Ok(())
}

/// RFC 7386. Strategic: conditions are merged by their type, owners by their uid.
fn merge(into: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    for (key, value) in fields {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else if strategic && key == "conditions" {
            for condition in value.as_array().unwrap() {
                merge_condition(&mut into[key], condition);
            }
        } else if strategic && key == "ownerReferences" {
            for owner in value.as_array().unwrap() {
                merge_owner(&mut into[key], owner);
            }
        } else {
            merge(&mut into[key], value, strategic);
        }
    }
}

fn merge_owner(owners: &mut Value, owner: &Value) {
    let mut list = owners.as_array().cloned().unwrap_or_default();
    list.retain(|known| known["uid"] != owner["uid"]);
    if owner["$patch"] != "delete" {
        list.push(owner.clone());
    }
    *owners = Value::Array(list);
}

fn merge_condition(conditions: &mut Value, condition: &Value) {
    if !conditions.is_array() {
        *conditions = Value::Array(Vec::new());
    }
    let list = conditions.as_array_mut().unwrap();
    match list.iter_mut().find(|known| known["type"] == condition["type"]) {
        Some(known) => merge(known, condition, true),
        None => list.push(condition.clone()),
    }
}
