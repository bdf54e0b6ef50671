//! Turns a JSON schema into rows: path, type, default and description of each field. Must not know any field by its name.

use std::fmt::Write as _;

use super::page;
use serde_json::{Map, Value};

/// A longer pattern helps no reader: the description says what it permits.
const MAX_PATTERN: usize = 40;

/// One field.
pub(super) struct Field {
    path: String,
    kind: String,
    default: String,
    description: String,
}

/// The table of `fields`.
pub(super) fn table(fields: &[Field]) -> String {
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", page::cell(text)) };
    let row = |field: &Field| {
        let default = if field.default == "required" { field.default.clone() } else { code(&field.default) };
        vec![code(&field.path), page::cell(&field.kind), default, page::cell(&field.description)]
    };
    page::table(&["field", "type", "default", "description"], &fields.iter().map(row).collect::<Vec<_>>())
}

/// The fields below an object; with `only`, those below these fields of it, and these themselves.
pub(super) fn below(schema: &Value, only: &[&str]) -> Vec<Field> {
    let mut fields = Vec::new();
    walk(schema, "", &mut fields);
    let is_wanted = |path: &str| only.iter().any(|name| path.split('.').next() == Some(name));
    fields.retain(|field| only.is_empty() || is_wanted(&field.path));
    fields
}

fn walk(schema: &Value, path: &str, fields: &mut Vec<Field>) {
    let schema = &plain(schema);
    let is_required = |name: &str| {
        let required = schema.get("required").and_then(Value::as_array);
        required.is_some_and(|required| required.iter().any(|one| one == name))
    };
    for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let below = plain(below);
        fields.push(field(&path, &below, is_required(name)));
        walk_elements(&below, &path, fields);
    }
}

/// The fields of an object, or of the objects in a list or a map.
fn walk_elements(schema: &Map<String, Value>, path: &str, fields: &mut Vec<Field>) {
    if let Some(items) = schema.get("items") {
        walk_elements(&plain(items), &format!("{path}[]"), fields);
    } else if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        walk_elements(&plain(values), &format!("{path}.*"), fields);
    } else {
        walk(&Value::Object(schema.clone()), path, fields);
    }
}

fn field(path: &str, schema: &Map<String, Value>, is_required: bool) -> Field {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let default = match schema.get("default") {
        _ if is_required => "required".to_owned(),
        // The fields below have the defaults.
        Some(Value::Object(_)) | None => String::new(),
        Some(default) => text(default),
    };
    let mut description = schema.get("description").map(text).unwrap_or_default();
    for (value, meaning) in values(schema) {
        if let Some(meaning) = meaning {
            let _ = write!(description, " `{value}`: {meaning}");
        }
    }
    Field { path: path.to_owned(), kind: kind(schema), default, description }
}

/// The permitted values, with their meanings where the schema has them.
fn values(schema: &Map<String, Value>) -> Vec<(String, Option<String>)> {
    let list = |keyword: &str| schema.get(keyword).and_then(Value::as_array).into_iter().flatten();
    let named = list("oneOf").flat_map(|one| {
        let consts = one
            .get("const")
            .into_iter()
            .chain(one.get("enum").and_then(Value::as_array).into_iter().flatten());
        let meaning = one.get("description").and_then(Value::as_str).map(str::to_owned);
        consts.filter_map(Value::as_str).map(move |value| (value.to_owned(), meaning.clone()))
    });
    let plain = list("enum").filter_map(Value::as_str).map(|value| (value.to_owned(), None));
    named.chain(plain).collect()
}

fn kind(schema: &Map<String, Value>) -> String {
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        return "integer or string".to_owned();
    }
    let values: Vec<_> = values(schema).into_iter().map(|(value, _)| format!("`{value}`")).collect();
    if !values.is_empty() {
        return values.join(", ");
    }
    let name = schema.get("type").and_then(Value::as_str).unwrap_or("any");
    let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    let mut kind = match (name, schema.get("items"), schema.get("additionalProperties")) {
        ("array", Some(items), _) => format!("list of {}", kind_below(items)),
        ("object", _, Some(values)) if values.is_object() => format!("map of {}", kind_below(values)),
        ("object", ..) if open => "object, any field".to_owned(),
        _ => name.to_owned(),
    };
    if schema.get("format").is_some_and(|format| format == "date-time") {
        "time".clone_into(&mut kind);
    }
    let bound = |keyword: &str| schema.get(keyword).map(Value::to_string);
    for (least, most, what) in [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " elements"),
    ] {
        match (bound(least), bound(most)) {
            (Some(least), Some(most)) => _ = write!(kind, ", {least} to {most}{what}"),
            (Some(least), None) => _ = write!(kind, ", at least {least}{what}"),
            (None, Some(most)) => _ = write!(kind, ", at most {most}{what}"),
            (None, None) => {}
        }
    }
    let pattern = schema.get("pattern").and_then(Value::as_str);
    if let Some(pattern) = pattern.filter(|pattern| pattern.len() <= MAX_PATTERN) {
        let _ = write!(kind, ", matches `{pattern}`");
    }
    kind
}

/// The type of an element. One with bounds is in parentheses.
fn kind_below(schema: &Value) -> String {
    let kind = kind(&plain(schema));
    if kind.contains(", ") { format!("({kind})") } else { kind }
}

/// The schema without the alternative `null`: such a field can be absent.
fn plain(schema: &Value) -> Map<String, Value> {
    let mut map = schema.as_object().cloned().unwrap_or_default();
    if let Some(Value::Array(types)) = map.get("type") {
        let one = types.iter().find(|name| *name != "null").cloned().unwrap_or_default();
        map.insert("type".to_owned(), one);
    }
    for keyword in ["anyOf", "allOf"] {
        let Some(Value::Array(variants)) = map.remove(keyword) else { continue };
        let one = variants.into_iter().find(|variant| variant.get("type") != Some(&"null".into()));
        for (name, value) in plain(&one.unwrap_or_default()) {
            map.entry(name).or_insert(value);
        }
    }
    if map.get("default") == Some(&Value::Null) {
        map.remove("default");
    }
    map
}
