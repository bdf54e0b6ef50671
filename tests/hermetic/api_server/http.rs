//! Handles the HTTP requests of the Kubernetes API.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::crowd::Crowd;
use super::faults::Fault;
use super::listener::Shared;
use super::patch;
use super::query::{selects, unescaped};
use super::resize;
use super::store::{Store, too_old};

/// An error answer: the code and the `Status` object.
pub(super) type Refusal = (u16, Value);

/// A parsed call.
struct Received {
    /// For example `PATCH pod/status`.
    call: String,
    /// For example `pods`.
    plural: String,
    namespace: Option<String>,
    name: String,
    query: BTreeMap<String, String>,
    media: String,
    body: Bytes,
}

impl Received {
    /// True for a list of all pods; the pods of a crowd have no labels that a controller selects.
    fn is_of_crowd(&self) -> bool {
        self.plural == "pods" && self.namespace.is_none() && !self.query.contains_key("labelSelector")
    }

    fn is_dry(&self) -> bool {
        let options =
            serde_json::from_slice::<Value>(&self.body).ok().filter(|_| self.call.starts_with("DELETE "));
        self.query.get("dryRun").is_some_and(|dry| dry == "All")
            || options.is_some_and(|options| options["dryRun"] == json!(["All"]))
    }
}

pub(super) fn router(shared: &Arc<Shared>) -> Router {
    Router::new().fallback(answer).with_state(Arc::clone(shared))
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let caller = caller(&request);
    let Some(received) = take_apart(request).await else {
        return refuse(&status(404, "NotFound", "the server could not find the requested resource"));
    };
    let line = match (&received.namespace, received.name.as_str()) {
        (Some(namespace), name) if !name.is_empty() => format!("{} {namespace}/{name}", received.call),
        _ => received.call.clone(),
    };
    // A dry run is not a write, and faults for writes do not apply to it.
    let dry = if received.is_dry() { "WOULD " } else { "" };
    let line = format!("{dry}{line}");
    let plan = shared.rules.plan(&format!("{dry}{}", received.call), received.namespace.as_deref());
    shared.change(|store| {
        store.calls.push(line);
        store.caller = caller;
        for change in &plan.before {
            (change.lock().unwrap())(store);
        }
    });
    match plan.fault {
        Some(Fault::Answer(code, message)) => return refuse(&status(code, "", message)),
        Some(Fault::Hang) => return std::future::pending().await,
        Some(Fault::Nonsense) => return "<html>not me</html>".into_response(),
        Some(Fault::Cut) => {
            shared.cut();
            return std::future::pending().await;
        }
        _ => {}
    }
    shared.until(|store| (!store.mute).then_some(())).await;
    let done = act(&shared, &received);
    match plan.fault {
        Some(Fault::AnswerAfterEffect(code, message)) => refuse(&status(code, "", message)),
        Some(Fault::HangAfterEffect) => std::future::pending().await,
        Some(Fault::CutAfterEffect) => {
            shared.cut();
            std::future::pending().await
        }
        _ => done.unwrap_or_else(|refusal| refuse(&refusal)),
    }
}

/// The headers that say who calls.
fn caller(request: &Request) -> Vec<(String, String)> {
    let said = |name: &str| name == "authorization" || name.starts_with("impersonate-");
    let headers = request.headers().iter().filter(|(name, _)| said(name.as_str()));
    headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
}

async fn take_apart(request: Request) -> Option<Received> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.ok()?;
    let query: BTreeMap<_, _> = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), unescaped(value)))
        .collect();
    let watch = query.get("watch").is_some_and(|watch| watch == "true");
    let path: Vec<_> = parts.uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let (["api", "v1", rest @ ..] | ["apis", _, _, rest @ ..]) = path.as_slice() else { return None };
    let (namespace, kind, name, part) = match rest {
        [] => (None, "resources", "", ""),
        [kind] => (None, *kind, "", ""),
        [kind, name] => (None, *kind, *name, ""),
        ["namespaces", namespace, kind] => (Some((*namespace).to_owned()), *kind, "", ""),
        ["namespaces", namespace, kind, name] => (Some((*namespace).to_owned()), *kind, *name, ""),
        ["namespaces", namespace, kind, name, part] => (Some((*namespace).to_owned()), *kind, *name, *part),
        _ => return None,
    };
    let one = kind.strip_suffix('s')?;
    let call = match (parts.method.as_str(), name.is_empty()) {
        ("GET", true) if watch => format!("WATCH {kind}"),
        ("GET", true) if query.contains_key("continue") => format!("NEXT {kind}"),
        ("GET", true) => format!("LIST {kind}"),
        (verb, _) if part.is_empty() => format!("{verb} {one}"),
        (verb, _) => format!("{verb} {one}/{part}"),
    };
    let media = parts.headers.get("content-type").and_then(|media| media.to_str().ok()).unwrap_or_default();
    let plural = kind.to_owned();
    Some(Received { call, plural, namespace, name: name.to_owned(), query, media: media.to_owned(), body })
}

/// The deletions that are answered.
const DELETIONS: [&str; 5] = [
    "DELETE hookrun",
    "DELETE pod",
    "DELETE controllerrevision",
    "DELETE inplacerollout",
    "DELETE containerrecreaterequest",
];

fn act(shared: &Arc<Shared>, received: &Received) -> Result<Response, Refusal> {
    let namespace = received.namespace.as_deref().unwrap_or_default();
    let name = received.name.as_str();
    if received.call.starts_with("WATCH ") {
        return Ok(watch(shared, received));
    }
    if received.call == "LIST resources" {
        return Ok(axum_json(200, &shared.read(|store| resize::resources(store.resizes))));
    }
    if received.call.starts_with("LIST ") || received.call.starts_with("NEXT ") {
        return Ok(list(shared, received));
    }
    let found = |kind: &str, object: Option<Value>| {
        object.ok_or_else(|| status(404, "NotFound", &format!("{kind} \"{name}\" not found")))
    };
    shared.change(|store| match received.call.as_str() {
        "GET pod" => Ok(axum_json(200, &found("pods", store.pod(namespace, name))?)),
        "GET secret" => {
            let secret = store.secret(namespace, name).or_else(|| store.get("secrets", namespace, name));
            Ok(axum_json(200, &found("secrets", secret)?))
        }
        "PATCH pod" | "PATCH pod/status" => {
            let pod = found("pods", store.pod(namespace, name))?;
            let changed =
                patch::patched(&pod, &received.media, &received.body, received.call == "PATCH pod/status")?;
            Ok(axum_json(200, &if received.is_dry() { changed } else { store.put(changed) }))
        }
        "PATCH pod/resize" => {
            let pod = resize::resizable(store, namespace, name)?;
            let resized = resize::resized(&pod, &received.media, &received.body)?;
            Ok(axum_json(200, &store.put(if store.keeps_resources { pod } else { resized })))
        }
        "GET hookrun"
        | "GET hooktemplate"
        | "GET lease"
        | "GET gamedeployment"
        | "GET gamestatefulset"
        | "GET inplacerollout"
        | "GET deployment"
        | "GET statefulset"
        | "GET replicaset"
        | "GET controllerrevision"
        | "GET job"
        | "GET namespace"
        | "GET customresourcedefinition"
        | "GET storageclasse"
        | "GET mutatingwebhookconfiguration"
        | "GET validatingwebhookconfiguration" => {
            let plural = received.plural.as_str();
            Ok(axum_json(200, &found(plural, store.get(plural, namespace, name))?))
        }
        "PATCH hookrun"
        | "PATCH persistentvolumeclaim"
        | "PATCH hookrun/status"
        | "PATCH inplacerollout"
        | "PATCH gamedeployment"
        | "PATCH gamedeployment/status"
        | "PATCH gamestatefulset"
        | "PATCH deployment"
        | "PATCH gamestatefulset/status"
        | "PATCH controllerrevision"
        | "PATCH inplacerollout/status"
        | "PATCH containerrecreaterequest/status"
        | "PATCH poddisruptionbudget/status"
        | "PATCH mutatingwebhookconfiguration"
        | "PATCH validatingwebhookconfiguration" => {
            let old = found(&received.plural, store.get(&received.plural, namespace, name))?;
            let changed = changed(received, &old)?;
            Ok(axum_json(200, &if received.is_dry() { changed } else { store.put(changed) }))
        }
        "POST inplacerollout"
        | "POST hookrun"
        | "POST lease"
        | "POST pod"
        | "POST controllerrevision"
        | "POST persistentvolumeclaim" => made(store, received, namespace),
        "POST subjectaccessreview" => access(store, received),
        "PUT lease" | "PUT secret" => {
            let plural = received.plural.as_str();
            let old = found(plural, store.get(plural, namespace, name))?;
            let new = parsed(&received.body)?;
            if new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"] {
                return Err(status(409, "Conflict", "the object has been modified"));
            }
            Ok(axum_json(200, &store.put(new)))
        }
        // Nothing runs in the pods of this fake, so the object is removed at once.
        call if DELETIONS.contains(&call) => {
            let object = found(&received.plural, store.get(&received.plural, namespace, name))?;
            removed(store, received, &object)
        }
        "PATCH event" => {
            let at = store.events.iter().position(|event| event["metadata"]["name"] == name);
            let event = found("events", at.map(|at| store.events[at].clone()))?;
            let changed = patch::patched(&event, &received.media, &received.body, false)?;
            store.events[at.unwrap()] = changed.clone();
            Ok(axum_json(200, &changed))
        }
        "POST event" => reported(store, received, namespace),
        call => Err(status(405, "MethodNotAllowed", call)),
    })
}

fn reported(store: &mut Store, received: &Received, namespace: &str) -> Result<Response, Refusal> {
    let event = parsed(&received.body)?;
    check_event(&event, namespace)?;
    if store.events.iter().any(|known| known["metadata"]["name"] == event["metadata"]["name"]) {
        return Err(status(409, "AlreadyExists", "events already exists"));
    }
    store.events.push(event.clone());
    Ok(axum_json(201, &event))
}

fn removed(store: &mut Store, received: &Received, object: &Value) -> Result<Response, Refusal> {
    check_preconditions(received, object)?;
    if received.is_dry() {
        return Ok(axum_json(200, object));
    }
    let namespace = received.namespace.as_deref().unwrap_or_default();
    store.remove_of(&received.plural, namespace, &received.name);
    Ok(axum_json(200, object))
}

/// Answers whether the store's rights allow a user's call.
fn access(store: &mut Store, received: &Received) -> Result<Response, Refusal> {
    let mut review = parsed(&received.body)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let what = &review["spec"]["resourceAttributes"];
    let part = text(&what["subresource"]);
    let kind = text(&what["resource"]) + if part.is_empty() { "" } else { "/" } + &part;
    let user = text(&review["spec"]["user"]);
    let line = format!("{user} {} {kind} {}", text(&what["verb"]), text(&what["namespace"]));
    store.access_reviews.push(review["spec"].clone());
    review["status"] = json!({"allowed": store.rights.contains(&line)});
    Ok(axum_json(201, &review))
}

/// Creates an object; generates a name if it only has `generateName`.
fn made(store: &mut Store, received: &Received, namespace: &str) -> Result<Response, Refusal> {
    let mut object = parsed(&received.body)?;
    if let (Some(first), true) =
        (object["metadata"]["generateName"].as_str(), object["metadata"]["name"].is_null())
    {
        object["metadata"]["name"] = json!(format!("{first}{:05}", store.version()));
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["generation"] = json!(1);
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if store.get(&received.plural, namespace, name).is_some() {
        return Err(status(409, "AlreadyExists", "it already exists"));
    }
    Ok(axum_json(201, &if received.is_dry() { object } else { store.put(object) }))
}

/// All pages of a list show the state of the first one, as long as the history reaches back to it.
fn list(shared: &Arc<Shared>, received: &Received) -> Response {
    let text = |name: &str| received.query.get(name).filter(|text| !text.is_empty());
    let token = text("continue").and_then(|token| token.split_once('.'));
    let token = token.and_then(|(version, from)| Some((version.parse().ok()?, from.parse::<usize>().ok()?)));
    let limit = text("limit").and_then(|limit| limit.parse::<usize>().ok());
    if let Some(crowd) = shared.read(|store| store.crowd.clone().filter(|_| received.is_of_crowd())) {
        return crowded(&crowd, token.map_or(0, |(_, from)| from), limit);
    }
    let wanted = text("resourceVersion").and_then(|version| version.parse().ok());
    let listed = shared.read(|store| match token {
        Some((version, _)) => store.listed_at(&received.plural, version).ok_or_else(|| (410, too_old())),
        None => store
            .listed(&received.plural, wanted)
            .ok_or_else(|| status(504, "Timeout", "Too large resource version")),
    });
    let (mut items, version) = match listed {
        Ok(listed) => listed,
        Err(refusal) => return refuse(&refusal),
    };
    items.retain(|object| received.selects(object));
    let from = token.map_or(0, |(_, from)| from);
    items = items.split_off(from.min(items.len()));
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    // The watch cache has no pages.
    let limit = limit.filter(|limit| *limit < items.len() && wanted.is_none());
    if let Some(limit) = limit {
        items.truncate(limit);
        metadata["continue"] = json!(format!("{version}.{}", from + limit));
    }
    let list = json!({ "kind": "List", "metadata": metadata, "items": items });
    axum_json(200, &list)
}

/// One page of a crowd.
fn crowded(crowd: &Crowd, from: usize, limit: Option<usize>) -> Response {
    let to = limit.map_or(crowd.len(), |limit| crowd.len().min(from + limit));
    let mut metadata = json!({"resourceVersion": "1"});
    if to < crowd.len() {
        metadata["continue"] = json!(format!("1.{to}"));
    }
    let items = crowd.items(from..to);
    let text =
        format!("{{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{metadata},\"items\":[{items}]}}");
    (StatusCode::OK, [("content-type", "application/json")], text).into_response()
}

/// Applies a patch to an object. A changed spec increments the generation, if the object has one.
fn changed(received: &Received, old: &Value) -> Result<Value, Refusal> {
    let of_status = received.call.ends_with("/status");
    let mut changed = patch::patched(old, &received.media, &received.body, of_status)?;
    let generation = old["metadata"]["generation"].as_i64();
    if let Some(generation) = generation.filter(|_| changed["spec"] != old["spec"]) {
        changed["metadata"]["generation"] = json!(generation + 1);
    }
    Ok(changed)
}

/// Checks the preconditions of a deletion: uid and version.
fn check_preconditions(received: &Received, object: &Value) -> Result<(), Refusal> {
    let options = if received.body.is_empty() { Value::Null } else { parsed(&received.body)? };
    let differs = |field: &&str| {
        let wanted = &options["preconditions"][field];
        !wanted.is_null() && *wanted != object["metadata"][field]
    };
    match ["uid", "resourceVersion"].into_iter().find(differs) {
        Some(field) => Err(status(409, "Conflict", &format!("the precondition on {field} does not match"))),
        None => Ok(()),
    }
}

/// Checks what the API server demands of a core event (validation of events, apimachinery names).
fn check_event(event: &Value, namespace: &str) -> Result<(), Refusal> {
    let name = event["metadata"]["name"].as_str().unwrap_or_default();
    let label = |part: &str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
    let whole = !name.is_empty() && name.len() <= 253 && name.split('.').all(label);
    let mine =
        event["metadata"]["namespace"] == namespace && event["involvedObject"]["namespace"] == namespace;
    let short = event["message"].as_str().is_none_or(|message| message.len() <= 1024);
    if whole && mine && short { Ok(()) } else { Err(invalid("event", &event.to_string())) }
}

/// Streams the lines of a watch until the watches are ended, the history is dropped, or the client disconnects.
fn watch(shared: &Arc<Shared>, received: &Received) -> Response {
    let from = received.query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    let (sender, lines) = mpsc::channel::<Result<Bytes, Infallible>>(16);
    let (generation, place) = shared.change(|store| {
        store.watched_from = from;
        (store.generation, store.place(from))
    });
    let (selector, plural) = (received.query.clone(), received.plural.clone());
    let namespace = received.namespace.clone();
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let Some(mut place) = place else {
            let _ = sender.send(Ok(line("ERROR", &too_old()))).await;
            return;
        };
        let mut changed = shared.changed.subscribe();
        loop {
            let (ended, new) = shared.read(|store| {
                if store.mute {
                    return (false, Vec::new());
                }
                let lines: Vec<_> = store
                    .since(place)
                    .iter()
                    .map(|now| {
                        let here = now.plural == plural
                            && namespace.as_ref().is_none_or(|of| now.object["metadata"]["namespace"] == *of);
                        let line = match now.kind {
                            kind @ ("BOOKMARK" | "ERROR") => Some(line(kind, &now.object)),
                            kind if here && selects(&selector, &now.object) => Some(line(kind, &now.object)),
                            // An object that no longer has the labels is deleted for this watch.
                            "MODIFIED" if here && selector.contains_key("labelSelector") => {
                                Some(line("DELETED", &now.object))
                            }
                            _ => None,
                        };
                        (now.kind == "ERROR", line)
                    })
                    .collect();
                (store.generation != generation, lines)
            });
            for (last, line) in new {
                place += 1;
                if let Some(line) = line
                    && sender.send(Ok(line)).await.is_err()
                {
                    return;
                }
                if last {
                    return;
                }
            }
            if ended {
                return;
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = sender.closed() => return,
            }
        }
    });
    Response::builder()
        .header("content-type", "application/json")
        .body(Body::from_stream(ReceiverStream::new(lines)))
        .unwrap()
}

fn line(kind: &str, object: &Value) -> Bytes {
    // The type comes first, as from a real API server.
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}

impl Received {
    fn selects(&self, pod: &Value) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| pod["metadata"]["namespace"] == *namespace)
            && selects(&self.query, pod)
    }
}

pub(super) fn parsed(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| status(400, "BadRequest", &error.to_string()))
}

/// The API server's error for an invalid object, which names the invalid field.
pub(super) fn invalid(field: &str, message: &str) -> Refusal {
    let (code, mut value) = status(422, "Invalid", &format!("it is invalid: {field}: {message}"));
    value["details"] =
        json!({ "causes": [{ "reason": "FieldValueInvalid", "message": message, "field": field }] });
    (code, value)
}

pub(super) fn status(code: u16, reason: &str, message: &str) -> Refusal {
    let value = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code });
    (code, value)
}

fn refuse((code, value): &Refusal) -> Response {
    axum_json(*code, value)
}

fn axum_json(code: u16, value: &Value) -> Response {
    let header = [("content-type", "application/json")];
    (StatusCode::from_u16(code).unwrap(), header, value.to_string()).into_response()
}
