//! The pages below `docs/reference`: each is what the code generates now, or, for the reasons, names each reason of the code
//! and no other. The page about compatibility is generated from the result files of `make matrix`. `make reference` writes the generated pages. The pages about the command line are compared in
//! `src/reference.rs`.

mod compatibility;
mod fields;
mod keys;
mod metrics;
mod page;
mod reasons;

use std::fmt::Write as _;

use inplace::api::crd;
use inplace::api::request::Request;
use inplace::api::status::Status;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

#[test]
fn reference_of_the_kinds() {
    let mut text = String::from(
        "The fields of each kind, from the definitions that `inplace crds` prints. `[]` is an element of a list, `*` a key that \
         you choose. A default is the value that the API server stores if \
         the field is absent.\n",
    );
    for (_, definition) in crd::all().unwrap() {
        let (spec, version) = (&definition["spec"], &definition["spec"]["versions"][0]);
        let names = |field: &str| match &spec["names"][field] {
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("`, `"),
            name => name.as_str().unwrap_or_default().to_owned(),
        };
        let schema = &version["schema"]["openAPIV3Schema"];
        let mut facts = format!(
            "`{}/{}`, plural `{}`",
            spec["group"].as_str().unwrap(),
            version["name"].as_str().unwrap(),
            names("plural")
        );
        if !names("shortNames").is_empty() {
            let _ = write!(facts, ", short name `{}`", names("shortNames"));
        }
        let below: Vec<_> = version["subresources"].as_object().into_iter().flatten().collect();
        if !below.is_empty() {
            let below: Vec<_> = below.iter().map(|(name, _)| format!("`{name}`")).collect();
            let _ = write!(facts, ", subresources {}", below.join(" and "));
        }
        let description = page::cell(schema["description"].as_str().unwrap_or_default());
        let _ = write!(text, "\n## {}\n\n{description}\n\n{facts}.\n\n", names("kind"));
        text.push_str(&fields::table(&fields::below(schema, &["spec", "status"])));
    }
    page::check("crds.md", "Fields of the kinds", &text);
}

#[test]
fn reference_of_annotations_and_labels() {
    let mut text = String::from(
        "The annotations and labels that the program reads or writes, with their values, and the documents in two of them. \
         [Request and status](../request.md) has examples.\n",
    );
    text.push_str("\n## Keys of this project and of the kubelet\n\n");
    text.push_str(&keys::table("src/api/annotation.rs"));
    text.push_str("\n## Keys of workloads, their pods and their hooks\n\n");
    text.push_str(&keys::table("src/api/workload_key.rs"));
    text.push_str("\n## The request\n\nThe JSON in `inplace.dev/request`. Unknown fields are refused.\n\n");
    text.push_str(&fields::table(&fields::below(&request(), &[])));
    text.push_str("\n## The status\n\nThe JSON in `inplace.dev/status`.\n\n");
    text.push_str(&fields::table(&fields::below(&schema::<Status>(), &[])));
    page::check("annotations.md", "Annotations and labels", &text);
}

#[test]
fn reference_of_the_compatibility() {
    page::check("compatibility.md", "Compatibility", &compatibility::text());
}

#[test]
fn reference_of_the_metrics() {
    page::check("metrics.md", "Metrics", &metrics::text());
}

/// The schema of a request, also with the defaults of the fields that are not written if they have their default.
fn request() -> Value {
    let parsed = Request::parse(Some(r#"{"containers":[{"name":"a"}]}"#)).unwrap().unwrap();
    let mut schema = schema::<Request>();
    for (field, default) in [
        ("eachReady", json!(parsed.each_ready)),
        ("drain", json!(parsed.drain)),
        ("allowStaleEnv", json!(parsed.allow_stale_env)),
    ] {
        schema["properties"][field]["default"] = default;
    }
    schema
}

/// The schema of a type, without references.
fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    serde_json::to_value(settings.into_generator().into_root_schema_for::<T>()).unwrap()
}
