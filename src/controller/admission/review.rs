//! Decodes and encodes `AdmissionReview` (admission.k8s.io/v1). Pure. Must not decide which requests are refused.
//!
//! The body is decoded into the types that are needed, never into a tree of everything in it: the sender controls
//! how large such a tree would be. The fields that are read of every review have limits of their own. An object
//! that is decoded as a whole is weighed before.
//!
//! Not `kube::core::admission`: its request decodes both objects, the options and the user without a limit, and its
//! flattened type fields buffer every unknown field of the review. Its response can be made only from such a
//! request.

use std::collections::BTreeMap;

use axum::body::Bytes;
use k8s_openapi::ByteString;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::controller::admission::bounded::{self, Unreadable, Weight};

/// Most bytes of a namespace or an object's name, and of a user's name in a message.
const MAX_NAME: usize = 253;

/// A request, with the fields that a webhook here uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    /// Identifies the review; the answer repeats it.
    #[serde(deserialize_with = "bounded::uid")]
    uid: String,
    /// The kind of the object.
    pub(super) kind: Kind,
    /// `eviction`, or empty for the object itself.
    #[serde(default, deserialize_with = "bounded::sub_resource")]
    pub(super) sub_resource: String,
    /// `CREATE`, `UPDATE`, ...
    #[serde(deserialize_with = "bounded::operation")]
    pub(super) operation: String,
    /// The name of the object; empty if the API server generates it.
    #[serde(default, deserialize_with = "bounded::name")]
    name: String,
    #[serde(default, deserialize_with = "bounded::namespace")]
    pub(super) namespace: String,
    /// The user who sent the request.
    #[serde(default)]
    pub(super) user_info: UserInfo,
    /// The new version of the object.
    #[serde(default)]
    object: Option<Header>,
    /// The stored version of the object.
    #[serde(default)]
    old_object: Option<Header>,
    #[serde(default)]
    dry_run: Option<bool>,
    /// The whole review, undecoded.
    #[serde(skip)]
    body: Bytes,
}

/// The group and kind of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Kind {
    #[serde(deserialize_with = "bounded::group")]
    pub(super) group: String,
    #[serde(deserialize_with = "bounded::kind")]
    pub(super) kind: String,
}

/// The user who sent a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct UserInfo {
    #[serde(default, deserialize_with = "bounded::username")]
    pub(super) username: String,
    #[serde(default, deserialize_with = "bounded::user_uid")]
    pub(super) uid: String,
    #[serde(default, deserialize_with = "bounded::groups")]
    pub(super) groups: Vec<String>,
    #[serde(default, deserialize_with = "bounded::extra")]
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// The user's name, without control characters and limited in length, for messages.
    pub(super) fn printable(&self) -> String {
        self.username.chars().filter(|char| !char.is_control()).take(MAX_NAME).collect()
    }
}

/// The fields that are read of every object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(default)]
    metadata: Option<HeaderMeta>,
    /// The delete options of an eviction.
    #[serde(default)]
    delete_options: Option<DeleteOptions>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeaderMeta {
    #[serde(default, deserialize_with = "bounded::of_metadata")]
    name: Option<String>,
    #[serde(default, deserialize_with = "bounded::of_metadata")]
    uid: Option<String>,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    #[serde(default, deserialize_with = "bounded::is_filled")]
    dry_run: bool,
}

impl Request {
    /// The name of the object. A deletion of a collection has an empty name, so the object's own name is used.
    pub(super) fn name(&self) -> &str {
        let mut own = [&self.old_object, &self.object].into_iter().flatten();
        let own = own.find_map(|header| header.metadata.as_ref()?.name.as_deref());
        own.filter(|_| self.name.is_empty()).unwrap_or(&self.name)
    }

    /// The uid of the stored object, if the review contains it.
    pub(super) fn old_uid(&self) -> Option<&str> {
        self.old_object.as_ref()?.metadata.as_ref()?.uid.as_deref()
    }

    /// True if the object has a deletion timestamp.
    pub(super) fn is_leaving(&self) -> bool {
        let meta = self.object.as_ref().and_then(|object| object.metadata.as_ref());
        meta.is_some_and(|meta| meta.deletion_timestamp.is_some())
    }

    /// True if the request must have no effect. An eviction has this flag in its delete options.
    pub(super) fn is_dry_run(&self) -> bool {
        let options = self.object.as_ref().and_then(|object| object.delete_options.as_ref());
        self.dry_run == Some(true) || options.is_some_and(|options| options.dry_run)
    }

    /// Checks that the objects may be decoded as a whole.
    ///
    /// # Errors
    /// When one of them would cost too much memory.
    pub(super) fn weigh(&self) -> Result<(), Unreadable> {
        let _: Review<Both> = serde_json::from_slice(&self.body)?;
        Ok(())
    }

    /// Decodes the new version of the object.
    ///
    /// # Errors
    /// When it is not of this type; the text is for users.
    pub(super) fn new_as<T: DeserializeOwned>(&self) -> Result<T, String> {
        let review: Review<New<T>> = serde_json::from_slice(&self.body).map_err(|error| {
            let text = error.to_string();
            // The position in the review helps no user.
            text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_owned()
        })?;
        Ok(review.request.object)
    }

    /// Decodes the stored version of the object; `None` if there is none, or if it is not of this type.
    pub(super) fn old_as<T: DeserializeOwned>(&self) -> Option<T> {
        let review: Review<Old<T>> = serde_json::from_slice(&self.body).ok()?;
        review.request.old_object
    }
}

#[derive(Deserialize)]
struct Review<T> {
    request: T,
}

#[derive(Deserialize)]
struct New<T> {
    object: T,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Old<T> {
    old_object: Option<T>,
}

#[derive(Deserialize)]
struct Both {
    #[serde(default, rename = "object")]
    _object: Weight,
    #[serde(default, rename = "oldObject")]
    _old_object: Weight,
}

/// The answer to a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Allowed, with these warnings for the user.
    Allowed(Vec<String>),
    /// Allowed, with these changes (JSON patch).
    Patched(Value),
    /// Refused.
    Refused(Refusal),
}

/// A refusal, as the API server passes it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The HTTP status code.
    pub(super) code: u16,
    /// The reason of the Kubernetes status.
    pub(super) reason: &'static str,
    /// The text for users.
    pub(super) message: String,
    /// The problems of single fields.
    pub(super) causes: Vec<Problem>,
}

impl Refusal {
    /// The status with which the API server refuses a request that is too large.
    pub(super) fn too_large(message: String) -> Self {
        Self { code: 413, reason: "RequestEntityTooLarge", message, causes: Vec::new() }
    }

    /// The status with which the API server refuses a request for lack of rights.
    pub(super) fn forbidden(message: String) -> Self {
        Self { code: 403, reason: "Forbidden", message, causes: Vec::new() }
    }
}

/// One problem, as `spec.field: what is wrong and what to do`.
pub(super) type Problem = String;

impl From<Vec<Problem>> for Answer {
    /// The status with which the API server refuses an invalid object; allowed if there are no problems.
    fn from(problems: Vec<Problem>) -> Self {
        if problems.is_empty() {
            return Self::Allowed(Vec::new());
        }
        let message = problems.join("; ");
        Self::Refused(Refusal { code: 422, reason: "Invalid", message, causes: problems })
    }
}

/// A field and its problem, as `kubectl` prints them.
#[derive(Serialize)]
struct Cause<'a> {
    reason: &'a str,
    field: &'a str,
    message: &'a str,
}

/// Decodes the review in `body`.
///
/// # Errors
/// When it contains no review, when a limit is exceeded, or when a name is not a valid name of an object: names
/// become parts of URL paths.
pub(super) fn read(body: Bytes) -> Result<Request, Unreadable> {
    let review: Review<Request> = serde_json::from_slice(&body)?;
    let asked = Request { body, ..review.request };
    let is_name = |name: &str| {
        let part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || "-.".contains(char);
        name.len() <= MAX_NAME && !name.starts_with('.') && name.chars().all(part)
    };
    if is_name(&asked.namespace) && is_name(asked.name()) {
        Ok(asked)
    } else {
        Err(Unreadable::Other("no name of an object".to_owned()))
    }
}

/// The review that answers `asked`.
pub(super) fn reply(asked: &Request, answer: &Answer) -> Value {
    let mut response = json!({"uid": asked.uid, "allowed": !matches!(answer, Answer::Refused(_))});
    match answer {
        Answer::Allowed(warnings) if warnings.is_empty() => {}
        Answer::Allowed(warnings) => response["warnings"] = json!(warnings),
        Answer::Patched(patch) => {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(ByteString(patch.to_string().into_bytes()));
        }
        Answer::Refused(refusal) => response["status"] = status(asked, refusal),
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

fn status(asked: &Request, refusal: &Refusal) -> Value {
    let causes = refusal.causes.iter().map(|problem| {
        let (field, message) = problem.split_once(": ").unwrap_or(("", problem));
        Cause { reason: "FieldValueInvalid", field, message }
    });
    json!({
        "status": "Failure", "code": refusal.code, "reason": refusal.reason, "message": refusal.message,
        "details": {
            "group": asked.kind.group, "kind": asked.kind.kind, "name": asked.name(),
            "causes": causes.collect::<Vec<_>>(),
        },
    })
}

/// A request for tests.
#[cfg(test)]
pub(super) fn request(asked: &Value) -> Request {
    read(json!({"request": asked}).to_string().into()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_uid_and_names_every_field() {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u-1", "operation": "CREATE", "kind": {"group": "g", "version": "v1", "kind": "K"},
            "name": "web", "object": {}, "oldObject": null, "dryRun": true}});
        let body = review.to_string();
        let asked = read(body.into()).unwrap();
        assert!(asked.is_dry_run());
        let allowed = reply(&asked, &Vec::new().into());
        assert_eq!(allowed["response"], json!({"uid": "u-1", "allowed": true}));
        let two = vec!["spec.a: too much: take less".to_owned(), "nothing fits".to_owned()];
        let denied = reply(&asked, &two.into());
        let (response, status) = (&denied["response"], &denied["response"]["status"]);
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(false)));
        assert_eq!(status["message"], "spec.a: too much: take less; nothing fits");
        assert_eq!((&status["code"], &status["details"]["name"]), (&json!(422), &json!("web")));
        let causes = &status["details"]["causes"];
        assert_eq!(
            (&causes[0]["field"], &causes[0]["message"]),
            (&json!("spec.a"), &json!("too much: take less"))
        );
        assert_eq!((&causes[1]["field"], &causes[1]["message"]), (&json!(""), &json!("nothing fits")));
        assert!(read(Bytes::from_static(b"{}")).is_err());
        for (namespace, name) in
            [("shop", "web/../x"), ("shop", "web?x"), ("shop", "../x"), ("a/b", "web"), ("A", "web")]
        {
            let review = json!({"request": {"uid": "u", "operation": "DELETE", "namespace": namespace, "name": name,
                "kind": {"group": "", "kind": "Pod"}}});
            assert!(read(review.to_string().into()).is_err(), "{namespace}/{name} becomes part of a path");
        }
    }

    #[test]
    fn a_change_and_a_warning_are_passed_on() {
        let asked =
            request(&json!({"uid": "u", "operation": "CREATE", "kind": {"group": "", "kind": "Pod"}}));
        let reported = reply(&asked, &Answer::Patched(json!([1])));
        assert_eq!(
            reported["response"],
            json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "WzFd"})
        );
        let reported = reply(&asked, &Answer::Allowed(vec!["so".to_owned()]));
        assert_eq!(reported["response"], json!({"uid": "u", "allowed": true, "warnings": ["so"]}));
    }

    #[test]
    fn an_eviction_names_its_pod_and_its_dry_run_itself() {
        let eviction = json!({"uid": "u", "operation": "CREATE", "subResource": "eviction",
            "kind": {"group": "policy", "kind": "Eviction"}, "namespace": "shop", "dryRun": false,
            "object": {"metadata": {"name": "web-0"}, "deleteOptions": {"dryRun": ["All"]}}});
        let asked = request(&eviction);
        assert_eq!((asked.name(), asked.is_dry_run()), ("web-0", true));
    }
}
