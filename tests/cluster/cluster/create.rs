//! Creates the objects of a manifest with the client of the tests: a process of `kubectl` takes 20 times as long. Changes no object
//! that exists; whatever cannot be created is left to `kubectl apply`, which says why.

use kube::Client;
use serde_json::{Value, json};

/// Where `kubectl apply` records what was applied, so that it can apply a change.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Creates all objects of a manifest and returns the output of `kubectl apply`; `None` if one of them was not created.
pub(super) async fn all(client: &Client, manifest: &str) -> Option<String> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(manifest).ok()?;
    let mut output = String::new();
    for object in objects {
        output.push_str(&one(client, object).await?);
    }
    Some(output)
}

async fn one(client: &Client, mut object: Value) -> Option<String> {
    let path = collection(&object)?;
    let metadata = object["metadata"].as_object_mut()?;
    let name = metadata.get("name")?.as_str()?.to_owned();
    metadata.entry("annotations").or_insert_with(|| json!({}));
    metadata.entry("namespace").or_insert_with(|| "default".into());
    let applied = object.to_string();
    object["metadata"]["annotations"][LAST_APPLIED] = applied.into();
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).ok()?;
    client.request::<Value>(request).await.ok()?;
    let kind = object["kind"].as_str()?.to_lowercase();
    let group = group(&object).map(|group| format!(".{group}")).unwrap_or_default();
    Some(format!("{kind}{group}/{name} created\n"))
}

fn group(object: &Value) -> Option<&str> {
    object["apiVersion"].as_str()?.split_once('/').map(|(group, _)| group)
}

/// The path of the objects of this kind in their namespace. The API server has none for a kind without namespaces.
fn collection(object: &Value) -> Option<String> {
    let version = object["apiVersion"].as_str()?;
    let kind = object["kind"].as_str()?.to_lowercase();
    let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
    let root = if version.contains('/') { "apis" } else { "api" };
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    // As `kubectl` asks for it; API servers before 1.25 do not check the names of fields.
    let asked = "fieldValidation=Strict&fieldManager=kubectl-client-side-apply";
    Some(format!("/{root}/{version}/namespaces/{namespace}/{plural}?{asked}"))
}
